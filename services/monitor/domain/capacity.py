"""Rules on what fills up: memory of the host, of /dev/shm and of devices, and storage.

Judged from the nodes' samples by level and by forecast; each rule keeps its memory of one attempt.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import Phase, Verdict
from services.monitor.domain.policy import Policy

NodeSample = Mapping[str, float]

MEMORIES = {
    "host": ("host_memory_used_bytes", "host_memory_total_bytes", "Host memory"),
    "shm": ("shm_used_bytes", "shm_total_bytes", "Shared memory (/dev/shm)"),
    "device": ("gpu_memory_bytes", "gpu_memory_total_bytes", "Device memory"),
}
STORES = {
    "disk": ("disk_used_bytes", "disk_total_bytes", "The disk"),
    "inodes": ("disk_inodes_used", "disk_inodes_total", "The disk's table of files"),
}
_GIB = 1 << 30


@dataclass(slots=True)
class Growth:
    """The newest values of something that fills, at least ``every_ms`` apart, and their course."""

    every_ms: int
    kept: int
    points: deque[tuple[int, float]] = field(default_factory=deque)

    def take(self, at: int, used: float) -> None:
        """Take a value of the time ``at`` (ms); one that comes too soon is left out."""
        if self.points and at - self.points[-1][0] < self.every_ms:
            return
        self.points.append((at, used))
        if len(self.points) > self.kept:
            self.points.popleft()

    def full_in_ms(self, total: float, span_min_ms: int) -> float:
        """Return when the least-squares line reaches ``total``; infinite when it does not rise.

        Also infinite while less than ``span_min_ms`` is known, and unless four of five changes
        are rises: loading a model is one jump, a leak is a slope.
        """
        if not self.points or self.points[-1][0] - self.points[0][0] < span_min_ms:
            return math.inf
        values = [used for _, used in self.points]
        rises = sum(later > earlier for earlier, later in itertools.pairwise(values))
        if rises < 0.8 * (len(values) - 1):
            return math.inf
        start = self.points[0][0]
        times = [at - start for at, _ in self.points]
        middle_at, middle_used = sum(times) / len(times), sum(values) / len(values)
        spread = sum((at - middle_at) ** 2 for at in times)
        pairs = zip(times, values, strict=True)
        rate = sum((at - middle_at) * (used - middle_used) for at, used in pairs) / spread
        return (total - values[-1]) / rate if rate > 0 else math.inf


@dataclass(slots=True)
class OutOfMemorySoon:
    """Memory of a node that is nearly full, or will be within 15 minutes if it goes on so.

    More than 92 % warns, more than 97 % is critical. A forecast opens after 30 s of steady
    growth and is confirmed when it has held for 20 s; on a recorded fill of /dev/shm it speaks
    a minute before the fixed mark does. Host memory below half and /dev/shm below a tenth are
    left alone: a program that starts grows fast and stops growing. Clears below 85 % without a
    forecast.
    """

    growths: dict[str, Growth] = field(default_factory=dict)
    forecast_since: dict[str, int] = field(default_factory=dict)

    def judge(self, node: str, sample: NodeSample, now: int, policy: Policy) -> Iterator[Verdict]:
        """Judge one node's sample."""
        for name, (used_name, total_name, what) in MEMORIES.items():
            used, total = sample.get(used_name, math.nan), sample.get(total_name, math.nan)
            if math.isfinite(used) and math.isfinite(total) and total > 0:
                yield from self._judge(f"node-{node}.{name}", what, (used, total), now, policy)

    def _judge(
        self, subject: str, what: str, filled: tuple[float, float], now: int, policy: Policy
    ) -> Iterator[Verdict]:
        used, total = filled
        share = used / total
        growth = self.growths.setdefault(subject, Growth(policy.memory_every_ms, 12))
        growth.take(now, used)
        left_ms = growth.full_in_ms(total, policy.memory_span_ms)
        floor = policy.shm_floor if subject.endswith(".shm") else policy.memory_floor
        is_soon = share > floor and left_ms < policy.memory_forecast_ms
        since = self.forecast_since.setdefault(subject, now) if is_soon else now
        if not is_soon:
            self.forecast_since.pop(subject, None)
        is_full = share > policy.memory_warning
        if is_full or is_soon:
            is_sure = is_full or now - since >= policy.memory_held_ms
            is_critical = share > policy.memory_critical
            node = subject.removeprefix("node-").rpartition(".")[0]
            summary = f"{what} of node {node} is {share:.0%} full ({_gib(used)} of {_gib(total)})"
            summary += f"; it is full in about {left_ms / 60_000:.1f} min." if is_soon else "."
            yield Verdict(
                "out_of_memory_soon",
                subject,
                Phase.CONFIRMED if is_sure else Phase.OPENED,
                Severity.CRITICAL if is_critical else Severity.WARNING,
                summary,
                {"share": round(share, 4), "used": used, "total": total, "full_in_ms": left_ms},
                node,
            )
        elif share < policy.memory_cleared:
            yield Verdict("out_of_memory_soon", subject, Phase.CLEARED, summary="There is room.")


@dataclass(slots=True)
class StorageFilling:
    """Storage that is nearly full, or will be in a day if it goes on so.

    Less than 5 % free warns, less than 3 % is critical; a forecast of full within 24 h warns
    below 40 % free, one within 4 h is critical below 20 % (the pairs of the node exporter's
    published rules); room for fewer than two checkpoints is critical. Forecasts look at the last
    six hours, at least ten minutes of them. Inodes are judged alike. Clears at 2 % more free
    than the mark and without a forecast.
    """

    growths: dict[str, Growth] = field(default_factory=dict)
    checkpoint_bytes: float = 0.0

    def judge(self, node: str, sample: NodeSample, now: int, policy: Policy) -> Iterator[Verdict]:
        """Judge one node's sample."""
        for name, (used_name, total_name, what) in STORES.items():
            used, total = sample.get(used_name, math.nan), sample.get(total_name, math.nan)
            if not (math.isfinite(used) and math.isfinite(total) and total > 0):
                continue
            subject = f"node-{node}.{name}"
            growth = self.growths.setdefault(subject, Growth(policy.storage_every_ms, 720))
            growth.take(now, used)
            left_ms = growth.full_in_ms(total, policy.storage_span_ms)
            room = total - used
            severity = self._severity(name, room / total, (room, left_ms), policy)
            if severity is not None:
                summary = f"{what} of node {node} has {room / total:.1%} left"
                if left_ms < policy.storage_warning_ms:
                    summary += f" and is full in about {left_ms / 3_600_000:.1f} h"
                yield Verdict(
                    "storage_filling",
                    subject,
                    Phase.CONFIRMED,
                    severity,
                    summary + ".",
                    {"used": used, "total": total, "full_in_ms": left_ms, "of": name},
                    node,
                )
            elif room / total > policy.storage_flat_warning + 0.02:
                yield Verdict("storage_filling", subject, Phase.CLEARED, summary="There is room.")

    def _severity(
        self, name: str, free: float, left: tuple[float, float], policy: Policy
    ) -> Severity | None:
        room, left_ms = left
        if name == "disk" and self.checkpoint_bytes and room < 2 * self.checkpoint_bytes:
            return Severity.CRITICAL
        is_near = left_ms < policy.storage_critical_ms and free < policy.storage_critical_free
        if is_near or free < policy.storage_flat_critical:
            return Severity.CRITICAL
        is_far = left_ms < policy.storage_warning_ms and free < policy.storage_warning_free
        return Severity.WARNING if is_far or free < policy.storage_flat_warning else None


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
