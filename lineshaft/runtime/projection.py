"""Projection: read models follow the service's own journal, and can always be made again.

The position is a document beside those it covers, written in the same put; views that are lost
lose it too, and are rebuilt from the first entry.
"""

import asyncio
from collections.abc import Callable, Sequence

from lineshaft.ports import Clock, Document, Journal, StoreUnavailable, Views
from lineshaft.runtime.decider import Projector

POSITION_KIND = "projection"
_RETRY_MS_MIN, _RETRY_MS_MAX = 100, 10_000


class Projection:
    """Runs one projector over the streams of its service."""

    def __init__(
        self,
        projector: Projector,
        streams: Sequence[str],
        *,
        journal: Journal,
        views: Views,
        clock: Clock,
        alarm: Callable[[str, str, str], None],
    ) -> None:
        self._projector = projector
        self._streams = list(streams)
        self._journal = journal
        self._views = views
        self._clock = clock
        self._alarm = alarm
        self._positions: dict[str, int] = dict.fromkeys(streams, 0)
        self._moved = asyncio.Event()

    def position(self, stream: str) -> int:
        """Return the seq up to which the views hold ``stream``; 0 for a stream of others."""
        return self._positions.get(stream, 0)

    async def run(self) -> None:
        """Follow all streams for ever."""
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(self._follow(stream))

    async def _follow(self, stream: str) -> None:
        delay = _RETRY_MS_MIN
        while True:
            before = self._positions[stream]
            try:
                await self._project(stream)
            except StoreUnavailable:
                pass
            except Exception as error:
                self._alarm("projection_failed", stream, repr(error))
            moved = self._positions[stream] > before
            delay = _RETRY_MS_MIN if moved else min(delay * 2, _RETRY_MS_MAX)
            await self._clock.sleep(delay)

    async def _project(self, stream: str) -> None:
        kept = await self._views.get(POSITION_KIND, stream)
        after = 0 if kept is None else kept.version
        self._move(stream, after)
        async for entry in self._journal.read(stream, after, follow=True):
            documents = list(await self._projector.project(entry, self._views))
            position = Document(POSITION_KIND, stream, entry.seq, {"seq": entry.seq}, stream)
            await self._views.put([*documents, position])
            self._move(stream, entry.seq)

    def _move(self, stream: str, seq: int) -> None:
        self._positions[stream] = seq
        self._moved.set()

    async def wait_for(self, stream: str, seq: int, timeout_ms: int) -> bool:
        """Wait until the views hold ``stream`` up to ``seq``; False after ``timeout_ms``."""
        deadline = self._clock.monotonic() + timeout_ms
        while self._positions.get(stream, 0) < seq:
            left = deadline - self._clock.monotonic()
            if left <= 0 or stream not in self._positions:
                return False
            self._moved.clear()
            sleeping = asyncio.ensure_future(self._clock.sleep(left))
            moving = asyncio.ensure_future(self._moved.wait())
            try:
                await asyncio.wait({sleeping, moving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                moving.cancel()
        return True
