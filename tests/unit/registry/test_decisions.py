"""The registry's decisions: versions, lineage, aliases, deletion."""

from typing import Any

import pytest

from lineshaft.contracts import manifest
from lineshaft.contracts.events import Event, check
from services.registry.domain import commands, history, models
from services.registry.domain.decider import stream_of
from tests.builders_registry import (
    NAME,
    PureJournal,
    a_candidate,
    a_command,
    a_hold,
    a_job,
    a_manifest,
    examined,
    succeeded,
)


def _weights(number: int) -> dict[str, Any]:
    return a_manifest({"model.safetensors": str(number).encode()}, job=a_job(str(number)))


def _three(journal: PureJournal) -> None:
    journal.all(examined(_weights(number)) for number in range(3))


def _settled(events: list[Event]) -> dict[str, Any]:
    assert events[-1].kind == commands.SETTLED
    return events[-1].data


def test_the_first_is_1_0_0_and_others_follow_the_rule() -> None:
    """Versions count from 1.0.0; each public event has its required fields."""
    journal = PureJournal()
    _three(journal)
    [event] = journal.hand_in(examined(a_manifest(vocabSize=9, job=a_job("x"))))
    assert [str(number) for number in sorted(journal.shelf().models[NAME].releases)] == [
        *("1.0.0", "1.1.0", "1.2.0", "2.0.0")
    ]
    check(event.kind, event.data)
    assert event.data["after"] == "1.2.0"
    assert event.data["change"] == "major"
    assert event.data["metrics"] == {"kind": {"exactMatch": 0.6}}


def test_the_same_manifest_is_the_same_version() -> None:
    """Also under another fact id."""
    journal = PureJournal()
    made = a_manifest()
    [first] = journal.hand_in(examined(made))
    again = examined(made)
    assert journal.hand_in(again.__class__(**{**_parts(again), "id": "another"})) == []
    assert first.data["version"] == "1.0.0"


def _parts(fact: Any) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in fact.__slots__}


def test_a_refused_candidate_is_kept_with_its_reason() -> None:
    """A refusal is an event, not an error, and makes no model."""
    journal = PureJournal()
    [event] = journal.hand_in(examined(a_manifest(), refused="a file differs"))
    check(event.kind, event.data)
    assert event.kind == "model.refused"
    assert event.data["reason"] == "a file differs"
    assert NAME not in journal.shelf().models


def test_a_name_belongs_to_its_team() -> None:
    """Another team's candidate under the same name is refused."""
    journal = PureJournal()
    journal.hand_in(examined(a_manifest()))
    [event] = journal.hand_in(examined(a_manifest(team="others", job=a_job("2"))))
    assert event.kind == "model.refused"
    assert "belongs to the team 'default'" in event.data["reason"]


def test_a_succeeded_job_is_a_candidate_once() -> None:
    """Also when the fact comes again under another id, and after the candidate was concluded."""
    journal = PureJournal()
    candidate = a_candidate(a_manifest())
    [event] = journal.hand_in(succeeded(candidate))
    assert event.kind == models.CANDIDATE
    assert journal.hand_in(succeeded(candidate, "pool/default:9:9")) == []
    assert list(journal.states[stream_of(candidate.job)].candidates) == [candidate.session]


def test_a_job_without_a_manifest_concerns_nobody() -> None:
    """Script jobs that leave nothing route nowhere."""
    fact = succeeded(a_candidate(a_manifest()))
    assert PureJournal().decider.route(fact.with_data(manifest=None)) == []


# -- lineage --------------------------------------------------------------------------------------


def _parent(journal: PureJournal, role: str, made: dict[str, Any], child: str) -> dict[str, Any]:
    """Take a hold as the registrar does and return the parent it observed."""
    digest = manifest.digest(made)
    event = journal.hand_in(a_hold(made["name"], digest, child))[-1]
    seen = {"role": role, "name": made["name"], "manifest": digest, "external": False}
    if event.kind == models.HELD:
        return {**seen, "refused": None} | {k: event.data[k] for k in ("kind", "base", "depth")}
    return {**seen, "refused": event.data["reason"], "kind": None, "base": None, "depth": 0}


def _link(made: dict[str, Any]) -> dict[str, Any]:
    return {"name": made["name"], "version": None, "manifest": manifest.digest(made)}


