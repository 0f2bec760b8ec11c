"""What becomes of a command: accepted, ignored as outdated, refused, or parked. Pure.

A command always leaves an event, so that its redelivery finds it recorded.
"""

from collections.abc import Mapping
from typing import Any, Final

from lineshaft.contracts import ids, limits
from lineshaft.contracts.events import NOT_APPLICABLE, Event, Fact
from lineshaft.contracts.job_fields import PRIORITIES, PRIORITY_MAX
from lineshaft.runtime.decider import FactRefused
from services.admission.domain.reading import text_of
from services.admission.domain.state import Answered, Parked, SubmissionState

VERBS: Final = ("cancel", "suspend", "resume", "priority")
PARKED_PER_JOB_MAX: Final = 64  # all of them are answered in one entry, at admission
_TEXT_CHARS_MAX = 1024

ACCEPTED: Final = "job.command_accepted"
IGNORED: Final = "submission.command_ignored"
REFUSED: Final = "submission.command_refused"
PARKED: Final = "submission.parked"
EXPIRED: Final = "submission.expired"


def read(fact: Fact) -> Parked:
    """Check a command fact. Raises ``FactRefused`` for what can never be a command."""
    verb = fact.kind.partition(".")[2]
    job = fact.data.get("job")
    if not isinstance(job, str) or not ids.is_job_id(job):
        raise FactRefused(f"{fact.kind}: '{str(job)[:80]}' is no job id")
    data: dict[str, Any] = {
        "job": job,
        "actor": _text(fact.data.get("actor"), fact.source),
        "reason": _text(fact.data.get("reason"), ""),
        "correlation": fact.correlation or fact.id,
    }
    based_on = fact.data.get("based_on")
    if based_on is not None:
        if isinstance(based_on, bool) or not isinstance(based_on, int) or based_on < 0:
            raise FactRefused(f"{fact.kind}: based_on must be the job's version, a whole number")
        data["based_on"] = based_on
    if verb == "priority":
        data["priority"] = priority(fact.data.get("priority"))
    team = _text(fact.data.get("team"), fact.team)
    return Parked(fact.id, 0, verb, team, data)


def priority(value: Any) -> int:
    """Read a priority: low, normal, high or 0 to 1000. Raises ``FactRefused``."""
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if not is_number or not 0 <= number <= PRIORITY_MAX:
        raise FactRefused(f"a priority is low, normal, high or 0 to {PRIORITY_MAX}")
    return int(number)


def _text(value: Any, otherwise: str) -> str:
    return text_of(value, otherwise)[:_TEXT_CHARS_MAX]


def decide(state: SubmissionState, command: Parked, *, now: int) -> Event:
    """Return the one event that a command causes now."""
    job = str(command.data["job"])
    known = state.jobs.get(job)
    if known is not None:
        return settle(known, command)
    is_full = state.parked_count >= limits.PARKED_COMMANDS_MAX // limits.SHARDS
    if is_full or len(state.parked.get(job, ())) >= PARKED_PER_JOB_MAX:
        return _event(REFUSED, command, why="no such job, and too many commands wait already")
    parked = {"id": command.id, "at": now, "verb": command.verb, "team": command.team}
    return Event(PARKED, {"job": job, "command": {**parked, "data": command.data}}, subject=job)


def settle(known: Answered, command: Parked) -> Event:
    """Return what a command for an answered submission comes to."""
    if not known.is_admitted:
        return _event(REFUSED, command, why="the submission was rejected; there is no job")
    if command.team not in (NOT_APPLICABLE, known.team):
        return _event(REFUSED, command, why=f"the job belongs to another team than {command.team}")
    seen = command.data.get("based_on")
    is_outdated = seen is not None and known.based_on is not None and seen < known.based_on
    if is_outdated and command.verb != "cancel":
        why = f"outdated: it saw version {seen}, a later command saw version {known.based_on}"
        return _event(IGNORED, command, why=why)
    data = {**command.data, "verb": command.verb, "key": command.id}
    job = str(command.data["job"])
    return Event(ACCEPTED, data, subject=job, pool=known.pool, team=known.team)


def _event(kind: str, command: Parked, *, why: str) -> Event:
    data = {**command.data, "verb": command.verb, "key": command.id, "why": why}
    return Event(kind, data, subject=str(command.data["job"]))


def expired(state: SubmissionState, *, now: int) -> list[Event]:
    """Return one event for all commands that waited too long."""
    before = now - limits.PARKED_COMMAND_TTL_S * 1000
    gone = [
        {"job": job, "id": row.id, "verb": row.verb}
        for job, rows in sorted(state.parked.items())
        for row in rows
        if row.at <= before
    ][: limits.PARKED_COMMANDS_MAX // limits.SHARDS]
    return [Event(EXPIRED, {"commands": gone})] if gone else []


def parked_of(data: Mapping[str, Any]) -> Parked:
    """Read the command of a ``submission.parked`` event."""
    return Parked(**data["command"])
