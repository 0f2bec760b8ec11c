"""Clocks: the machine's, and a virtual one that only moves when it is told to.

The only place of the shared parts where time is read. Standard library only: the agent
imports this module.
"""

import asyncio
import heapq
import itertools
import time

# How often the loop turns after a wake-up, so that chains of awaits inside woken tasks run
# before time moves on. Work that leaves the loop (threads, sockets) is not waited for.
_TURNS_AFTER_WAKE = 25


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """Return milliseconds since the epoch (UTC)."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        """Return milliseconds of a clock that never goes back."""
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, milliseconds: int) -> None:
        """Wait."""
        await asyncio.sleep(max(0, milliseconds) / 1000)


class VirtualClock:
    """A clock for tests: it stands still until ``advance`` moves it. One event loop only."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now(self) -> int:
        """Return the virtual time, milliseconds since the epoch."""
        return self._now

    def monotonic(self) -> int:
        """Return the virtual milliseconds since the clock was made."""
        return self._now - self._start

    async def sleep(self, milliseconds: int) -> None:
        """Wait until ``advance`` has passed ``milliseconds``; only yield when not positive."""
        if milliseconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + milliseconds, next(self._order), woken))
        await woken

    async def advance(self, milliseconds: int) -> None:
        """Move time on, waking sleepers in the order of their deadlines, each at its own.

        A woken task that sleeps again inside the span is woken again. Raises ``ValueError``
        when ``milliseconds`` is negative.
        """
        if milliseconds < 0:
            raise ValueError("time does not go back")
        end = self._now + milliseconds
        await _turn()
        while self._sleepers and self._sleepers[0][0] <= end:
            deadline, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self._now = deadline
            woken.set_result(None)
            await _turn()
        self._now = end

    @property
    def next_wake(self) -> int | None:
        """When the first sleeper wakes (milliseconds since the epoch), or None."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


async def _turn() -> None:
    for _ in range(_TURNS_AFTER_WAKE):
        await asyncio.sleep(0)
