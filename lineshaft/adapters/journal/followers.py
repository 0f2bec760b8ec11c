"""Who waits for which stream to grow, and how they are woken.

No store is read here. All of it belongs to the event loop of its journal.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping


class Followers:
    """Readers at the end of a stream, woken when a higher seq becomes known."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._error: Exception | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams someone waits for now."""
        return tuple(self._waiting)

    def grown(self, latest: Mapping[str, int]) -> None:
        """Tell the highest known seq of some streams."""
        for stream, seq in latest.items():
            # Kept also when nobody waits: a reader may have looked just before the commit
            # and register just after this call.
            if seq > self._latest.get(stream, 0):
                self._latest[stream] = seq
                self._wake(stream)

    async def wait(self, stream: str, after: int) -> None:
        """Return once ``stream`` is known to reach beyond ``after``; raise what ended it."""
        while self._latest.get(stream, 0) <= after:
            if self._error is not None:
                raise self._error
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[stream].add(woken)
            try:
                await woken
            finally:
                self._forget(stream, woken)

    def end(self, error: Exception) -> None:
        """Let every wait, now and later, raise ``error``."""
        self._error = error
        for stream in self.streams:
            self._wake(stream)

    def _wake(self, stream: str) -> None:
        for woken in self._waiting.get(stream, ()):
            if not woken.done():
                woken.set_result(None)

    def _forget(self, stream: str, woken: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(stream)
        if waiting is not None:
            waiting.discard(woken)
            if not waiting:
                del self._waiting[stream]
