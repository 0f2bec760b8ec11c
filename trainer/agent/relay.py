"""The relay: telemetry blocks and beats of this node, to the bus.

A block holds at most ``TELEMETRY_STEPS_MAX`` steps or ``TELEMETRY_HOLD_MS`` of them. While the
bus is away the oldest rows go first, with a count; beats go on. Nothing here waits for a rank,
and no rank waits for it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping

from lineshaft.contracts import limits
from lineshaft.contracts.subjects import RunAddress
from lineshaft.contracts.telemetry import Beat, Metric, pack, pack_beat
from lineshaft.ports import Bus, BusUnavailable, Clock
from trainer.agent import procfs
from trainer.agent.devices import DeviceSampler
from trainer.agent.order import Order
from trainer.agent.progress import Progress

_SAMPLE_EVERY_MS = 2_000
_ROWS_PER_BLOCK_MAX = 2_048
_METRICS_PER_BLOCK_MAX = 512


class Relay:
    """Collects rows and metrics of the local ranks and sends them in blocks."""

    def __init__(self, order: Order, progress: Progress, bus: Bus, clock: Clock) -> None:
        self._order = order
        self._progress = progress
        self._bus = bus
        self._clock = clock
        self._address = RunAddress(order.job, order.attempt, order.node, order.pool, order.team)
        self._rows: deque[Mapping[str, float]] = deque(maxlen=limits.TELEMETRY_ROWS_HELD_MAX)
        self._metrics: deque[Metric] = deque(maxlen=limits.TELEMETRY_ROWS_HELD_MAX)
        self._full = asyncio.Event()
        self._dropped = 0
        self._machine = procfs.MachineSampler(order.run_folder)
        self.devices = DeviceSampler(order, clock)
        self._sampled_at: int | None = None
        self._boot_id = procfs.boot_id()

    def row(self, row: Mapping[str, float]) -> None:
        """Take one step of one rank."""
        self._dropped += len(self._rows) == self._rows.maxlen
        self._rows.append(row)
        if len(self._rows) >= limits.TELEMETRY_STEPS_MAX * len(self._progress.ranks):
            self._full.set()

    def metric(self, metric: Metric) -> None:
        """Take one named value."""
        self._dropped += len(self._metrics) == self._metrics.maxlen
        self._metrics.append(metric)

    async def run(self) -> None:
        """Send blocks until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.TELEMETRY_HOLD_MS / 1000):
                    await self._full.wait()
            self._full.clear()
            if not await self._send():
                await self._clock.sleep(limits.TELEMETRY_HOLD_MS)

    async def flush(self) -> None:
        """Send what is held, as long as the bus takes it."""
        while (self._rows or self._metrics) and await self._send():
            pass

    async def _send(self) -> bool:
        """Send one block if there is anything; False when the bus did not take it."""
        sample = self._new_sample()
        rows = [self._rows[i] for i in range(min(len(self._rows), _ROWS_PER_BLOCK_MAX))]
        count = min(len(self._metrics), _METRICS_PER_BLOCK_MAX)
        metrics = [self._metrics[i] for i in range(count)]
        if not rows and not metrics and not sample:
            return True
        dropped = self._dropped + self._progress.dropped_reports
        run = (self._order.job, self._order.attempt, self._order.node)
        block = pack(run, rows, metrics=metrics, sample=sample, dropped=dropped)
        try:
            await self._bus.publish(self._address.subject("telemetry"), block)
        except BusUnavailable:
            return False
        self._forget(rows, metrics)
        return True

    def _forget(self, rows: list[Mapping[str, float]], metrics: list[Metric]) -> None:
        """Let go of what was sent; the oldest may have given way meanwhile."""
        sent = {id(each) for each in (*rows, *metrics)}
        while self._rows and id(self._rows[0]) in sent:
            self._rows.popleft()
        while self._metrics and id(self._metrics[0]) in sent:
            self._metrics.popleft()

    def _new_sample(self) -> dict[str, float]:
        now = self._clock.monotonic()
        if self._sampled_at is not None and now - self._sampled_at < _SAMPLE_EVERY_MS:
            return {}
        self._sampled_at = now
        return self._machine.sample() | self.devices.latest

    async def beat_forever(self) -> None:
        """Send a beat every ``BEAT_EVERY_MS`` until cancelled, whatever happens to telemetry."""
        while True:
            await self.beat()
            await self._clock.sleep(limits.BEAT_EVERY_MS)

    async def beat(self) -> None:
        """Send one beat; one that the bus does not take is not sent later."""
        progress, now = self._progress, self._clock.now()
        last = progress.last_step_at
        beat = Beat(
            job=self._order.job,
            attempt=self._order.attempt,
            node=self._order.node,
            at=now,
            phase=_phase(progress),
            last_step=max(progress.last_step, 0),
            last_step_age_ms=max(now - last, 0) if last else 0,
            dropped_blocks=self._dropped + progress.dropped_reports,
            ranks=tuple(_rank_states(progress)),
            boot_id=self._boot_id,
        )
        try:
            await self._bus.publish(self._address.subject("beat"), pack_beat(beat))
        except BusUnavailable:
            return


def _phase(progress: Progress) -> str:
    """Return the agent's phase; while the ranks work, the first rank's own word for it."""
    if progress.phase != "running":
        return progress.phase
    first = min(progress.ranks)
    return progress.ranks[first].phase or "running"


def _rank_states(progress: Progress) -> list[dict[str, object]]:
    states: list[dict[str, object]] = []
    for rank in progress.ranks.values():
        process = procfs.look(rank.pid) if rank.pid and rank.end is None else None
        if process is not None and process.start_time != rank.start_time:
            process = None
        states.append(
            {
                "rank": rank.rank,
                "pid": rank.pid,
                "state": "X" if process is None else process.state,
                "cpu_ms": 0 if process is None else process.cpu_ms,
                "last_step": rank.last_step,
            }
        )
    return states
