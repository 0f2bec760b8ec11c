"""What an append answers, on every journal."""

import asyncio
import dataclasses

import pytest

from lineshaft.adapters.journal.select import ClosableJournal
from lineshaft.contracts import limits
from lineshaft.contracts.events import Event
from lineshaft.ports import AppendStatus, StoreUnavailable
from tests.builders_stores import all_of, an_entry

OK, CONFLICT, DUPLICATE = (
    AppendStatus.OK,
    AppendStatus.SEQ_CONFLICT,
    AppendStatus.DUPLICATE_CAUSE,
)


async def statuses(journal: ClosableJournal, *entries) -> list[AppendStatus]:
    return [told.status for told in await journal.append(list(entries))]


async def test_an_entry_is_read_back_as_it_was_written(journal):
    """Every field of an entry and of its events survives."""
    entry = an_entry("pool/a", 1, "c1", "c2", text="训练 \ud800 \0", deep={"a": [1, None, 2.5]})
    bare = dataclasses.replace(an_entry("pool/a", 2), events=(Event("x.y", {}), Event("x.z", {})))
    assert await statuses(journal, entry) == [OK]
    assert await statuses(journal, bare) == [OK]
    assert await all_of(journal.read("pool/a", 0)) == [entry, bare]


async def test_one_commit_takes_entries_of_several_streams(journal):
    """Answers come per entry, in order, and one refusal does not stop the others."""
    assert await statuses(journal, an_entry("a", 1, "c"), an_entry("b", 1)) == [OK, OK]
    answers = await journal.append(
        [an_entry("b", 7), an_entry("a", 2, "c"), an_entry("c", 1), an_entry("d", 2)]
    )
    assert [told.status for told in answers] == [CONFLICT, DUPLICATE, OK, CONFLICT]
    assert [len(await all_of(journal.read(name, 0))) for name in "abcd"] == [1, 1, 1, 0]


async def test_an_entry_must_be_the_next_of_its_stream(journal):
    """The first has seq 1; a gap, a repetition and a negative seq are conflicts."""
    assert await statuses(journal, an_entry("a", 2)) == [CONFLICT]
    assert await statuses(journal, an_entry("a", 0)) == [CONFLICT]
    assert await statuses(journal, an_entry("a", 1)) == [OK]
    for seq in (1, 3, -1):
        assert await statuses(journal, an_entry("a", seq, entry_id="other")) == [CONFLICT]
    assert [e.entry_id for e in await all_of(journal.read("a", 0))] == ["a#1"]


async def test_known_causes_are_listed(journal):
    """A duplicate names exactly the causes that the stream knows, in the entry's order."""
    await journal.append([an_entry("a", 1, "c1", "c2", "c3"), an_entry("b", 1, "c4")])
    [told] = await journal.append([an_entry("a", 2, "c3", "new", "c4", "c1")])
    assert (told.status, told.causes) == (DUPLICATE, ("c3", "c1"))
    assert await journal.causes("a", ["new", "c4"]) == {}


async def test_a_wrong_place_is_told_before_a_known_cause(journal):
    """Whoever is behind must step down or reload; what it would have repeated matters later."""
    await journal.append([an_entry("a", 1, "c")])
    [told] = await journal.append([an_entry("a", 5, "c")])
    assert (told.status, told.causes) == (CONFLICT, ())


async def test_a_refused_entry_leaves_no_cause(journal):
    """Causes are recorded with their entry or not at all."""
    await journal.append([an_entry("a", 9, "c1"), an_entry("b", 1, "c1")])
    assert await journal.causes("a", ["c1"]) == {}
    assert await journal.causes("b", ["c1", "zzz", "c1"]) == {"c1": 1}


async def test_causes_of_any_text_are_kept_apart(journal):
    """Ids come from anyone; a strange one spoils nothing."""
    strange = ["a:1:0", "训练", "\ud800", "x" * 256, "\n", "a'b", "A:1:0"]
    await journal.append([an_entry("a", 1, *strange, *strange)])
    assert await journal.causes("a", strange) == dict.fromkeys(strange, 1)


async def test_two_entries_of_one_stream_are_refused_whole(journal):
    """That would be a caller's fault; nothing of the append is stored."""
    with pytest.raises(ValueError, match="one entry per stream"):
        await journal.append([an_entry("a", 1), an_entry("b", 1), an_entry("a", 2)])
    assert await all_of(journal.read("b", 0)) == []


@pytest.mark.parametrize(
    "entry",
    [
        an_entry("", 1),
        an_entry("a\0b", 1),
        an_entry("\ud800", 1),
        an_entry("a", 1 << 63),
        an_entry("a", 1, thing=object()),
        an_entry("a", 1, entry_id=""),
        an_entry("a", 1, big="x" * limits.ENTRY_BYTES_MAX),
        dataclasses.replace(an_entry(), events=(Event("k", {}),) * (limits.ENTRY_EVENTS_MAX + 1)),
    ],
    ids=["empty", "nul", "surrogate", "large-seq", "no-json", "no-id", "bytes", "events"],
)
async def test_what_no_journal_can_hold_is_refused(journal, entry):
    """Nothing of an append is stored when one of its entries cannot be."""
    with pytest.raises(ValueError, match=r"."):
        await journal.append([an_entry("whole", 1), entry])
    assert await all_of(journal.read("whole", 0)) == []
    assert await statuses(journal, an_entry("whole", 1)) == [OK]


async def test_nothing_appended_is_nothing_answered(journal):
    """An empty append is no error."""
    assert await journal.append([]) == []


async def test_of_many_at_one_place_one_wins(open_journal):
    """Compare-and-set holds between callers and between journals opened twice."""
    journals = [open_journal(), open_journal()]
    for seq in range(1, 6):
        rivals = [an_entry("a", seq, entry_id=f"{seq}/{n}") for n in range(20)]
        told = await asyncio.gather(
            *(journals[n % 2].append([rival]) for n, rival in enumerate(rivals))
        )
        won = [r.entry_id for r, [t] in zip(rivals, told, strict=True) if t.status is OK]
        assert len(won) == 1
        assert [e.entry_id async for e in journals[0].read("a", seq - 1)] == won


async def test_what_was_appended_is_there_when_opened_again(open_journal):
    """Closing loses nothing, and a closed journal says so."""
    journal = open_journal()
    await journal.append([an_entry("a", 1, "c")])
    await journal.mark("m", {"x": 1}, 0)
    await journal.aclose()
    await journal.aclose()
    with pytest.raises(StoreUnavailable):
        await journal.append([an_entry("a", 2)])
    with pytest.raises(StoreUnavailable):
        await all_of(journal.read("a", 0))
    again = open_journal()
    assert len(await all_of(again.read("a", 0))) == 1
    assert await again.causes("a", ["c"]) == {"c": 1}
    assert (await again.marks(""))["m"].value == {"x": 1}
    assert await statuses(again, an_entry("a", 1)) == [CONFLICT]
