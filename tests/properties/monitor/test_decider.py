"""Properties of the monitor's decider over any order of facts, repeated and late ones too."""

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.contracts.alerts import KINDS, AlertStatus, Severity, may_become
from lineshaft.contracts.events import Event, Fact, check
from services.monitor.domain.decider import MonitorDecider
from services.monitor.domain.observations import Observation, Phase
from services.monitor.domain.observing import observed
from services.monitor.domain.raising import stream_of
from services.monitor.domain.state import WatchState
from tests.builders_monitor import JOB, NOW, Line, a_fact, an_exit

STATE = {"state": "-", "substate": None, "reason": "-", "actor": "-"}
PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:1"

attempts = st.integers(1, 4)
times = st.integers(NOW, NOW + 100_000)


@st.composite
def observations(draw: st.DrawFn) -> Fact:
    seen = Observation(
        draw(st.sampled_from(sorted(set(KINDS) - {"rank_exited", "platform_finding"}))),
        draw(st.sampled_from(["run", "rank-1", "node-n0"])),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(list(Phase))),
        draw(st.sampled_from(list(Severity))),
        "It was seen.",
        {"step": draw(st.integers(0, 9)), "value": draw(st.floats())},
        draw(times),
    )
    return observed(seen, JOB, draw(attempts), ("default", "team"))


@st.composite
def exits(draw: st.DrawFn) -> Fact:
    rank, attempt = draw(st.integers(0, 3)), draw(attempts)
    values: dict[str, Any] = draw(
        st.sampled_from(
            [{"signal": 9}, {"exit_code": 1}, {"exit_code": 1, "last_lines": [PEER]}, {}]
        )
    )
    return an_exit(rank, attempt=attempt, at=draw(times), **values)


@st.composite
def life(draw: st.DrawFn) -> Fact:
    attempt, at = draw(attempts), draw(times)
    extra = {"attempt": attempt, "class": "infrastructure", "budget": "node", "resume_from": None}
    kind = draw(st.sampled_from(["job.placed", "job.running", "job.retrying", "job.suspended"]))
    return a_fact(kind, {**STATE, **extra, "nodes": []}, attempt=attempt, at=at)


@st.composite
def run_facts(draw: st.DrawFn) -> Fact:
    attempt, at = draw(attempts), draw(times)
    kind, data = draw(
        st.sampled_from(
            [
                ("run.started", {"node": "n0", "ranks": []}),
                ("run.ended", {"node": "n0", "outcome": "failed", "class": "config"}),
                ("run.stop_ordered", {"epoch": 1, "intent": "fault", "reason": "", "grace_ms": 1}),
                ("run.stop_ordered", {"epoch": 1, "intent": "cancel", "reason": "", "grace_ms": 1}),
                ("run.checkpoint_committed", {"step": 5, "digest": "d", "bytes": 1, "path": "p"}),
            ]
        )
    )
    return a_fact(kind, data, attempt=attempt, at=at)


def ends() -> st.SearchStrategy[Fact]:
    data = {**STATE, "class": "user_code", "manifest": None, "name": "n", "attempt": 4}
    return st.sampled_from(["job.succeeded", "job.failed", "job.cancelled"]).map(
        lambda kind: a_fact(kind, data, attempt=4)
    )


anything = st.one_of(observations(), exits(), life(), run_facts())
stories = st.lists(anything, max_size=40)


def _played(facts: list[Fact]) -> Line:
    line = Line()
    for fact in facts:
        line.now += 700
        line.take(fact)
        line.wait(0)
        _holds(line)
    line.wait(10_000)
    _holds(line)
    return line


def _holds(line: Line) -> None:
    for job in line.state.jobs.values():
        keys = Counter((a["kind"], a["subject"]) for a in job.alerts.values())
        assert not keys or max(keys.values()) == 1, "two open alerts about one thing"


def _public(events: list[Event]) -> list[tuple[str, str]]:
    names = {"run.diagnosed": "diagnosis"}
    return [(e.kind, e.data[names.get(e.kind, "alert")]) for e in events if e.is_public]


@settings(max_examples=60, deadline=None)
@given(stories)
def test_every_public_event_is_valid_and_plain_json(facts: list[Fact]) -> None:
    """Whatever comes in, what goes out has its fields and survives JSON without NaN."""
    for event in _played(facts).events:
        if event.is_public:
            check(event.kind, event.data)
        json.loads(json.dumps(event.data, allow_nan=False))


@settings(max_examples=60, deadline=None)
@given(stories)
def test_a_diagnosis_is_made_once(facts: list[Fact]) -> None:
    """One per (job, attempt, what, subject), however often its causes come."""
    found = Counter(d["diagnosis"] for d in _played([*facts, *facts]).of("run.diagnosed"))
    assert not found or max(found.values()) == 1


@settings(max_examples=60, deadline=None)
@given(stories)
def test_repeated_facts_change_nothing_twice(facts: list[Fact]) -> None:
    """A fact that comes again adds nothing to what its first coming made."""
    once = _played(facts)
    line = Line()
    for fact in facts:
        line.now += 700
        line.take(fact)
        line.wait(0)
        before = (_public(line.events), line.decider.dump(line.state))
        line.take(fact)
        assert (_public(line.events), line.decider.dump(line.state)) == before
    line.wait(10_000)
    assert _public(line.events) == _public(once.events)


@settings(max_examples=50, deadline=None)
@given(stories, ends(), stories)
def test_terminal_absorbs(before: list[Fact], end: Fact, after: list[Fact]) -> None:
    """After a job ended nothing of it is open, and nothing that comes changes that."""
    line = _played([*before, end])
    assert JOB not in line.state.jobs
    count = len(line.events)
    for fact in after:
        line.take(Fact(f"again/{fact.id}", fact.kind, fact.data, fact.at, "x", JOB, fact.attempt))
    assert len(line.events) == count


@settings(max_examples=50, deadline=None)
@given(stories)
def test_replaying_the_journal_gives_the_same_state(facts: list[Fact]) -> None:
    """The events alone, with their times, make the state; so does a snapshot of it."""
    decider = MonitorDecider()
    line = Line()
    replayed: WatchState = decider.initial(stream_of(JOB))
    for fact in facts:
        line.now += 700
        for event in line.take(fact):
            replayed = decider.evolve(replayed, event, at=line.now)
    dumped = decider.dump(line.state)
    assert decider.dump(replayed) == dumped
    restored = decider.load(stream_of(JOB), json.loads(json.dumps(dumped)))
    assert decider.dump(restored) == dumped


@settings(max_examples=50, deadline=None)
@given(stories)
def test_an_alert_walks_its_table(facts: list[Fact]) -> None:
    """Per id: opened or confirmed, then only what the table allows, and nothing after its end."""
    status: dict[str, str] = {}
    for event in _played(facts).events:
        if event.kind not in ("alert.firing", "alert.resolved"):
            continue
        name, now = event.data["alert"], event.data["status"]
        if name in status:
            assert may_become(status[name], now)
        else:
            assert now in (AlertStatus.OPENED, AlertStatus.CONFIRMED)
        status[name] = now
