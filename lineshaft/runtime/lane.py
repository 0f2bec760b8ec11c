"""One journal stream in memory: its state, and the next entry as it is being decided.

No store, no bus, no clock: the host reads and appends, a lane decides and evolves.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.events import Event, EventError, Fact, check
from lineshaft.ports import Entry
from lineshaft.runtime.decider import Decider, FactRefused, Outcome, OutcomeKind

LEASE_TAKEN = "lease.taken"
ENTRY_PARTS = "entry.parts"
OWN_KINDS = frozenset({LEASE_TAKEN, ENTRY_PARTS})
"""Kinds that the host writes for itself; deciders never see them."""

_ENVELOPE_BYTES = 1024  # an event's share of its CloudEvent beside the data
_HEADER_BYTES = 16 * 1024  # an entry's share beside events and causes


@dataclass(slots=True, eq=False)
class Piece:
    """One fact on its way through one stream. ``is_request``: it leaves an entry in any case."""

    fact: Fact
    stream: str
    is_request: bool
    outcome: Outcome | None = None
    events: list[Event] = field(default_factory=list)
    is_fault: bool = False

    def settle(self, kind: OutcomeKind, reason: str = "", seq: int | None = None) -> None:
        """Give the piece its outcome."""
        self.outcome = Outcome(kind, self.stream, seq, tuple(self.events), reason)


@dataclass(slots=True)
class Draft:
    """The next entry of a stream, not yet appended, and the pieces that wait for it."""

    pieces: list[Piece] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    size: int = _HEADER_BYTES

    def has_room(self, events: int, size: int) -> bool:
        """Tell whether one more decision fits."""
        return (
            len(self.events) + events < limits.ENTRY_EVENTS_MAX  # one is kept for the parts
            and self.size + size <= limits.ENTRY_BYTES_MAX
        )


class LaneBroken(Exception):
    """``evolve`` raised: the state in memory is not to be trusted and is loaded again."""


class Lane:
    """The state of one stream, and who leads it.

    There are two states: ``state`` holds what is committed and is what others may see and act on;
    a second one runs ahead while an entry is decided and appended. Each evolves by its own copy
    of the events, read back from JSON as a replay reads them, so that no state can change an
    event by holding a part of it, and a replay cannot differ.
    """

    def __init__(self, decider: Decider[Any], stream: str) -> None:
        self.stream = stream
        self._decider = decider
        self.is_loaded = False
        self.is_led = False
        self.state: Any = decider.initial(stream)
        self._ahead: Any = decider.initial(stream)
        self.seq = 0
        self.epoch = 0
        self.holder = ""
        self.snapshot_seq = 0

    def distrust(self) -> None:
        """Have the state loaded anew before the next decision.

        What is committed stays visible meanwhile: it was true, and an empty state never is.
        """
        self.is_loaded = False

    def empty(self) -> "Lane":
        """Return a lane of the same stream that holds nothing yet."""
        return Lane(self._decider, self.stream)

    def become(self, loaded: "Lane") -> None:
        """Take over what ``loaded`` holds, in one step."""
        self.state, self._ahead = loaded.state, loaded._ahead
        self.seq, self.snapshot_seq = loaded.seq, loaded.snapshot_seq
        self.epoch, self.holder = loaded.epoch, loaded.holder
        self.is_loaded = True

    def restore(self, dumped: dict[str, Any], again: dict[str, Any]) -> None:
        """Take a snapshot over, given twice. Raises whatever a damaged one makes of it."""
        self.state = self._decider.load(self.stream, dumped["state"])
        self._ahead = self._decider.load(self.stream, again["state"])
        self.seq = self.snapshot_seq = int(dumped["seq"])
        self.epoch = int(dumped["epoch"])
        self.holder = str(dumped["holder"])

    def dump(self) -> dict[str, Any]:
        """Return the snapshot of what is committed."""
        return {
            "schema": 1,
            "stream": self.stream,
            "seq": self.seq,
            "epoch": self.epoch,
            "holder": self.holder,
            "state": self._decider.dump(self.state),
        }

    def apply(self, entry: Entry) -> None:
        """Evolve both states by an entry read from the journal."""
        for event in entry.events:
            if event.kind not in OWN_KINDS:
                text = json.dumps(event.data)
                self._ahead = self._decider.evolve(self._ahead, _copy(event, text), at=entry.at)
        self.committed(entry)

    def committed(self, entry: Entry) -> None:
        """Evolve the committed state by an entry that is in the journal now."""
        for event in entry.events:
            if event.kind == LEASE_TAKEN:
                self.epoch = int(event.data["epoch"])
                self.holder = str(event.data["holder"])
            elif event.kind not in OWN_KINDS:
                copied = _copy(event, json.dumps(event.data))
                self.state = self._decider.evolve(self.state, copied, at=entry.at)
        self.seq = entry.seq

    def due(self) -> int | None:
        """Return when the decider wants a ``clock.due`` fact."""
        return self._decider.due(self.state)

    def draft(self, pieces: Sequence[Piece], *, now: int, policy: Any) -> tuple[Draft, list[Piece]]:
        """Decide pieces in order, each on the state that the one before left.

        Returns the draft and the pieces that did not fit into this entry. Pieces that are
        refused or faulty have their outcome already. Raises ``LaneBroken``.
        """
        draft = Draft()
        for number, piece in enumerate(pieces):
            decided = self._decide(piece, now, policy)
            if decided is None:
                continue
            events, texts, size = decided
            if not Draft().has_room(len(events), size):
                _fault(piece, f"a decision of {len(events)} events, {size} bytes is no entry")
                continue
            if not draft.has_room(len(events), size):
                return draft, list(pieces[number:])
            piece.events = list(map(_copy, events, texts))
            self._evolve(piece, list(map(_copy, events, texts)), now)
            _add(draft, piece, size)
        return draft, []

    def _decide(
        self, piece: Piece, now: int, policy: Any
    ) -> tuple[list[Event], list[str], int] | None:
        try:
            events = list(self._decider.decide(self._ahead, piece.fact, now=now, policy=policy))
            texts = [_text(event) for event in events]
            size = sum(len(text.encode()) + _ENVELOPE_BYTES for text in texts)
            return events, texts, size + len(piece.fact.id) + 16
        except FactRefused as error:
            piece.settle(OutcomeKind.REFUSED, str(error) or "refused")
        except EventError as error:
            _fault(piece, f"the decision wrote an invalid event: {error}")
        except Exception as error:
            _fault(piece, f"the decision failed: {error!r}")
        return None

    def _evolve(self, piece: Piece, events: Iterable[Event], now: int) -> None:
        try:
            for event in events:
                self._ahead = self._decider.evolve(self._ahead, event, at=now)
        except Exception as error:
            _fault(piece, f"the state could not take its event: {error!r}")
            raise LaneBroken(self.stream) from error


def _fault(piece: Piece, reason: str) -> None:
    piece.is_fault = True
    piece.events = []
    piece.settle(OutcomeKind.AGAIN, reason)


def _text(event: Event) -> str:
    """Return an event's data as JSON; raise ``EventError`` for one that may not be written."""
    if event.kind in OWN_KINDS:
        raise EventError(f"{event.kind} is the host's own")
    if event.is_public:
        check(event.kind, event.data)
    try:
        text = json.dumps(event.data, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EventError(f"{event.kind}: {error}") from None
    size = len(text.encode()) + _ENVELOPE_BYTES
    if size > limits.EVENT_BYTES_MAX:
        raise EventError(f"{event.kind}: {size} bytes, more than {limits.EVENT_BYTES_MAX}")
    return text


def _copy(event: Event, text: str) -> Event:
    return replace(event, data=json.loads(text))


def _add(draft: Draft, piece: Piece, size: int) -> None:
    draft.pieces.append(piece)
    if piece.events or piece.is_request or piece.fact.kind.startswith("in."):
        draft.events.extend(piece.events)
        draft.causes.append(piece.fact.id)
        draft.parts.append(len(piece.events))
        draft.size += size


def entry_of(draft: Draft, lane: Lane, *, at: int, holder: str, policy_version: int) -> Entry:
    """Return the draft as the next entry of its lane.

    The id is a digest of everything in it, so that a read-back tells our entry from another's,
    and one decision from the same decided again.
    """
    events = list(draft.events)
    if len(draft.causes) > 1:
        events.append(Event(ENTRY_PARTS, {"events": list(draft.parts)}))
    return make_entry(lane, events, draft.causes, at=at, holder=holder, version=policy_version)


def make_entry(
    lane: Lane,
    events: Sequence[Event],
    causes: Sequence[str],
    *,
    at: int,
    holder: str,
    version: int = 0,
) -> Entry:
    """Return an entry that follows the last one of ``lane``."""
    content = [[e.kind, e.data, e.subject, e.attempt, e.pool, e.team] for e in events]
    identity = [lane.stream, lane.seq + 1, at, list(causes), holder, lane.epoch, version, content]
    raw = json.dumps(identity, ensure_ascii=False, sort_keys=True, default=str).encode()
    return Entry(
        stream=lane.stream,
        seq=lane.seq + 1,
        entry_id=hashlib.sha256(raw).hexdigest()[:40],
        at=at,
        causes=tuple(causes),
        events=tuple(events),
        policy_version=version,
    )


def events_of_cause(entry: Entry, cause: str) -> tuple[Event, ...]:
    """Return the events of ``entry`` that ``cause`` brought about."""
    own = tuple(event for event in entry.events if event.kind not in OWN_KINDS)
    if len(entry.causes) < 2:
        return own
    counts = next(e.data["events"] for e in entry.events if e.kind == ENTRY_PARTS)
    place = entry.causes.index(cause)
    start = sum(counts[:place])
    return own[start : start + counts[place]]
