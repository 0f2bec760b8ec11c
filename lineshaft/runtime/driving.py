"""What drives consumption: a driver pulls batches and hands each to the service.

``PortDriver`` knows only the Bus port; ``subscribers.py`` has the one on FastStream.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

from lineshaft.contracts import limits
from lineshaft.ports import Bus, Clock, Message
from lineshaft.runtime.delivery import Consumption

Take = Callable[[Sequence[Message], Consumption], Awaitable[None]]
IsReady = Callable[[], bool]
_GATE_MS = 50


class Driver(Protocol):
    """Pulls a service's consumptions until it is stopped."""

    async def start(self) -> None:
        """Begin to pull."""
        ...

    async def stop(self) -> None:
        """Finish the batches in hand, give back what is not handed out, end."""
        ...

    def is_running(self) -> bool:
        """Tell whether every consumption is being pulled."""
        ...


class Feed:
    """One consumption's batches, one at a time, and an end that loses none.

    Pulling begins when ``is_ready`` first holds: a process that leads nothing takes nothing.
    """

    def __init__(self, bus: Bus, which: Consumption, clock: Clock, is_ready: IsReady) -> None:
        self._bus = bus
        self.which = which
        self._clock = clock
        self._is_ready = is_ready
        self._source: AsyncGenerator[list[Message], None] | None = None
        self._next: asyncio.Task[list[Message]] | None = None
        self._ended = asyncio.Event()

    async def take(self, timeout_s: float | None = None) -> list[Message] | None:
        """Return the next batch; empty after ``timeout_s``; None once the feed has ended."""
        while not self._is_ready() and not self._ended.is_set():
            await self._clock.sleep(_GATE_MS)
        if self._ended.is_set():
            return None
        if self._next is None:
            self._next = asyncio.ensure_future(self._pull())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait(
                {self._next, ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ending.cancel()
        if self._next.done():
            taken, self._next = self._next, None
            return taken.result()
        return None if self._ended.is_set() else []

    async def _pull(self) -> list[Message]:
        if self._source is None:
            pulled = self._bus.pull(
                self.which.stream,
                self.which.durable,
                self.which.subjects,
                batch=limits.BATCH_FACTS_MAX,
            )
            self._source = cast("AsyncGenerator[list[Message], None]", pulled)
        return await anext(self._source)

    def end(self) -> None:
        """Hand out nothing more."""
        self._ended.set()

    async def aclose(self) -> None:
        """Give back what was fetched; call it when nobody is in ``take`` any more."""
        self.end()
        if self._next is not None:
            was_done = self._next.done()
            self._next.cancel()
            results = await asyncio.gather(self._next, return_exceptions=True)
            if was_done and isinstance(results[0], list):
                for message in results[0]:
                    with suppress(Exception):
                        await message.nack(0)
        if self._source is not None:
            await self._source.aclose()


class PortDriver:
    """Pulls through the Bus port, one task for each consumption."""

    def __init__(
        self,
        consumptions: Sequence[Consumption],
        take: Take,
        *,
        bus: Bus,
        clock: Clock,
        is_ready: IsReady,
    ) -> None:
        self._take = take
        self._clock = clock
        self._feeds = [Feed(bus, which, clock, is_ready) for which in consumptions]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to pull."""
        self._tasks = [asyncio.create_task(self._run(feed)) for feed in self._feeds]

    async def _run(self, feed: Feed) -> None:
        while (batch := await feed.take()) is not None:
            if batch:
                await self._take(batch, feed.which)

    async def stop(self) -> None:
        """Finish the batches in hand, give back what is not handed out, end."""
        for feed in self._feeds:
            feed.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for feed in self._feeds:
            await feed.aclose()

    def is_running(self) -> bool:
        """Tell whether every consumption is being pulled."""
        return bool(self._tasks or not self._feeds) and not any(t.done() for t in self._tasks)
