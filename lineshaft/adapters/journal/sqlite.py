"""A journal in one SQLite file: one row per entry, group commit, followers across processes.

One writer thread and one reader thread per journal; several processes may share the file,
and the compare-and-set on ``seq`` holds between them. Needs a local file system.
"""

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lineshaft.adapters.journal import codec
from lineshaft.adapters.journal.followers import Followers
from lineshaft.adapters.sqlite.file import FileKind, StoreCorrupt, open_file
from lineshaft.adapters.sqlite.threads import CommitUnknown, ReaderThread, WriterThread
from lineshaft.ports import Appended, AppendStatus, Entry, Mark, StoreUnavailable

FILE_NAME = "journal.db"
FOLLOW_POLL_MS = 40
FOLLOW_FULL_LOOK_ROUNDS = 25
PAGE_ENTRIES_MAX = 256
PAGE_CHARS_MAX = 4 * 1024 * 1024

_KIND = FileKind(
    name="journal",
    application_id=0x4C534A31,  # "LSJ1"
    version=1,
    tables=(
        """CREATE TABLE entries (
            stream TEXT NOT NULL, seq INTEGER NOT NULL, entry_id TEXT NOT NULL,
            at INTEGER NOT NULL, policy_version INTEGER NOT NULL, schema INTEGER NOT NULL,
            body TEXT NOT NULL, PRIMARY KEY (stream, seq))""",
        """CREATE TABLE causes (
            stream TEXT NOT NULL, cause TEXT NOT NULL, seq INTEGER NOT NULL,
            PRIMARY KEY (stream, cause)) WITHOUT ROWID""",
        """CREATE TABLE marks (
            name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
)
_LAST = "SELECT seq FROM entries WHERE stream = ? ORDER BY seq DESC LIMIT 1"
_CAUSE = "SELECT seq FROM causes WHERE stream = ? AND cause = ?"


class SqliteJournal:
    """A journal in ``place``: a file, or a folder that then holds ``journal.db``.

    Nothing is opened before the first use. It belongs to one event loop. A file that is
    damaged or not a journal raises ``StoreCorrupt``, a network file system ``ValueError``.
    """

    def __init__(self, place: Path | str) -> None:
        path = Path(place)
        self.path = path / FILE_NAME if path.is_dir() or not path.suffix else path
        self._writer = WriterThread(self.path, self._open)
        self._reader = ReaderThread(self.path, self._open)
        self._followers = Followers()
        self._poll: asyncio.Task[None] | None = None
        self._has_new_follower = False

    async def append(self, entries: Sequence[Entry]) -> list[Appended]:
        """Append at most one entry per stream, in one commit, durable before it returns.

        ``unknown`` means that the disk failed while committing. Raises ``StorageFull`` or
        ``StoreUnavailable`` with nothing written; ``ValueError`` for what no journal can hold.
        """
        bodies = codec.bodies_of(entries)
        pairs = list(zip(entries, bodies, strict=True))
        if not pairs:
            return []

        def work(connection: sqlite3.Connection) -> list[Appended]:
            return [_append(connection, entry, body) for entry, body in pairs]

        try:
            answers = await self._writer.run(work, sum(map(len, bodies)))
        except CommitUnknown as unknown:
            return [
                Appended(AppendStatus.UNKNOWN) if told.status is AppendStatus.OK else told
                for told in unknown.answer
            ]
        self._followers.grown(
            {
                entry.stream: entry.seq
                for entry, told in zip(entries, answers, strict=True)
                if told.status is AppendStatus.OK
            }
        )
        return answers

    async def read(
        self, stream: str, after: int, *, follow: bool = False, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the entries of ``stream`` behind ``after``, in order.

        With ``follow`` it waits for what comes, from other processes too, until the journal
        is closed: then it raises ``StoreUnavailable``.
        """
        after = max(after, 0)
        end = None if limit is None else after + limit
        while end is None or after < end:
            wanted = PAGE_ENTRIES_MAX if end is None else min(PAGE_ENTRIES_MAX, end - after)
            page = await self._reader.run(_Page(stream, after, wanted))
            for entry in page:
                yield entry
                after = entry.seq
            if page:
                continue
            if not follow:
                return
            await self._wait(stream, after)

    async def causes(self, stream: str, ids: Sequence[str]) -> dict[str, int]:
        """Return which of ``ids`` are recorded in ``stream``, and in which entry (seq)."""
        keys = {id: codec.cause_key(id) for id in ids}

        def work(connection: sqlite3.Connection) -> dict[str, int]:
            found = {}
            for id, key in keys.items():
                row = connection.execute(_CAUSE, (stream, key)).fetchone()
                if row is not None:
                    found[id] = int(row[0])
            return found

        return await self._reader.run(work)

    async def mark(self, name: str, value: Mapping[str, Any], expected: int) -> Mark | None:
        """Set a mark if its version is ``expected`` (0: absent); None when it is another.

        Raises as ``append`` does, and ``StoreUnavailable`` where that would answer ``unknown``.
        """
        text = codec.mark_text(name, value, expected)

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT version FROM marks WHERE name = ?", (name,)).fetchone()
            if (row[0] if row else 0) != expected:
                return False
            connection.execute(
                "INSERT INTO marks (name, value, version) VALUES (?, ?, ?) ON CONFLICT (name) "
                "DO UPDATE SET value = excluded.value, version = excluded.version",
                (name, text, expected + 1),
            )
            return True

        is_set = await self._writer.run(work, len(text))
        return Mark(name, codec.load(text), expected + 1) if is_set else None

    async def marks(self, prefix: str) -> dict[str, Mark]:
        """Return the marks whose names begin with ``prefix``, by name."""

        def work(connection: sqlite3.Connection) -> dict[str, Mark]:
            rows = connection.execute(
                "SELECT name, value, version FROM marks "
                "WHERE name >= ? AND substr(name, 1, ?) = ? ORDER BY name",
                (prefix, len(prefix), prefix),
            )
            return {name: Mark(name, codec.load(text), version) for name, text, version in rows}

        return await self._reader.run(work)

    async def aclose(self) -> None:
        """Commit what was handed in, end the followers, close the file."""
        self._followers.end(StoreUnavailable(f"{self.path}: closed"))
        if self._poll is not None:
            self._poll.cancel()
        await self._writer.aclose()
        await self._reader.aclose()

    def _open(self) -> sqlite3.Connection:
        return open_file(self.path, _KIND)

    async def _wait(self, stream: str, after: int) -> None:
        self._has_new_follower = True
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._look_at_others())
        await self._followers.wait(stream, after)

    async def _look_at_others(self) -> None:
        """Notice what other processes append, as long as someone waits."""
        await asyncio.sleep(0)
        seen: int | None = None
        for round in itertools.count():
            streams = self._followers.streams
            if not streams:
                return
            # The file's version says nothing to a follower that no look has asked for yet,
            # nor after the reader opened the file anew.
            if self._has_new_follower or round % FOLLOW_FULL_LOOK_ROUNDS == 0:
                self._has_new_follower, seen = False, None
            try:
                seen, latest = await self._reader.run(_Look(streams, seen))
                self._followers.grown(latest)
            except StoreCorrupt as error:
                self._followers.end(error)
            except StoreUnavailable:
                seen = None  # looked at again in a moment
            await asyncio.sleep(FOLLOW_POLL_MS / 1000)


class _Look:
    """Reads how far some streams reach, when the file has changed since version ``seen``."""

    def __init__(self, streams: tuple[str, ...], seen: int | None) -> None:
        self._streams = streams
        self._seen = seen

    def __call__(self, connection: sqlite3.Connection) -> tuple[int, dict[str, int]]:
        version = int(connection.execute("PRAGMA data_version").fetchone()[0])
        latest = {}
        for stream in self._streams if version != self._seen else ():
            row = connection.execute(_LAST, (stream,)).fetchone()
            latest[stream] = int(row[0]) if row else 0
        return version, latest


class _Page:
    """Reads one page of a stream, bounded in entries and in size."""

    def __init__(self, stream: str, after: int, wanted: int) -> None:
        self._range = (stream, after, wanted)

    def __call__(self, connection: sqlite3.Connection) -> list[Entry]:
        rows = connection.execute(
            "SELECT stream, seq, entry_id, at, policy_version, schema, body FROM entries "
            "WHERE stream = ? AND seq > ? ORDER BY seq LIMIT ?",
            self._range,
        )
        page, size = [], 0
        for row in rows:
            page.append(codec.entry_of(row))
            size += len(row[-1])
            if size > PAGE_CHARS_MAX:
                break
        return page


def _append(connection: sqlite3.Connection, entry: Entry, body: str) -> Appended:
    last = connection.execute(_LAST, (entry.stream,)).fetchone()
    if entry.seq != (last[0] if last else 0) + 1:
        return Appended(AppendStatus.SEQ_CONFLICT)
    keys = {codec.cause_key(cause): cause for cause in entry.causes}
    known = tuple(
        cause
        for key, cause in keys.items()
        if connection.execute(_CAUSE, (entry.stream, key)).fetchone()
    )
    if known:
        return Appended(AppendStatus.DUPLICATE_CAUSE, known)
    connection.execute(
        "INSERT INTO entries (stream, seq, entry_id, at, policy_version, schema, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            entry.stream,
            entry.seq,
            entry.entry_id,
            entry.at,
            entry.policy_version,
            entry.schema,
            body,
        ),
    )
    connection.executemany(
        "INSERT INTO causes (stream, cause, seq) VALUES (?, ?, ?)",
        [(entry.stream, key, entry.seq) for key in keys],
    )
    return Appended(AppendStatus.OK)
