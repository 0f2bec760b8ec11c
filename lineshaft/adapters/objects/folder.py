"""Objects as files of a folder, shared by any number of processes of one machine.

Disk work runs in threads; the steps are in ``tree``. Standard library only: the agent
imports this module.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from lineshaft.adapters.objects.keys import CHUNK_BYTES, check_range, checked
from lineshaft.adapters.objects.tree import Partial, Tree
from lineshaft.ports import Chunks, ObjectStat, StorageFull, StoreUnavailable

THREADS = 4
LIST_BATCH = 256

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Answer = TypeVar("Answer")


class FolderObjects:
    """Objects below ``root``, which is made by the first put. Needs hard links.

    A call that is cancelled ends when the disk step it is in has ended, and leaves no
    partial file behind.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._tree = Tree(self.root)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="objects")
        self._is_closed = False

    async def put(self, key: str, data: bytes | Chunks, *, replace: bool = False) -> int:
        """Store an object atomically and durably; return its size in bytes.

        Without ``replace`` it is created or ``ObjectExists`` is raised, also between
        processes. Raises ``StorageFull``, ``StoreUnavailable``, and ``ValueError`` for a key
        that is none or that runs through another object's key.
        """
        checked(key)
        if isinstance(data, bytes | bytearray | memoryview):
            return await self._run(self._tree.store, key, bytes(data), replace)
        await self._run(self._tree.check_place, key, replace)
        partial = await self._run(self._tree.begin, undo=Partial.discard)
        try:
            async for block in _blocks(data):
                await self._run(partial.write, block)
            return await self._run(self._tree.publish, partial, key, replace)
        finally:
            await self._run(partial.discard)

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes from ``start`` up to but without ``end``, as they were at the start.

        A range beyond the end yields what there is. Raises ``ObjectMissing``, ``ValueError``,
        ``StoreUnavailable``.
        """
        checked(key)
        check_range(start, end)
        with await self._run(self._tree.open, key, undo=lambda file: file.close()) as file:
            size = os.fstat(file.fileno()).st_size
            last = size if end is None else min(end, size)
            while start < last:
                wanted = min(CHUNK_BYTES, last - start)
                chunk = await self._run(os.pread, file.fileno(), wanted, start)
                if not chunk:
                    raise StoreUnavailable(f"{key} became shorter while it was read")
                yield chunk
                start += len(chunk)

    async def stat(self, key: str) -> ObjectStat | None:
        """Return size and time, or None when absent. Raises ``ValueError`` for no key."""
        checked(key)
        return await self._run(self._tree.stat, key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectStat]:
        """Yield objects in the order of their keys, those behind ``after`` only.

        ``prefix`` may end anywhere in a key. What is stored or deleted meanwhile may be seen.
        """
        walk = self._tree.walk(prefix, after)
        try:
            while batch := await self._run(lambda: [*islice(walk, LIST_BATCH)]):
                for found in batch:
                    yield found
        finally:
            walk.close()

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects and folders that become empty; what is absent is no error."""
        for key in keys:
            checked(key)
        await self._run(self._tree.remove, tuple(keys))

    async def aclose(self) -> None:
        """Finish what was begun; every later call raises ``StoreUnavailable``."""
        self._is_closed = True
        await asyncio.to_thread(self._executor.shutdown)

    async def _run(
        self,
        step: Callable[..., Answer],
        *arguments: Any,
        undo: Callable[[Answer], None] | None = None,
    ) -> Answer:
        if self._is_closed:
            raise StoreUnavailable(f"{self.root}: closed")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, _told, step, arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and what it uses must not be closed under it.
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    continue
            if undo is not None and not future.cancelled() and future.exception() is None:
                undo(future.result())
            raise


def _told(step: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    """Run a step; what the system says against it becomes the port's word for it."""
    try:
        return step(*arguments)
    except OSError as error:
        text = f"{error.filename or 'objects'}: {error.strerror}"
        if error.errno in _FULL:
            raise StorageFull(text) from error
        raise StoreUnavailable(text) from error


async def _blocks(data: Chunks) -> AsyncIterator[bytes | bytearray]:
    """Gather small chunks, so that each disk step is worth a thread's wake-up."""
    held = bytearray()
    async for chunk in data:
        held += chunk
        if len(held) >= CHUNK_BYTES:
            yield held
            held = bytearray()
    if held:
        yield held
