"""Named immutable content, the same on every adapter."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from lineshaft.adapters.objects.select import ClosableObjects
from lineshaft.ports import ObjectExists, ObjectMissing
from tests.builders_stores import all_of


async def content(objects: ClosableObjects, key: str, *range: int | None) -> bytes:
    return b"".join(await all_of(objects.open(key, *range)))


async def keys(objects: ClosableObjects, prefix: str = "", after: str = "") -> list[str]:
    return [found.key async for found in objects.list(prefix, after)]


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


async def test_content_is_got_as_it_was_put(objects):
    """From bytes and from chunks of any size, also none and empty ones."""
    large = bytes(range(256)) * 12_000
    assert await objects.put("a/b", b"123") == 3
    assert await objects.put("a/c", pieces(b"", b"1", large, b"", b"2")) == len(large) + 2
    assert await objects.put("empty", b"") == 0
    assert await objects.put("nothing", pieces()) == 0
    assert await content(objects, "a/b") == b"123"
    assert await content(objects, "a/c") == b"1" + large + b"2"
    assert await content(objects, "empty") == await content(objects, "nothing") == b""


async def test_what_is_there_is_never_overwritten(objects):
    """A second put is told, from bytes and from chunks, and changes nothing."""
    await objects.put("runs/1/started", b"first")
    for data in (b"second", pieces(b"third"), b"first"):
        with pytest.raises(ObjectExists):
            await objects.put("runs/1/started", data)
    assert await content(objects, "runs/1/started") == b"first"


async def test_replacing_is_asked_for(objects):
    """With ``replace`` the newest content is there, whole; a reader keeps what it opened."""
    await objects.put("k", b"x" * 3_000_000)
    reading = objects.open("k")
    first = await anext(reading)
    assert await objects.put("k", b"new", replace=True) == 3
    assert await objects.put("fresh", pieces(b"n"), replace=True) == 1
    rest = b"".join(await all_of(reading))
    assert first + rest == b"x" * 3_000_000
    assert await content(objects, "k") == b"new"


async def test_of_many_who_create_one_wins(objects):
    """The content that is there is the winner's."""
    told = await asyncio.gather(
        *(objects.put("claim", f"holder {n}".encode() * 50) for n in range(24)),
        return_exceptions=True,
    )
    won = [n for n, answer in enumerate(told) if isinstance(answer, int)]
    assert len(won) == 1
    assert all(isinstance(a, ObjectExists) for n, a in enumerate(told) if n not in won)
    assert await content(objects, "claim") == f"holder {won[0]}".encode() * 50


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, None), (0, 0), (2, 5), (5, 2), (9, None), (10, None), (11, 20), (3, 99), (0, 10)],
)
async def test_a_range_is_what_a_slice_is(objects, start, end):
    """Beyond the end there is nothing, and that is no error."""
    await objects.put("digits", b"0123456789")
    assert await content(objects, "digits", start, end) == b"0123456789"[start:end]


async def test_a_large_object_comes_in_chunks(objects):
    """Ranges over the edges of chunks fit together."""
    whole = b"".join(n.to_bytes(4, "little") for n in range(800_000))
    await objects.put("large", whole)
    chunks = await all_of(objects.open("large"))
    assert len(chunks) > 1
    assert max(map(len, chunks)) <= 1 << 20
    assert b"".join(chunks) == whole
    edge = 1 << 20
    assert await content(objects, "large", edge - 1, 2 * edge + 1) == whole[edge - 1 : 2 * edge + 1]


async def test_positions_count_from_the_beginning(objects):
    """Negative ones are refused, not read as in a slice."""
    await objects.put("k", b"123")
    for start, end in ((-1, None), (0, -1)):
        with pytest.raises(ValueError, match="range"):
            await content(objects, "k", start, end)


async def test_size_and_time_are_told(objects):
    """Time is in milliseconds since the epoch; an absent object has none."""
    before = time.time_ns() // 1_000_000 - 1000  # a file system's clock may lag by a tick
    await objects.put("a/b", b"123")
    found = await objects.stat("a/b")
    assert (found.key, found.size) == ("a/b", 3)
    assert before <= found.modified <= before + 60_000
    assert [found] == await all_of(objects.list(""))
    for absent in ("a", "a/b/c", "b"):
        assert await objects.stat(absent) is None
        with pytest.raises(ObjectMissing):
            await content(objects, absent)


async def test_objects_are_listed_in_the_order_of_their_keys(objects):
    """As texts, so ``a-b`` comes before ``a/b``; ``after`` continues anywhere."""
    names = ["a/b", "a-b", "a.b", "ab", "a/b-c", "a/bc/d", "a0", "B", "é", "训/1", "a/b.d/e"]
    for name in names:
        await objects.put(name, name.encode())
    order = sorted(names)
    assert await keys(objects) == order
    for after in (*order, "a/", "a/b-", "zz", "A"):
        assert await keys(objects, after=after) == [key for key in order if key > after], after


