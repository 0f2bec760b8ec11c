"""Acknowledging: what is acknowledged, asked for again, or buried, and when."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.clock import VirtualClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.contracts import limits
from lineshaft.contracts.events import Fact
from lineshaft.ports import BusUnavailable, Message, StoreUnavailable
from lineshaft.runtime.decider import FactRefused
from lineshaft.runtime.delivery import Consumption, Delivery, nack_delay_ms
from lineshaft.runtime.host import DeciderHost
from tests.builders_runtime import BROKEN, REFUSED, a_fact, a_host, a_message

IN = Consumption("in", ("lineshaft.in.>",), "test-in")


@dataclass
class Rig:
    delivery: Delivery
    host: DeciderHost
    journal: MemoryJournal
    bus: MemoryBus
    clock: VirtualClock
    alarms: list[tuple[str, str, str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def message(self, data: bytes, deliveries: int = 1) -> Message:
        """A message that notes how it was answered."""

        async def ack() -> None:
            self.answers.append("ack")

        async def nack(delay_ms: int) -> None:
            self.answers.append(f"nack {delay_ms}")

        async def term() -> None:
            self.answers.append("term")

        return Message("lineshaft.in.priority", data, {}, 1, deliveries, ack, nack, term)

    async def buried(self) -> list[dict[str, Any]]:
        """What lies in the dead stream."""
        state = await self.bus.state("dead")
        assert state is not None
        found: list[dict[str, Any]] = []
        if state.messages:
            async for batch in self.bus.pull("dead", "look", ["lineshaft.dead.>"]):
                found += [json.loads(message.data) for message in batch]
                if len(found) >= state.messages:
                    break
        return found


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    clock, journal = VirtualClock(1_000_000), MemoryJournal()
    bus = MemoryBus(clock)
    alarms: list[tuple[str, str, str]] = []
    host = a_host(journal, clock, alarms=alarms)
    await host.start()
    delivery = Delivery("registry", host, bus=bus, clock=clock, alarm=lambda *a: alarms.append(a))
    yield Rig(delivery, host, journal, bus, clock, alarms)
    await host.stop()


async def test_what_is_decided_or_known_is_acknowledged_after_the_append(rig: Rig) -> None:
    """An acknowledgement means that the journal has it."""
    await rig.delivery.handle_batch([rig.message(a_message("f1"))], IN)
    await rig.delivery.handle_batch([rig.message(a_message("f1"), 2)], IN)
    assert rig.answers == ["ack", "ack"]
    assert rig.host.state("model/0")["seen"] == ["f1"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\x00", b'{"specversion":"1.0"}', b"1"])
async def test_what_cannot_be_read_is_buried_with_its_reason(rig: Rig, data: bytes) -> None:
    """Garbage goes to the dead stream whole, then ends; the others of the batch go on."""
    await rig.delivery.handle_batch([rig.message(data), rig.message(a_message("f1"))], IN)
    assert sorted(rig.answers) == ["ack", "term"]
    (dead,) = await rig.buried()
    assert base64.b64decode(dead["data"]) == data
    assert dead["reason"].startswith("cannot be read")
    assert dead["service"] == "registry"


async def test_a_refused_fact_is_buried(rig: Rig) -> None:
    """The decider's own words are the reason."""
    await rig.delivery.handle_batch([rig.message(a_message("f1", REFUSED))], IN)
    assert rig.answers == ["term"]
    assert (await rig.buried())[0]["reason"] == "no debts"


async def test_trouble_with_a_store_asks_again_without_limit_and_pauses(rig: Rig) -> None:
    """Infrastructure never buries a message, however often it is delivered."""
    import asyncio

    for deliveries in (1, 7, 1000):
        rig.journal.fail_next(StoreUnavailable("away"))
        message = rig.message(a_message("f1"), deliveries)
        task = asyncio.create_task(rig.delivery.handle_batch([message], IN))
        await rig.clock.advance(0)
        assert not task.done()  # fetching pauses
        await rig.clock.advance(5_000)
        await task
    assert rig.answers == [f"nack {nack_delay_ms(n)}" for n in (1, 7, 1000)]
    assert await rig.buried() == []


async def test_delays_grow_to_a_bound() -> None:
    """Doubling from the least to the most."""
    delays = [nack_delay_ms(n) for n in range(1, 40)]
    assert delays[0] == limits.NACK_DELAY_MS_MIN
    assert delays == sorted(delays)
    assert delays[-1] == limits.NACK_DELAY_MS_MAX


async def test_our_fault_is_tried_five_times_then_buried_with_an_alarm(rig: Rig) -> None:
    """One poisonous fact does not circle for ever, and nobody overlooks it."""
    for _ in range(5):
        await rig.delivery.handle_batch([rig.message(a_message("f1", BROKEN))], IN)
    assert [answer.split()[0] for answer in rig.answers] == ["nack"] * 4 + ["term"]
    assert "a fault of ours" in (await rig.buried())[0]["reason"]
    assert ("fact_gave_up", "f1") in [alarm[:2] for alarm in rig.alarms]


async def test_observations_are_gathered_before_the_decision(rig: Rig) -> None:
    """They reach the decider in the fact's data; each kind of failure has its own way."""

    async def observe(fact: Fact) -> Fact:
        if fact.id == "refuse":
            raise FactRefused("no such path")
        if fact.id == "wait":
            raise BusUnavailable("objects are away")
        if fact.id == "break":
            raise RuntimeError("oh")
        return fact.with_data(priority=40)

    which = Consumption("in", ("lineshaft.in.>",), "test-in", observe)
    await rig.delivery.handle_batch([rig.message(a_message("f1"))], which)
    assert rig.host.state("model/0")["total"] == 40
    import asyncio

    task = asyncio.create_task(
        rig.delivery.handle_batch(
            [rig.message(a_message(name)) for name in ("refuse", "wait", "break")], which
        )
    )
    await rig.clock.advance(5_000)
    await task
    assert sorted(rig.answers) == ["ack", "nack 250", "nack 250", "term"]


async def test_a_bus_that_cannot_bury_gets_the_message_again(rig: Rig) -> None:
    """Nothing is terminated before its record stands."""
    rig.bus.is_away = True
    await rig.delivery.handle_batch([rig.message(b"garbage")], IN)
    assert rig.answers == ["nack 250"]


async def test_what_other_services_decided_is_noted_for_readers(rig: Rig) -> None:
    """A reader may wait until a fact of another journal was handled here."""
    from lineshaft.contracts.events import encode

    fact = a_fact("submission/3:7:0", stream="submission/3", seq=7, index=0)
    await rig.delivery.handle_batch([rig.message(encode(fact))], IN)
    assert rig.delivery.seen == {"submission/3": 7}
