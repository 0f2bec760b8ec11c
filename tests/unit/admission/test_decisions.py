"""The decider: answers by key and content, commands before, after and too late."""

from typing import Any

import pytest

from lineshaft.contracts import events, ids, limits
from lineshaft.contracts.events import Event, Fact
from lineshaft.runtime.decider import CLOCK_DUE, FactRefused
from services.admission.domain import commanding
from services.admission.domain.decider import AdmissionDecider, job_of, stream_of
from services.admission.domain.policy import AdmissionPolicy
from services.admission.domain.state import SubmissionState
from tests.builders_admission import FOUNDING, a_command, a_document, a_submission

DECIDER = AdmissionDecider()
POLICY = AdmissionPolicy()


class Shard:
    """One stream, driven by facts."""

    def __init__(self) -> None:
        self.state: SubmissionState = DECIDER.initial("submission/0")

    def tell(self, fact: Fact, now: int = 10_000) -> list[Event]:
        decided = DECIDER.decide(self.state, fact, now=now, policy=POLICY)
        for event in decided:
            if event.is_public:
                events.check(event.kind, event.data)
            self.state = DECIDER.evolve(self.state, event, at=now)
        return decided


JOB = job_of(a_submission())


def kinds(decided: list[Event]) -> list[str]:
    return [event.kind for event in decided]


def test_a_good_job_is_admitted_with_everything_the_scheduler_needs() -> None:
    """The event carries spec, resolved, gang, budgets, estimate; and answers its sender."""
    (event,) = Shard().tell(a_submission(FOUNDING.read_text(), team="nlp"))
    assert event.kind == "job.admitted"
    assert (event.subject, event.pool, event.team) == (ids.job_id("nlp", "k1"), "default", "nlp")
    data = event.data
    assert data["gang"] == {"nodes": 2, "slots_per_node": 8, "gpu_type": "a100-80g"}
    assert data["budgets"] == {"node": 5, "platform": 5, "preemption": 32, "user": 0}
    assert data["spec"]["team"] == "nlp"
    assert (data["key"], data["actor"], data["correlation"]) == ("k1", "ann", "k1")


@pytest.mark.parametrize("job", ["a: [", "", "\ud800", {}, {"spec": 3}, {"a": float("nan")}, []])
def test_what_is_no_job_is_rejected_with_reasons_and_never_lost(job: Any) -> None:
    """A sender always gets an answer with its correlation id."""
    (event,) = Shard().tell(a_submission(job))
    assert event.kind == "job.rejected"
    assert event.data["reasons"]
    assert event.data["correlation"] == "k1"


def test_all_reasons_come_in_one_rejection() -> None:
    """Faults of the file, findings of preflight and capacity are one list."""
    findings = [{"path": "spec.datasets[0].path", "message": "is empty"}]
    fact = a_submission(observed={"findings": findings}, team="Bad Team!")
    (event,) = Shard().tell(fact)
    assert {reason["code"] for reason in event.data["reasons"]} == {"team", "preflight"}


def test_the_same_key_with_the_same_content_changes_nothing() -> None:
    """Whatever the order of keys or the spelling of the file."""
    shard = Shard()
    shard.tell(a_submission())
    again = dict(reversed(a_document().items()))
    assert kinds(shard.tell(a_submission(again, copy=1))) == ["submission.repeated"]
    assert len(shard.state.jobs) == 1


def test_the_same_key_with_other_content_is_a_conflict() -> None:
    """It is journaled, answered, and leaves the first job as it is."""
    shard = Shard()
    shard.tell(a_submission())
    before = DECIDER.dump(shard.state)
    (event,) = shard.tell(a_submission(a_document(priority=1), copy=1))
    assert event.kind == "job.rejected"
    assert event.data["reasons"][0]["code"] == "conflict"
    assert DECIDER.dump(shard.state) == before


def test_the_team_is_the_submissions_and_the_field_is_a_check() -> None:
    """Without a team on the submission, the file's is taken; a different one is a reason."""
    job = a_document(team="vision")
    assert Shard().tell(a_submission(job))[0].team == "vision"
    (event,) = Shard().tell(a_submission(job, team="nlp"))
    assert event.data["reasons"][0]["path"] == "spec.team"
    assert Shard().tell(a_submission())[0].team == "default"


def test_a_command_for_an_admitted_job_is_passed_on() -> None:
    """With pool and team of the job, its actor, and the version that its sender saw."""
    shard = Shard()
    shard.tell(a_submission())
    (event,) = shard.tell(a_command("suspend", JOB, reason="maintenance", based_on=4))
    assert event.kind == "job.command_accepted"
    assert (event.pool, event.team) == ("default", "default")
    assert event.data["verb"] == "suspend"
    assert event.data["based_on"] == 4
    (event,) = shard.tell(a_command("priority", JOB, priority="high", id="c2"))
    assert event.data["priority"] == 750


