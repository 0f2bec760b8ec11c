"""The host: batches, answers of the store, leadership, time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from lineshaft.adapters.clock import SystemClock, VirtualClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.contracts import limits
from lineshaft.ports import AppendStatus, Entry, Mark, StoreUnavailable
from lineshaft.runtime import lease
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.host import DecisionFailed, NotLeader
from lineshaft.runtime.snapshots import mark_of
from tests.builders_runtime import (
    BROKEN,
    DUE,
    LARGE,
    REFUSED,
    SILENT,
    Ledger,
    a_fact,
    a_host,
    entries_of,
    eventually,
)


def a_dead_holder(replica: str = "one") -> str:
    """A holder of this machine and boot whose process does not exist."""
    name, _, place = lease.holder_of_this_process(replica).partition("@")
    boot, space, _, _, instance = place.split("/")
    return f"{name}@{boot}/{space}/4194304/1/{instance}"


async def test_a_batch_is_one_entry_per_stream_in_one_commit() -> None:
    """Facts are decided on the state that the ones before them left, and committed together."""
    journal = MemoryJournal()
    host = a_host(journal)
    await host.start()
    outcomes = await host.handle([a_fact(f"f{n}", 2, account=n % 2) for n in range(6)])
    assert {o.kind for o in outcomes} == {OutcomeKind.DECIDED}
    for stream in ("model/0", "model/1"):
        taken, added = await entries_of(journal, stream)
        assert taken.events[0].kind == "lease.taken"
        assert len(added.causes) == 3
        assert host.state(stream)["total"] == 6
        assert [e.data["reason"] for e in added.events if e.is_public] == ["2", "4", "6"]
    await host.stop()


async def test_a_fact_twice_in_a_batch_or_again_later_counts_once() -> None:
    """Singleness comes from the causes in the journal, not from the bus."""
    host = a_host()
    await host.start()
    first = await host.handle([a_fact("f1"), a_fact("f1"), a_fact("f2")])
    assert [o.kind for o in first] == ["decided", "known", "decided"]
    again = await host.handle([a_fact("f2"), a_fact("f1")])
    assert [o.kind for o in again] == ["known", "known"]
    assert host.state("model/0")["seen"] == ["f1", "f2"]
    await host.stop()


async def test_a_repeated_request_gets_the_same_events_also_from_a_shared_entry() -> None:
    """The answer of a known key is read back from its entry: exactly its own events."""
    host = a_host()
    await host.start()
    facts = [a_fact(f"f{n}", n + 1) for n in range(4)]
    first = await asyncio.gather(*(host.submit(fact) for fact in facts))
    again = [await host.submit(fact) for fact in facts]
    assert len({outcome.seq for outcome in first}) == 1
    assert {outcome.kind for outcome in again} == {OutcomeKind.KNOWN}
    for one, other in zip(first, again, strict=True):
        assert (one.events, one.seq) == (other.events, other.seq)
        assert len(one.events) == 2
    await host.stop()


async def test_a_command_leaves_an_entry_even_when_nothing_changes() -> None:
    """Otherwise its redelivery would act later; a fact that changes nothing leaves none."""
    journal = MemoryJournal()
    host = a_host(journal)
    await host.start()
    command, fact = await host.handle(
        [a_fact("c", SILENT), a_fact("f", SILENT, account=1, kind="job.queued")]
    )
    assert (command.seq, fact.seq) == (2, None)
    assert (await entries_of(journal, "model/0"))[1].causes == ("c",)
    request = await host.submit(a_fact("r", SILENT, account=1, kind="job.queued"))
    assert request.seq == 2
    await host.stop()


async def test_one_bad_fact_spoils_no_other() -> None:
    """A refusal and a fault concern their fact; the fault's fact is given up after five times."""
    alarms: list[tuple[str, str, str]] = []
    host = a_host(alarms=alarms)
    await host.start()
    facts = [a_fact("ok1"), a_fact("no", REFUSED), a_fact("bad", BROKEN), a_fact("ok2")]
    outcomes = await host.handle(facts)
    assert [o.kind for o in outcomes] == ["decided", "refused", "again", "decided"]
    assert outcomes[1].reason == "no debts"
    kinds = [(await host.handle([a_fact("bad", BROKEN)]))[0].kind for _ in range(4)]
    assert kinds == ["again", "again", "again", "refused"]
    assert [alarm[:2] for alarm in alarms] == [("fact_gave_up", "bad")]
    with pytest.raises(DecisionFailed):
        await host.submit(a_fact("bad2", BROKEN))
    assert host.state("model/0")["seen"] == ["ok1", "ok2"]
    await host.stop()