@pytest.mark.parametrize("prefix", ["runs/1/", "runs/1", "runs/", "ru", "runs/1/b", "x", "runs//"])
@pytest.mark.parametrize("after", ["", "runs/1/b", "runs/10/a", "z"])
async def test_a_prefix_may_end_anywhere(objects, prefix, after):
    """It need not be the name of a folder."""
    names = ["runs/1/a", "runs/1/b", "runs/1/b2", "runs/10/a", "runs/2", "run", "logs/1/a"]
    for name in names:
        await objects.put(name, b"")
    wanted = sorted(name for name in names if name.startswith(prefix) and name > after)
    assert await keys(objects, prefix, after) == wanted


@pytest.mark.parametrize("prefix", ["../", "/", "a/../", "./", "\0", "\\", ".partial", ".partial/"])
async def test_a_prefix_that_begins_no_key_lists_nothing(objects, prefix):
    """It is no error, and leads nowhere else."""
    await objects.put("a/b", b"")
    assert await keys(objects, prefix) == []


async def test_a_listing_survives_what_happens_meanwhile(objects):
    """Objects that were there and stay are listed once, in order."""
    stays = [f"k/{n:04d}" for n in range(0, 600, 2)]
    for name in [*stays, *(f"k/{n:04d}" for n in range(1, 600, 2))]:
        await objects.put(name, b"")
    seen = []
    async for found in objects.list("k/"):
        seen.append(found.key)
        if len(seen) == 3:
            await objects.delete([f"k/{n:04d}" for n in range(1, 600, 2)])
            await objects.put("k/0300a", b"")
    assert [key for key in seen if key in stays] == stays
    assert seen == sorted(set(seen))


async def test_deleting_what_is_absent_is_no_error(objects):
    """What is deleted can be created again; its neighbours stay."""
    await objects.put("a/b/c", b"1")
    await objects.put("a/d", b"2")
    await objects.delete(["a/b/c", "a/b/c", "zzz", "a", "a/b"])
    assert await keys(objects) == ["a/d"]
    await objects.put("a/b", b"now an object, where a folder was")
    await objects.delete(["a/b", "a/d"])
    await objects.put("a", b"3")
    assert await keys(objects) == ["a"]
    await objects.delete([])


async def test_a_key_does_not_run_through_another_object(objects):
    """Names are files and folders at once nowhere, so no store may hold both."""
    await objects.put("a/b", b"1")
    for key in ("a/b/c", "a/b/c/d", "a"):
        for replace in (False, True):
            with pytest.raises(ValueError, match="another object"):
                await objects.put(key, b"2", replace=replace)
            with pytest.raises(ValueError, match="another object"):
                await objects.put(key, pieces(b"2"), replace=replace)
    assert await keys(objects) == ["a/b"]
    await objects.put("a-b", b"3")


BAD = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\\b", "a\nb", "\0", "a\x7f",
    "a\x85", "x" * 256, "训" * 86, "a/" * 520 + "b", "a/" * 64 + "b", "\ud800", ".partial",
    ".partial/x",
]  # fmt: skip


@pytest.mark.parametrize("key", BAD, ids=lambda key: repr(key)[:20])
async def test_a_key_that_is_none_is_refused(objects, key):
    """By every operation, before anything happens."""
    with pytest.raises(ValueError, match=r"."):
        await objects.put(key, b"")
    with pytest.raises(ValueError, match=r"."):
        await objects.stat(key)
    with pytest.raises(ValueError, match=r"."):
        await content(objects, key)
    await objects.put("good", b"")
    with pytest.raises(ValueError, match=r"."):
        await objects.delete(["good", key])
    assert await keys(objects) == ["good"]


@pytest.mark.parametrize(
    "key",
    [".hidden", "...", "a/.partial/b", "训" * 85, "x" * 255, "a b", "a%2Fb", "*?[", "-rf", "~"],
)
async def test_an_unusual_key_is_a_key(objects, key):
    """What the rules allow is kept as it is."""
    await objects.put(key, b"1")
    assert await keys(objects) == [key]
    assert await content(objects, key) == b"1"


async def test_data_that_fails_stores_nothing(objects):
    """The error is the caller's own; the key is free."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        await objects.put("a/k", broken())
    assert await keys(objects) == []
    assert await objects.put("a/k", b"1") == 1


async def test_a_put_that_is_cancelled_stores_nothing(objects):
    """Neither a part nor the whole appears."""
    arrived = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        arrived.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(objects.put("k", slow()))
    await arrived.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await keys(objects) == []
    assert await objects.put("k", b"1") == 1
