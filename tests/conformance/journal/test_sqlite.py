"""What only a journal in a file must keep: other processes, kills, full and damaged disks."""

import asyncio
import itertools
import sqlite3
from pathlib import Path

import pytest

from lineshaft.adapters.journal.sqlite import SqliteJournal
from lineshaft.adapters.sqlite.file import (
    FileKind,
    NetworkFileSystem,
    StoreCorrupt,
    open_file,
    refuse_network,
)
from lineshaft.ports import AppendStatus, StorageFull, StoreUnavailable
from tests.builders_stores import a_process, a_small_disk, all_of, an_entry, some_of, until

CHILD = Path(__file__).with_name("child.py")


@pytest.fixture
async def file(tmp_path):
    return tmp_path / "x.journal.db"


async def test_two_processes_never_get_the_same_place(file):
    """Every seq is acknowledged to exactly one of them, and its entry is the one that is there."""
    writers = [a_process(CHILD, "contend", file, name, 120) for name in "ab"]
    outputs = await asyncio.gather(*(asyncio.to_thread(w.communicate) for w in writers))
    assert [w.returncode for w in writers] == [0, 0]
    acknowledged = [line.split() for out, _ in outputs for line in out.splitlines()]
    journal = SqliteJournal(file)
    entries = await all_of(journal.read("one", 0))
    await journal.aclose()
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
    assert sorted((int(seq), entry_id) for _, seq, entry_id in acknowledged) == [
        (e.seq, e.entry_id) for e in entries
    ]


async def test_a_kill_in_mid_stream_loses_nothing_acknowledged(file):
    """After SIGKILL every acknowledged entry is whole and there, and no stream has a gap."""
    acknowledged: set[tuple[str, int, str]] = set()
    for round in range(4):
        writer = a_process(CHILD, "pour", file, f"r{round}")
        assert writer.stdout is not None
        lines = list(itertools.islice(writer.stdout, 60 + 17 * round))
        writer.kill()
        lines += writer.stdout.readlines()
        writer.wait()
        whole = [line.split() for line in lines if line.endswith("\n")]
        acknowledged |= {(stream, int(seq), entry_id) for stream, seq, entry_id in whole}
    journal = SqliteJournal(file)
    stored = set()
    for stream in (f"s{n}" for n in range(8)):
        entries = await all_of(journal.read(stream, 0))
        assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
        for entry in entries:
            assert entry.events[0].data["filler"] == "x" * 3000
            assert await journal.causes(stream, entry.causes) == {entry.causes[0]: entry.seq}
            stored.add((stream, entry.seq, entry.entry_id))
    await journal.aclose()
    assert len(acknowledged) > 300
    assert acknowledged <= stored


async def test_a_follower_sees_the_entries_of_another_process(file):
    """They come without any append of its own, from a file that did not exist at first."""
    journal = SqliteJournal(file)
    following = asyncio.create_task(some_of(journal.read("one", 0, follow=True), 20))
    idle = asyncio.create_task(all_of(journal.read("other", 0, follow=True)))
    writer = a_process(CHILD, "fill", file, "a", 20)
    assert [e.seq for e in await following] == list(range(1, 21))
    await asyncio.to_thread(writer.communicate)
    assert not idle.done()
    idle.cancel()
    await journal.aclose()


async def test_a_follower_is_not_missed_between_looking_and_waiting(file, monkeypatch):
    """An entry that comes after its look, and that a look for others has passed, still wakes it."""
    monkeypatch.setattr("lineshaft.adapters.journal.sqlite.FOLLOW_FULL_LOOK_ROUNDS", 10**9)
    journal, other = SqliteJournal(file), SqliteJournal(file)
    idle = asyncio.create_task(all_of(journal.read("idle", 0, follow=True)))
    run, looks = journal._reader.run, 0

    async def slow_run(work):
        nonlocal looks
        answer = await run(work)
        looks += 1
        if answer == []:
            monkeypatch.setattr(journal._reader, "run", counting_run)
            await other.append([an_entry("a", 1)])
            passed = looks + 2
            await until(lambda: looks >= passed)
        return answer

    async def counting_run(work):
        nonlocal looks
        answer = await run(work)
        looks += 1
        return answer

    await until(lambda: journal._poll is not None)
    monkeypatch.setattr(journal._reader, "run", slow_run)
    assert [e.seq for e in await some_of(journal.read("a", 0, follow=True), 1)] == [1]
    idle.cancel()
    await journal.aclose()
    await other.aclose()


async def fill_until_full(journal: SqliteJournal) -> int:
    for done in range(200):
        try:
            await journal.append([an_entry("a", done + 1, f"c{done + 1}", big="x" * 20_000)])
        except StorageFull:
            return done
    raise AssertionError("the disk never became full")


