"""Watching the local ranks: what their entry points left, and whether they still live.

Reads the files of ``trainer.rank`` and ``/proc``; it notes what it finds in the progress and
takes no step of its own.
"""

import json
from pathlib import Path
from typing import Any

from lineshaft.ports import Clock
from trainer.agent import procfs
from trainer.agent.order import Order
from trainer.agent.progress import Progress, Rank, RankEnd

_LOOKS_UNTIL_VANISHED = 3


class RankWatch:
    """Looks at the ranks of one node."""

    def __init__(self, order: Order, progress: Progress, clock: Clock) -> None:
        self._folder = order.ranks_folder
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
        if missed >= _LOOKS_UNTIL_VANISHED:
            rank.end = RankEnd(rank.rank, None, None, self._clock.now())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None
