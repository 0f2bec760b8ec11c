"""What a service finds wrong with itself, published as ``audit.finding`` when the bus takes it."""

import asyncio
from collections import OrderedDict
from typing import Any

from structlog.typing import FilteringBoundLogger

from lineshaft.contracts import events, subjects
from lineshaft.contracts.events import Fact
from lineshaft.ports import Bus, BusUnavailable, Clock

FINDINGS_HELD_MAX = 1_000
SUMMARY_CHARS_MAX = 2_000
_RETRY_MS = 1_000


class Auditor:
    """Holds findings until they are published; one per kind and subject, the latest."""

    def __init__(self, service: str, bus: Bus, clock: Clock, log: FilteringBoundLogger) -> None:
        self._service = service
        self._bus = bus
        self._clock = clock
        self._log = log
        self._told: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._held: OrderedDict[tuple[str, str], tuple[str, str, int]] = OrderedDict()
        self._woken = asyncio.Event()

    def find(self, kind: str, subject: str, status: str, summary: str) -> None:
        """Hold a finding for publication unless its status is the one told last."""
        if status not in ("open", "closed"):
            raise ValueError(f"a finding is open or closed, not {status!r}")
        key = (f"{self._service}.{kind}", subject[:256])
        if self._told.get(key, "closed") == status:
            return
        _remember(self._told, key, status)
        _remember(self._held, key, (status, summary[:SUMMARY_CHARS_MAX], self._clock.now()))
        self._log.info("finding", kind=key[0], subject=subject, status=status, summary=summary)
        self._woken.set()

    async def run(self) -> None:
        """Publish what is held, for ever."""
        while True:
            self._woken.clear()
            try:
                await self.turn()
                await self._woken.wait()
            except BusUnavailable:
                await self._clock.sleep(_RETRY_MS)

    async def turn(self) -> None:
        """Publish what is held now. Raises ``BusUnavailable``; the rest stays held."""
        while self._held:
            key, (status, summary, at) = next(iter(self._held.items()))
            kind, subject = key
            data = {"kind": kind, "subject": subject, "status": status, "summary": summary}
            name = f"audit:{kind}:{subject}:{at}"[:256]
            fact = Fact(name, "audit.finding", data, at, self._service)
            raw = events.encode(fact)
            await self._bus.publish(subjects.of_fact(fact), raw, message_id=name)
            if self._held.get(key) == (status, summary, at):
                del self._held[key]


def _remember(where: "OrderedDict[Any, Any]", key: Any, value: Any) -> None:
    where.pop(key, None)
    where[key] = value
    if len(where) > FINDINGS_HELD_MAX:
        where.popitem(last=False)
