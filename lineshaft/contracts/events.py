"""Facts and events: their one shape, their kinds, who publishes each, and the envelope.

A *fact* is anything a service is told; an *event* is what a decider writes into its journal.
The relay turns journaled events of a public kind into facts on the bus, as CloudEvents 1.0 JSON.
``KINDS`` is the list of record of all public kinds; a kind has exactly one publisher.
Standard library only: the agent imports this module.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lineshaft.contracts import limits

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/cloudevents+json"
TYPE_PREFIX = "io.lineshaft."
NOT_APPLICABLE = "-"
_TOKEN = re.compile(r"^[A-Za-z0-9_-]{1,128}$")


class EventError(ValueError):
    """An event that cannot be decoded or validated; its message is fit for people."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One public kind of event.

    ``fields`` maps each required key of ``data`` to its JSON type; other keys are allowed,
    so that a release may add some, and a reader ignores what it does not know.
    """

    publisher: str
    summary: str
    fields: Mapping[str, type | tuple[type, ...]] = field(default_factory=dict)


_STR, _INT, _BOOL, _LIST, _MAP = str, int, bool, list, dict
_TEXT_OR_NONE = (str, type(None))
_INT_OR_NONE = (int, type(None))
_MAP_OR_NONE = (dict, type(None))

_STATE: dict[str, type | tuple[type, ...]] = {
    "state": _STR,
    "substate": _TEXT_OR_NONE,
    "reason": _STR,
    "actor": _STR,
}

KINDS: dict[str, Kind] = {
    # in: commands of users and other systems; admission alone consumes them.
    "in.submit": Kind("anyone", "Hand in a job.", {"job": (str, dict)}),
    "in.cancel": Kind("anyone", "End a job for good.", {"job": _STR}),
    "in.suspend": Kind("anyone", "Save, stop and keep a job.", {"job": _STR}),
    "in.resume": Kind("anyone", "Queue a suspended or held job again.", {"job": _STR}),
    "in.priority": Kind("anyone", "Change a job's priority.", {"job": _STR, "priority": _INT}),
    # job: admission's answers, then the scheduler's life cycle.
    "job.admitted": Kind(
        "admission",
        "A job passed admission and belongs to a pool.",
        {
            "job": _STR,
            "name": _STR,
            "team": _STR,
            "pool": _STR,
            "spec": _MAP,
            "resolved": _MAP,
            "gang": _MAP,
            "priority": _INT,
            "budgets": _MAP,
            "estimate": _MAP,
            "warnings": _LIST,
        },
    ),
    "job.rejected": Kind(
        "admission", "A submission was refused, with every reason.", {"key": _STR, "reasons": _LIST}
    ),
    "job.command_accepted": Kind(
        "admission",
        "A command passed authorisation and is now the scheduler's.",
        {"job": _STR, "verb": _STR, "actor": _STR, "reason": _STR},
    ),
    "job.queued": Kind("scheduler", "The job waits in its pool.", _STATE),
    "job.placed": Kind(
        "scheduler",
        "A gang of nodes or slots was reserved for an attempt.",
        {**_STATE, "attempt": _INT, "nodes": _LIST},
    ),
    "job.running": Kind("scheduler", "An attempt runs.", {**_STATE, "attempt": _INT}),
    "job.suspended": Kind("scheduler", "The job is stopped and keeps its place in life.", _STATE),
    "job.retrying": Kind(
        "scheduler",
        "An attempt failed and another will follow.",
        {**_STATE, "attempt": _INT, "class": _STR, "budget": _STR, "resume_from": _MAP_OR_NONE},
    ),
    "job.succeeded": Kind(
        "scheduler",
        "Rank 0's completion record is durable and every process is gone.",
        {**_STATE, "attempt": _INT, "manifest": _TEXT_OR_NONE, "name": _STR},
    ),
    "job.failed": Kind("scheduler", "No attempt is left.", {**_STATE, "class": _STR}),
    "job.cancelled": Kind("scheduler", "The job was ended by a person or a system.", _STATE),
    # run: orders of the scheduler, facts of launcher, agent and monitor.
    "run.launch_ordered": Kind(
        "scheduler",
        "Start this attempt (a hint; the launcher acts on the desired set).",
        {"epoch": _INT, "not_after": _INT, "nodes": _LIST, "order": _MAP},
    ),
    "run.stop_ordered": Kind(
        "scheduler",
        "Save and stop this attempt.",
        {"epoch": _INT, "intent": _STR, "reason": _STR, "grace_ms": _INT},
    ),
    "run.launched": Kind("launcher", "The run's claim exists and its agents start.", {}),
    "run.launch_failed": Kind(
        "launcher",
        "The run never started.",
        {"class": _STR, "reason": _STR, "evidence": _MAP},
    ),
    "run.stopped": Kind(
        "launcher",
        "Every process of this attempt is confirmed gone.",
        {"intent": _STR, "reason": _STR},
    ),
    "run.node_changed": Kind(
        "launcher", "A node joined, changed or left.", {"node": _STR, "status": _STR, "slots": _INT}
    ),
    "run.started": Kind("agent", "A node's ranks were started.", {"node": _STR, "ranks": _LIST}),
    "run.rank_exited": Kind(
        "agent",
        "A rank ended before its completion record.",
        {
            "node": _STR,
            "rank": _INT,
            "exit_code": _INT_OR_NONE,
            "signal": _INT_OR_NONE,
            "last_lines": _LIST,
        },
    ),
    "run.ended": Kind(
        "agent",
        "A node's ranks and agent are done.",
        {"node": _STR, "outcome": _STR, "class": _TEXT_OR_NONE},
    ),
    "run.completed": Kind(
        "agent",
        "Rank 0's work is whole and its artefacts are durable.",
        {"manifest": _TEXT_OR_NONE, "step": _INT},
    ),
    "run.checkpoint_committed": Kind(
        "agent",
        "A checkpoint is durable and verified.",
        {"step": _INT, "digest": _STR, "bytes": _INT, "path": _STR},
    ),
    "run.diagnosed": Kind(
        "monitor",
        "Evidence about a run: what, who, class, what to do.",
        {
            "diagnosis": _STR,
            "what": _STR,
            "class": _TEXT_OR_NONE,
            "action": _STR,
            "evidence": _MAP,
            "summary": _STR,
        },
    ),
    # alert: the monitor's alone.
    "alert.firing": Kind(
        "monitor",
        "An alert opened or was confirmed.",
        {"alert": _STR, "kind": _STR, "severity": _STR, "summary": _STR},
    ),
    "alert.acknowledged": Kind("monitor", "Someone took an alert.", {"alert": _STR, "actor": _STR}),
    "alert.resolved": Kind("monitor", "An alert ended.", {"alert": _STR, "reason": _STR}),
    # audit: what a service finds wrong with itself.
    "audit.finding": Kind(
        "each service",
        "A service's finding about itself.",
        {"kind": _STR, "subject": _STR, "status": _STR, "summary": _STR},
    ),
    # model: the registry's.
    "model.registered": Kind(
        "registry",
        "A version exists.",
        {"name": _STR, "version": _STR, "manifest": _STR, "lineage": _MAP},
    ),
    "model.refused": Kind(
        "registry", "A candidate was kept but not released.", {"name": _STR, "reason": _STR}
    ),
    "model.alias_moved": Kind(
        "registry",
        "An alias points elsewhere.",
        {"name": _STR, "alias": _STR, "to": _STR, "from": _TEXT_OR_NONE, "actor": _STR},
    ),
    "model.rolled_back": Kind(
        "registry",
        "An alias went back to an earlier version.",
        {"name": _STR, "alias": _STR, "to": _STR, "from": _TEXT_OR_NONE, "actor": _STR},
    ),
    "model.deleted": Kind("registry", "A version was deleted.", {"name": _STR, "version": _STR}),
}


@dataclass(frozen=True, slots=True)
class Event:
    """What a decider writes. A kind of ``KINDS`` is published; any other is internal.

    ``subject`` is the job's id (families job, run, alert), the model's name (model), or ``-``.
    """

    kind: str
    data: dict[str, Any]
    subject: str = NOT_APPLICABLE
    attempt: int | None = None
    pool: str = NOT_APPLICABLE
    team: str = NOT_APPLICABLE

    @property
    def is_public(self) -> bool:
        """Whether the relay publishes it."""
        return self.kind in KINDS


@dataclass(frozen=True, slots=True)
class Fact:
    """What a service is told: an event with its origin.

    ``id`` makes redelivery harmless: ``stream:seq:index`` for journaled events, the record's
    key for facts of the agent and the launcher, the idempotency key for commands. ``at`` is
    milliseconds since the epoch, the publisher's clock. ``seq`` and ``index`` are the place
    in the publisher's journal stream, where it has one. ``replay`` marks a repeated
    publication after the bus lost something; sinks to people never deliver such a fact.
    """

    id: str
    kind: str
    data: dict[str, Any]
    at: int
    source: str
    subject: str = NOT_APPLICABLE
    attempt: int | None = None
    pool: str = NOT_APPLICABLE
    team: str = NOT_APPLICABLE
    stream: str | None = None
    seq: int | None = None
    index: int | None = None
    replay: bool = False
    correlation: str | None = None
    traceparent: str | None = None

    def with_data(self, **more: Any) -> "Fact":
        """Return a copy whose ``data`` holds ``more`` besides (observations of a handler)."""
        return replace(self, data={**self.data, **more})


def check(kind: str, data: Mapping[str, Any]) -> None:
    """Raise ``EventError`` unless ``data`` has every field that ``kind`` requires, rightly typed."""
    known = KINDS.get(kind)
    if known is None:
        raise EventError(f"unknown kind of event: {kind!r}")
    for name, wanted in known.fields.items():
        if name not in data:
            raise EventError(f"{kind}: the field '{name}' is missing")
        value = data[name]
        is_bool_for_int = isinstance(value, bool) and wanted in (_INT, _INT_OR_NONE)
        if is_bool_for_int or not isinstance(value, wanted):
            raise EventError(f"{kind}: the field '{name}' is a {type(value).__name__}")


def encode(fact: Fact) -> bytes:
    """Return the CloudEvents 1.0 structured JSON form of ``fact``.

    Raises ``EventError`` when it is larger than ``limits.EVENT_BYTES_MAX``.
    """
    envelope: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "id": fact.id,
        "source": fact.source,
        "type": TYPE_PREFIX + fact.kind,
        "subject": fact.subject,
        "time": fact.at,
        "datacontenttype": "application/json",
        "pool": fact.pool,
        "team": fact.team,
        "data": fact.data,
    }
    optional = {
        "attempt": fact.attempt,
        "stream": fact.stream,
        "sequence": fact.seq,
        "index": fact.index,
        "replay": fact.replay or None,
        "correlationid": fact.correlation,
        "traceparent": fact.traceparent,
    }
    envelope.update({name: value for name, value in optional.items() if value is not None})
    envelope["time"] = rfc3339(fact.at)
    raw = json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode()
    if len(raw) > limits.EVENT_BYTES_MAX:
        raise EventError(f"{fact.kind}: {len(raw)} bytes, more than {limits.EVENT_BYTES_MAX}")
    return raw


def decode(raw: bytes, headers: Mapping[str, str] | None = None) -> Fact:
    """Read a CloudEvent, structured (JSON) or binary (attributes in ``ce-`` headers).

    Header names count in any case. Raises ``EventError`` with what is wrong; never anything else.
    """
    if len(raw) > limits.BUS_PAYLOAD_BYTES_MAX:
        raise EventError(f"an event of {len(raw)} bytes is too large")
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EventError(f"not JSON: {error}") from None
    if "ce-type" in lower:
        body = {name[3:]: value for name, value in lower.items() if name.startswith("ce-")} | {
            "data": body
        }
    if not isinstance(body, dict):
        raise EventError("a CloudEvent is a JSON object")
    return _fact_of(body)


def _fact_of(body: dict[str, Any]) -> Fact:
    if str(body.get("specversion")) != SPEC_VERSION:
        raise EventError(f"specversion must be {SPEC_VERSION}")
    kind = _text(body, "type", 128).removeprefix(TYPE_PREFIX)
    data = body.get("data")
    if not isinstance(data, dict):
        raise EventError("data must be a JSON object")
    check(kind, data)
    return Fact(
        id=_text(body, "id", 256),
        kind=kind,
        data=data,
        at=milliseconds(body.get("time")),
        source=_text(body, "source", 256),
        subject=_token(body, "subject"),
        attempt=_whole(body, "attempt"),
        pool=_token(body, "pool"),
        team=_token(body, "team"),
        stream=_optional_text(body, "stream", 128),
        seq=_whole(body, "sequence"),
        index=_whole(body, "index"),
        replay=body.get("replay") in (True, "true"),
        correlation=_optional_text(body, "correlationid", 256),
        traceparent=_optional_text(body, "traceparent", 128),
    )


def _text(body: Mapping[str, Any], name: str, longest: int) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value or len(value) > longest or "\n" in value:
        raise EventError(f"'{name}' must be a text of 1 to {longest} characters")
    return value


def _optional_text(body: Mapping[str, Any], name: str, longest: int) -> str | None:
    return None if body.get(name) is None else _text(body, name, longest)


def _token(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, NOT_APPLICABLE)
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise EventError(f"'{name}' must be a token of letters, digits, '_' and '-'")
    return value


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise EventError(f"'{name}' must be a whole number")
    return value


def rfc3339(at: int) -> str:
    """Return milliseconds since the epoch as an RFC 3339 time in UTC."""
    days, rest = divmod(at, 86_400_000)
    year, month, day = _civil(days)
    hour, rest = divmod(rest, 3_600_000)
    minute, rest = divmod(rest, 60_000)
    second, milli = divmod(rest, 1000)
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{milli:03d}Z"


_TIME = re.compile(
    r"^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))$"
)


def milliseconds(value: Any) -> int:
    """Read an RFC 3339 time (or nothing: 0) as milliseconds since the epoch."""
    if value is None:
        return 0
    match = _TIME.match(value) if isinstance(value, str) else None
    if match is None:
        raise EventError("'time' must be an RFC 3339 time")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        raise EventError("'time' must be an RFC 3339 time")
    milli = int((match[7] or "0").ljust(3, "0")[:3])
    at = ((_days(year, month, day) * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + milli
    if match[8]:
        offset = (int(match[9]) * 60 + int(match[10])) * 60_000
        at += offset if match[8] == "-" else -offset
    return at


# Days from the civil calendar and back: Hinnant, "chrono-Compatible Low-Level Date Algorithms".
def _days(year: int, month: int, day: int) -> int:
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return year + era * 400 + (month <= 2), month, day