async def test_a_fault_while_evolving_leaves_the_state_whole() -> None:
    """The state is loaded again and the other facts of the batch count once."""
    host = a_host(decider=Ledger(breaks_in_evolve=True))
    await host.start()
    outcomes = await host.handle([a_fact("a", 1), a_fact("b", 5), a_fact("c", 2)])
    assert [o.kind for o in outcomes] == ["decided", "again", "decided"]
    assert host.state("model/0")["seen"] == ["a", "c"]
    await host.stop()


async def test_what_may_not_be_written_is_our_fault() -> None:
    """A public event without its fields, a text that is no JSON, the host's own kinds."""
    from lineshaft.contracts.events import Event

    class Wrong(Ledger):
        def decide(self, state: Any, fact: Any, *, now: int, policy: Any) -> list[Event]:
            return [Event(fact.data["kind"], {"x": {1, 2}} if fact.data["kind"] == "x" else {})]

    host = a_host(decider=Wrong())
    await host.start()
    for kind in ("model.refused", "x", "lease.taken"):
        (outcome,) = await host.handle([a_fact("f-" + kind).with_data(kind=kind)])
        assert outcome.kind is OutcomeKind.AGAIN
        assert kind in outcome.reason
    await host.stop()


async def test_entries_stay_within_their_bounds() -> None:
    """A batch is split over entries; a decision that is larger than an entry is an alarm."""
    journal = MemoryJournal()
    host = a_host(journal)
    await host.start()
    outcomes = await host.handle([a_fact(f"f{n}", 1) for n in range(600)])
    assert {o.kind for o in outcomes} == {OutcomeKind.DECIDED}
    entries = await entries_of(journal, "model/0")
    assert all(len(entry.events) <= limits.ENTRY_EVENTS_MAX for entry in entries)
    assert host.state("model/0")["count"] == 600
    (large,) = await host.handle([a_fact("large", LARGE)])
    assert large.kind is OutcomeKind.AGAIN
    assert "600 events" in large.reason
    await host.stop()


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    "answer", [AppendStatus.UNKNOWN, StoreUnavailable("gone"), AppendStatus.SEQ_CONFLICT]
)
async def test_an_unclear_append_is_looked_up(answer: Any, committed: bool) -> None:
    """Whether the store committed or not: repeated until answered, the fact counts once."""
    journal = MemoryJournal()
    host = a_host(journal)
    await host.start()
    journal.fail_next(answer, committed=committed)
    for _ in range(3):
        (outcome,) = await host.handle([a_fact("f1")])
        if outcome.kind is not OutcomeKind.AGAIN:
            break
        assert outcome.reason.startswith("unavailable: ")
    assert outcome.kind in (OutcomeKind.DECIDED, OutcomeKind.KNOWN)
    assert host.state("model/0")["seen"] == ["f1"]
    assert host.position("model/0") == 2
    await host.stop()


async def test_the_uncommitted_is_never_seen() -> None:
    """While an entry is being appended, others see the state before it."""
    journal = MemoryJournal()
    host = a_host(journal)
    await host.start()
    gate = asyncio.Event()
    original = journal.append

    async def slow(entries: Any) -> Any:
        await gate.wait()
        return await original(entries)

    journal.append = slow  # type: ignore[method-assign]
    task = asyncio.create_task(host.handle([a_fact("f1", 5)]))
    await asyncio.sleep(0.02)
    assert (host.state("model/0")["total"], host.position("model/0")) == (0, 1)
    gate.set()
    await task
    assert (host.state("model/0")["total"], host.position("model/0")) == (5, 2)
    await host.stop()