def test_a_command_before_its_job_waits_and_is_applied_at_admission() -> None:
    """In the order of arrival, in the same entry as the admission."""
    shard = Shard()
    assert kinds(shard.tell(a_command("suspend", JOB))) == ["submission.parked"]
    assert kinds(shard.tell(a_command("cancel", JOB, id="c2"))) == ["submission.parked"]
    decided = shard.tell(a_submission())
    assert kinds(decided) == ["job.admitted", *["job.command_accepted"] * 2]
    assert [event.data["verb"] for event in decided[1:]] == ["suspend", "cancel"]
    assert shard.state.parked == {}


def test_a_command_for_a_rejected_submission_is_refused() -> None:
    """Whether it came before or after."""
    shard = Shard()
    shard.tell(a_command("cancel", JOB))
    assert kinds(shard.tell(a_submission({}))) == ["job.rejected", "submission.command_refused"]
    assert kinds(shard.tell(a_command("cancel", JOB, id="c2"))) == ["submission.command_refused"]


def test_parked_commands_expire_after_a_day() -> None:
    """And no job that comes later is stopped by them."""
    shard = Shard()
    shard.tell(a_command("cancel", JOB), now=1_000)
    due = DECIDER.due(shard.state)
    assert due == 1_000 + limits.PARKED_COMMAND_TTL_S * 1000
    early = Fact("d0", CLOCK_DUE, {}, due - 1, "host")
    assert shard.tell(early, now=due - 1) == []
    assert kinds(shard.tell(Fact("d1", CLOCK_DUE, {}, due, "host"), now=due)) == [
        "submission.expired"
    ]
    assert DECIDER.due(shard.state) is None
    assert kinds(shard.tell(a_submission(), now=due)) == ["job.admitted"]


def test_parked_commands_are_bounded() -> None:
    """Per job, so that an admission is one entry, and in all."""
    shard = Shard()
    for number in range(commanding.PARKED_PER_JOB_MAX + 1):
        last = shard.tell(a_command("cancel", JOB, id=f"c{number}"))
    assert kinds(last) == ["submission.command_refused"]
    assert len(shard.tell(a_submission())) == commanding.PARKED_PER_JOB_MAX + 1
    for number in range(limits.PARKED_COMMANDS_MAX // limits.SHARDS + 1):
        job = ids.job_id("x", str(number))
        last = shard.tell(a_command("cancel", job, id=f"d{number}"))
    assert kinds(last) == ["submission.command_refused"]


def test_an_outdated_command_is_recorded_and_ignored_but_never_a_cancel() -> None:
    """It saw the job before what the last applied command saw."""
    shard = Shard()
    shard.tell(a_submission())
    shard.tell(a_command("suspend", JOB, based_on=5))
    outdated = a_command("resume", JOB, id="c2", based_on=4)
    assert kinds(shard.tell(outdated)) == ["submission.command_ignored"]
    assert kinds(shard.tell(a_command("resume", JOB, id="c3"))) == ["job.command_accepted"]
    assert kinds(shard.tell(a_command("cancel", JOB, id="c4", based_on=1))) == [
        "job.command_accepted"
    ]


def test_a_command_of_another_team_is_refused() -> None:
    """Where the sender's team is known, it must be the job's."""
    shard = Shard()
    shard.tell(a_submission(team="nlp"))
    job = ids.job_id("nlp", "k1")
    assert kinds(shard.tell(a_command("cancel", job, team="vision"))) == [
        "submission.command_refused"
    ]
    assert kinds(shard.tell(a_command("cancel", job, team="nlp", id="c2"))) == [
        "job.command_accepted"
    ]


@pytest.mark.parametrize(
    "fact",
    [
        a_command("cancel", "no-id"),
        a_command("priority", JOB, priority=5_000),
        a_command("priority", JOB, priority=True),
        a_command("cancel", JOB, based_on="x"),
        a_command("cancel", JOB, based_on=-1),
    ],
)
def test_what_can_never_be_a_command_is_refused(fact: Fact) -> None:
    """It goes to the dead stream with its reason."""
    with pytest.raises(FactRefused):
        Shard().tell(fact)


def test_submissions_and_commands_of_a_job_meet_in_one_stream() -> None:
    """The shard is that of the job's id."""
    assert (
        DECIDER.route(a_submission()) == [stream_of(JOB)] == DECIDER.route(a_command("cancel", JOB))
    )
    assert DECIDER.route(Fact("x", "job.queued", {}, 0, "scheduler")) == []
    assert set(DECIDER.route(a_submission())) <= set(DECIDER.streams())


def test_odd_keys_and_teams_are_answered() -> None:
    """Lone surrogates and lengths beyond the bound reject the job, not the service."""
    for fact in (
        a_submission(key="\ud800"),
        a_submission(key="x" * 500),
        a_submission(team="\ud800"),
    ):
        assert Shard().tell(fact)[0].kind in ("job.admitted", "job.rejected")
