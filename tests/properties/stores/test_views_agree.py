"""Random operations through the memory views and the SQLite views, which must agree."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.adapters.views.select import ClosableViews
from lineshaft.adapters.views.sqlite import SqliteViews
from lineshaft.ports import Document

KINDS = st.sampled_from(["job", "alert"])
IDS = st.sampled_from(["", "a", "b", "B", "a1", "a-1", "é", "训", "𝒳", "\uffff"])
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.0, 0.1, 1e300, -0.0, 2**53 + 1, 2.0**53, 2**70, "1", "\0\ud800"]
) | st.floats() | st.integers() | st.text(max_size=3)  # fmt: skip
VALUES = SCALARS | st.lists(st.integers(), max_size=2) | st.just({})
NAMES = st.sampled_from(["x", "y", "team", "a b", "$", "x.y"])
DOCUMENT = st.builds(
    Document,
    KINDS,
    IDS,
    st.integers(-1, 4),
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.sampled_from(["", "s1", "s2"]),
)
OPERATION = st.one_of(
    st.tuples(st.just("put"), st.lists(DOCUMENT, max_size=4)),
    st.tuples(st.just("put"), st.lists(DOCUMENT, min_size=1, max_size=1)),
    st.tuples(st.just("get"), KINDS, IDS),
    st.tuples(
        st.just("find"),
        KINDS,
        st.none() | st.dictionaries(NAMES, VALUES, max_size=2),
        st.integers(-1, 3) | st.just(1000),
        IDS,
    ),
    st.tuples(st.just("delete"), KINDS, st.lists(IDS, max_size=2)),
)


async def answer_of(views: ClosableViews, operation: tuple[Any, ...]) -> str:
    """What the views answer, or which error they raise; as text, for NaN equals itself there."""
    try:
        match operation:
            case ("put", documents):
                return repr(await views.put(documents))
            case ("get", kind, id):
                return repr(await views.get(kind, id))
            case ("find", kind, where, limit, after):
                return repr(await views.find(kind, where, limit=limit, after=after))
            case ("delete", kind, ids):
                return repr(await views.delete(kind, ids))
    except ValueError as error:
        return str(error)
    raise AssertionError(operation)


async def agree(operations: list[tuple[Any, ...]], folder: Path) -> None:
    memory, sqlite = MemoryViews(), SqliteViews(folder / "x.views.db")
    for operation in operations:
        assert await answer_of(sqlite, operation) == await answer_of(memory, operation)
    for kind in ("job", "alert"):
        assert repr(await sqlite.find(kind)) == repr(await memory.find(kind))
    await sqlite.aclose()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(OPERATION, max_size=25))
def test_the_memory_views_and_the_sqlite_views_agree(operations):
    """Whatever is put, found and deleted, both give the same answers and hold the same."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(agree(operations, Path(folder)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(VALUES, max_size=8),
    SCALARS,
)
def test_a_document_is_found_by_its_own_fields(values, wanted):
    """Finding by a value gives exactly the documents that hold an equal one."""
    with tempfile.TemporaryDirectory() as folder:
        documents = [
            Document("job", f"{n}", 1, {"x": value}) for n, value in enumerate([*values, wanted])
        ]
        operations = [("put", documents), ("find", "job", {"x": wanted}, 1000, "")]
        asyncio.run(agree(operations, Path(folder)))
