"""The relay: journaled events become facts on the bus, and become so again after a loss.

For each led stream it publishes what lies behind a watermark, kicked by each commit; ids are
``stream:seq:index``, so a repetition changes nothing. The bus may lose everything: what it said of
its streams is remembered and compared, and a stream that was made again or became shorter gets
the events of the last day (and of what is still open) once more, marked ``replay``.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lineshaft.contracts import events, limits, subjects
from lineshaft.contracts.events import EventError, Fact
from lineshaft.ports import (
    Bus,
    BusUnavailable,
    Clock,
    Entry,
    Journal,
    StoreUnavailable,
    StreamState,
)

COMPARE_EVERY_MS = 5_000
MARK_EVERY_MS = 1_000
IN_FLIGHT_MAX = 512
QUEUE_ENTRIES_MAX = 4_096
PAGE_ENTRIES = 256
_RETRY_MS_MIN, _RETRY_MS_MAX = 100, 5_000


class RelayBus(Bus, Protocol):
    """A bus that can make its streams, and tells when it was connected anew."""

    @property
    def generation(self) -> int:
        """A number that changes with each connection."""
        ...

    async def provision(self, lost: Sequence[str] = ()) -> None:
        """Make the streams that are missing; consumers of ``lost`` ones begin again."""
        ...


class Led(Protocol):
    """What the relay must know of the host."""

    def led_streams(self) -> list[str]:
        """Return the streams this process leads."""
        ...

    def epoch(self, stream: str) -> int:
        """Return a stream's epoch."""
        ...

    def position(self, stream: str) -> int:
        """Return a stream's last seq."""
        ...

    def state(self, stream: str) -> Any:
        """Return a stream's state."""
        ...


@dataclass(slots=True)
class _Track:
    """How far one stream is published, and what the bus said of its streams then.

    ``seq`` is the watermark; ``bus`` maps a family to {created, last} of its stream on the bus.
    Both are written in one mark, ``relay/<stream>``.
    """

    epoch: int
    seq: int
    version: int
    bus: dict[str, dict[str, Any]]
    is_moved: bool = False
    queue: deque[Entry] = field(default_factory=deque)

    def has_lost(self, family: str, state: StreamState | None) -> bool:
        """Tell whether the bus's stream is another or shorter than what is remembered."""
        before = self.bus.get(family)
        if before is None or state is None:
            return state is None
        is_other = state.created != str(before["created"])
        return is_other or state.last_sequence < int(before["last"])


