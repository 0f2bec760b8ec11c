"""Stacks of the ranks: by a signal where a handler stands, and what /proc says of each.

Taking them changes nothing in a rank: one without a handler is never signalled.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from lineshaft.contracts import limits, records
from lineshaft.ports import Clock, Objects, StoreUnavailable
from trainer.agent import procfs
from trainer.agent.order import Order
from trainer.agent.progress import Progress, Rank
from trainer.rank import STACKS_SIGNAL

_WAIT_MS = 2_000
_LOOK_EVERY_MS = 100
_WATCH_EVERY_MS = 500
_STACK_BYTES_MAX = 64 * 1024


class Stacks:
    """Takes and keeps the stacks of one node's ranks."""

    def __init__(self, order: Order, progress: Progress, objects: Objects, clock: Clock) -> None:
        self._order = order
        self._progress = progress
        self._objects = objects
        self._clock = clock
        self._number = 0

    async def take(self, reason: str) -> str | None:
        """Take the stacks of all living ranks; return their key, or None if nothing kept them."""
        living = [rank for rank in self._progress.ranks.values() if rank.end is None and rank.pid]
        folder = self._order.ranks_folder
        files = {rank.rank: folder / f"rank-{rank.rank}.stacks" for rank in living}
        sizes = {rank: _size(path) for rank, path in files.items()}
        signalled = [rank for rank in living if _signal(rank)]
        await self._settle([files[rank.rank] for rank in signalled])
        body = {
            "node": self._order.node,
            "at": self._clock.now(),
            "reason": reason,
            "last_step": self._progress.last_step,
            "ranks": [_of(rank, files[rank.rank], sizes[rank.rank]) for rank in living],
        }
        raw = json.dumps(body).encode()[: limits.BUS_PAYLOAD_BYTES_MAX]
        order = self._order
        key = records.stacks(order.job, order.attempt, order.node, self._number)
        self._number += 1
        try:
            await self._objects.put(key, raw, replace=True)
        except (StoreUnavailable, OSError):
            return None
        return key

    async def _settle(self, files: list[Path]) -> None:
        """Wait until the files grow no more, two seconds at most."""
        before: list[int] = []
        for _ in range(_WAIT_MS // _LOOK_EVERY_MS if files else 0):
            await self._clock.sleep(_LOOK_EVERY_MS)
            sizes = [_size(path) for path in files]
            if sizes == before and all(sizes):
                return
            before = sizes


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _signal(rank: Rank) -> bool:
    is_safe = procfs.is_alive(rank.pid, rank.start_time) and procfs.catches(rank.pid, STACKS_SIGNAL)
    if is_safe:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, STACKS_SIGNAL)
    return is_safe


def _of(rank: Rank, path: Path, start: int) -> dict[str, Any]:
    process = procfs.look(rank.pid)
    try:
        with path.open("rb") as file:
            file.seek(start)
            stack = file.read(_STACK_BYTES_MAX).decode(errors="replace")
    except OSError:
        stack = ""
    return {
        "rank": rank.rank,
        "pid": rank.pid,
        "state": process.state if process else "X",
        "wchan": procfs.wait_channel(rank.pid),
        "last_step": rank.last_step,
        "stack": stack,
    }


class HangWatch:
    """Takes stacks once per episode in which no rank reports a step for longer than its limit."""

    def __init__(self, order: Order, progress: Progress, stacks: Stacks, clock: Clock) -> None:
        self._order = order
        self._progress = progress
        self._stacks = stacks
        self._clock = clock
        self._began = clock.now()
        self._is_open = False

    @property
    def is_hanging(self) -> bool:
        """Whether no step came for longer than the order allows."""
        last = self._progress.last_step_at
        limit = self._order.hang_limit_ms if last else self._order.first_step_limit_ms
        return limit > 0 and self._clock.now() - (last or self._began) > limit

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(_WATCH_EVERY_MS)
            if self._progress.phase != "running":
                self._began = self._clock.now()
            elif not self.is_hanging:
                self._is_open = False
            elif not self._is_open:
                self._is_open = True
                await self._stacks.take("no step for longer than the run's limit")
