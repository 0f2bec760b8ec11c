"""Random operations through the memory journal and the SQLite journal, which must agree."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.journal.select import ClosableJournal
from lineshaft.adapters.journal.sqlite import SqliteJournal
from tests.builders_stores import all_of, an_entry

STREAMS = st.sampled_from(["a", "b", "c/1"])
CAUSES = st.sampled_from(["c1", "c2", "c3", "c4", "训", "\ud800", "x\0y"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
# Half of the entries aim at the next place of their stream; the number is an offset from it.
ENTRY = st.tuples(STREAMS, st.sampled_from([0, 0, 0, 0, 1, -1, -2, 5]), st.lists(CAUSES), JSON)
OPERATION = st.one_of(
    st.tuples(st.just("append"), st.lists(ENTRY, max_size=3, unique_by=lambda e: e[0])),
    st.tuples(st.just("append"), st.lists(ENTRY, max_size=3)),
    st.tuples(st.just("read"), STREAMS, st.integers(-2, 8), st.none() | st.integers(0, 4)),
    st.tuples(st.just("causes"), STREAMS, st.lists(CAUSES)),
    st.tuples(st.just("mark"), st.sampled_from(["m", "m%", "n"]), JSON, st.integers(-1, 3)),
    st.tuples(st.just("marks"), st.sampled_from(["", "m", "m%", "x"])),
    st.tuples(st.just("reopen")),
)


async def answer_of(journal: ClosableJournal, operation: tuple[Any, ...], places: dict) -> Any:
    """What the journal answers, or which error it raises."""
    answer: Any = None
    match operation:
        case ("append", drafts):
            entries = [
                an_entry(stream, places.get(stream, 0) + 1 + offset, *causes, x=value)
                for stream, offset, causes, value in drafts
            ]
            try:
                answer = await journal.append(entries)
            except ValueError as error:
                answer = str(error)
        case ("read", stream, after, limit):
            answer = await all_of(journal.read(stream, after, limit=limit))
        case ("causes", stream, ids):
            answer = await journal.causes(stream, ids)
        case ("mark", name, value, expected):
            answer = await journal.mark(name, {"x": value}, expected)
        case ("marks", prefix):
            answer = list((await journal.marks(prefix)).items())
    return answer


async def places_of(journal: ClosableJournal) -> dict[str, int]:
    return {name: len(await all_of(journal.read(name, 0))) for name in ("a", "b", "c/1")}


async def agree(operations: list[tuple[Any, ...]], folder: Path) -> None:
    memory, sqlite = MemoryJournal(), SqliteJournal(folder / "x.journal.db")
    for operation in operations:
        if operation == ("reopen",):
            await sqlite.aclose()
            memory, sqlite = memory.reopen(), SqliteJournal(folder / "x.journal.db")
        places = await places_of(memory)
        expected = await answer_of(memory, operation, places)
        assert await answer_of(sqlite, operation, places) == expected
    for stream in ("a", "b", "c/1"):
        assert await all_of(sqlite.read(stream, 0)) == await all_of(memory.read(stream, 0))
    await sqlite.aclose()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(OPERATION, max_size=25))
def test_the_memory_journal_and_the_sqlite_journal_agree(operations):
    """Whatever is asked in whatever order, both give the same answers and hold the same."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(agree(operations, Path(folder)))
