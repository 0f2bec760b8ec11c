"""The ranks' output: followed in its files, sent live, and kept in segments.

Ranks write to files, so that no reader can hold them up and nothing is lost with the agent. Live
lines go to the bus while it takes them; segments of 1 MiB or 10 s go to Objects. What cannot be
kept is dropped with a line that says how much. Also here: the last lines of each rank.
"""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate
from pathlib import Path

from lineshaft.contracts import limits, records
from lineshaft.contracts.subjects import RunAddress
from lineshaft.contracts.telemetry import LogLine, pack_lines
from lineshaft.ports import Bus, BusUnavailable, Clock, Objects, StoreUnavailable
from trainer.agent.order import Order

AGENT_RANK = -1
_LOOK_EVERY_MS = 100
_READ_BYTES_MAX = 1024 * 1024
_LAST_BYTES_MAX = 96 * 1024
_BEHIND_BYTES_MAX = 32 * 1024 * 1024
_LIVE_BYTES_MAX = 256 * 1024
_LINES_PER_BLOCK_MAX = 512
_WHOLE_LOG_BYTES_MAX = 256 * 1024 * 1024


@dataclass(slots=True)
class _Followed:
    """One growing file."""

    path: Path
    rank: int
    stream: str
    file: FileIO | None = None
    rest: bytes = b""

    def read(self) -> list[str]:
        """Return the whole lines that came since, each bounded."""
        if self.file is None:
            try:
                self.file = self.path.open("rb", buffering=0)
            except OSError:
                return []
        raw = self.file.read(_READ_BYTES_MAX)
        if not raw:
            return []
        *lines, self.rest = (self.rest + raw).split(b"\n")
        if len(self.rest) > limits.LOG_LINE_BYTES_MAX:
            lines, self.rest = [*lines, self.rest], b""
        return [_text(line) for line in lines]

    def skip(self) -> int:
        """Leave out what is too much to catch up with; return how many bytes."""
        if self.file is None:
            return 0
        behind = self.path.stat().st_size - self.file.tell()
        if behind <= _BEHIND_BYTES_MAX:
            return 0
        self.file.seek(behind - _BEHIND_BYTES_MAX, os.SEEK_CUR)
        self.rest = b""
        return behind - _BEHIND_BYTES_MAX

    def end(self) -> list[str]:
        """Return what stands behind the last line's end, and let go of the file."""
        if self.file is not None:
            self.file.close()
        rest, self.rest = self.rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    """Decode a line; of one that draws over itself (a progress bar) the last state counts."""
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = line[: limits.LOG_LINE_BYTES_MAX].decode(errors="replace")
    cut = len(line) - limits.LOG_LINE_BYTES_MAX
    return f"{text} [{cut} bytes more]" if cut > 0 else text


