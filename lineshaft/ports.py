"""The ports: what the platform needs from a store, a bus and a clock, and no more.

Each is a protocol of at most five methods. Adapters live in ``lineshaft.adapters``; a URL
selects one; a conformance suite runs on each. Nothing here does anything.
Standard library only: the agent imports this module.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from lineshaft.contracts.events import Event

# ---------------------------------------------------------------------------------------------
# Journal


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision: one document, one write. ``at`` is milliseconds since the epoch."""

    stream: str
    seq: int
    entry_id: str
    at: int
    causes: tuple[str, ...]
    events: tuple[Event, ...]
    policy_version: int = 0
    schema: int = 1


class AppendStatus(StrEnum):
    """The four answers of an append."""

    OK = "ok"
    SEQ_CONFLICT = "seq_conflict"
    DUPLICATE_CAUSE = "duplicate_cause"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer for one entry; ``causes`` are the ids already known, when duplicates."""

    status: AppendStatus
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A small named record that changes by compare-and-set. A version of 0 is "absent"."""

    name: str
    value: dict[str, Any]
    version: int


class StoreUnavailable(Exception):
    """A store does not answer now; the caller tries again later. Nothing is known to be lost."""


class Journal(Protocol):
    """Append-only streams of entries, and marks beside them."""

    async def append(self, entries: Sequence[Entry]) -> list[Appended]:
        """Append at most one entry per stream, in one commit, durable before it returns.

        Answers per entry, in order; one entry's refusal does not stop the others. An entry is
        accepted only as the next of its stream (``seq`` is the last one + 1; the first is 1)
        and only when none of its causes was recorded in that stream before.
        """
        ...

    def read(
        self, stream: str, after: int, *, follow: bool = False, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the entries of ``stream`` with a higher seq than ``after``, in order.

        With ``follow`` it never ends: it waits for what comes (also from other processes).
        """
        ...

    async def causes(self, stream: str, ids: Sequence[str]) -> dict[str, int]:
        """Return which of ``ids`` are recorded in ``stream``, and in which entry (seq)."""
        ...

    async def mark(self, name: str, value: Mapping[str, Any], expected: int) -> Mark | None:
        """Set a mark if its version is ``expected`` (0: absent); None when it is another."""
        ...

    async def marks(self, prefix: str) -> dict[str, Mark]:
        """Return the marks whose names begin with ``prefix``."""
        ...


# ---------------------------------------------------------------------------------------------
# Views


@dataclass(frozen=True, slots=True)
class Document:
    """A read-model document. ``version`` is the seq of its one source stream."""

    kind: str
    id: str
    version: int
    body: dict[str, Any]
    stream: str = ""


class Views(Protocol):
    """Documents that can always be rebuilt from a journal."""

    async def put(self, documents: Sequence[Document]) -> None:
        """Store each document unless a newer (higher or equal version) one is stored."""
        ...

    async def get(self, kind: str, id: str) -> Document | None:
        """Return one document."""
        ...

    async def find(
        self,
        kind: str,
        where: Mapping[str, Any] | None = None,
        *,
        limit: int = 1000,
        after: str = "",
    ) -> list[Document]:
        """Return documents by id, higher than ``after``, whose top-level fields equal ``where``."""
        ...

    async def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Forget documents; those that are absent are no error."""
        ...


# ---------------------------------------------------------------------------------------------
# Objects


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """Key, size in bytes, and time of the last change in milliseconds since the epoch."""

    key: str
    size: int
    modified: int


class ObjectExists(Exception):
    """A create-only put met an object that is there already."""


class ObjectMissing(Exception):
    """No object has that key."""


class StorageFull(StoreUnavailable):
    """There is no room; what was stored is untouched."""


Chunks = AsyncIterator[bytes]


class Objects(Protocol):
    """Named immutable content. Keys are ``/``-separated, relative, without dot parts."""

    async def put(self, key: str, data: bytes | Chunks, *, replace: bool = False) -> int:
        """Store an object atomically and durably; return its size in bytes.

        Without ``replace`` it is created or ``ObjectExists`` is raised, never overwritten.
        Raises ``StorageFull``, ``StoreUnavailable``, or ``ValueError`` for a key that is none.
        """
        ...

    def open(self, key: str, start: int = 0, end: int | None = None) -> Chunks:
        """Yield the bytes from ``start`` up to but without ``end``. Raises ``ObjectMissing``."""
        ...

    async def stat(self, key: str) -> ObjectStat | None:
        """Return size and time, or None when absent."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectStat]:
        """Yield objects in the order of their keys, those behind ``after`` only."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are absent are no error."""
        ...


# ---------------------------------------------------------------------------------------------
# Bus


@dataclass(frozen=True, slots=True)
class Message:
    """One delivered message. ``ack`` waits for no answer; ``nack`` asks again after a delay."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    deliveries: int
    ack: Callable[[], Awaitable[None]]
    nack: Callable[[int], Awaitable[None]]
    term: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the bus says of one of its streams. ``created`` is opaque and changes when re-made."""

    created: str
    first_sequence: int
    last_sequence: int
    messages: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a service."""

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class BusUnavailable(Exception):
    """The bus does not answer now."""


class TokenRefused(BusUnavailable):
    """The bus is there and does not take our token."""


class NobodyAnswers(BusUnavailable):
    """The bus is there, but no service serves this subject now."""


Handler = Callable[[Request], Awaitable[bytes]]


class Bus(Protocol):
    """Subjects, durable streams, request and reply. Provisioning is not on it."""

    async def publish(self, subject: str, data: bytes, *, message_id: str | None = None) -> int:
        """Publish into the stream that holds ``subject``; return its sequence there.

        Raises ``BusUnavailable`` unless the stream confirmed. ``message_id`` de-duplicates
        within ``limits.DEDUP_WINDOW_S``.
        """
        ...

    def pull(
        self, stream: str, durable: str | None, subjects: Sequence[str], *, batch: int = 256
    ) -> AsyncIterator[list[Message]]:
        """Yield batches for a durable consumer, or from now on for an ephemeral one (None).

        Survives reconnects; re-makes the consumer when its position is beyond the stream's end.
        """
        ...

    async def request(self, subject: str, data: bytes, *, timeout_ms: int = 10_000) -> bytes:
        """Ask and wait. Raises ``NobodyAnswers`` or ``BusUnavailable``."""
        ...

    async def serve(
        self, subject: str, queue: str, handler: Handler
    ) -> Callable[[], Awaitable[None]]:
        """Answer requests in a queue group; returns what ends it."""
        ...

    async def state(self, stream: str) -> StreamState | None:
        """Return a stream's state, or None when it does not exist."""
        ...


# ---------------------------------------------------------------------------------------------
# Clock


class Clock(Protocol):
    """Time. Virtual in tests."""

    def now(self) -> int:
        """Return milliseconds since the epoch (UTC)."""
        ...

    def monotonic(self) -> int:
        """Return milliseconds of a clock that never goes back."""
        ...

    async def sleep(self, milliseconds: int) -> None:
        """Wait."""
        ...
