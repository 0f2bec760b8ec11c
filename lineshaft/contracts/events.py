"""Facts and events: their one shape, and the envelope in which they cross the bus.

A *fact* is anything a service is told; an *event* is what a decider writes into its journal.
The relay turns journaled events of a public kind into facts on the bus, as CloudEvents 1.0 JSON.
Standard library only: the agent imports this module.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.kinds import KINDS, Kind
from lineshaft.contracts.times import TimeError, milliseconds, rfc3339

__all__ = [
    "CONTENT_TYPE",
    "KINDS",
    "NOT_APPLICABLE",
    "Event",
    "EventError",
    "Fact",
    "Kind",
    "check",
    "decode",
    "encode",
    "milliseconds",
    "rfc3339",
]

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/cloudevents+json"
TYPE_PREFIX = "io.lineshaft."
NOT_APPLICABLE = "-"
_TOKEN = re.compile(r"^[A-Za-z0-9_-]{1,128}$")


class EventError(ValueError):
    """An event that cannot be decoded or validated; its message is fit for people."""


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
    """Raise ``EventError`` unless ``data`` has each required field of ``kind``, rightly typed."""
    known = KINDS.get(kind)
    if known is None:
        raise EventError(f"unknown kind of event: {kind!r}")
    for name, wanted in known.fields.items():
        if name not in data:
            raise EventError(f"{kind}: the field '{name}' is missing")
        value = data[name]
        is_bool_for_int = isinstance(value, bool) and wanted in (int, (int, type(None)))
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
        at=_time(body),
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


def _time(body: Mapping[str, Any]) -> int:
    try:
        return milliseconds(body.get("time"))
    except TimeError as error:
        raise EventError(str(error)) from None
