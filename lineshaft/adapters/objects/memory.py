"""Objects in memory, for the tests of this project and of its users.

It refuses what the folder refuses. Standard library only.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Sequence

from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.objects.keys import CHUNK_BYTES, check_range, checked, occupied
from lineshaft.ports import Chunks, Clock, ObjectExists, ObjectMissing, ObjectStat


class MemoryObjects:
    """Objects of one process and one event loop. ``clock`` gives their times."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._held: dict[str, tuple[bytes, int]] = {}
        self._order: list[str] = []
        self._failures: list[Exception] = []

    def fail_next(self, error: Exception, *, times: int = 1) -> None:
        """Let the next ``times`` puts raise ``error`` (``StorageFull``, say), storing nothing."""
        self._failures.extend([error] * times)

    async def put(self, key: str, data: bytes | Chunks, *, replace: bool = False) -> int:
        """Store an object; return its size in bytes.

        Without ``replace`` it is created or ``ObjectExists`` is raised. Raises ``ValueError``
        for a key that is none, or that runs through another object's key.
        """
        checked(key)
        self._check_place(key, replace=replace)
        if isinstance(data, bytes | bytearray | memoryview):
            await asyncio.sleep(0)
            content = bytes(data)
        else:
            content = b"".join([chunk async for chunk in data])
        if self._failures:
            raise self._failures.pop(0)
        self._check_place(key, replace=replace)  # others ran while the data came
        if key not in self._held:
            insort(self._order, key)
        self._held[key] = (content, self._clock.now())
        return len(content)

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes from ``start`` up to but without ``end``, as they were at the start.

        A range beyond the end yields what there is. Raises ``ObjectMissing``, ``ValueError``.
        """
        checked(key)
        check_range(start, end)
        if key not in self._held:
            raise ObjectMissing(key)
        content = self._held[key][0]
        last = len(content) if end is None else min(end, len(content))
        for begin in range(start, last, CHUNK_BYTES):
            await asyncio.sleep(0)
            yield content[begin : min(begin + CHUNK_BYTES, last)]

    async def stat(self, key: str) -> ObjectStat | None:
        """Return size and time, or None when absent. Raises ``ValueError`` for no key."""
        checked(key)
        return self._stat(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectStat]:
        """Yield objects in the order of their keys, those behind ``after`` only.

        ``prefix`` may end anywhere in a key. What is stored or deleted meanwhile may be seen.
        """
        last = after
        place = max(bisect_left(self._order, prefix), bisect_right(self._order, last))
        while place < len(self._order) and self._order[place].startswith(prefix):
            last = self._order[place]
            found = self._stat(last)
            if found is not None:
                yield found
            place = bisect_right(self._order, last)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are absent are no error. Raises ``ValueError``."""
        for key in keys:
            checked(key)
        await asyncio.sleep(0)
        for key in keys:
            if self._held.pop(key, None) is not None:
                del self._order[bisect_left(self._order, key)]

    async def aclose(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def _stat(self, key: str) -> ObjectStat | None:
        held = self._held.get(key)
        return None if held is None else ObjectStat(key, len(held[0]), held[1])

    def _check_place(self, key: str, *, replace: bool) -> None:
        if key in self._held and not replace:
            raise ObjectExists(key)
        above = key
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in self._held:
                raise occupied(key)
        behind = bisect_left(self._order, key + "/")
        if behind < len(self._order) and self._order[behind].startswith(key + "/"):
            raise occupied(key)
