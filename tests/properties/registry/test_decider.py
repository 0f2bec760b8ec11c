"""Properties of the registry's decider over random histories."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.contracts import manifest
from lineshaft.contracts.events import Event, Fact
from services.registry.domain import refs, versions
from services.registry.domain.models import number_of
from services.registry.domain.refs import RefError
from services.registry.domain.versions import Level
from tests.builders_registry import (
    PureJournal,
    a_candidate,
    a_command,
    a_hold,
    a_job,
    a_manifest,
    examined,
    succeeded,
)

_NAMES = ("chat", "qwen", "lora")


@st.composite
def _manifests(draw: st.DrawFn) -> dict[str, Any]:
    """One of a few dozen manifests, so that histories meet the same one again."""
    number = draw(st.integers(0, 5))
    return a_manifest(
        {"model.safetensors": str(draw(st.integers(0, 2))).encode()},
        name=draw(st.sampled_from(_NAMES)),
        team=draw(st.sampled_from(("default", "default", "others"))),
        job=a_job(str(number)),
        vocabSize=draw(st.sampled_from((512, 600))),
        context=draw(st.sampled_from((128, 256))),
    )


@st.composite
def _facts(draw: st.DrawFn) -> Fact:
    kind = draw(st.sampled_from(("examined",) * 4 + ("succeeded", "hold") + ("command",) * 5))
    if kind == "examined":
        refused = draw(st.sampled_from((None, None, None, "a file differs")))
        return examined(draw(_manifests()), refused=refused)
    if kind == "succeeded":
        return succeeded(a_candidate(draw(_manifests())), f"pool/p:{draw(st.integers(1, 99))}:0")
    if kind == "hold":
        made, holder = draw(_manifests()), draw(_manifests())
        return a_hold(made["name"], manifest.digest(made), manifest.digest(holder))
    verb = draw(st.sampled_from(("promote", "promote", "rollback", "pin", "unpin", "delete")))
    version = draw(st.sampled_from(("1.0.0", "1.1.0", "2.0.0", "v1.0.0", "9.9.9", "x")))
    data = {
        "name": draw(st.sampled_from(_NAMES)),
        "version": draw(st.none() | st.just(version)) if verb == "rollback" else version,
        "alias": draw(st.sampled_from(("production", "canary", "latest"))),
        "expected_current": draw(st.sampled_from((None, None, "none", "1.0.0"))),
        "pin": "keep",
    }
    key = str(draw(st.integers(0, 10_000)))
    return a_command(verb, key, **data)


_histories = st.lists(_facts(), max_size=40)


def _dumps(journal: PureJournal) -> dict[str, str]:
    return {
        stream: json.dumps(journal.decider.dump(state), sort_keys=True)
        for stream, state in journal.states.items()
    }


@settings(max_examples=150, deadline=None)
@given(_histories)
def test_replay_gives_the_same_state_and_a_dump_is_read_back(facts: list[Fact]) -> None:
    """From entries alone, and from a snapshot that went through JSON."""
    journal = PureJournal()
    journal.all(facts)
    replayed = {s: json.dumps(dump, sort_keys=True) for s, dump in journal.replayed().items()}
    assert replayed == _dumps(journal)
    for stream, dump in _dumps(journal).items():
        loaded = journal.decider.load(stream, json.loads(dump))
        assert json.dumps(journal.decider.dump(loaded), sort_keys=True) == dump


@settings(max_examples=150, deadline=None)
@given(_histories, st.randoms(use_true_random=False))
def test_redelivery_in_any_order_changes_nothing_twice(facts: list[Fact], random: Any) -> None:
    """Every fact may come again at any later time."""
    once, again = PureJournal(), PureJournal()
    once.all(facts)
    delivered: list[Fact] = []
    for fact in facts:
        again.hand_in(fact)
        delivered.append(fact)
        for repeated in random.sample(delivered, min(2, len(delivered))):
            assert again.hand_in(repeated) == []
    assert _dumps(once) == _dumps(again)


@settings(max_examples=150, deadline=None)
@given(_histories)
def test_versions_are_unique_rising_and_tell_their_manifest(facts: list[Fact]) -> None:
    """A number is given once, to one manifest; every later one is higher."""
    given_out: dict[str, list[Event]] = {name: [] for name in _NAMES}
    for event in PureJournal().all(facts):
        if event.kind == "model.registered":
            given_out[event.data["name"]].append(event)
    for events in given_out.values():
        numbers = [number_of(event.data["version"]) for event in events]
        assert numbers == sorted(set(numbers))
        assert len({event.data["manifest"] for event in events}) == len(events)
        assert all(event.data["team"] == events[0].data["team"] for event in events)


@settings(max_examples=200, deadline=None)
@given(_histories)
def test_aliases_point_at_what_exists_and_their_history_is_a_chain(facts: list[Fact]) -> None:
    """Each move starts where the last one ended; no alias, and no next step back, dangles."""
    journal = PureJournal()
    last: dict[tuple[str, str], str] = {}
    for fact in facts:
        for event in journal.hand_in(fact):
            if event.kind in ("model.alias_moved", "model.rolled_back"):
                place = (event.data["name"], event.data["alias"])
                assert event.data["from"] == last.get(place)
                assert event.data["to"] != event.data["from"]
                last[place] = event.data["to"]
        for shelf in journal.states.values():
            for name, model in shelf.models.items():
                for alias, where in model.aliases.items():
                    assert last[name, alias] == str(where.current)
                    for number in (where.current, *where.past):
                        assert not model.releases[number].is_deleted
                    assert where.past[-1:] != [where.current]


@settings(max_examples=150, deadline=None)
@given(_histories)
def test_nothing_held_or_pinned_is_deleted(facts: list[Fact]) -> None:
    """Not by any sequence of commands."""
    journal = PureJournal()
    for fact in facts:
        before = {
            (name, str(number))
            for shelf in journal.states.values()
            for name, model in shelf.models.items()
            for number, release in model.releases.items()
            if release.holders or release.pins or model.holding(number)
        }
        for event in journal.hand_in(fact):
            if event.kind == "model.deleted":
                assert (event.data["name"], event.data["version"]) not in before


@settings(max_examples=100, deadline=None)
@given(_manifests(), _manifests())
def test_two_racing_registrations_get_different_versions(one: Any, two: Any) -> None:
    """The loser of the append decides again on the winner's state."""
    journal = PureJournal()
    stale = PureJournal()  # decided on a state that another append has outdated
    first = journal.hand_in(examined(one))
    stale.hand_in(examined(two))
    second = journal.hand_in(examined(two))
    numbers = [e.data["version"] for e in (*first, *second) if e.kind == "model.registered"]
    same_name = one["name"] == two["name"]
    if same_name and len(numbers) == 2:
        assert numbers[0] != numbers[1]


@given(st.sampled_from(Level), st.tuples(*[st.integers(0, 10**8)] * 3))
def test_a_successor_is_always_higher(level: Level, parts: tuple[int, int, int]) -> None:
    """Whatever the change."""
    version = versions.Version(*parts)
    assert versions.successor(version, level) > version
    assert versions.parse(str(version)) == version


@given(_manifests(), _manifests())
def test_a_change_is_judged_the_same_way_back(one: Any, two: Any) -> None:
    """No difference is a patch without reasons; a difference has a reason in one way at least."""
    there = versions.compare(versions.facet_of(one), versions.facet_of(two))
    back = versions.compare(versions.facet_of(two), versions.facet_of(one))
    is_same = versions.facet_of(one) == versions.facet_of(two)
    assert (not there.reasons and not back.reasons) == is_same


@given(st.text(max_size=120))
def test_a_reference_is_read_or_refused(text: str) -> None:
    """Never anything else, and what is read names exactly one thing."""
    try:
        ref = refs.parse(text)
    except RefError:
        return
    assert sum(part is not None for part in (ref.alias, ref.version, ref.manifest)) == 1
    assert text.startswith(ref.name)
