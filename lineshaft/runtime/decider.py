"""What a service writes to think: the decider and projector protocols, and a fact's outcome.

The host that runs a decider is ``lineshaft.runtime.host``; nothing here does anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from lineshaft.contracts.events import Event, Fact
from lineshaft.ports import Document, Entry, Views

State = TypeVar("State")

CLOCK_DUE = "clock.due"
"""Kind of the fact that the host hands in when ``due`` has come; its data is empty."""


class FactRefused(Exception):
    """A fact that decodes but can never be handled: it goes to the dead stream with this text."""


class OutcomeKind(StrEnum):
    """What became of a fact."""

    DECIDED = "decided"  # appended, or nothing had to change
    KNOWN = "known"  # its id was recorded before
    AGAIN = "again"  # infrastructure: hand it in again later
    REFUSED = "refused"  # never: dead stream


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one fact in one stream; ``events`` are those its decision wrote.

    For a fact that was known they are read back from its entry, so that a repeated request
    gets the same answer. ``seq`` is None when nothing was appended.
    """

    kind: OutcomeKind
    stream: str = ""
    seq: int | None = None
    events: tuple[Event, ...] = ()
    reason: str = ""


class Decider(Protocol[State]):
    """Pure decisions over the journal streams of one service.

    ``decide`` and ``evolve`` read no clock, draw no random number and log nothing.
    """

    service: str

    def streams(self) -> Sequence[str]:
        """Return the journal streams this service owns."""
        ...

    def route(self, fact: Fact) -> Sequence[str]:
        """Return the streams that must decide ``fact``; none when it does not concern us."""
        ...

    def initial(self, stream: str) -> State:
        """Return the state of an empty stream."""
        ...

    def decide(self, state: State, fact: Fact, *, now: int, policy: Any) -> list[Event]:
        """Return the events that ``fact`` causes; raise ``FactRefused`` for what never can be."""
        ...

    def evolve(self, state: State, event: Event, *, at: int) -> State:
        """Apply one event and return the state (the same object, changed, is fine)."""
        ...

    def due(self, state: State) -> int | None:
        """Return when (ms since the epoch) a ``clock.due`` fact is wanted, or None."""
        ...

    def dump(self, state: State) -> dict[str, Any]:
        """Return the state as JSON values, for a snapshot."""
        ...

    def load(self, stream: str, dumped: dict[str, Any]) -> State:
        """Read a snapshot back."""
        ...


class Projector(Protocol):
    """Read models of one service, made from its own journal."""

    async def project(self, entry: Entry, views: Views) -> Sequence[Document]:
        """Return the documents that ``entry`` changes, each with ``version=entry.seq``."""
        ...