async def test_the_state_is_never_empty_while_it_is_loaded_again() -> None:
    """After trouble the last committed state stays in sight, and nobody acts on it."""
    journal = MemoryJournal()
    host = a_host(journal)
    await host.start()
    await host.handle([a_fact("f1", 5)])
    journal.fail_next(AppendStatus.UNKNOWN)
    await host.handle([a_fact("f2", 6)])
    assert not host.is_leader("model/0")
    assert (host.state("model/0")["total"], host.position("model/0")) == (5, 2)
    await host.handle([a_fact("f2", 6)])
    assert host.is_leader("model/0")
    assert host.state("model/0")["total"] == 11
    await host.stop()


async def test_a_dead_leader_is_followed_at_once_and_a_zombie_steps_down() -> None:
    """A holder proven gone needs no waiting; when it was alive, its next append tells it."""
    journal = MemoryJournal()
    zombie = a_host(journal, holder=a_dead_holder())
    await zombie.start()
    await zombie.handle([a_fact("f1")])
    heir = a_host(journal, holder=lease.holder_of_this_process("two"))
    await heir.start()
    assert heir.is_leader("model/0")
    assert (heir.epoch("model/0"), heir.state("model/0")["seen"]) == (2, ["f1"])
    (outcome,) = await zombie.handle([a_fact("f2")])
    assert outcome.kind is OutcomeKind.AGAIN
    assert not zombie.is_leader("model/0")
    with pytest.raises(NotLeader):
        await zombie.submit(a_fact("f3"))
    assert [o.kind for o in await heir.handle([a_fact("f2")])] == ["decided"]
    await zombie.stop()
    await heir.stop()


