"""Reading and following streams, on every journal."""

import asyncio

import pytest

from lineshaft.ports import StoreUnavailable
from tests.builders_stores import DEADLINE_S, all_of, an_entry, some_of


async def fill(journal, stream: str, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        await journal.append([an_entry(stream, seq)])


async def test_reading_begins_behind_a_seq_and_keeps_the_order(journal):
    """``after`` is not part of what is read; other streams are not either."""
    await fill(journal, "a", 1, 5)
    await fill(journal, "b", 1, 2)
    assert [e.seq for e in await all_of(journal.read("a", 2))] == [3, 4, 5]
    assert [e.seq for e in await all_of(journal.read("a", -3))] == [1, 2, 3, 4, 5]
    assert await all_of(journal.read("a", 5)) == []
    assert await all_of(journal.read("nothing", 0)) == []


async def test_a_limit_ends_a_read(journal):
    """Also while following; a limit of zero reads nothing."""
    await fill(journal, "a", 1, 5)
    assert [e.seq for e in await all_of(journal.read("a", 1, limit=2))] == [2, 3]
    assert [e.seq for e in await all_of(journal.read("a", 1, follow=True, limit=3))] == [2, 3, 4]
    assert await all_of(journal.read("a", 0, limit=0)) == []


async def test_a_long_stream_is_read_whole(journal):
    """Pages do not show."""
    many = [journal.append([an_entry("a", seq)]) for seq in range(1, 701)]
    await asyncio.gather(*many)
    assert [e.seq for e in await all_of(journal.read("a", 0))] == list(range(1, 701))


async def test_a_follower_sees_what_comes(journal):
    """It reads what is there, waits, and gets each later entry once and in order."""
    await fill(journal, "a", 1, 3)
    following = asyncio.create_task(some_of(journal.read("a", 1, follow=True), 6))
    await asyncio.sleep(0)
    await fill(journal, "a", 4, 7)
    assert [e.seq for e in await following] == [2, 3, 4, 5, 6, 7]


async def test_followers_of_several_streams_do_not_mix(journal):
    """Each gets its own stream, also when all wait at once for streams that do not exist yet."""
    names = [f"s{n}" for n in range(8)]
    tasks = [asyncio.create_task(some_of(journal.read(name, 0, follow=True), 3)) for name in names]
    await asyncio.sleep(0)
    for seq in (1, 2, 3):
        await journal.append([an_entry(name, seq) for name in names])
    for name, task in zip(names, tasks, strict=True):
        assert [(e.stream, e.seq) for e in await task] == [(name, 1), (name, 2), (name, 3)]


async def test_a_follower_that_stops_leaves_no_trace(journal):
    """Cancelled followers neither disturb appends nor other followers."""
    gone = asyncio.create_task(all_of(journal.read("a", 0, follow=True)))
    stays = asyncio.create_task(some_of(journal.read("a", 0, follow=True), 1))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await fill(journal, "a", 1, 1)
    assert [e.seq for e in await stays] == [1]


async def test_closing_ends_the_followers(journal):
    """A follower never waits for a journal that is closed."""
    await fill(journal, "a", 1, 1)
    reading = journal.read("a", 0, follow=True)
    assert (await anext(reading)).seq == 1
    waiting = asyncio.ensure_future(anext(reading))
    await asyncio.sleep(0)
    await journal.aclose()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(StoreUnavailable):
            await waiting


async def test_what_a_reader_changes_changes_nothing_stored(journal):
    """Entries that are read are the reader's own."""
    await journal.append([an_entry("a", 1, names=["x"])])
    [entry] = await all_of(journal.read("a", 0))
    entry.events[0].data["names"].append("y")
    [again] = await all_of(journal.read("a", 0))
    assert again.events[0].data == {"names": ["x"]}


async def test_a_follower_sees_what_another_opening_appends(open_journal):
    """Two openings in one process are as two processes."""
    one, other = open_journal(), open_journal()
    for seq in range(1, 4):
        following = asyncio.create_task(some_of(one.read("a", seq - 1, follow=True), 1))
        await asyncio.sleep(0)
        await other.append([an_entry("a", seq)])
        assert [e.seq for e in await following] == [seq]
