"""A bus in memory, for the tests of this project and of its users.

It answers as JetStream does: durable positions, acknowledgement and redelivery, a work queue, a
window of de-duplication, requests to a queue group. It can be told to be away, to forget a
stream, or to lose its tail. One process, one event loop.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from lineshaft.adapters.clock import SystemClock
from lineshaft.contracts import limits, subjects
from lineshaft.contracts.subjects import StreamPlan
from lineshaft.ports import (
    BusUnavailable,
    Clock,
    Handler,
    Message,
    NobodyAnswers,
    Request,
    StreamState,
)

ACK_WAIT_MS = 10_000


@dataclass(slots=True)
class _Stored:
    sequence: int
    subject: str
    data: bytes
    at: int


@dataclass(slots=True)
class _Pending:
    again_at: int
    deliveries: int


@dataclass(slots=True, eq=False)
class _Durable:
    filters: tuple[str, ...]
    position: int = 0
    pending: dict[int, _Pending] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Stream:
    plan: StreamPlan
    created: str
    messages: dict[int, _Stored] = field(default_factory=dict)
    last: int = 0
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)
    durables: dict[str, _Durable] = field(default_factory=dict)


class MemoryBus:
    """A bus of one process. ``is_away`` makes every call raise ``BusUnavailable``."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.is_away = False
        self.generation = 1
        self._clock = clock or SystemClock()
        self._births = itertools.count(1)
        self._grown = asyncio.Event()
        self._served: dict[str, list[Handler]] = {}
        self._heard: dict[str, int] = {}
        self._streams = {plan.name: self._born(plan) for plan in subjects.STREAMS}

    def _born(self, plan: StreamPlan) -> _Stream:
        return _Stream(plan, f"{self._clock.now()}/{next(self._births)}")

    # -- what tests do to it ------------------------------------------------------------------

    def forget(self) -> None:
        """Lose everything, as when the store's folder is deleted: no stream is left."""
        self._streams = {}
        self.generation += 1
        self._wake()

    def shorten(self, stream: str, last: int) -> None:
        """Lose what is behind sequence ``last``; positions of consumers stay where they are."""
        held = self._streams[stream]
        held.messages = {seq: m for seq, m in held.messages.items() if seq <= last}
        held.ids = {key: place for key, place in held.ids.items() if place[0] <= last}
        held.last = last

    # -- the port -----------------------------------------------------------------------------

    async def publish(self, subject: str, data: bytes, *, message_id: str | None = None) -> int:
        """Publish into the stream that holds ``subject``; return its sequence there."""
        await self._here()
        held = next(
            (s for s in self._streams.values() if any(_fits(f, subject) for f in s.plan.subjects)),
            None,
        )
        if held is None:
            raise BusUnavailable(f"no stream holds {subject} now")
        if len(data) > limits.BUS_PAYLOAD_BYTES_MAX:
            raise BusUnavailable(f"{subject}: {len(data)} bytes are too many")
        now = self._clock.now()
        window = limits.DEDUP_WINDOW_S * 1000
        held.ids = {key: place for key, place in held.ids.items() if now - place[1] < window}
        if message_id is not None and message_id in held.ids:
            return held.ids[message_id][0]
        held.last += 1
        held.messages[held.last] = _Stored(held.last, subject, bytes(data), now)
        if message_id is not None:
            held.ids[message_id] = (held.last, now)
        self._trim(held, subject)
        self._wake()
        return held.last

    def _trim(self, held: _Stream, subject: str) -> None:
        if held.plan.messages_max_per_subject:
            same = [seq for seq, m in held.messages.items() if m.subject == subject]
            for seq in same[: -held.plan.messages_max_per_subject]:
                del held.messages[seq]

    async def pull(
        self, stream: str, durable: str | None, subjects: Sequence[str], *, batch: int = 256
    ) -> AsyncIterator[list[Message]]:
        """Yield batches for a durable consumer, or from now on for an ephemeral one (None).

        An ephemeral consumer's first batch is empty and tells that it stands.
        """
        own = _Durable(tuple(subjects))
        if durable is None:
            held = self._streams.get(stream)
            own.position = 0 if held is None else held.last
            yield []
        while True:
            self._grown.clear()
            held = None if self.is_away else self._streams.get(stream)
            messages: list[Message] = []
            if held is not None:
                consumer = own if durable is None else _consumer(held, durable, subjects)
                self._heard[durable or ""] = self._clock.monotonic()
                messages = self._take(held, consumer, batch, is_acked=durable is not None)
            if messages:
                yield messages
            else:
                await self._wait()

    def _take(
        self, held: _Stream, consumer: _Durable, batch: int, *, is_acked: bool
    ) -> list[Message]:
        now = self._clock.now()
        if consumer.position > held.last:  # the stream was shortened: begin again
            consumer.position, consumer.pending = 0, {}
        again = [seq for seq, p in consumer.pending.items() if p.again_at <= now]
        fresh = [seq for seq in held.messages if seq > consumer.position]
        made: list[Message] = []
        for seq in sorted({*again, *fresh}):
            if len(made) == batch:
                break
            consumer.position = max(consumer.position, seq)
            stored = held.messages.get(seq)
            if stored is None or not any(_fits(f, stored.subject) for f in consumer.filters):
                consumer.pending.pop(seq, None)
                continue
            before = consumer.pending.get(seq, _Pending(0, 0)).deliveries
            if is_acked:
                consumer.pending[seq] = _Pending(now + ACK_WAIT_MS, before + 1)
            made.append(self._message(held, consumer, stored, before + 1))
        return made

    def _message(
        self, held: _Stream, consumer: _Durable, stored: _Stored, deliveries: int
    ) -> Message:
        async def ack() -> None:
            await self._here()
            consumer.pending.pop(stored.sequence, None)
            if held.plan.retention == "workqueue":
                held.messages.pop(stored.sequence, None)

        async def nack(delay_ms: int) -> None:
            await self._here()
            if stored.sequence in consumer.pending:
                again_at = self._clock.now() + max(0, delay_ms)
                consumer.pending[stored.sequence] = _Pending(again_at, deliveries)
                self._wake()

        return Message(stored.subject, stored.data, {}, stored.sequence, deliveries, ack, nack, ack)

    async def request(self, subject: str, data: bytes, *, timeout_ms: int = 10_000) -> bytes:
        """Ask and wait. Raises ``NobodyAnswers`` or ``BusUnavailable``."""
        await self._here()
        handlers = self._served.get(subject)
        if not handlers:
            raise NobodyAnswers(f"nobody answers {subject} now")
        handler = handlers[0]
        handlers.append(handlers.pop(0))  # the group takes turns
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await handler(Request(subject, bytes(data)))
        except TimeoutError:
            raise BusUnavailable(f"{subject}: no answer within {timeout_ms} ms") from None

    async def serve(
        self, subject: str, queue: str, handler: Handler
    ) -> Callable[[], Awaitable[None]]:
        """Answer requests in a queue group; returns what ends it."""
        await self._here()
        self._served.setdefault(subject, []).append(handler)

        async def end() -> None:
            if handler in self._served.get(subject, []):
                self._served[subject].remove(handler)

        return end

    async def state(self, stream: str) -> StreamState | None:
        """Return a stream's state, or None when it does not exist."""
        await self._here()
        held = self._streams.get(stream)
        if held is None:
            return None
        first = min(held.messages, default=held.last + 1)
        return StreamState(held.created, first, held.last, len(held.messages))

    # -- beside the port ----------------------------------------------------------------------

    def heard_ms(self, durable: str) -> int | None:
        """Return how long ago a consumer pulled here was looked at; None: never."""
        at = self._heard.get(durable)
        return None if at is None else self._clock.monotonic() - at

    async def provision(self, lost: Sequence[str] = ()) -> None:
        """Make the streams that are missing; consumers of ``lost`` ones begin again."""
        await self._here()
        for plan in subjects.STREAMS:
            if plan.name not in self._streams:
                self._streams[plan.name] = self._born(plan)
        for name in lost:
            self._streams[name].durables.clear()
        self._wake()

    async def aclose(self) -> None:
        """Nothing is held."""

    async def _here(self) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise BusUnavailable("the bus is away")

    def _wake(self) -> None:
        self._grown.set()

    async def _wait(self) -> None:
        """Wait for something new; look again soon, since a redelivery may have become due."""
        sleeping = asyncio.ensure_future(self._clock.sleep(50))
        waking = asyncio.ensure_future(self._grown.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()


def _consumer(held: _Stream, durable: str, filters: Sequence[str]) -> _Durable:
    found = held.durables.setdefault(durable, _Durable(tuple(filters)))
    found.filters = tuple(filters)
    return found


def _fits(pattern: str, subject: str) -> bool:
    """Tell whether ``subject`` matches ``pattern`` with the wildcards of NATS."""
    wanted, has = pattern.split("."), subject.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(has) > place
        if place >= len(has) or part not in ("*", has[place]):
            return False
    return len(wanted) == len(has)
