"""From delivered messages to decisions and back: the one set of rules for acknowledging.

A message is acknowledged after its fact is decided and appended. What cannot be decoded or can
never be handled goes to the dead stream with its reason, then it is terminated. Trouble with a
store or the bus asks for it again, later and later, without limit, and pauses fetching. Any
other exception is ours: five times for one fact, then the dead stream and an alarm.
"""

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lineshaft.contracts import limits, subjects
from lineshaft.contracts.events import EventError, Fact, decode
from lineshaft.ports import Bus, BusUnavailable, Clock, Message, StoreUnavailable
from lineshaft.runtime.decider import FactRefused, Outcome, OutcomeKind
from lineshaft.runtime.host import UNAVAILABLE, DeciderHost

Observe = Callable[[Fact], Awaitable[Fact]]
DEAD_DATA_BYTES_MAX = 256 * 1024
PAUSE_MS_MAX = 5_000
OBSERVATIONS_AT_ONCE_MAX = 16
_FAULTS_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a service takes from one stream of the bus, by a durable consumer of its own."""

    stream: str
    subjects: tuple[str, ...]
    durable: str
    observe: Observe | None = None


def nack_delay_ms(deliveries: int) -> int:
    """Return how long to wait before a message is delivered again: doubling, bounded."""
    doubled = limits.NACK_DELAY_MS_MIN << min(max(deliveries - 1, 0), 16)
    return min(doubled, limits.NACK_DELAY_MS_MAX)


class Delivery:
    """Takes one service's messages to its host, and answers for each of them."""

    def __init__(
        self,
        service: str,
        host: DeciderHost,
        *,
        bus: Bus,
        clock: Clock,
        alarm: Callable[[str, str, str], None],
    ) -> None:
        self._service = service
        self._host = host
        self._bus = bus
        self._clock = clock
        self._alarm = alarm
        self._faults: OrderedDict[str, int] = OrderedDict()
        self._slots = asyncio.Semaphore(OBSERVATIONS_AT_ONCE_MAX)
        self.handled_at: int | None = None
        self.seen: dict[str, int] = {}
        """Per foreign journal stream, the highest seq of a fact that was handled here."""

    async def handle_batch(self, messages: Sequence[Message], which: Consumption) -> None:
        """Handle a batch whole: each message is acknowledged, asked for again, or terminated.

        Returns after a pause when a store or the bus did not answer.
        """
        prepared = await asyncio.gather(*(self._prepare(m, which) for m in messages))
        facts = [found for found in prepared if isinstance(found, Fact)]
        outcomes = iter(await self._host.handle(facts))
        settled = [
            (found, next(outcomes)) if isinstance(found, Fact) else (None, found)
            for found in prepared
        ]
        pairs = zip(messages, settled, strict=True)
        await asyncio.gather(*(self._answer(m, fact, out) for m, (fact, out) in pairs))
        self.handled_at = self._clock.monotonic()
        if any(out.reason.startswith(UNAVAILABLE) for _, out in settled):
            worst = max(message.deliveries for message in messages)
            await self._clock.sleep(min(nack_delay_ms(worst), PAUSE_MS_MAX))

    async def _prepare(self, message: Message, which: Consumption) -> Fact | Outcome:
        """Return the fact of a message, with observations, or what becomes of it instead."""
        try:
            fact = decode(message.data, message.headers)
        except EventError as error:
            return Outcome(OutcomeKind.REFUSED, reason=f"cannot be read: {error}")
        if which.observe is None:
            return fact
        try:
            async with self._slots:
                return await which.observe(fact)
        except FactRefused as error:
            return Outcome(OutcomeKind.REFUSED, reason=str(error) or "refused")
        except (StoreUnavailable, BusUnavailable) as error:
            return Outcome(OutcomeKind.AGAIN, reason=UNAVAILABLE + str(error))
        except Exception as error:
            return self._our_fault(fact.id, f"the observation failed: {error!r}")

    def _our_fault(self, fact_id: str, reason: str) -> Outcome:
        count = self._faults.pop(fact_id, 0) + 1
        if count >= limits.DELIVERIES_OF_OUR_FAULT_MAX:
            self._alarm("fact_gave_up", fact_id, reason)
            return Outcome(OutcomeKind.REFUSED, reason=reason)
        self._faults[fact_id] = count
        if len(self._faults) > _FAULTS_REMEMBERED:
            self._faults.popitem(last=False)
        return Outcome(OutcomeKind.AGAIN, reason=reason)

    async def _answer(self, message: Message, fact: Fact | None, outcome: Outcome) -> None:
        try:
            if outcome.kind in (OutcomeKind.DECIDED, OutcomeKind.KNOWN):
                await message.ack()
                self._note_seen(fact)
            elif outcome.kind is OutcomeKind.AGAIN:
                await message.nack(nack_delay_ms(message.deliveries))
            else:
                await self._bury(message, fact, outcome.reason)
        except BusUnavailable:
            return  # it is delivered again, and known by then

    def _note_seen(self, fact: Fact | None) -> None:
        if fact is not None and fact.stream is not None and fact.seq is not None:
            self.seen[fact.stream] = max(fact.seq, self.seen.get(fact.stream, 0))

    async def _bury(self, message: Message, fact: Fact | None, reason: str) -> None:
        """Record a message in the dead stream, then terminate it; else ask for it again."""
        body = {
            "service": self._service,
            "reason": reason[:4096],
            "subject": message.subject,
            "fact": None if fact is None else fact.id,
            "kind": None if fact is None else fact.kind,
            "at": self._clock.now(),
            "deliveries": message.deliveries,
            "headers": dict(message.headers),
            "bytes": len(message.data),
            "data": base64.b64encode(message.data[:DEAD_DATA_BYTES_MAX]).decode(),
        }
        raw = json.dumps(body, ensure_ascii=False).encode()
        name = f"dead:{self._service}:{message.subject}:{message.sequence}"
        try:
            await self._bus.publish(subjects.dead(self._service), raw, message_id=name)
        except BusUnavailable:
            await message.nack(nack_delay_ms(message.deliveries))
            return
        await message.term()
        self._alarm("message_dead", message.subject, reason[:500])
