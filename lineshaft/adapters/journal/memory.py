"""A journal in memory, for the tests of this project and of its users.

It keeps the same JSON text as the durable journals, answers as they do, and can be told to
give an answer that a store gives rarely. Nothing survives the process.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lineshaft.adapters.journal import codec
from lineshaft.adapters.journal.followers import Followers
from lineshaft.ports import Appended, AppendStatus, Entry, Mark, StoreUnavailable


@dataclass(slots=True)
class _Stream:
    bodies: list[tuple[Entry, str]] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Failure:
    answer: AppendStatus | Exception
    is_committed: bool


class MemoryJournal:
    """A journal of one process and one event loop."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._marks: dict[str, tuple[str, int]] = {}
        self._followers = Followers()
        self._peers = [self._followers]
        self._failures: list[_Failure] = []
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether ``aclose`` was called."""
        return self._is_closed

    def reopen(self) -> "MemoryJournal":
        """Return another journal over the same content, as of another process or a restart."""
        made = MemoryJournal()
        made._streams, made._marks = self._streams, self._marks
        made._peers = self._peers
        made._peers.append(made._followers)
        return made

    def fail_next(
        self, answer: AppendStatus | Exception, *, committed: bool = False, times: int = 1
    ) -> None:
        """Let the next ``times`` appends answer ``answer`` for every entry, or raise it.

        With ``committed`` the entries that were acceptable are stored all the same, as when
        a connection breaks after the commit; without it nothing is.
        """
        self._failures.extend([_Failure(answer, committed)] * times)

    async def append(self, entries: Sequence[Entry]) -> list[Appended]:
        """Append at most one entry per stream; answers per entry, in order.

        Raises ``ValueError`` for what no journal can hold.
        """
        bodies = codec.bodies_of(entries)
        self._check_open()
        await asyncio.sleep(0)  # as a store would, let others run
        failure = self._failures.pop(0) if self._failures else None
        answers: list[Appended] = []
        if failure is None or failure.is_committed:
            pairs = zip(entries, bodies, strict=True)
            answers = [self._append(entry, body) for entry, body in pairs]
        if failure is None:
            return answers
        if isinstance(failure.answer, Exception):
            raise failure.answer
        return [Appended(failure.answer) for _ in entries]

    async def read(
        self, stream: str, after: int, *, follow: bool = False, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the entries of ``stream`` behind ``after``, in order; wait for more to follow."""
        self._check_open()
        after = max(after, 0)
        end = None if limit is None else after + limit
        while end is None or after < end:
            held = self._streams.get(stream)
            if held is not None and after < len(held.bodies):
                yield _copy(*held.bodies[after])
                after += 1
            elif follow:
                await self._followers.wait(stream, after)
            else:
                return

    async def causes(self, stream: str, ids: Sequence[str]) -> dict[str, int]:
        """Return which of ``ids`` are recorded in ``stream``, and in which entry (seq)."""
        self._check_open()
        held = self._streams.get(stream, _Stream()).causes
        return {id: held[key] for id in ids if (key := codec.cause_key(id)) in held}

    async def mark(self, name: str, value: Mapping[str, Any], expected: int) -> Mark | None:
        """Set a mark if its version is ``expected`` (0: absent); None when it is another."""
        text = codec.mark_text(name, value, expected)
        self._check_open()
        await asyncio.sleep(0)
        if self._marks.get(name, ("", 0))[1] != expected:
            return None
        self._marks[name] = (text, expected + 1)
        return Mark(name, codec.load(text), expected + 1)

    async def marks(self, prefix: str) -> dict[str, Mark]:
        """Return the marks whose names begin with ``prefix``, by name."""
        self._check_open()
        return {
            name: Mark(name, codec.load(text), version)
            for name, (text, version) in sorted(self._marks.items())
            if name.startswith(prefix)
        }

    async def aclose(self) -> None:
        """End the followers; every later call raises ``StoreUnavailable``."""
        self._is_closed = True
        if self._followers in self._peers:
            self._peers.remove(self._followers)
        self._followers.end(StoreUnavailable("the journal is closed"))

    def _append(self, entry: Entry, body: str) -> Appended:
        held = self._streams.get(entry.stream, _Stream())
        if entry.seq != len(held.bodies) + 1:
            return Appended(AppendStatus.SEQ_CONFLICT)
        keys = {codec.cause_key(cause): cause for cause in entry.causes}
        known = tuple(cause for key, cause in keys.items() if key in held.causes)
        if known:
            return Appended(AppendStatus.DUPLICATE_CAUSE, known)
        held.bodies.append((entry, body))
        held.causes.update(dict.fromkeys(keys, entry.seq))
        self._streams[entry.stream] = held
        for followers in self._peers:
            followers.grown({entry.stream: entry.seq})
        return Appended(AppendStatus.OK)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the journal is closed")


def _copy(entry: Entry, body: str) -> Entry:
    return codec.entry_of(
        (
            entry.stream,
            entry.seq,
            entry.entry_id,
            entry.at,
            entry.policy_version,
            entry.schema,
            body,
        )
    )
