"""Telling facts: the launcher's own and those of the agents, each minute again while open.

Facts are told by ids that never change, so telling twice is harmless; what is told here is found
again after a crash. Nothing here looks at processes.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from lineshaft.contracts import records
from lineshaft.contracts.events import Fact
from lineshaft.ports import Clock, Objects
from services.scheduler.launchers.claims import Claim
from services.scheduler.launchers.restating import facts_of

SOURCE = "launcher"
_AGAIN_MS = 60_000
_KNOWN_MAX = 100_000


class Telling:
    """Collects facts for the one who publishes them."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._queue: asyncio.Queue[Fact] = asyncio.Queue()
        self._told: dict[str, int] = {}
        self._restated: dict[str, int] = {}

    async def facts(self) -> AsyncIterator[Fact]:
        """Yield facts as they come, for ever."""
        while True:
            yield await self._queue.get()

    def tell_own(
        self, claim: Claim, name: str, kind: str, marked: tuple[int, Mapping[str, Any]]
    ) -> None:
        """Tell a fact of the launcher's own, at most once a minute."""
        at, data = marked
        fact = Fact(
            id=f"{records.run(claim.job, claim.attempt)}{name}",
            kind=kind,
            data=dict(data),
            at=at,
            source=SOURCE,
            subject=claim.job,
            attempt=claim.attempt,
            pool=claim.pool,
            team=claim.team,
        )
        now = self._clock.monotonic()
        told = self._told.get(fact.id)
        if told is None or now - told >= _AGAIN_MS:
            self._told[fact.id] = now
            self._queue.put_nowait(fact)
        self._forget(self._told, now)

    async def restate(self, claim: Claim, *, again: bool = False) -> None:
        """Tell a run's recorded facts, at most once a minute unless ``again``.

        Raises ``StoreUnavailable``; the next call tries again.
        """
        now = self._clock.monotonic()
        told = self._restated.get(claim.name)
        if not again and told is not None and now - told < _AGAIN_MS:
            return
        async for fact in facts_of(claim, self._objects):
            self._queue.put_nowait(fact)
        self._restated[claim.name] = now
        self._forget(self._restated, now)

    def _forget(self, table: dict[str, int], now: int) -> None:
        if len(table) > _KNOWN_MAX:
            for key in [key for key, told in table.items() if now - told >= _AGAIN_MS]:
                del table[key]
