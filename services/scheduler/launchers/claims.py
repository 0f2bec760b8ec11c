"""Run folders: a run's own object on this machine, its claim, its marks and its tombstone.

A folder comes into being whole, by one rename, and only once: that is the claim. What happened
is kept in small files beside it. Nothing here starts or ends a process.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineshaft.contracts import ids
from lineshaft.contracts.failures import INTENT_RANK, StopIntent
from services.scheduler.launchers.processes import Identity, is_locked

CLAIM = "claim.json"
LAUNCHED = "launched"
STOPPED = "stopped"
LAUNCH_FAILED = "launch-failed"
_DRAFT = ".draft-"


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose folder it is. ``not_after`` and ``made_at`` are milliseconds since the epoch."""

    job: str
    attempt: int
    pool: str
    team: str
    nodes: tuple[str, ...]
    not_after: int
    made_at: int
    grace_ms: int
    master_port: int

    @property
    def name(self) -> str:
        """The run's name."""
        return ids.run_name(self.job, self.attempt)


@dataclass(frozen=True, slots=True)
class Stop:
    """What a run's agents are told. ``deadline_ms`` is milliseconds since the epoch."""

    intent: StopIntent
    reason: str
    deadline_ms: int


class RunFolder:
    """One run's folder, that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self) -> Claim | None:
        """Return the claim, or None when this is no run's folder."""
        body = _read(self.path / CLAIM)
        try:
            return None if body is None else Claim(**{**body, "nodes": tuple(body["nodes"])})
        except (KeyError, TypeError):
            return None

    def node(self, name: str) -> "NodeFolder":
        """Return one node's folder; it need not exist yet."""
        return NodeFolder(self.path / name)

    def mark(self, name: str, data: Mapping[str, Any], at: int) -> None:
        """Keep that something happened, once; a second time changes nothing."""
        path = self.path / f"{name}.json"
        if not path.exists():
            _write(path, {"at": at, "data": dict(data)})

    def marked(self, name: str) -> tuple[int, dict[str, Any]] | None:
        """Return when something happened and what is told of it, or None."""
        body = _read(self.path / f"{name}.json")
        return None if body is None else (int(body["at"]), dict(body["data"]))

    @property
    def is_over(self) -> bool:
        """Whether it can never start or live again."""
        return any((self.path / f"{name}.json").exists() for name in (STOPPED, LAUNCH_FAILED))

    def remove(self) -> None:
        """Delete it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


class NodeFolder:
    """One node's part of a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_order(self, order: Mapping[str, Any]) -> None:
        """Write the order, readable by its owner alone, unless it is there."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        path = self.path / "order.json"
        if not path.exists():
            _write(path, order)

    @property
    def is_held(self) -> bool:
        """Whether an agent lives here: it holds the lock, and is who it said it is."""
        agent = self.agent
        return (agent is None or agent.is_alive) and is_locked(self.path / "lock")

    @property
    def agent(self) -> Identity | None:
        """The agent that was here, living or not; None before it said who it is."""
        body = _read(self.path / "agent.json")
        return None if body is None else Identity(int(body["pid"]), int(body["start_time"]))

    def recorded(self) -> list[Identity]:
        """Return the processes of the ranks that their entry points recorded."""
        made: list[Identity] = []
        for path in (self.path / "ranks").glob("rank-*.pids"):
            body = _read(path) or {}
            for pid, start in (("pid", "start_time"), ("supervisor_pid", "supervisor_start_time")):
                if body.get(pid):
                    made.append(Identity(int(body[pid]), int(body[start])))
        return made

    def stop(self) -> Stop | None:
        """Return the stop that the agent was told."""
        body = _read(self.path / "intent.json")
        if body is None:
            return None
        return Stop(StopIntent(body["intent"]), str(body["reason"]), int(body["deadline_ms"]))

    def tell(self, stop: Stop) -> bool:
        """Leave a stop for the agent; False when it knows this one or a higher one."""
        known = self.stop()
        if known is not None and INTENT_RANK[known.intent] >= INTENT_RANK[stop.intent]:
            return False
        self.path.mkdir(mode=0o700, exist_ok=True)
        told = {"intent": stop.intent.value, "reason": stop.reason}
        _write(self.path / "intent.json", {**told, "deadline_ms": stop.deadline_ms})
        return True

    def last_words(self, lines: int = 20) -> list[str]:
        """Return the end of the agent's own error output."""
        try:
            text = (self.path / "agent.err").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-lines:]


class Claims:
    """All run folders of one machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, job: str, attempt: int) -> Path:
        """Return where a run's folder is or would be."""
        return self._root / ids.run_name(job, attempt)

    def find(self, job: str, attempt: int) -> RunFolder | None:
        """Return a run's folder, or None while nobody claimed the run."""
        path = self.path(job, attempt)
        return RunFolder(path) if path.is_dir() else None

    def make(
        self, claim: Claim, marks: Sequence[tuple[str, Mapping[str, Any]]] = ()
    ) -> RunFolder | None:
        """Claim a run, with ``marks`` on it from the first moment; None when it is taken."""
        self._root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._root))
        body = {name: getattr(claim, name) for name in Claim.__slots__}
        _write(draft / CLAIM, {**body, "nodes": list(claim.nodes)})
        folder = RunFolder(draft)
        for name, data in marks:
            folder.mark(name, data, claim.made_at)
        path = self.path(claim.job, claim.attempt)
        try:
            draft.rename(path)  # refused when the folder is there: it always holds its claim
        except OSError:
            folder.remove()
            if path.is_dir():
                return None
            raise
        return RunFolder(path)

    def all(self) -> Iterator[tuple[RunFolder, Claim]]:
        """Yield every run's folder with its claim."""
        if not self._root.is_dir():
            return
        for path in sorted(self._root.iterdir()):
            folder = RunFolder(path)
            claim = None if path.name.startswith(".") else folder.claim()
            if claim is not None:
                yield folder, claim

    def forget_drafts(self, before_s: float) -> None:
        """Delete unfinished claims that were begun before ``before_s`` (s since the epoch)."""
        for path in self._root.glob(f"{_DRAFT}*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before_s:
                    shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def _write(path: Path, body: Mapping[str, Any]) -> None:
    """Write a small file whole and durable, readable by its owner alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(body, file, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
