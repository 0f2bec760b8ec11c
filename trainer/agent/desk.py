"""The desk: the Unix socket at which the ranks report, ask, and hear of a stop.

It reads JSON lines, checks them and hands them on. Whatever comes in, it answers or drops it;
it never fails. What an answer means is the business of ``Answers``.
"""

import asyncio
import json
import math
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lineshaft.contracts import limits
from lineshaft.contracts.telemetry import FIELDS, Metric
from trainer.agent.progress import Progress, StopOrder

_PATH_BYTES_MAX = 100  # of 108 in sockaddr_un
_NUMBERS = FIELDS[2:-1]
_PHASE_CHARS_MAX = 64
_NAME_CHARS_MAX = 128


class Reports(Protocol):
    """Where steps and metrics go."""

    def row(self, row: Mapping[str, float]) -> None:
        """Take one step of one rank."""
        ...

    def metric(self, metric: Metric) -> None:
        """Take one named value."""
        ...


Answer = Mapping[str, Any]
Answers = Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Answer]]]
"""By question (``may_commit``, ``committed``, ``finished``): what makes the answer."""


class Desk:
    """Serves the ranks of one node."""

    def __init__(
        self, progress: Progress, reports: Reports, answers: Answers, *, now: Callable[[], int]
    ) -> None:
        self._progress = progress
        self._reports = reports
        self._answers = answers
        self._now = now
        self._lines: dict[asyncio.StreamWriter, int] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._folder: Path | None = None
        self.ended = asyncio.Event()
        """Set when an entry point says that its rank ended; its file tells how."""

    async def open(self, folder: Path) -> Path:
        """Listen in ``folder``, or in a private folder when the path would be too long."""
        path = folder / "agent.sock"
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            self._folder = Path(tempfile.mkdtemp(prefix="lineshaft-"))  # mode 0700
            path = self._folder / "agent.sock"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(
            self._serve, path, limit=limits.REPORT_LINE_BYTES_MAX
        )
        path.chmod(0o600)
        return path

    def announce(self, stop: StopOrder) -> None:
        """Tell every rank to save and end; those that connect later hear it too."""
        for writer in list(self._lines):
            self._say(writer, _stop_message(stop))

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._lines):
            writer.close()
        for question in list(self._questions):
            question.cancel()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines[writer] = -1
        try:
            while raw := await reader.readline():
                message = _read(raw)
                if message is not None:
                    self._take(message, writer)
        except (ValueError, OSError, asyncio.IncompleteReadError):
            pass  # a line without end, or a rank that is gone
        finally:
            self._lines.pop(writer, None)
            writer.close()

    def _take(self, message: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        op = message.get("op")
        if op == "hello":
            self._hello(message, writer)
        elif op == "exit":
            self.ended.set()
        elif isinstance(op, str) and op in self._answers and isinstance(message.get("id"), int):
            question = asyncio.create_task(self._reply(op, message, writer))
            self._questions.add(question)
            question.add_done_callback(self._questions.discard)
        else:
            self._told(str(op), message, self._lines.get(writer, -1))

    def _hello(self, message: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        rank = message.get("rank")
        self._lines[writer] = rank if isinstance(rank, int) else -1
        if self._progress.stop is not None and message.get("role") != "supervisor":
            self._say(writer, _stop_message(self._progress.stop))

    def _told(self, op: str, message: Mapping[str, Any], rank: int) -> None:
        known = self._progress.ranks.get(rank)
        if known is None:
            return
        if op == "step":
            self._step(message, rank)
        elif op == "metric":
            metric = _metric(message)
            if metric is not None:
                self._reports.metric(metric)
        elif op == "phase":
            known.phase = str(message.get("name"))[:_PHASE_CHARS_MAX]
        elif op == "dropped":
            count = _number(message.get("count"))
            self._progress.dropped_reports += int(count) if count is not None else 0
        elif op == "error":
            self._progress.errors[rank] = dict(message)

    def _step(self, message: Mapping[str, Any], rank: int) -> None:
        step = message.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 32:
            return
        now = self._now()
        self._progress.step(rank, step, now)
        numbers = {name: _number(message.get(name)) for name in _NUMBERS if name in message}
        row = {name: value for name, value in numbers.items() if value is not None}
        self._reports.row({"step": step, "rank": rank, "at": float(now), **row})

    async def _reply(
        self, op: str, message: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        try:
            answer = await self._answers[op](message)
        except (KeyError, TypeError, ValueError) as error:
            answer = {"ok": False, "reason": f"the question cannot be read: {error!r}"}
        self._say(writer, {"op": "answer", "id": message["id"], **answer})

    def _say(self, writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
        if not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")


def _read(raw: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _stop_message(stop: StopOrder) -> dict[str, Any]:
    return {
        "op": "stop",
        "intent": stop.intent,
        "reason": stop.reason,
        "deadline_ms": stop.deadline_ms,
    }


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _metric(message: Mapping[str, Any]) -> Metric | None:
    name, value, step = message.get("name"), _number(message.get("value")), message.get("step")
    if not isinstance(name, str) or value is None or not isinstance(step, int):
        return None
    split, subtask = message.get("split"), message.get("subtask")
    return Metric(
        name[:_NAME_CHARS_MAX],
        value,
        step,
        split[:_NAME_CHARS_MAX] if isinstance(split, str) else None,
        subtask[:_NAME_CHARS_MAX] if isinstance(subtask, str) else None,
    )