async def test_a_silent_leader_is_followed_after_its_lease_and_not_before() -> None:
    """A standby tails, waits out the lease on its own clock, then leads with the next epoch."""
    clock = VirtualClock(1_000)
    journal = MemoryJournal()
    first = a_host(journal, clock, holder="one@-/-/1/1/0")
    await first.start()
    standby = a_host(journal, clock, holder="two@-/-/2/2/0")
    await standby.start()
    await first.handle([a_fact("f1")])
    await clock.advance(3 * limits.LEASE_MS)
    assert first.is_leader("model/0")
    assert not standby.is_leader("model/0")
    assert standby.state("model/0")["seen"] == ["f1"]
    for task in first._tasks:  # it hangs: no renewal any more
        task.cancel()
    await clock.advance(limits.LEASE_MS // 2 + limits.LEASE_RENEW_MS)
    assert not first.is_leader("model/0")
    assert not standby.is_leader("model/0")
    await clock.advance(limits.LEASE_MS)
    assert standby.is_leader("model/0")
    assert standby.epoch("model/0") == 2
    stopping = asyncio.create_task(standby.stop())
    await clock.advance(10)
    await stopping


async def test_a_leader_that_slept_looks_before_it_leads_again() -> None:
    """Awake beyond its lease, it renews its mark; until it has seen who leads, it does not lead."""
    seen: list[bool] = []

    class Watched(MemoryJournal):
        async def mark(self, name: str, value: Mapping[str, Any], expected: int) -> Mark | None:
            made = await super().mark(name, value, expected)
            if "/one" in name:
                seen.append(first.is_leader("model/0"))
            return made

        async def read(
            self, stream: str, after: int, *, follow: bool = False, limit: int | None = None
        ) -> AsyncIterator[Entry]:
            seen.append(first.is_leader("model/0"))
            async for entry in super().read(stream, after, follow=follow, limit=limit):
                yield entry

    clock, journal = VirtualClock(1_000), Watched()
    first = a_host(journal, clock, holder="one@-/-/1/1/0")
    await first.start()
    standby = a_host(journal, clock, holder="two@-/-/2/2/0")
    await standby.start()
    assert first.is_leader("model/0")
    for task in first._tasks:  # it sleeps
        task.cancel()
    await clock.advance(3 * limits.LEASE_MS)
    assert standby.is_leader("model/0")
    seen.clear()
    await first._leading.turn()  # it wakes
    assert seen
    assert not any(seen)
    assert not first.is_leader("model/0")
    assert not first.lanes["model/0"].is_led
    stopping = asyncio.create_task(standby.stop())
    await clock.advance(10)
    await stopping


async def test_a_leader_that_stops_releases_its_lease() -> None:
    """The next process leads at its start."""
    journal = MemoryJournal()
    for epoch in (1, 2, 3):
        host = a_host(journal, holder=f"one@-/-/1/1/{epoch}")
        await host.start()
        assert host.is_leader("model/0")
        assert host.epoch("model/0") == epoch
        await host.stop()
        with pytest.raises(NotLeader):
            await host.submit(a_fact("late"))


async def test_what_is_due_is_handed_in_once() -> None:
    """A due fact comes when its time has come, and its decision is an entry like any other."""
    clock = VirtualClock(10_000)
    journal = MemoryJournal()
    host = a_host(journal, clock)
    await host.start()
    handling = asyncio.create_task(host.handle([a_fact("f1", DUE)]))
    await clock.advance(999)
    await handling
    assert host.state("model/0")["rung"] == 0
    await clock.advance(1)
    assert (host.state("model/0")["rung"], host.state("model/0")["due"]) == (1, None)
    await clock.advance(60_000)
    assert host.state("model/0")["rung"] == 1
    assert (await entries_of(journal, "model/0"))[-1].causes == ("due:1:3",)
    await host.stop()


async def test_a_due_time_that_nothing_answers_does_not_spin() -> None:
    """A due fact that changes nothing is repeated at most once a second."""
    asked = []

    class Stubborn(Ledger):
        def due(self, state: Any) -> int | None:
            return 1

        def decide(self, state: Any, fact: Any, *, now: int, policy: Any) -> list[Any]:
            asked.append(now)
            return []

    clock = VirtualClock(10_000)
    host = a_host(clock=clock, decider=Stubborn(1))
    await host.start()
    await clock.advance(5_000)
    assert 4 <= len(asked) <= 7
    await host.stop()


async def test_a_snapshot_shortens_the_load_and_is_never_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load starts from the last whole snapshot; with a damaged one everything is replayed."""
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_ENTRIES", 10)
    journal, objects = MemoryJournal(), MemoryObjects()
    host = a_host(journal, objects=objects)
    await host.start()
    for number in range(45):
        await host.handle([a_fact(f"f{number}")])
    await host.stop()
    state = host.state("model/0")
    mark = (await journal.marks(mark_of("model/0")))[mark_of("model/0")]
    assert mark.value["seq"] >= 40
    keys = [found.key async for found in objects.list("snapshots/")]
    assert len(keys) == 2  # the last one and the one before

    alarms: list[tuple[str, str, str]] = []
    again = a_host(journal, objects=objects, holder="one@-/-/1/1/1", alarms=alarms)
    await again.start()
    assert (again.state("model/0"), alarms) == (state, [])
    assert again.lanes["model/0"].snapshot_seq == mark.value["seq"]
    await again.stop()

    await objects.put(keys[-1], b'{"seq": 1}', replace=True)
    third = a_host(journal, objects=objects, holder="one@-/-/1/1/2", alarms=alarms)
    await third.start()
    assert third.state("model/0") == state
    assert [alarm[0] for alarm in alarms] == ["snapshot_damaged"]
    await third.stop()


async def test_a_store_that_is_away_is_waited_for() -> None:
    """Facts come again, nothing is lost, and leadership comes by itself."""
    journal = MemoryJournal()
    host = a_host(journal)
    journal.fail_next(StoreUnavailable("away"))
    await host.start()
    assert not host.is_leader("model/0")
    (outcome,) = await host.handle([a_fact("f1")])
    assert outcome.kind is OutcomeKind.AGAIN
    await eventually(lambda: host.is_leader("model/0"))
    assert [o.kind for o in await host.handle([a_fact("f1")])] == ["decided"]
    await host.stop()


async def test_a_fact_for_several_streams_has_the_worst_of_their_outcomes() -> None:
    """All its streams decide it; repeated, those that know it say so."""
    host = a_host(clock=SystemClock())
    await host.start()
    (outcome,) = await host.handle([a_fact("f1", account="everywhere")])
    assert outcome.kind is OutcomeKind.DECIDED
    assert [host.state(f"model/{n}")["total"] for n in (0, 1)] == [1, 1]
    await host.stop()
