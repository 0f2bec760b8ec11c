"""Watching the local ranks: what their entry points left, and whether they still live.

Reads the files of ``trainer.rank`` and ``/proc``; it notes what it finds in the progress and
takes no step of its own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lineshaft.contracts.failures import EXIT_OF_CLASS, FailureClass
from lineshaft.ports import Clock
from trainer.agent import procfs
from trainer.agent.order import Order
from trainer.agent.progress import Progress, Rank, RankEnd
from trainer.rank import NOT_EXECUTABLE, NOT_FOUND

CLASS_OF_EXIT = {code: failure for failure, code in EXIT_OF_CLASS.items()}
LOOKS_UNTIL_VANISHED = 3


class RankWatch:
    """Looks at the ranks of one node."""

    def __init__(self, order: Order, progress: Progress, clock: Clock) -> None:
        self._folder = order.ranks_folder
        self._is_script = order.is_script
        self._progress = progress
        self._clock = clock
        self._missed: dict[int, int] = {}

    def look(self, *, are_starters_gone: bool) -> None:
        """Note new pids and ends. ``are_starters_gone``: nobody is left who would start a rank."""
        for rank in self._progress.ranks.values():
            if rank.end is not None:
                continue
            if not rank.pid:
                self._name(rank)
            self._note_end(rank)
            if rank.end is None and self._is_watcher_gone(rank, are_starters_gone):
                self._miss(rank)
            else:
                self._missed.pop(rank.rank, None)

    def error_of(self, rank: int) -> dict[str, Any] | None:
        """Return what a rank said of its own end: its file's word, else the line's."""
        told = _read(self._folder / f"rank-{rank}.error")
        if told is not None:
            return told
        said = self._progress.errors.get(rank)
        if said is None:
            return None
        return {key: said.get(key) for key in ("kind", "message", "traceback", "class")}

    def class_of(self, end: RankEnd) -> FailureClass:
        """Return whose an end is: the rank's own word, else by its code or signal."""
        error = self.error_of(end.rank) or {}
        if error.get("class") in set(FailureClass):
            return FailureClass(error["class"])
        if end.exit_code is None:
            return FailureClass.INFRASTRUCTURE
        if self._is_script:
            is_absent = end.exit_code in (NOT_FOUND, NOT_EXECUTABLE)
            return FailureClass.CONFIG if is_absent else FailureClass.USER_CODE
        return CLASS_OF_EXIT.get(end.exit_code, FailureClass.USER_CODE)

    def _name(self, rank: Rank) -> None:
        body = _read(self._folder / f"rank-{rank.rank}.pids")
        if body is not None:
            rank.pid, rank.start_time = int(body["pid"]), int(body["start_time"])
            rank.supervisor_pid = int(body["supervisor_pid"])
            rank.supervisor_start_time = int(body["supervisor_start_time"])

    def _note_end(self, rank: Rank) -> None:
        body = _read(self._folder / f"rank-{rank.rank}.exit")
        if body is not None:
            rank.end = RankEnd(rank.rank, body["exit_code"], body["signal"], int(body["at"]))

    def _is_watcher_gone(self, rank: Rank, are_starters_gone: bool) -> bool:
        if not rank.pid:
            return are_starters_gone
        return not procfs.is_alive(rank.supervisor_pid, rank.supervisor_start_time)

    def _miss(self, rank: Rank) -> None:
        """Count looks at which a rank's watcher was gone without a word; then so is the rank."""
        missed = self._missed.get(rank.rank, 0) + 1
        self._missed[rank.rank] = missed
        if missed >= LOOKS_UNTIL_VANISHED:
            rank.end = RankEnd(rank.rank, None, None, self._clock.now())


def describe(end: RankEnd, last_lines: Sequence[str]) -> str:
    """Say in one line how a rank ended."""
    how = f"exit code {end.exit_code}" if end.signal is None else f"signal {end.signal}"
    if end.signal is None and end.exit_code is None:
        how = "its watcher gone too"
    last = next((line for line in reversed(last_lines) if line.strip()), "")
    return f"rank {end.rank} ended with {how}" + (f": {last.strip()}" if last else "")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None
