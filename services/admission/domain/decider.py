"""Admission decides: may this job enter, and what becomes of a command.

Owns ``submission/<shard>``; the shard is that of the job's id, which derives from team and key.
Internal kinds: ``submission.parked``, ``submission.expired``, ``submission.command_ignored``,
``submission.command_refused``, ``submission.repeated``. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lineshaft.contracts import ids, limits
from lineshaft.contracts.events import NOT_APPLICABLE, Event, Fact
from lineshaft.runtime.decider import CLOCK_DUE
from services.admission.domain import commanding, judging, reading, resolving, state
from services.admission.domain.policy import AdmissionPolicy
from services.admission.domain.reading import Reading, some
from services.admission.domain.state import Answered, SubmissionState

SUBMIT: Final = "in.submit"
ADMITTED: Final = "job.admitted"
REJECTED: Final = "job.rejected"
REPEATED: Final = "submission.repeated"
TEAM_DEFAULT: Final = "default"
KEY_CHARS_MAX: Final = 200
_COMMANDS: Final = frozenset(f"in.{verb}" for verb in commanding.VERBS)


def stream_of(job: str) -> str:
    """Return the journal stream that holds a job's submission."""
    return f"submission/{ids.shard(job)}"


def team_of(fact: Fact) -> str:
    """Return the team on whose behalf something is submitted; the server's word comes first."""
    if fact.team != NOT_APPLICABLE:
        return fact.team
    return reading.text_of(fact.data.get("team"), TEAM_DEFAULT)


def key_of(fact: Fact) -> str:
    """Return a submission's idempotency key; an event's own id where it names none."""
    return reading.text_of(fact.data.get("key"), fact.id)


def job_of(fact: Fact) -> str:
    """Return the id that a submission's job has or would have."""
    return ids.job_id(team_of(fact), key_of(fact))


class AdmissionDecider:
    """Decides submissions and commands; see ``lineshaft.runtime.decider.Decider``."""

    service = "admission"

    def streams(self) -> Sequence[str]:
        """Return all shards."""
        return [f"submission/{shard}" for shard in range(limits.SHARDS)]

    def route(self, fact: Fact) -> Sequence[str]:
        """Return the shard of the job that a submission or command is about."""
        if fact.kind == SUBMIT:
            return [stream_of(job_of(fact))]
        if fact.kind in _COMMANDS:
            return [stream_of(str(fact.data.get("job")))]
        return []

    def initial(self, stream: str) -> SubmissionState:
        """Return the state without submissions."""
        return SubmissionState()

    def decide(
        self, state: SubmissionState, fact: Fact, *, now: int, policy: AdmissionPolicy
    ) -> list[Event]:
        """Return the events of a submission, a command, or of time passing."""
        if fact.kind == SUBMIT:
            return _submit(state, fact, policy)
        if fact.kind in _COMMANDS:
            return [commanding.decide(state, commanding.read(fact), now=now)]
        if fact.kind == CLOCK_DUE:
            return commanding.expired(state, now=now)
        return []

    def evolve(self, state: SubmissionState, event: Event, *, at: int) -> SubmissionState:
        """Apply one event; kinds that are not ours change nothing."""
        apply = _EVOLVE.get(event.kind)
        if apply is not None:
            apply(state, event)
        return state

    def due(self, state: SubmissionState) -> int | None:
        """Return when the oldest parked command expires."""
        oldest = state.oldest_parked_at
        return None if oldest is None else oldest + limits.PARKED_COMMAND_TTL_S * 1000

    def dump(self, state: SubmissionState) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return _dump(state)

    def load(self, stream: str, dumped: dict[str, Any]) -> SubmissionState:
        """Read a snapshot back."""
        return _load(dumped)


_dump, _load = state.dump, state.load


# ---------------------------------------------------------------------------------------------
# Submissions


def _submit(state: SubmissionState, fact: Fact, policy: AdmissionPolicy) -> list[Event]:
    read = reading.read(fact.data.get("job"))
    job = job_of(fact)
    known = state.jobs.get(job)
    if known is not None:
        return [_repeated(job, fact, read, known)]
    events = [_answer(job, fact, read, policy)]
    is_admitted = events[0].kind == ADMITTED
    answered = Answered(read.digest, is_admitted, events[0].pool, events[0].team)
    for command in state.parked.get(job, ()):
        event = commanding.settle(answered, command)
        if event.kind == commanding.ACCEPTED:
            answered = _after_command(answered, event)
        events.append(event)
    return events