def fact_of(service: str, entry: Entry, index: int, *, is_replay: bool = False) -> Fact:
    """Return the fact that the event at ``index`` of ``entry`` is for everyone else."""
    event = entry.events[index]
    correlation = event.data.get("correlation")
    return Fact(
        id=f"{entry.stream}:{entry.seq}:{index}",
        kind=event.kind,
        data=event.data,
        at=entry.at,
        source=service,
        subject=event.subject,
        attempt=event.attempt,
        pool=event.pool,
        team=event.team,
        stream=entry.stream,
        seq=entry.seq,
        index=index,
        replay=is_replay,
        correlation=correlation if isinstance(correlation, str) and correlation else None,
    )


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Await all of ``works`` to their ends, then raise the first failure."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class Relay:
    """Publishes the public events of one service's led streams."""

    def __init__(
        self,
        service: str,
        host: Led,
        *,
        journal: Journal,
        bus: RelayBus,
        clock: Clock,
        alarm: Callable[[str, str, str], None],
        open_since: Callable[[Any], int | None] | None = None,
    ) -> None:
        self._service = service
        self._host = host
        self._journal = journal
        self._bus = bus
        self._clock = clock
        self._alarm = alarm
        self._open_since = open_since or (lambda state: None)
        self._families = sorted(
            {k.partition(".")[0] for k, kind in events.KINDS.items() if kind.publisher == service}
        )
        self._tracks: dict[str, _Track] = {}
        self._woken = asyncio.Event()
        self._highest: dict[str, int] = {}
        self._compared_with: int | None = None  # the generation of the connection
        self._compared_at = self._marked_at = 0

    def committed(self, entry: Entry) -> None:
        """Take an entry that was just appended (the host's ``on_commit``)."""
        track = self._tracks.get(entry.stream)
        if track is not None and len(track.queue) < QUEUE_ENTRIES_MAX:
            track.queue.append(entry)
        self._woken.set()

    def watermark(self, stream: str) -> int:
        """Return the seq up to which ``stream`` is published, as far as this process knows."""
        track = self._tracks.get(stream)
        return 0 if track is None else track.seq

    async def run(self) -> None:
        """Publish for ever; the bus may come and go."""
        delay = _RETRY_MS_MIN
        while True:
            self._woken.clear()
            try:
                await self.turn()
                delay = _RETRY_MS_MIN
                await self._wait(MARK_EVERY_MS)
            except (BusUnavailable, StoreUnavailable):
                self._compared_with = None
                await self._clock.sleep(delay)
                delay = min(delay * 2, _RETRY_MS_MAX)

    async def turn(self) -> None:
        """Compare when it is time, publish what is unpublished, write the marks when it is time.

        Raises ``BusUnavailable``, ``StoreUnavailable``; nothing is lost by that.
        """
        now, generation = self._clock.monotonic(), self._bus.generation
        if generation != self._compared_with:
            await self._bus.provision()  # also streams in memory, which no restart survives
        if generation != self._compared_with or now - self._compared_at >= COMPARE_EVERY_MS:
            self._compared_with, self._compared_at = generation, now
            await self._compare()
        await _all(self._drain(stream) for stream in self._host.led_streams())
        if now - self._marked_at >= MARK_EVERY_MS:
            await self.write_marks()
            self._marked_at = now

    async def _wait(self, milliseconds: int) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(milliseconds))
        waking = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    # -- publishing ---------------------------------------------------------------------------

    async def _track(self, stream: str) -> _Track:
        epoch = self._host.epoch(stream)
        track = self._tracks.get(stream)
        if track is None or track.epoch != epoch:
            name = f"relay/{stream}"
            mark = (await self._journal.marks(name)).get(name)
            value: dict[str, Any] = {"seq": 0, "bus": {}} if mark is None else mark.value
            version = 0 if mark is None else mark.version
            track = _Track(epoch, int(value["seq"]), version, dict(value["bus"]))
            self._tracks[stream] = track
            self._compared_with = None  # what its last leader saw may be lost since
        return track

    async def _drain(self, stream: str) -> None:
        track = await self._track(stream)
        while track.seq < self._host.position(stream):
            entries = await self._page(track, stream)
            if not entries:
                return
            await self._publish(entries)
            track.seq, track.is_moved = entries[-1].seq, True

    async def _page(self, track: _Track, stream: str) -> list[Entry]:
        while track.queue and track.queue[0].seq <= track.seq:
            track.queue.popleft()
        if track.queue and track.queue[0].seq == track.seq + 1:
            page: list[Entry] = []
            after = track.seq
            while track.queue and track.queue[0].seq == after + 1 and len(page) < PAGE_ENTRIES:
                page.append(track.queue.popleft())
                after += 1
            return page
        read = self._journal.read(stream, track.seq, limit=PAGE_ENTRIES)
        return [entry async for entry in read]

    async def _publish(
        self, entries: Iterable[Entry], *, families: Sequence[str] | None = None
    ) -> None:
        """Publish the public events of ``entries`` (of some families: as replay), pipelined."""
        is_replay = families is not None
        wanted = self._families if families is None else families
        facts = [
            fact_of(self._service, entry, index, is_replay=is_replay)
            for entry in entries
            for index, event in enumerate(entry.events)
            if event.is_public and event.kind.partition(".")[0] in wanted
        ]
        for start in range(0, len(facts), IN_FLIGHT_MAX):
            flight = (self._send(fact) for fact in facts[start : start + IN_FLIGHT_MAX])
            await _all(flight)

    async def _send(self, fact: Fact) -> None:
        try:
            raw = events.encode(fact)
            events.decode(raw)  # what nobody could read must not be sent
        except (EventError, TypeError, ValueError) as error:
            self._alarm("event_unpublishable", fact.id, f"{fact.kind}: {error}")
            return
        sequence = await self._bus.publish(subjects.of_fact(fact), raw, message_id=fact.id)
        family = fact.kind.partition(".")[0]
        self._highest[family] = max(sequence, self._highest.get(family, 0))

    # -- what the bus has lost ----------------------------------------------------------------

    async def _compare(self) -> None:
        """Compare the bus's streams with what is remembered; publish again what they lost."""
        states = await self._states()
        gone = {
            family
            for family, state in states.items()
            if state is None or state.last_sequence < self._highest.get(family, 0)
        }
        lost: dict[str, list[str]] = {}
        for stream in self._host.led_streams():
            track = await self._track(stream)
            mine = [f for f in self._families if f in gone or track.has_lost(f, states[f])]
            if mine:
                lost[stream] = mine
        if lost:
            await self._repair(lost)
            states = await self._states()
        for stream in self._host.led_streams():
            self._remember(await self._track(stream), states)

    async def _states(self) -> dict[str, StreamState | None]:
        return {family: await self._bus.state(family) for family in self._families}

    async def _repair(self, lost: dict[str, list[str]]) -> None:
        families = sorted({family for mine in lost.values() for family in mine})
        await self._bus.provision(families)
        if any(family in self._tracks[s].bus for s, mine in lost.items() for family in mine):
            self._alarm("bus_lost", ",".join(families), "the bus lost events: sent again")
        for family in families:
            self._highest.pop(family, None)
        for stream, mine in lost.items():
            await self._replay(stream, mine)

    def _remember(self, track: _Track, states: dict[str, StreamState | None]) -> None:
        for family, state in states.items():
            if state is not None and track.bus.get(family, {}).get("created") != state.created:
                track.bus[family] = {"created": state.created, "last": state.last_sequence}
                track.is_moved = True

    async def _replay(self, stream: str, families: Sequence[str]) -> None:
        track = await self._track(stream)
        since = self._clock.now() - limits.REPUBLISH_WINDOW_S * 1000
        open_since = self._open_since(self._host.state(stream))
        since = since if open_since is None else min(since, open_since)
        after = await self._before(stream, since, track.seq)
        while after < track.seq:
            limit = min(PAGE_ENTRIES, track.seq - after)
            page = [entry async for entry in self._journal.read(stream, after, limit=limit)]
            if not page:
                break
            await self._publish(page, families=families)
            after = page[-1].seq
        for family in families:  # a shorter one is as long as it is now
            track.bus.pop(family, None)

    async def _before(self, stream: str, since: int, last: int) -> int:
        """Return the seq behind which entries are of ``since`` or later (by bisection)."""
        low, high = 0, last
        while low < high:
            middle = (low + high) // 2
            found = [entry async for entry in self._journal.read(stream, middle, limit=1)]
            if found and found[0].at < since:
                low = middle + 1
            else:
                high = middle
        return low

    # -- marks --------------------------------------------------------------------------------

    async def write_marks(self) -> None:
        """Write down how far everything is published. Raises ``StoreUnavailable``."""
        for stream, track in list(self._tracks.items()):
            if not track.is_moved:
                continue
            for family, seen in track.bus.items():
                seen["last"] = max(seen["last"], self._highest.get(family, 0))
            value = {"seq": track.seq, "bus": track.bus}
            written = await self._journal.mark(f"relay/{stream}", value, track.version)
            if written is None:  # another leader's; read again when we lead again
                self._tracks.pop(stream, None)
            else:
                track.version = written.version
                track.is_moved = track.seq != written.value["seq"]
