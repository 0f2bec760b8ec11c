"""The memory stores give rare answers when they are told to."""

import pytest

from lineshaft.adapters.clock import VirtualClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.ports import Appended, AppendStatus, StorageFull, StoreUnavailable
from tests.builders_stores import all_of, an_entry


@pytest.mark.parametrize("committed", [True, False])
async def test_an_unknown_append_is_stored_or_not_as_told(committed):
    """The answer is the same; reading back tells the truth. It happens once."""
    journal = MemoryJournal()
    journal.fail_next(AppendStatus.UNKNOWN, committed=committed)
    told = await journal.append([an_entry("a", 1), an_entry("b", 5)])
    assert told == [Appended(AppendStatus.UNKNOWN)] * 2
    assert len(await all_of(journal.read("a", 0))) == committed
    assert await all_of(journal.read("b", 0)) == []
    [told] = await journal.append([an_entry("a", 1 + committed)])
    assert told.status is AppendStatus.OK


async def test_an_append_raises_as_often_as_told():
    """Then it works again."""
    journal = MemoryJournal()
    journal.fail_next(StoreUnavailable("gone"), times=2)
    journal.fail_next(AppendStatus.SEQ_CONFLICT)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="gone"):
            await journal.append([an_entry("a", 1)])
    assert [t.status for t in await journal.append([an_entry("a", 1)])] == ["seq_conflict"]
    assert [t.status for t in await journal.append([an_entry("a", 1)])] == ["ok"]


async def test_a_put_raises_as_told_and_objects_have_the_clocks_time():
    """Storage-full can be rehearsed without a full disk."""
    objects = MemoryObjects(VirtualClock(5000))
    objects.fail_next(StorageFull("no room"))
    with pytest.raises(StorageFull):
        await objects.put("k", b"1")
    assert await objects.stat("k") is None
    await objects.put("k", b"1")
    found = await objects.stat("k")
    assert found is not None
    assert found.modified == 5000
