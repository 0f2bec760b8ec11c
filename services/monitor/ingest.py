"""Measurements off the bus: telemetry blocks, beats and log lines, decoded and handed on.

Whatever arrives is data of strangers: nothing here may raise for its content. What cannot be read
is counted, and some of it goes to the dead stream with its reason, at a bounded rate.
"""

import json
from collections.abc import Callable

import numpy as np

from lineshaft.contracts import ids, limits, subjects
from lineshaft.contracts.subjects import RunAddress
from lineshaft.contracts.telemetry import (
    DTYPE,
    Beat,
    TelemetryError,
    pack_beat,
    unpack,
    unpack_beat,
    unpack_lines,
)
from lineshaft.ports import BusUnavailable, Message
from lineshaft.runtime.observability import logger
from lineshaft.runtime.service import Service
from services.monitor.domain.observations import BeatSeen, LinesSeen, StepRows
from services.monitor.domain.policy import Policy
from services.monitor.watching import Watching

CANARY = "monitor-canary"
CANARY_EVERY_MS = 5_000
DEAD_PER_MINUTE_MAX = 20
LINES_MATCHED_PER_SECOND_MAX = 400
_ROW = np.dtype(DTYPE)


class Ingest:
    """Takes the three families of reports; counts what it drops."""

    def __init__(self, service: Service, watching: Watching, policy: Policy) -> None:
        self._service = service
        self._watching = watching
        self._policy = policy
        self._log = logger("monitor.ingest")
        self.taken: dict[str, int] = dict.fromkeys(("telemetry", "beat", "logs"), 0)
        self.unreadable: dict[str, int] = dict.fromkeys(("telemetry", "beat", "logs"), 0)
        self.lines_unmatched = 0
        self._dead_window = (0, 0)  # minute, sent in it
        self._line_window = (0, 0)  # second, matched in it

    async def take_forever(self, family: str) -> None:
        """Take one family's reports until cancelled."""
        take = {"telemetry": self.telemetry, "beat": self.beat, "logs": self.logs}[family]
        async for batch in self._service.bus.pull(family, None, [subjects.reports_of(family)]):
            for message in batch:
                await self._take(message, family, take)

    async def canary_forever(self) -> None:
        """Send a beat of our own every few seconds, which proves the path when it comes back."""
        partition = ids.partition(CANARY)
        subject = (
            f"{subjects.ROOT}.beat.{partition}.-.-.{CANARY}.0.{self._service.settings.replica}"
        )
        while True:
            beat = Beat(CANARY, 0, "-", self._service.clock.now(), "canary", 0, 0, 0)
            try:
                await self._service.bus.publish(subject, pack_beat(beat))
            except BusUnavailable as error:
                self._log.warning("canary_not_sent", reason=str(error))
            await self._service.clock.sleep(CANARY_EVERY_MS)

    async def _take(
        self, message: Message, family: str, take: Callable[[RunAddress, bytes], None]
    ) -> None:
        self.taken[family] += 1
        try:
            take(subjects.run_address(message.subject), message.data)
        except (TelemetryError, ValueError, OverflowError) as error:
            self.unreadable[family] += 1
            await self._bury(message, str(error))

    # -- the three families -------------------------------------------------------------------

    def telemetry(self, address: RunAddress, raw: bytes) -> None:
        """Take one block. Raises ``TelemetryError`` or ``ValueError`` for one that is none."""
        block = unpack(raw)
        if (block.job, block.attempt, block.node) != (address.job, address.attempt, address.node):
            raise TelemetryError("the block is not of the run that its subject names")
        rows = np.frombuffer(block.records, _ROW)
        if len(np.unique(rows["rank"])) > limits.TELEMETRY_RANKS_MAX:
            raise TelemetryError("the block names too many ranks")
        sample = StepRows(address.node, rows, block.metrics, block.sample)
        run = self._watching.feed(address, sample)
        if run is not None:
            run.dropped = max(run.dropped, block.dropped)

    def beat(self, address: RunAddress, raw: bytes) -> None:
        """Take one beat. Raises ``TelemetryError`` or ``ValueError`` for one that is none."""
        beat = unpack_beat(raw)
        if address.job == CANARY:
            if address.node == self._service.settings.replica:
                self._watching.canary_at = self._service.clock.now()
            return
        if (beat.job, beat.attempt, beat.node) != (address.job, address.attempt, address.node):
            raise TelemetryError("the beat is not of the run that its subject names")
        run = self._watching.feed(address, BeatSeen(beat))
        if run is not None:
            run.beats[beat.node] = (beat, self._service.clock.now())

    def logs(self, address: RunAddress, raw: bytes) -> None:
        """Take one block of lines; those beyond a rate are kept and not matched."""
        if len(raw) > 2 * limits.LOG_SEGMENT_BYTES_MAX:
            raise ValueError(f"a block of {len(raw)} bytes of log is too large")
        lines = unpack_lines(raw)
        run = self._watching.run_of(address)
        if run is None:
            return
        run.keep_lines(address.node, lines, self._policy.log_ring_lines)
        allowed = self._allowed_lines(len(lines))
        self.lines_unmatched += len(lines) - allowed
        if allowed:
            self._watching.feed(address, LinesSeen(address.node, tuple(lines[-allowed:])))

    # -- bounds -------------------------------------------------------------------------------

    def _allowed_lines(self, wanted: int) -> int:
        second = self._service.clock.monotonic() // 1000
        at, used = self._line_window
        used = used if at == second else 0
        allowed = max(0, min(wanted, LINES_MATCHED_PER_SECOND_MAX - used))
        self._line_window = (second, used + allowed)
        return allowed

    async def _bury(self, message: Message, reason: str) -> None:
        minute = self._service.clock.monotonic() // 60_000
        at, sent = self._dead_window
        sent = sent if at == minute else 0
        if sent >= DEAD_PER_MINUTE_MAX:
            return
        self._dead_window = (minute, sent + 1)
        story = {
            "reason": reason[:500],
            "subject": message.subject,
            "sequence": message.sequence,
            "bytes": len(message.data),
            "beginning": message.data[:256].hex(),
        }
        try:
            raw = json.dumps(story).encode()
            await self._service.bus.publish(subjects.dead(self._service.name), raw)
        except BusUnavailable:
            self._log.warning("dead_not_sent", subject=message.subject, reason=reason[:500])
