"""Ending processes of a run: first asked, then killed, each confirmed gone.

A process is touched only while pid and start time are those that were recorded, or while it
carries the mark of this node's run.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Sequence

from lineshaft.ports import Clock
from trainer.agent import procfs
from trainer.agent.order import Order
from trainer.agent.progress import Rank
from trainer.agent.starting import NODE_FOLDER_VARIABLE

_ASK_MS = 3_000
_KILL_MS = 5_000
_LOOK_EVERY_MS = 50


def ask_ranks(ranks: Iterable[Rank], number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to the ranks themselves, not to what they started."""
    for rank in ranks:
        if rank.end is None and rank.pid and procfs.is_alive(rank.pid, rank.start_time):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, number)


async def end_all(order: Order, clock: Clock, *, ask_ms: int = _ASK_MS) -> list[int]:
    """End every process of this node's run but the agent; return pids that would not go.

    Asks, waits for ``ask_ms`` at most, kills.
    """
    _signal(_living(order), signal.SIGTERM)
    left = await _wait(order, clock, ask_ms)
    if left:
        _signal(left, signal.SIGKILL)
        left = await _wait(order, clock, _KILL_MS, is_killing=True)
    return [process.pid for process in left]


def _living(order: Order) -> list[procfs.Process]:
    marked = procfs.marked(NODE_FOLDER_VARIABLE, str(order.node_folder))
    return [process for process in marked if process.pid != os.getpid()]


def _signal(processes: Sequence[procfs.Process], number: signal.Signals) -> None:
    for process in processes:
        if procfs.is_alive(process.pid, process.start_time):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


async def _wait(
    order: Order, clock: Clock, limit_ms: int, *, is_killing: bool = False
) -> list[procfs.Process]:
    deadline = clock.monotonic() + limit_ms
    while left := _living(order):
        if clock.monotonic() >= deadline:
            return left
        if is_killing:
            _signal(left, signal.SIGKILL)  # what a dying process started meanwhile
        await clock.sleep(_LOOK_EVERY_MS)
    return []
