"""The writer thread: group commit, and whose fault a failure is."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lineshaft.adapters.sqlite.threads import WriterThread
from lineshaft.ports import StorageFull, StoreUnavailable


class Recorder(sqlite3.Connection):
    """Counts commits."""

    commits = 0

    def execute(self, sql, *values):
        Recorder.commits += sql == "COMMIT"
        return super().execute(sql, *values)


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[WriterThread]:
    path = tmp_path / "x.db"

    def connect() -> sqlite3.Connection:
        made = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=Recorder
        )
        made.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER UNIQUE)")
        return made

    Recorder.commits = 0
    made = WriterThread(path, connect)
    yield made
    await made.aclose()


def insert(n: int) -> Callable[[sqlite3.Connection], int]:
    def work(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO t VALUES (?)", (n,))
        return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])

    return work


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])


async def test_what_arrives_during_a_commit_is_the_next_one(writer):
    """Requests are answered in order, each seeing those before it."""
    is_begun, may_end = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        is_begun.set()
        may_end.wait(10)

    first = asyncio.create_task(writer.run(slow))
    await asyncio.to_thread(is_begun.wait, 10)
    rest = asyncio.gather(*(writer.run(insert(n)) for n in range(50)))
    await asyncio.sleep(0)
    may_end.set()
    await first
    assert await rest == list(range(1, 51))
    assert Recorder.commits == 2


async def test_a_request_with_a_fault_of_its_own_fails_alone(writer):
    """Its neighbours in the group are stored, nothing of its own is."""

    def faulty(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (99)")
        raise KeyError("ours")

    told = await asyncio.gather(
        writer.run(insert(1)), writer.run(faulty), writer.run(insert(2)), return_exceptions=True
    )
    assert [told[0], told[2]] == [1, 2]
    assert isinstance(told[1], KeyError)
    assert await writer.run(count) == 2


async def test_a_fault_of_the_store_fails_the_group_and_the_next_one_works(writer):
    """Nothing of the group is stored; the file is opened anew."""

    def full(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    await writer.run(count)
    told = await asyncio.gather(writer.run(insert(1)), writer.run(full), return_exceptions=True)
    assert isinstance(told[1], StorageFull)
    stored = await writer.run(count)
    assert stored == (1 if told[0] == 1 else 0)
    assert await writer.run(insert(5)) == stored + 1


async def test_closing_commits_what_was_handed_in(writer):
    """And refuses what comes later."""
    pending = asyncio.gather(*(writer.run(insert(n)) for n in range(20)))
    await asyncio.sleep(0)
    await writer.aclose()
    assert await pending == list(range(1, 21))
    with pytest.raises(StoreUnavailable, match="closed"):
        await writer.run(count)


async def test_a_caller_that_is_gone_stops_nobody(writer):
    """A cancelled request may still be committed; the others are answered."""
    gone = asyncio.create_task(writer.run(insert(1)))
    stays = asyncio.create_task(writer.run(insert(2)))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays in (1, 2)


async def test_a_busy_file_is_unavailable_and_changes_nothing(tmp_path):
    """Another process that holds the lock for too long is told as such."""
    path = tmp_path / "x.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE t (n INTEGER)")
    holder.execute("BEGIN IMMEDIATE")
    writer = WriterThread(
        path,
        lambda: sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False),
    )
    with pytest.raises(StoreUnavailable, match="locked"):
        await writer.run(insert(1))
    holder.execute("COMMIT")
    assert await writer.run(insert(1)) == 1
    holder.close()
    await writer.aclose()
