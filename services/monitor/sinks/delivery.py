"""The doer that tells people: it follows the journal and hands each alert event to the sinks.

A delivery is recorded as a mark per sink and stream, after the sink took it, by the event's place
in the journal: a crash repeats at most the last one, under the same id. What is told comes from
the journal and never from the bus, so a repeated publication is not told again; ``worth_telling``
refuses one in any case. A sink that is new begins with what happens from then on.
"""

import asyncio
from collections.abc import Sequence

from lineshaft.contracts.events import Event, Fact
from lineshaft.ports import Entry, Mark, StoreUnavailable
from lineshaft.runtime.observability import logger
from lineshaft.runtime.service import Service
from services.monitor.sinks.port import NotTaken, Sink

RETRY_MS = 1_000
STANDBY_MS = 1_000
TRIES_MAX = 8
"""Tries of one event, 1, 2, 4, ... seconds apart: about two minutes; then it is given up."""
_TOLD = frozenset({"alert.firing", "alert.resolved"})


def worth_telling(notice: Fact) -> bool:
    """Tell whether people should hear of a fact: a new, unsilenced, uninhibited alert event."""
    if notice.replay or notice.kind not in _TOLD:
        return False
    alert = notice.data
    return alert.get("inhibited_by") is None and int(alert.get("silenced_until") or 0) <= notice.at


class Delivery:
    """Delivers alert events of the streams that this process leads."""

    def __init__(self, service: Service, sinks: Sequence[Sink], retry_ms: int = RETRY_MS) -> None:
        self._service = service
        self._sinks = list(sinks)
        self._retry_ms = retry_ms
        self._began_at = service.clock.now()
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
        if mark is None:
            mark = await self._begin(name, stream)
        if mark is None:
            return
        # Also entries before the first mark of this form: it told the whole entry.
        place = (int(mark.value["seq"]), int(mark.value.get("index", 1 << 30)))
        version = mark.version
        async for entry in self._service.journal.read(stream, place[0] - 1, follow=True):
            if not self._service.host.is_leader(stream):
                return
            for notice in notices_of(entry):
                here = (entry.seq, notice.index or 0)
                if here <= place or not worth_telling(notice):
                    continue
                await self._deliver(sink, notice)
                value = {"seq": here[0], "index": here[1], "last": notice.id}
                taken = await self._service.journal.mark(name, value, version)
                if taken is None:
                    return  # another process delivered; look again
                version, place = taken.version, here

    async def _begin(self, name: str, stream: str) -> Mark | None:
        """Record that a new sink has been told everything that happened before this process."""
        seq = 0
        async for entry in self._service.journal.read(stream, 0):
            if entry.at >= self._began_at:
                break
            seq = entry.seq
        value = {"seq": seq, "index": 1 << 30, "last": None}
        return await self._service.journal.mark(name, value, 0)

    async def _deliver(self, sink: Sink, notice: Fact) -> None:
        for attempt in range(TRIES_MAX):
            try:
                await sink.deliver(notice)
            except Exception as error:
                reason = repr(error)
                self._log.warning("delivery_failed", sink=sink.name, id=notice.id, reason=reason)
                if isinstance(error, NotTaken) and error.is_final:
                    break
                if attempt + 1 < TRIES_MAX:
                    await self._service.clock.sleep(self._retry_ms << attempt)
            else:
                self._service.audit("sink_fails", sink.name, "closed", "it takes alerts again")
                return
        self._log.error("delivery_given_up", sink=sink.name, id=notice.id)
        summary = f"the alert event {notice.id} was not told: {reason[:300]}"
        self._service.audit("sink_fails", sink.name, "open", summary)


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
