"""The relay: ids, watermark, what it does when the bus loses something."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.clock import VirtualClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.contracts import limits
from lineshaft.ports import BusUnavailable, Entry
from lineshaft.runtime.host import DeciderHost
from lineshaft.runtime.relay import COMPARE_EVERY_MS, Relay
from tests.builders_runtime import a_fact, a_host

WINDOW_MS = 30_000


@dataclass
class Rig:
    host: DeciderHost
    relay: Relay
    bus: MemoryBus
    journal: MemoryJournal
    clock: VirtualClock
    alarms: list[tuple[str, str, str]] = field(default_factory=list)

    async def on_bus(self) -> list[dict[str, Any]]:
        """All that the stream ``model`` holds."""
        stored = self.bus._streams["model"].messages
        return [json.loads(m.data) for m in stored.values()]


def a_relay(rig_host: DeciderHost, journal: Any, bus: Any, clock: Any, **more: Any) -> Relay:
    made = Relay(
        "registry",
        rig_host,
        journal=journal,
        bus=bus,
        clock=clock,
        alarm=more.pop("alarm", lambda *a: None),
        **more,
    )
    rig_host.add_listener(made.committed)
    return made


@pytest.fixture(autouse=True)
def a_short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day passes slowly also on a virtual clock."""
    monkeypatch.setattr(limits, "REPUBLISH_WINDOW_S", WINDOW_MS // 1000)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    clock, journal = VirtualClock(10 * WINDOW_MS), MemoryJournal()
    bus, alarms = MemoryBus(clock), []
    host = a_host(journal, clock)
    await host.start()
    relay = a_relay(host, journal, bus, clock, alarm=lambda *a: alarms.append(a))
    yield Rig(host, relay, bus, journal, clock, alarms)
    await host.stop()


async def test_events_become_facts_with_their_place_as_id(rig: Rig) -> None:
    """Public events only; id, source, sequence and index tell where each was decided."""
    await rig.host.handle([a_fact("f1", 3), a_fact("f2", 4)])
    await rig.relay.turn()
    first, second = await rig.on_bus()
    assert (first["id"], second["id"]) == ("model/0:2:0", "model/0:2:2")
    assert (first["source"], first["stream"], first["sequence"]) == ("registry", "model/0", 2)
    assert (first["type"], first["data"]["reason"]) == ("io.lineshaft.model.refused", "3")
    assert "replay" not in first


async def test_what_was_decided_while_the_bus_was_away_is_published_later(rig: Rig) -> None:
    """The journal does not wait for the bus, and the bus misses nothing."""
    rig.bus.is_away = True
    await rig.host.handle([a_fact(f"f{n}") for n in range(5)])
    with pytest.raises(BusUnavailable):
        await rig.relay.turn()
    rig.bus.is_away = False
    await rig.relay.turn()
    assert len(await rig.on_bus()) == 5


async def test_the_next_process_begins_at_the_watermark(rig: Rig) -> None:
    """What is marked as published is not published again; what is not, is."""
    await rig.host.handle([a_fact("f1")])
    await rig.relay.turn()
    await rig.relay.write_marks()
    await rig.host.handle([a_fact("f2")])
    published: list[Entry] = []

    class Counting(MemoryBus):
        async def publish(self, subject: str, data: bytes, *, message_id: str | None = None) -> int:
            published.append(json.loads(data)["id"])
            return await rig.bus.publish(subject, data, message_id=message_id)

        async def state(self, stream: str) -> Any:
            return await rig.bus.state(stream)

    fresh = a_relay(rig.host, rig.journal, Counting(rig.clock), rig.clock)
    await fresh.turn()
    assert published == ["model/0:3:0"]


async def test_a_bus_that_lost_everything_gets_the_window_again(rig: Rig) -> None:
    """Younger events come again, marked as replay; older ones do not; new ones are no replay."""
    await rig.host.handle([a_fact("old")])
    await rig.clock.advance(WINDOW_MS + 1000)
    await rig.host.handle([a_fact("young")])
    await rig.relay.turn()
    assert len(await rig.on_bus()) == 2
    rig.bus.forget()
    await rig.host.handle([a_fact("new")])
    await rig.relay.turn()
    found = [(e["id"], e.get("replay", False)) for e in await rig.on_bus()]
    assert found == [("model/0:3:0", True), ("model/0:4:0", False)]
    assert rig.alarms[0][0] == "bus_lost"


async def test_a_quiet_relay_notices_a_loss_by_itself(rig: Rig) -> None:
    """Nothing has to be published for a loss to be found."""
    await rig.host.handle([a_fact("f1")])
    await rig.relay.turn()
    rig.bus.forget()
    rig.bus.generation -= 1  # nor was there a new connection
    await rig.bus.provision()
    await rig.clock.advance(COMPARE_EVERY_MS)
    await rig.relay.turn()
    assert [e["replay"] for e in await rig.on_bus()] == [True]
    await rig.clock.advance(COMPARE_EVERY_MS)
    await rig.relay.turn()
    assert len(await rig.on_bus()) == 1


async def test_a_shortened_stream_gets_its_tail_again(rig: Rig) -> None:
    """An unclean stop of the server loses a tail; it is there again, also for consumers."""
    await rig.host.handle([a_fact(f"f{n}", account=n % 2) for n in range(10)])
    await rig.relay.turn()
    source = rig.bus.pull("model", "reader", ["lineshaft.model.>"])
    for message in await anext(source):
        await message.ack()
    rig.bus.shorten("model", 4)
    await rig.clock.advance(COMPARE_EVERY_MS)
    await rig.relay.turn()
    ids = {event["id"] for event in await rig.on_bus()}
    assert len(ids) == 10
    seen = {json.loads(message.data)["id"] for message in await anext(source)}
    assert seen == ids


async def test_what_is_open_is_published_again_however_old(rig: Rig) -> None:
    """A decider tells the time of the oldest event that a new bus must hold."""
    relay = a_relay(
        rig.host, rig.journal, rig.bus, rig.clock, open_since=lambda state: 10 * WINDOW_MS
    )
    await rig.host.handle([a_fact("old")])
    await relay.turn()
    await rig.clock.advance(3 * WINDOW_MS)
    rig.bus.forget()
    await relay.turn()
    assert [e["replay"] for e in await rig.on_bus()] == [True]


async def test_an_event_that_cannot_be_published_stops_no_other(rig: Rig) -> None:
    """It is an alarm; the line goes on."""
    from lineshaft.contracts.events import Event
    from tests.builders_runtime import Ledger

    class Odd(Ledger):
        def decide(self, state: Any, fact: Any, *, now: int, policy: Any) -> list[Event]:
            subject = "no.token at all" if fact.id == "odd" else "m"
            return [Event("model.refused", {"name": "m", "reason": "r"}, subject=subject)]

    alarms: list[tuple[str, str, str]] = []
    host = a_host(rig.journal, rig.clock, decider=Odd(), holder="odd@-/-/9/9/9")
    await rig.host.stop()
    await host.start()
    relay = a_relay(host, rig.journal, rig.bus, rig.clock, alarm=lambda *a: alarms.append(a))
    await host.handle([a_fact("odd"), a_fact("even")])
    await relay.turn()
    assert [e["id"] for e in await rig.on_bus()] == ["model/0:3:1"]
    assert [alarm[0] for alarm in alarms] == ["event_unpublishable"]
    await host.stop()


async def test_a_relay_survives_a_bus_that_comes_and_goes(rig: Rig) -> None:
    """Its loop ends for no trouble of the bus."""
    task = asyncio.create_task(rig.relay.run())
    for number in range(6):
        rig.bus.is_away = bool(number % 2)
        await rig.host.handle([a_fact(f"f{number}")])
        await rig.clock.advance(700)
    rig.bus.is_away = False
    await rig.clock.advance(10_000)
    assert len(await rig.on_bus()) == 6
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