async def test_a_full_disk_stores_nothing_by_halves(tmp_path):
    """``StorageFull`` is told, what was acknowledged stays, and room makes it work again."""
    with a_small_disk(tmp_path / "disk", "2m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 700_000)
        journal = SqliteJournal(disk / "x.journal.db")
        done = await fill_until_full(journal)
        assert done > 0
        with pytest.raises(StoreUnavailable):
            await journal.append([an_entry("b", 1, big="x" * 500_000)])
        assert [e.seq for e in await all_of(journal.read("a", 0))] == list(range(1, done + 1))
        assert await journal.causes("a", [f"c{done + 1}"]) == {}
        ballast.unlink()
        [told] = await journal.append([an_entry("a", done + 1, f"c{done + 1}")])
        assert told.status is AppendStatus.OK
        await journal.aclose()


class _Failing(sqlite3.Connection):
    """A connection on which commits can be made to fail after or before they happen."""

    fault: str | None = None

    def execute(self, sql, *values):
        if sql == "COMMIT" and _Failing.fault:
            committed, _Failing.fault = _Failing.fault == "after", None
            if committed:
                super().execute("COMMIT")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return super().execute(sql, *values)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_that_fails_is_unknown(file, monkeypatch, when):
    """The answer is ``unknown`` for what may be stored; reading back tells the truth."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=_Failing, **k))
    journal = SqliteJournal(file)
    await journal.append([an_entry("a", 1, "c")])
    _Failing.fault = when
    told = await journal.append([an_entry("a", 2), an_entry("b", 4)])
    assert [t.status for t in told] == [AppendStatus.UNKNOWN, AppendStatus.SEQ_CONFLICT]
    entries = await all_of(journal.read("a", 1))
    assert len(entries) == (1 if when == "after" else 0)
    _Failing.fault = when
    with pytest.raises(StoreUnavailable):
        await journal.mark("m", {}, 0)
    assert len(await journal.marks("")) == (1 if when == "after" else 0)
    await journal.aclose()


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough" * 50, None])
async def test_a_file_that_is_no_journal_is_told_clearly(file, content):
    """A foreign file is never written into; the error names the file."""
    if content is not None:
        file.write_bytes(content)
    else:
        foreign = sqlite3.connect(file)
        foreign.execute("CREATE TABLE theirs (x)")
        foreign.close()
    before = file.read_bytes()
    journal = SqliteJournal(file)
    with pytest.raises(StoreCorrupt, match=r"x\.journal\.db"):
        await journal.append([an_entry("a", 1)])
    with pytest.raises(StoreCorrupt, match=r"x\.journal\.db"):
        await all_of(journal.read("a", 0, follow=True))
    await journal.aclose()
    assert file.read_bytes() == before


async def test_a_damaged_file_is_told_clearly(file):
    """Pages that were overwritten are an error, never fewer entries."""
    journal = SqliteJournal(file)
    for seq in range(1, 60):
        await journal.append([an_entry("a", seq, big="x" * 3000)])
    await journal.aclose()
    with file.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * (file.stat().st_size - 8192))
    again = SqliteJournal(file)
    with pytest.raises(StoreCorrupt, match="restore"):
        await all_of(again.read("a", 0))
    await again.aclose()


async def test_a_file_of_a_newer_release_is_left_alone(file):
    """The error names both layouts."""
    journal = SqliteJournal(file)
    await journal.append([an_entry("a", 1)])
    await journal.aclose()
    raw = sqlite3.connect(file)
    raw.execute("PRAGMA user_version=99")
    raw.close()
    again = SqliteJournal(file)
    with pytest.raises(StoreCorrupt, match="layout 99"):
        await again.append([an_entry("a", 2)])
    await again.aclose()


async def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path):
    """A file in the way of the folder is told, not crashed on."""
    (tmp_path / "file").write_text("")
    journal = SqliteJournal(tmp_path / "file" / "x" / "j.db")
    with pytest.raises(StoreUnavailable, match="file"):
        await journal.append([an_entry("a", 1)])
    await journal.aclose()


MOUNTS = r"""
/dev/sda1 / ext4 rw 0 0
server:/export /net nfs4 rw 0 0
tmpfs /net/local tmpfs rw 0 0
u@h:/ /home/a\040b fuse.sshfs rw 0 0
//s/x /smb cifs rw 0 0
portal /run/doc fuse.portal rw 0 0
"""


@pytest.mark.parametrize("folder", ["/net", "/net/state/x", "/home/a b/c", "/smb"])
def test_a_network_file_system_is_refused(folder):
    """SQLite's locks and shared memory do not hold between machines."""
    with pytest.raises(NetworkFileSystem, match="local disk"):
        refuse_network(Path(folder), MOUNTS)


@pytest.mark.parametrize("folder", ["/", "/var/lib", "/net/local/x", "/network", "/run/doc"])
def test_a_local_file_system_is_taken(folder):
    """The deepest mount point decides, by whole names."""
    refuse_network(Path(folder), MOUNTS)


def test_commits_are_synchronous(file):
    """An acknowledged entry survives the loss of power: NORMAL would lose it in WAL mode."""
    connection = open_file(file, FileKind("journal", 1, 1, ("CREATE TABLE t (x)",)))
    asked = ("journal_mode", "synchronous", "application_id", "user_version")
    told = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    assert told == ["wal", 2, 1, 1]
    connection.close()


async def test_many_appends_share_commits(file):
    """What arrives during a commit is the next one; there are far fewer commits than appends."""
    journal = SqliteJournal(file)
    await journal.append([an_entry("first", 1)])
    watcher = sqlite3.connect(file)
    commits = 0
    pending = asyncio.gather(*(journal.append([an_entry(f"s{n}", 1)]) for n in range(400)))
    seen = watcher.execute("PRAGMA data_version").fetchone()
    while not pending.done():
        await asyncio.sleep(0)
        now = watcher.execute("PRAGMA data_version").fetchone()
        commits, seen = commits + (now != seen), now
    assert all(told[0].status is AppendStatus.OK for told in pending.result())
    assert commits <= 40
    watcher.close()
    await journal.aclose()