def _repeated(job: str, fact: Fact, read: Reading, known: Answered) -> Event:
    """Answer a key that was used before: the same content as before, else a conflict."""
    if known.digest == read.digest:
        return Event(REPEATED, {"job": job, "admitted": known.is_admitted}, subject=job)
    message = "this key was used for another job file; a new submission needs a new key"
    reason = read.reason("conflict", (), message, "send the first file again, or another key")
    return _rejected(job, fact, read, {"reasons": [reason], "conflict": True})


def _answer(job: str, fact: Fact, read: Reading, policy: AdmissionPolicy) -> Event:
    observed = some(fact.data.get("observed"))
    team = team_of(fact)
    reasons = _identity_reasons(fact, read, team)
    if team == TEAM_DEFAULT and read.job is not None and read.job.team is not None:
        team = read.job.team
    verdict = judging.judge(read, observed, replace(policy, team=team))
    reasons += verdict.reasons
    if reasons or read.job is None:
        kept = reasons[: limits.JOB_FILE_FAULTS_MAX]
        more = {"reasons": kept, "warnings": verdict.warnings, "estimate": verdict.estimate}
        return _rejected(job, fact, read, more)
    data = {
        "job": job,
        "name": read.job.name,
        "team": team,
        "pool": policy.pool,
        "spec": verdict.spec,
        "resolved": verdict.resolved,
        "gang": resolving.gang(read.job),
        "priority": read.job.priority,
        "budgets": resolving.budgets(read.job),
        "estimate": verdict.estimate,
        "warnings": verdict.warnings,
        "observed": _kept(observed),
        **_origin(fact, read),
    }
    return Event(ADMITTED, data, subject=job, pool=policy.pool, team=team)


def _identity_reasons(fact: Fact, read: Reading, team: str) -> list[dict[str, Any]]:
    made = []
    if not ids.is_name(team):
        made.append(read.reason("team", (), f"'{team[:80]}' is no team's name"))
    elif read.job is not None and read.job.team not in (None, team) and team != TEAM_DEFAULT:
        message = f"the submission comes from team '{team}'"
        made.append(read.reason("team", ("spec", "team"), message, "leave the field out"))
    if len(key_of(fact)) > KEY_CHARS_MAX:
        message = f"the key has more than {KEY_CHARS_MAX} characters"
        made.append(read.reason("key", (), message))
    return made


def _rejected(job: str, fact: Fact, read: Reading, more: Mapping[str, Any]) -> Event:
    team = team_of(fact)
    data = {"job": job, "warnings": [], "estimate": {}, **more, **_origin(fact, read)}
    return Event(REJECTED, data, subject=job, team=team if ids.is_name(team) else NOT_APPLICABLE)


def _origin(fact: Fact, read: Reading) -> dict[str, Any]:
    return {
        "key": key_of(fact)[:KEY_CHARS_MAX],
        "digest": read.digest,
        "actor": reading.text_of(fact.data.get("actor"), fact.source)[:KEY_CHARS_MAX],
        "correlation": fact.correlation or key_of(fact)[:KEY_CHARS_MAX],
    }


def _kept(observed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the observations is journaled: small, and not said elsewhere."""
    return {name: observed[name] for name in ("inventory", "at") if name in observed}


# ---------------------------------------------------------------------------------------------
# Evolution


def _after_command(known: Answered, event: Event) -> Answered:
    seen = event.data.get("based_on")
    newest = max((s for s in (seen, known.based_on) if s is not None), default=None)
    return replace(known, based_on=newest)


def _evolve_answer(state: SubmissionState, event: Event) -> None:
    if event.data.get("conflict"):
        return
    is_admitted = event.kind == ADMITTED
    row = Answered(str(event.data["digest"]), is_admitted, event.pool, event.team)
    state.jobs[event.subject] = row
    state.parked.pop(event.subject, None)


def _evolve_accepted(state: SubmissionState, event: Event) -> None:
    known = state.jobs.get(event.subject)
    if known is not None:
        state.jobs[event.subject] = _after_command(known, event)


def _evolve_parked(state: SubmissionState, event: Event) -> None:
    command = commanding.parked_of(event.data)
    state.parked[event.subject] = (*state.parked.get(event.subject, ()), command)


def _evolve_expired(state: SubmissionState, event: Event) -> None:
    gone = {row["id"] for row in event.data["commands"]}
    for job in {row["job"] for row in event.data["commands"]}:
        left = tuple(row for row in state.parked.get(job, ()) if row.id not in gone)
        if left:
            state.parked[job] = left
        else:
            state.parked.pop(job, None)


_EVOLVE: Final = {
    ADMITTED: _evolve_answer,
    REJECTED: _evolve_answer,
    commanding.ACCEPTED: _evolve_accepted,
    commanding.PARKED: _evolve_parked,
    commanding.EXPIRED: _evolve_expired,
}
