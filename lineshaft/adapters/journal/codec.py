"""Entries and marks as JSON text: what every journal stores and what it refuses to store.

No store is touched here. Both the memory and the SQLite journal keep this text, so what does
not survive JSON shows in a test on memory as well.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.events import Event
from lineshaft.ports import Entry

_WHOLE_MAX = (1 << 63) - 1
_DEFAULTS = {name: getattr(Event("", {}), name) for name in ("subject", "attempt", "pool", "team")}


def dump(value: Any) -> str:
    """Return compact JSON, readable where the text is whole Unicode. Raises ``ValueError``."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"this cannot be stored as JSON: {error}") from None
    if not _is_whole(text):
        text = json.dumps(value, separators=(",", ":"))
    return text


def load(text: str) -> Any:
    """Read back what ``dump`` made."""
    return json.loads(text)


def cause_key(cause: str) -> str:
    """Return the text under which a cause is looked up.

    Fact ids come from anyone; one that is not whole Unicode must not spoil an entry.
    """
    return cause if _is_whole(cause) else cause.encode("utf-8", "backslashreplace").decode()


def body_of(entry: Entry) -> str:
    """Return the causes and events of ``entry`` as JSON.

    Raises ``ValueError`` beyond ``limits.ENTRY_BYTES_MAX`` or ``ENTRY_EVENTS_MAX``.
    """
    place = f"entry {entry.stream}:{entry.seq}"
    if len(entry.events) > limits.ENTRY_EVENTS_MAX:
        raise ValueError(
            f"{place}: {len(entry.events)} events, more than {limits.ENTRY_EVENTS_MAX}"
        )
    text = dump(
        {"causes": list(entry.causes), "events": [_event_object(event) for event in entry.events]}
    )
    size = len(text.encode())
    if size > limits.ENTRY_BYTES_MAX:
        raise ValueError(f"{place}: {size} bytes, more than {limits.ENTRY_BYTES_MAX}")
    return text


def bodies_of(entries: Sequence[Entry]) -> list[str]:
    """Return the JSON of each entry of one append, in order.

    Raises ``ValueError`` for two entries of one stream, and for what no store can hold.
    """
    streams = [entry.stream for entry in entries]
    if len(set(streams)) < len(streams):
        raise ValueError("an append takes at most one entry per stream")
    for entry in entries:
        _check_text(entry.stream, "the stream")
        _check_text(entry.entry_id, "the entry's id")
        for number in (entry.seq, entry.at, entry.policy_version, entry.schema):
            check_whole(number)
    return [body_of(entry) for entry in entries]


def mark_text(name: str, value: Mapping[str, Any], expected: int) -> str:
    """Return the JSON of a mark's value. Raises ``ValueError``."""
    _check_text(name, "a mark's name")
    check_whole(expected)
    return dump(dict(value))


def entry_of(row: tuple[str, int, str, int, int, int, str]) -> Entry:
    """Make an entry of (stream, seq, entry_id, at, policy_version, schema, body)."""
    stream, seq, entry_id, at, policy_version, schema, body = row
    parts = load(body)
    return Entry(
        stream=stream,
        seq=seq,
        entry_id=entry_id,
        at=at,
        causes=tuple(parts["causes"]),
        events=tuple(_event_of(piece) for piece in parts["events"]),
        policy_version=policy_version,
        schema=schema,
    )


def check_whole(number: int) -> None:
    """Raise ``ValueError`` unless ``number`` is whole and fits 64 bits with a sign."""
    if not isinstance(number, int) or not -_WHOLE_MAX <= number <= _WHOLE_MAX:
        raise ValueError(f"{number!r} is no whole number of 64 bits")


def _event_object(event: Event) -> dict[str, Any]:
    rest = {
        name: value
        for name, default in _DEFAULTS.items()
        if (value := getattr(event, name)) != default
    }
    return {"kind": event.kind, **rest, "data": event.data}


def _event_of(piece: Mapping[str, Any]) -> Event:
    rest = {name: piece.get(name, default) for name, default in _DEFAULTS.items()}
    return Event(kind=piece["kind"], data=piece["data"], **rest)


def _check_text(text: str, what: str) -> None:
    if not isinstance(text, str) or not text or "\0" in text or not _is_whole(text):
        raise ValueError(f"{what} must be a text, not empty, of whole Unicode without NUL")


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
