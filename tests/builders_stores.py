"""Builders for the tests of the stores: entries, documents, processes, a small disk."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lineshaft.contracts.events import Event
from lineshaft.ports import Document, Entry

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 30
Item = TypeVar("Item")


def an_entry(stream: str = "pool/a", seq: int = 1, *causes: str, **data: Any) -> Entry:
    """An entry with one event; its id tells stream and seq apart from other tests' entries."""
    return Entry(
        stream=stream,
        seq=seq,
        entry_id=data.pop("entry_id", f"{stream}#{seq}"),
        at=1_700_000_000_000 + seq,
        causes=causes,
        events=(Event("job.thing", data, subject="j-1", attempt=2, pool="p", team="t"),),
        policy_version=3,
    )


def a_document(id: str = "d1", version: int = 1, *, kind: str = "job", **body: Any) -> Document:
    """A document of one source stream."""
    return Document(kind, id, version, body, "pool/a")


async def all_of(items: AsyncIterator[Item]) -> list[Item]:
    """Everything that an iterator yields."""
    return [item async for item in items]


async def some_of(items: AsyncIterator[Item], count: int) -> list[Item]:
    """The first ``count`` of what an iterator yields, within the deadline."""
    made: list[Item] = []
    async with asyncio.timeout(DEADLINE_S):
        async for item in items:
            made.append(item)
            if len(made) == count:
                break
    return made


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds, within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  (what it looks at sets no event)
            await asyncio.sleep(0.005)


def a_process(script: Path, *arguments: object) -> "subprocess.Popen[str]":
    """A Python process that runs a script of the tests and prints lines."""
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )


@contextmanager
def a_small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system with so little room; skips, and says so, where none can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"NOT CHECKED: a full disk (no tmpfs can be mounted: {mounted.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
