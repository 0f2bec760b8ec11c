"""Builders for tests of the terminal: answers of a platform, and a client that gives them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from typer.testing import CliRunner, Result

from lineshaft.cli.main import app
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError

JOB = "j-aaaaaaaaaaaaaaaa"
Answers = dict[tuple[str, str], Any]


class Scripted(Client):
    """A client whose requests are answered from a table; a function is called with the request."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    async def request(self, service: str, verb: str, /, **params: Any) -> dict[str, Any]:
        """Answer from the table."""
        params.pop("timeout_ms", None)
        given = {name: value for name, value in params.items() if value is not None}
        self.asked.append((service, verb, given))
        answer = self.answers.get((service, verb))
        if answer is None:
            raise PlatformError("not_found", f"nothing is known about {verb}")
        made = answer(given) if callable(answer) else answer
        if isinstance(made, PlatformError):
            raise made
        return dict(made)


def runs(monkeypatch: Any, answers: Answers) -> Callable[..., Result]:
    """Return a function that runs the command line against a platform that answers so."""
    client = Scripted(answers)

    @contextlib.asynccontextmanager
    async def connect(*_: Any, **__: Any) -> AsyncIterator[Scripted]:
        yield client

    monkeypatch.setattr(Client, "connect", connect)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    run.client = client  # type: ignore[attr-defined]
    return run


def a_job(name: str = "chat", **more: Any) -> dict[str, Any]:
    """Return a job's state as the scheduler tells it."""
    return {
        "job": JOB,
        "name": name,
        "team": "default",
        "pool": "default",
        "state": "Running",
        "substate": "training",
        "reason": "ranks train",
        "actor": "scheduler",
        "since": 1_700_000_060_000,
        "attempt": 1,
        "attempts": {},
        "priority": 500,
        "job_type": "full-finetune",
        "submitted_at": 1_700_000_000_000,
        "nodes": [{"node": "local", "slots": [0, 1]}],
        "resume_from": None,
        "checkpoints": [],
        "timeline": [],
        "diagnosis": None,
        "manifest": None,
        "model": None,
        "labels": {},
        "spec": {},
        "resolved": {},
        "estimate": {},
        "version": 3,
        **more,
    }


def a_line(text: str, *, at: int = 1_700_000_000_000, rank: int = 0) -> dict[str, Any]:
    """Return a log line."""
    return {
        "at": at,
        "attempt": 1,
        "node": "local",
        "rank": rank,
        "stream": "out",
        "text": text,
    }