def _family(journal: PureJournal) -> tuple[dict[str, Any], dict[str, Any]]:
    """A registered base, and an adapter on it."""
    base = a_manifest(name="qwen")
    journal.hand_in(examined(base))
    adapter = a_manifest(name="chat-lora", kind="adapter", base=_link(base), job=a_job("a"))
    seen = _parent(journal, "base", base, manifest.digest(adapter))
    journal.hand_in(examined(adapter, parents=[seen]))
    return base, adapter


def test_an_adapter_knows_its_base_and_the_base_is_held() -> None:
    """The graph is recorded on both sides, and the base cannot be deleted."""
    journal = PureJournal()
    base, adapter = _family(journal)
    release = journal.shelf("chat-lora").models["chat-lora"].releases[(1, 0, 0)]
    assert (release.base, release.depth) == (manifest.digest(base), 1)
    answer = _settled(journal.hand_in(a_command("delete", "d", name="qwen", version="1.0.0")))
    assert answer["code"] == "refused"
    assert manifest.digest(adapter) in answer["hint"]


def test_a_base_that_is_not_here_refuses_the_child() -> None:
    """A version's parents exist, with exactly that manifest."""
    journal = PureJournal()
    stranger = a_manifest(name="qwen")
    child = a_manifest(kind="adapter", base=_link(stranger))
    seen = _parent(journal, "base", stranger, manifest.digest(child))
    [event] = journal.hand_in(examined(child, parents=[seen]))
    assert event.kind == "model.refused"
    assert "no version of 'qwen'" in event.data["reason"]


@pytest.mark.parametrize(
    ("kind", "verdict"), [("adapter", "model.registered"), ("merged", "model.refused")]
)
def test_a_base_from_outside_may_be_unnamed_but_not_what_was_merged_into(
    kind: str, verdict: str
) -> None:
    """An adapter may be of a folder that no registry knows; a merge names what it changed."""
    [event] = PureJournal().hand_in(examined(a_manifest(kind=kind)))
    assert event.kind == verdict


@pytest.mark.parametrize("is_same", [True, False])
def test_a_merged_model_stands_on_its_adapters_base(is_same: bool) -> None:
    """Merging onto another base than the adapter's is refused."""
    journal = PureJournal()
    base, adapter = _family(journal)
    other = a_manifest(name="other-base", job=a_job("o"))
    journal.hand_in(examined(other))
    onto = base if is_same else other
    merged = a_manifest(
        name="chat", kind="merged", base=_link(onto), adapter=_link(adapter), job=a_job("m")
    )
    digest = manifest.digest(merged)
    parents = [
        _parent(journal, "base", onto, digest),
        _parent(journal, "adapter", adapter, digest),
    ]
    [event] = journal.hand_in(examined(merged, parents=parents))
    assert event.kind == ("model.registered" if is_same else "model.refused")
    if is_same:
        assert event.data["depth"] == 2


# -- aliases --------------------------------------------------------------------------------------


def _promote(journal: PureJournal, key: str, version: str, **more: Any) -> list[Event]:
    return journal.hand_in(a_command("promote", key, alias="production", version=version, **more))


def _current(journal: PureJournal) -> str:
    return str(journal.shelf().models[NAME].aliases["production"].current)


def test_promote_moves_and_says_from_where() -> None:
    """The event is public and whole."""
    journal = PureJournal()
    _three(journal)
    event, _ = _promote(journal, "1", "v1.0.0")
    check(event.kind, event.data)
    assert (event.data["from"], event.data["to"]) == (None, "1.0.0")
    assert _promote(journal, "2", "1.1.0")[0].data["from"] == "1.0.0"


def test_expected_current_keeps_two_people_from_overwriting_one_another() -> None:
    """The second who saw the same current gets a conflict; ``none`` means "not there yet"."""
    journal = PureJournal()
    _three(journal)
    assert _settled(_promote(journal, "1", "1.0.0", expected_current="none"))["code"] == "ok"
    assert _settled(_promote(journal, "2", "1.1.0", expected_current="v1.0.0"))["code"] == "ok"
    late = _settled(_promote(journal, "3", "1.2.0", expected_current="1.0.0"))
    assert late["code"] == "conflict"
    assert _settled(_promote(journal, "4", "1.2.0", expected_current="none"))["code"] == "conflict"
    assert _current(journal) == "1.1.0"


