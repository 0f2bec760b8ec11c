"""Log lines of a job, read page by page: segments in Objects, then what is not in one yet.

Lines come by attempt, then in the order of their times. A page's ``next`` says, per node, how
far it went: the segment to look at next, the time of the last line, and how many lines of that
very time were given.
"""

import base64
import binascii
import heapq
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts import limits, records
from lineshaft.contracts.telemetry import LogLine, unpack_lines
from lineshaft.ports import Objects
from lineshaft.runtime.rpc import RpcError
from services.monitor.runs import Runs
from services.monitor.stored import first, read_bytes

LIMIT_DEFAULT, LIMIT_MAX = 500, 2_000
PAGE_BYTES_MAX = 1024 * 1024
SEGMENT_READ_BYTES_MAX = 8 * limits.LOG_SEGMENT_BYTES_MAX
LINES_LOOKED_AT_MAX = 200_000


@dataclass(slots=True)
class _Place:
    """How far a node's lines were given."""

    segment: int = 0
    at: int = -1
    same: int = 0  # lines of the time ``at`` that were given

    def passed(self, line: LogLine, seen: int) -> bool:
        """Tell whether ``line``, the ``seen``-th of its time, was given before."""
        return line.at < self.at or (line.at == self.at and seen <= self.same)


@dataclass(slots=True)
class _Cursor:
    attempt: int = 0
    places: dict[str, _Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines: of one attempt (None: all), of one rank (None: all), behind a page's end."""

    job: str
    attempt: int | None = None
    rank: int | None = None
    after: str | None = None
    limit: int = LIMIT_DEFAULT


class LogStore:
    """Reads what was logged."""

    def __init__(self, objects: Objects, runs: Runs) -> None:
        self._objects = objects
        self._runs = runs

    async def page(self, wanted: Wanted) -> dict[str, Any]:
        """Return ``{lines, next}``; ``next`` asked again later gives what came meanwhile.

        Raises ``RpcError`` (usage) for a ``next`` that this never gave.
        """
        cursor = _cursor_of(wanted.after)
        lines: list[dict[str, Any]] = []
        budget = [min(max(1, wanted.limit), LIMIT_MAX), PAGE_BYTES_MAX, LINES_LOOKED_AT_MAX]
        for attempt in await self._attempts(wanted):
            if attempt < cursor.attempt:
                continue
            if attempt > cursor.attempt:
                cursor = _Cursor(attempt)
            async for node, place, line in self._ordered(wanted.job, cursor):
                if min(budget) <= 0:
                    return {"lines": lines, "next": _text_of(cursor)}
                budget[2] -= 1
                _advance(cursor.places.setdefault(node, _Place()), place, line)
                if wanted.rank is None or line.rank == wanted.rank:
                    lines.append(_told(attempt, node, line))
                    budget[0] -= 1
                    budget[1] -= len(line.text) + 100
        return {"lines": lines, "next": _text_of(cursor)}

    async def _attempts(self, wanted: Wanted) -> list[int]:
        if wanted.attempt is not None:
            return [wanted.attempt]
        found = {attempt for attempt, run in self._runs.of_job(wanted.job) if run.lines}
        prefix = records.logs(wanted.job)
        after = ""
        while True:  # one look per attempt, however many segments it has
            stat = await first(self._objects, prefix, after)
            if stat is None:
                return sorted(found)
            piece = stat.key.removeprefix(prefix).partition("/")[0]
            if piece.isdigit():
                found.add(int(piece))
            after = f"{prefix}{piece}/~"

    async def _ordered(
        self, job: str, cursor: _Cursor
    ) -> AsyncIterator[tuple[str, _Place, LogLine]]:
        """Yield all nodes' lines behind the cursor, merged by time, then by node."""
        start = {node: _Place(p.segment, p.at, p.same) for node, p in cursor.places.items()}
        feeds: dict[str, AsyncIterator[tuple[_Place, LogLine]]] = {
            node: self._of_node(job, cursor.attempt, node, start.get(node, _Place()))
            for node in await self._nodes(job, cursor.attempt)
        }
        heads: list[tuple[int, str, _Place, LogLine]] = []
        for node, feed in feeds.items():
            await _push(heads, node, feed)
        while heads:
            _, node, place, line = heapq.heappop(heads)
            yield node, place, line
            await _push(heads, node, feeds[node])

    async def _nodes(self, job: str, attempt: int) -> list[str]:
        run = self._runs.get(job, attempt)
        found = set(run.lines) if run is not None else set()
        prefix = records.logs(job, attempt)
        after = ""
        while True:
            stat = await first(self._objects, prefix, after)
            if stat is None:
                return sorted(found)
            node = stat.key.removeprefix(prefix).partition("/")[0]
            found.add(node)
            after = f"{prefix}{node}/~"

    async def _of_node(
        self, job: str, attempt: int, node: str, start: _Place
    ) -> AsyncIterator[tuple[_Place, LogLine]]:
        prefix = f"{records.logs(job, attempt)}{node}/"
        after = f"{prefix}{start.segment - 1:06d}" if start.segment > 0 else ""
        reached = _Place(start.segment)  # what segments hold: the ring may repeat it
        async for stat in self._objects.list(prefix, after):
            number = stat.key.removeprefix(prefix)
            raw = await read_bytes(self._objects, stat.key, SEGMENT_READ_BYTES_MAX)
            segment = int(number) if number.isdigit() else reached.segment
            for line in unpack_lines(raw or b""):
                _advance(reached, _Place(segment), line)
                if not start.passed(line, reached.same):
                    yield _Place(segment, reached.at, reached.same), line
        run = self._runs.get(job, attempt)
        ring = list(run.lines.get(node, ())) if run is not None else []
        counted = _Place()
        for line in ring:
            _advance(counted, counted, line)
            if reached.passed(line, counted.same) or start.passed(line, counted.same):
                continue
            yield _Place(reached.segment, counted.at, counted.same), line


async def _push(
    heads: list[tuple[int, str, _Place, LogLine]],
    node: str,
    feed: AsyncIterator[tuple[_Place, LogLine]],
) -> None:
    item = await anext(feed, None)
    if item is not None:
        heapq.heappush(heads, (item[1].at, node, item[0], item[1]))


def _advance(place: _Place, to: _Place, line: LogLine) -> None:
    """Note that ``line`` was passed; a clock that went back counts as the same time."""
    if line.at > place.at:
        place.at, place.same = line.at, 1
    else:
        place.same += line.at == place.at
    place.segment = to.segment


def _told(attempt: int, node: str, line: LogLine) -> dict[str, Any]:
    return {
        "at": line.at,
        "attempt": attempt,
        "node": node,
        "rank": line.rank,
        "stream": line.stream,
        "text": line.text,
    }


def _text_of(cursor: _Cursor) -> str:
    body = [cursor.attempt, {n: [p.segment, p.at, p.same] for n, p in cursor.places.items()}]
    return base64.urlsafe_b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def _cursor_of(text: str | None) -> _Cursor:
    if not text:
        return _Cursor()
    try:
        attempt, places = json.loads(base64.urlsafe_b64decode(text.encode()))
        return _Cursor(
            int(attempt),
            {str(node): _Place(*map(int, place)) for node, place in places.items()},
        )
    except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError):
        raise RpcError("usage", "'after' is not a page's 'next'") from None
