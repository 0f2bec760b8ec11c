"""Whatever the store answers, however facts arrive: each counts once, and replay agrees."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.ports import AppendStatus, StoreUnavailable
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.lane import Lane, events_of_cause
from tests.builders_runtime import Ledger, a_fact, a_host, entries_of

ANSWERS = [AppendStatus.UNKNOWN, AppendStatus.SEQ_CONFLICT, StoreUnavailable("away")]
facts = st.tuples(st.integers(0, 11), st.integers(0, 2))
batches = st.lists(facts, min_size=1, max_size=8)
failures = st.one_of(st.none(), st.tuples(st.sampled_from(ANSWERS), st.booleans()))
steps = st.lists(
    st.tuples(batches, failures, st.sampled_from(["go", "go", "restart", "rival"])),
    min_size=1,
    max_size=8,
)


def fact_of(number: int, account: int) -> Any:
    """A fact whose id fixes its content."""
    return a_fact(f"f{number}-{account}", number + 1, account)


async def settled(host: Any, wanted: list[Any]) -> None:
    """Hand facts in again until each is decided or known, as a bus would."""
    left = wanted
    for _ in range(20):
        outcomes = await host.handle(left)
        pairs = zip(left, outcomes, strict=True)
        left = [fact for fact, out in pairs if out.kind is OutcomeKind.AGAIN]
        if not left:
            return
        await host._leading.turn()
    raise AssertionError(f"never settled: {left}")


async def run(plan: list[Any]) -> None:
    """Play a plan, then look at what is in the journal."""
    journal = MemoryJournal()
    generation = 0
    host = a_host(journal, decider=Ledger(3))
    await host.start()
    given_ids: dict[str, int] = {}
    for batch, failure, event in plan:
        wanted = [fact_of(*pair) for pair in batch]
        given_ids.update({fact.id: fact.data["priority"] for fact in wanted})
        if failure is not None:
            journal.fail_next(failure[0], committed=failure[1])
        if event == "go":
            await settled(host, wanted)
            continue
        await host.handle(wanted)
        generation += 1
        former, host = host, a_host(journal, decider=Ledger(3), holder=f"h{generation}@-/-/1/1/1")
        await former._leading._lease.release()
        journal._failures.clear()
        await host.start()
        if event == "rival":  # the former one does not know yet that it was followed
            late = await former.handle(wanted)
            assert all(out.kind in (OutcomeKind.AGAIN, OutcomeKind.KNOWN) for out in late)
        await former.stop()
        await settled(host, wanted)
    await check(journal, host, given_ids)
    await host.stop()


async def check(journal: MemoryJournal, host: Any, given_ids: dict[str, int]) -> None:
    """Each fact counts once, decided on what was committed before it; a replay agrees."""
    seen: list[str] = []
    decider = Ledger(3)
    for stream in decider.streams():
        entries = await entries_of(journal, stream)
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        replayed = Lane(decider, stream)
        for entry in entries:
            replayed.apply(entry)
            for cause in entry.causes:
                added = [e for e in events_of_cause(entry, cause) if e.kind == "ledger.added"]
                assert [e.data["by"] for e in added] == [cause]
        assert replayed.state == host.state(stream)
        decided_on = [int(e.data["reason"]) for n in entries for e in n.events if e.is_public]
        amounts = [given_ids[by] for by in replayed.state["seen"]]
        assert decided_on == [sum(amounts[: n + 1]) for n in range(len(amounts))]
        seen += host.state(stream)["seen"]
    assert sorted(seen) == sorted(given_ids)
    assert sum(host.state(s)["total"] for s in decider.streams()) == sum(given_ids.values())


@settings(max_examples=150, deadline=None)
@given(steps)
def test_any_interleaving_loses_and_doubles_nothing(plan: list[Any]) -> None:
    """Unclear answers, late commits, restarts, rivals, repeats: every fact counts exactly once."""
    asyncio.run(run(plan))
