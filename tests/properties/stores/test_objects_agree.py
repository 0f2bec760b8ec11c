"""Random operations through the memory objects and the folder, which must agree."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.objects.select import ClosableObjects
from lineshaft.ports import ObjectExists, ObjectMissing
from tests.builders_stores import all_of

PARTS = st.sampled_from(["a", "b", "a-", "a.b", "ab", "é", "训", "A", ".", "", ".partial", "a\n"])
GOOD = st.lists(st.sampled_from(["a", "b", "a-", "a.b", "é"]), min_size=1, max_size=4)
KEYS = (GOOD | GOOD | GOOD | st.lists(PARTS, max_size=4)).map("/".join)
DATA = st.binary(max_size=20)
OPERATION = st.one_of(
    st.tuples(st.just("put"), KEYS, DATA | st.lists(DATA, max_size=4), st.booleans()),
    st.tuples(st.just("put"), KEYS, DATA, st.just(False)),
    st.tuples(st.just("open"), KEYS, st.integers(-1, 20), st.none() | st.integers(-1, 25)),
    st.tuples(st.just("stat"), KEYS),
    st.tuples(st.just("list"), KEYS | st.just(""), KEYS | st.just("")),
    st.tuples(st.just("delete"), st.lists(KEYS, max_size=3)),
)


async def _chunks(data: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk


async def answer_of(objects: ClosableObjects, operation: tuple[Any, ...]) -> Any:
    """What the store answers, or which error it raises."""
    try:
        match operation:
            case ("put", key, data, replace):
                given_data = data if isinstance(data, bytes) else _chunks(data)
                return await objects.put(key, given_data, replace=replace)
            case ("open", key, start, end):
                return b"".join(await all_of(objects.open(key, start, end)))
            case ("stat", key):
                found = await objects.stat(key)
                return found and (found.key, found.size)
            case ("list", prefix, after):
                return [(found.key, found.size) async for found in objects.list(prefix, after)]
            case ("delete", keys):
                return await objects.delete(keys)
    except (ValueError, ObjectExists, ObjectMissing) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(operation)


async def agree(operations: list[tuple[Any, ...]], root: Path) -> None:
    memory, folder = MemoryObjects(), FolderObjects(root)
    for operation in operations:
        assert await answer_of(folder, operation) == await answer_of(memory, operation)
    everything = ("list", "", "")
    assert await answer_of(folder, everything) == await answer_of(memory, everything)
    await folder.aclose()
    left = {path.name for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())}
    assert left <= {".partial"}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(OPERATION, max_size=30))
def test_the_memory_objects_and_the_folder_agree(operations):
    """Whatever is stored, read, listed and deleted, both give the same answers."""
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(agree(operations, Path(root)))
