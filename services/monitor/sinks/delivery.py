"""The doer that tells people: it follows the journal and hands each alert event to the sinks.

A delivery is recorded as a mark per sink and stream, after the sink took it, so that a crash
repeats at most the last one. What is told comes from the journal and never from the bus, so a
repeated publication is not told again; ``worth_telling`` refuses one in any case.
"""

import asyncio
from collections.abc import Sequence

from lineshaft.contracts.events import Event, Fact
from lineshaft.ports import Entry, StoreUnavailable
from lineshaft.runtime.observability import logger
from lineshaft.runtime.service import Service
from services.monitor.sinks.port import Sink

RETRY_MS = 1_000
STANDBY_MS = 1_000
TRIES_MAX = 5
_TOLD = frozenset({"alert.firing", "alert.resolved"})


def worth_telling(notice: Fact) -> bool:
    """Tell whether people should hear of a fact: a new, unsilenced, uninhibited alert event."""
    if notice.replay or notice.kind not in _TOLD:
        return False
    alert = notice.data
    return alert.get("inhibited_by") is None and int(alert.get("silenced_until") or 0) <= notice.at


class Delivery:
    """Delivers alert events of the streams that this process leads."""

    def __init__(self, service: Service, sinks: Sequence[Sink]) -> None:
        self._service = service
        self._sinks = list(sinks)
        self._log = logger("monitor.delivery")

    async def run(self) -> None:
        """Deliver until cancelled."""
        streams = list(self._service.host.lanes)
        async with asyncio.TaskGroup() as group:
            for sink in self._sinks:
                for stream in streams:
                    group.create_task(self._follow(sink, stream))

    async def _follow(self, sink: Sink, stream: str) -> None:
        while True:
            try:
                if self._service.host.is_leader(stream):
                    await self._deliver_all(sink, stream)
            except StoreUnavailable as error:
                self._log.warning("delivery_waits", stream=stream, reason=str(error))
            await self._service.clock.sleep(STANDBY_MS)

    async def _deliver_all(self, sink: Sink, stream: str) -> None:
        name = f"monitor/sink/{sink.name}/{stream}"
        mark = (await self._service.journal.marks(name)).get(name)
        seq, version = (int(mark.value["seq"]), mark.version) if mark else (0, 0)
        async for entry in self._service.journal.read(stream, seq, follow=True):
            if not self._service.host.is_leader(stream):
                return
            notices = [n for n in notices_of(entry) if worth_telling(n)]
            for notice in notices:
                await self._deliver(sink, notice)
            if notices:
                value = {"seq": entry.seq, "last": notices[-1].id}
                taken = await self._service.journal.mark(name, value, version)
                if taken is None:
                    return  # another process delivered; look again
                version = taken.version

    async def _deliver(self, sink: Sink, notice: Fact) -> None:
        for attempt in range(TRIES_MAX):
            try:
                await sink.deliver(notice)
                return
            except Exception as error:
                self._log.warning(
                    "delivery_failed", sink=sink.name, id=notice.id, reason=repr(error)
                )
                await self._service.clock.sleep(RETRY_MS << attempt)
        self._log.error("delivery_given_up", sink=sink.name, id=notice.id)


def notices_of(entry: Entry) -> list[Fact]:
    """Return the alert events of a journal entry as facts, with the ids they are published by."""
    return [
        _notice(entry, index, event)
        for index, event in enumerate(entry.events)
        if event.kind in _TOLD
    ]


def _notice(entry: Entry, index: int, event: Event) -> Fact:
    return Fact(
        id=f"{entry.stream}:{entry.seq}:{index}",
        kind=event.kind,
        data=event.data,
        at=entry.at,
        source="monitor",
        subject=event.subject,
        attempt=event.attempt,
        stream=entry.stream,
        seq=entry.seq,
        index=index,
    )
