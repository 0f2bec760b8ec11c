"""Marks: small named records that change by compare-and-set, on every journal."""

import asyncio

import pytest

from lineshaft.ports import Mark
from tests.builders_stores import an_entry


async def test_a_mark_changes_only_from_the_version_one_has_seen(journal):
    """0 means absent; each change raises the version by one; a stale one changes nothing."""
    assert await journal.mark("m", {"seq": 1}, 1) is None
    assert await journal.mark("m", {"seq": 1}, 0) == Mark("m", {"seq": 1}, 1)
    assert await journal.mark("m", {"seq": 2}, 0) is None
    assert await journal.mark("m", {"seq": 2}, 1) == Mark("m", {"seq": 2}, 2)
    assert await journal.mark("m", {"seq": 9}, 1) is None
    assert await journal.marks("m") == {"m": Mark("m", {"seq": 2}, 2)}


async def test_marks_are_found_by_the_beginning_of_their_names(journal):
    """The prefix is plain text: nothing in it is a pattern."""
    for name in ("published/pool/a", "published/pool_b", "published/poolxb", "Published/", "ü/1"):
        await journal.mark(name, {}, 0)
    assert list(await journal.marks("published/pool")) == [
        "published/pool/a",
        "published/pool_b",
        "published/poolxb",
    ]
    assert list(await journal.marks("published/pool_")) == ["published/pool_b"]
    assert list(await journal.marks("%")) == []
    assert list(await journal.marks("ü")) == ["ü/1"]
    assert len(await journal.marks("")) == 5


async def test_of_many_who_set_a_mark_one_wins(open_journal):
    """Compare-and-set holds between callers and between journals opened twice."""
    journals = [open_journal(), open_journal()]
    for version in range(4):
        told = await asyncio.gather(
            *(journals[n % 2].mark("lease", {"holder": n}, version) for n in range(16))
        )
        won = [mark for mark in told if mark is not None]
        assert len(won) == 1
        assert await journals[1].marks("lease") == {"lease": won[0]}


async def test_marks_and_entries_do_not_disturb_one_another(journal):
    """A refused mark beside an append refuses nothing else."""
    told, mark, none = await asyncio.gather(
        journal.append([an_entry("a", 1)]), journal.mark("a", {}, 0), journal.mark("b", {}, 4)
    )
    assert (told[0].status, mark, none) == ("ok", Mark("a", {}, 1), None)


@pytest.mark.parametrize(("name", "value"), [("", {}), ("a\0", {}), ("m", {"x": object()})])
async def test_what_no_journal_can_hold_is_refused(journal, name, value):
    """As with entries."""
    with pytest.raises(ValueError, match=r"."):
        await journal.mark(name, value, 0)