@pytest.mark.parametrize("alias", ["latest", "sha256", "Production", "", "a b"])
def test_latest_is_computed_never_moved(alias: str) -> None:
    """Nor can an alias be called what has another meaning."""
    journal = PureJournal()
    _three(journal)
    events = journal.hand_in(a_command("promote", "1", alias=alias, version="1.0.0"))
    assert [event.kind for event in events] == [commands.SETTLED]
    assert _settled(events)["code"] == "usage"


def test_roll_back_retraces_the_way() -> None:
    """Twice back is two steps back, not to and fro; then there is nothing earlier."""
    journal = PureJournal()
    _three(journal)
    for number, version in enumerate(("1.0.0", "1.1.0", "1.2.0")):
        _promote(journal, str(number), version)
    answers = [
        _settled(journal.hand_in(a_command("rollback", f"r{n}", alias="production", version=None)))
        for n in range(3)
    ]
    assert [answer.get("result", {}).get("to") for answer in answers] == ["1.1.0", "1.0.0", None]
    assert answers[2]["code"] == "refused"


def test_roll_back_takes_a_target_that_was_live() -> None:
    """Any version on the way back, never one that was not live under this alias."""
    journal = PureJournal()
    _three(journal)
    _promote(journal, "1", "1.0.0")
    _promote(journal, "2", "1.1.0")
    back = a_command("rollback", "3", alias="production", version="1.2.0")
    assert _settled(journal.hand_in(back))["code"] == "refused"
    back = a_command("rollback", "4", alias="production", version="1.0.0")
    event, _ = journal.hand_in(back)
    check(event.kind, event.data)
    assert event.kind == "model.rolled_back"
    assert _current(journal) == "1.0.0"


def test_a_repeated_command_gets_its_first_answer() -> None:
    """A promote that is delivered again after a rollback does not act again."""
    journal = PureJournal()
    _three(journal)
    _promote(journal, "1", "1.0.0")
    _promote(journal, "2", "1.1.0")
    journal.hand_in(a_command("rollback", "3", alias="production", version=None))
    assert _promote(journal, "2", "1.1.0") == []
    assert _current(journal) == "1.0.0"


# -- deletion -------------------------------------------------------------------------------------


def test_what_is_live_or_next_on_the_way_back_is_not_deleted() -> None:
    """The rollback target is never collected."""
    journal = PureJournal()
    _three(journal)
    _promote(journal, "1", "1.0.0")
    _promote(journal, "2", "1.1.0")
    codes = [
        _settled(journal.hand_in(a_command("delete", f"d{n}", version=f"1.{n}.0")))["code"]
        for n in range(3)
    ]
    assert codes == ["refused", "refused", "ok"]


def test_a_pin_keeps_a_version() -> None:
    """Until it is taken off."""
    journal = PureJournal()
    _three(journal)
    journal.hand_in(a_command("pin", "1", version="1.2.0", pin="audit"))
    delete = [a_command("delete", key, version="1.2.0") for key in ("2", "4")]
    assert _settled(journal.hand_in(delete[0]))["code"] == "refused"
    journal.hand_in(a_command("unpin", "3", version="1.2.0", pin="audit"))
    event, _ = journal.hand_in(delete[1])
    check(event.kind, event.data)


def test_a_deleted_number_is_never_given_again() -> None:
    """Nor does its manifest come back by a late repetition."""
    journal = PureJournal()
    _three(journal)
    journal.hand_in(a_command("delete", "1", version="1.2.0"))
    model = journal.shelf().models[NAME]
    assert str(model.latest()) == "1.1.0"
    [event] = journal.hand_in(examined(_weights(7)))
    assert event.data["version"] == "1.3.0"
    assert _settled(_promote(journal, "2", "1.2.0"))["code"] == "not_found"


# -- history --------------------------------------------------------------------------------------


def test_what_was_live_then() -> None:
    """The last move by that moment; none before the first."""
    moves = [{"at": 10, "to": "1.0.0"}, {"at": 20, "to": "1.1.0"}]
    live = [(found := history.at(moves, at)) and found["to"] for at in (9, 10, 19, 20, 99)]
    assert live == [None, "1.0.0", "1.0.0", "1.1.0", "1.1.0"]