class Logs:
    """Follows the output of a node's ranks."""

    def __init__(self, order: Order, objects: Objects, bus: Bus, clock: Clock) -> None:
        self._order = order
        self._objects = objects
        self._bus = bus
        self._clock = clock
        self._address = RunAddress(order.job, order.attempt, order.node, order.pool, order.team)
        self._files: list[_Followed] = []
        self._live: deque[LogLine] = deque(maxlen=limits.LOG_LINES_HELD_MAX)
        self._kept: list[LogLine] = []
        self._kept_bytes = 0
        self._kept_since = 0
        self._lost = 0
        self._number = 0
        self._keeping = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._last: dict[int, deque[str]] = {}
        self.whole = order.node_folder / "run.log"
        """All lines of this node as people read them, bounded."""
        self._whole_bytes = 0

    def follow(self, path: Path, rank: int, stream: str) -> None:
        """Follow a file from its beginning; it need not exist yet."""
        self._files.append(_Followed(path, rank, stream))

    def say(self, text: str) -> None:
        """Add a line of the agent's own."""
        self._add([(AGENT_RANK, "agent", text)])

    def last_lines(self, rank: int) -> list[str]:
        """Return the last lines of a rank, oldest first, as many as a record has room for."""
        lines = list(self._last.get(rank, ()))
        sizes = accumulate(len(line.encode()) for line in reversed(lines))
        fitting = sum(size <= _LAST_BYTES_MAX for size in sizes)
        return lines[len(lines) - fitting :]

    async def run(self) -> None:
        """Follow and keep until cancelled."""
        while True:
            self._look()
            if self._is_segment_due():
                await self._keep()
            await self._clock.sleep(_LOOK_EVERY_MS)

    async def run_live(self) -> None:
        """Send lines as they come until cancelled; a bus that is away holds up nothing else."""
        while True:
            await self._send_live()
            await self._clock.sleep(_LOOK_EVERY_MS)

    def look(self) -> None:
        """Read what was written until now; of a flood that cannot be followed, the end."""
        for followed in self._files:
            skipped = followed.skip()
            if skipped:
                note = f"[{skipped} bytes of output were too much to follow]"
                self._add([(followed.rank, followed.stream, note)])
        while self._look():
            pass

    async def close(self) -> None:
        """Read to the end, send and keep the last of it, and let go."""
        self.look()
        for followed in self._files:
            self._add([(followed.rank, followed.stream, text) for text in followed.end()])
        await self._send_live()
        await self._keep()

    async def keep_now(self) -> None:
        """Write what was read as a segment: before a record that speaks of an end."""
        self.look()
        await self._keep()

    def _look(self) -> bool:
        lines = [
            (followed.rank, followed.stream, text)
            for followed in self._files
            for text in followed.read()
        ]
        self._add(lines)
        return bool(lines)

    def _add(self, lines: Sequence[tuple[int, str, str]]) -> None:
        if not lines:
            return
        now = self._clock.now()
        made = [LogLine(now, rank, stream, text) for rank, stream, text in lines]
        for line in made:
            last = self._last.setdefault(line.rank, deque(maxlen=limits.LAST_LINES_KEPT))
            last.append(line.text[:2000])
        self._live.extend(made)
        if not self._kept:
            self._kept_since = self._clock.monotonic()
        self._kept.extend(made)
        self._kept_bytes += sum(len(line.text) + 48 for line in made)
        self._write_whole(made)

    def _write_whole(self, lines: Sequence[LogLine]) -> None:
        if self._whole_bytes >= _WHOLE_LOG_BYTES_MAX:
            return
        text = "".join(f"[{_who(line)}] {line.text}\n" for line in lines)
        try:
            with self.whole.open("a", encoding="utf-8") as file:
                self._whole_bytes += file.write(text)
        except OSError:
            self._whole_bytes = _WHOLE_LOG_BYTES_MAX  # a full disk: the segments remain

    def _is_segment_due(self) -> bool:
        age = self._clock.monotonic() - self._kept_since
        is_old = bool(self._kept) and age >= limits.LOG_SEGMENT_HOLD_MS
        return is_old or self._kept_bytes >= limits.LOG_SEGMENT_BYTES_MAX

    async def _send_live(self) -> None:
        """Send held lines in blocks; while the bus is away the oldest give way."""
        async with self._sending:  # a block on its way stays in the queue until it is taken
            while self._live:
                block = self._next_block()
                try:
                    await self._bus.publish(self._address.subject("logs"), pack_lines(block))
                except BusUnavailable:
                    return
                sent = {id(line) for line in block}
                while self._live and id(self._live[0]) in sent:
                    self._live.popleft()

    def _next_block(self) -> list[LogLine]:
        block: list[LogLine] = []
        size = 0
        for line in self._live:
            size += len(line.text) * 4 + 64
            if block and (size > _LIVE_BYTES_MAX or len(block) == _LINES_PER_BLOCK_MAX):
                break
            block.append(line)
        return block

    async def _keep(self) -> None:
        async with self._keeping:
            while self._kept:
                lines, self._kept, self._kept_bytes = self._kept, [], 0
                if self._lost:
                    note = f"[{self._lost} lines before this one could not be stored]"
                    lines.insert(0, LogLine(lines[0].at, AGENT_RANK, "agent", note))
                await self._store(lines)

    async def _store(self, lines: list[LogLine]) -> None:
        order = self._order
        key = records.log_segment(order.job, order.attempt, order.node, self._number)
        try:
            await self._objects.put(key, pack_lines(lines), replace=True)
        except (StoreUnavailable, OSError):
            self._lost += len(lines)  # training goes on; the gap is counted
            return
        self._lost = 0
        self._number += 1


def _who(line: LogLine) -> str:
    return line.stream if line.rank == AGENT_RANK else f"rank {line.rank} {line.stream}"
