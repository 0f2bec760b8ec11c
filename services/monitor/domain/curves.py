"""Curves of one attempt: downsampled as they grow, so that their memory is bounded.

A series keeps per bucket of steps the last value with the least and the greatest; when it has too
many buckets, neighbours are joined. Pure; storing and reading parts is not here.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts.telemetry import Metric
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.windows import middle

SERIES_MAX = 64
METRICS_MAX = 2_000
NAME_CHARS_MAX = 120
PLANNED_STEPS = "planned_steps"
_THROUGHPUT_STEPS = 20

Point = tuple[int, float, float, float]  # step, last value, least, greatest

_OF_STEP = (
    ("loss", "mean"),
    ("grad_norm", "most"),
    ("learning_rate", "most"),
    ("step_ms", "most"),
    ("compute_ms", "mean"),
    ("collective_ms", "mean"),
    ("data_ms", "mean"),
    ("checkpoint_ms", "most"),
)


@dataclass(slots=True)
class Series:
    """One curve of at most ``points_max`` points."""

    points_max: int
    width: int = 1  # steps per bucket
    points: list[Point] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """Take a point; one of a bucket that is there already is joined with it.

        Points come in rising order of steps; an older one is left out.
        """
        points = self.points
        last = points[-1][0] // self.width if points else -1
        here = point[0] // self.width
        if here > last:
            points.append(point)
            if len(points) > self.points_max:
                self._coarsen()
        elif here == last:
            points[-1] = _joined(points[-1], point)

    def _coarsen(self) -> None:
        self.width *= 2
        points, self.points = self.points, []
        for point in points:
            self.add(point)


def _joined(first: Point, second: Point) -> Point:
    newest = second if second[0] > first[0] else first
    return (newest[0], newest[1], min(first[2], second[2]), max(first[3], second[3]))


@dataclass(slots=True)
class Curves:
    """All curves and metrics of one attempt, or of what was added since the last part."""

    points_max: int
    series: dict[str, Series] = field(default_factory=dict)
    metrics: list[list[Any]] = field(default_factory=list)
    planned_steps: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return not self.series and not self.metrics

    def add(self, name: str, point: Point) -> None:
        """Add a finite point to a series; names beyond the bound are left out."""
        if not (math.isfinite(point[1]) and math.isfinite(point[2]) and math.isfinite(point[3])):
            return
        series = self.series.get(name)
        if series is None:
            if len(self.series) >= SERIES_MAX:
                return
            series = self.series[name] = Series(self.points_max)
        series.add(point)

    def add_metric(self, metric: Metric) -> None:
        """Add a named value; the oldest give way when there are too many."""
        if metric.name == PLANNED_STEPS and 0 < metric.value < 1 << 40:
            self.planned_steps = int(metric.value)
            return
        if not math.isfinite(metric.value):
            return
        names = [
            n if n is None else str(n)[:NAME_CHARS_MAX] for n in (metric.split, metric.subtask)
        ]
        row = [metric.name[:NAME_CHARS_MAX], metric.value, metric.step, *names]
        if row not in self.metrics[-METRICS_MAX // 8 :]:
            self.metrics = [*self.metrics, row][-METRICS_MAX:]

    def dump(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "series": {name: [list(p) for p in s.points] for name, s in self.series.items()},
            "metrics": list(self.metrics),
            "planned_steps": self.planned_steps,
        }

    def merge(self, dumped: Mapping[str, Any]) -> None:
        """Add a dump of later steps. Raises ``ValueError`` or ``TypeError`` for a damaged one."""
        for name, points in dict(dumped["series"]).items():
            for step, last, least, greatest in points:
                self.add(str(name), (int(step), float(last), float(least), float(greatest)))
        known = {repr(row) for row in self.metrics}
        new = [list(row) for row in dumped["metrics"] if repr(list(row)) not in known]
        self.metrics = [*self.metrics, *new][-METRICS_MAX:]
        planned = dumped.get("planned_steps")
        self.planned_steps = self.planned_steps if planned is None else int(planned)


def points_of(closed: ClosedStep) -> Iterable[tuple[str, Point]]:
    """Yield what one whole step adds to each curve; throughput is over all ranks."""
    for name, how in _OF_STEP:
        value = closed.mean(name) if how == "mean" else closed.most(name)
        if not math.isnan(value):
            yield name, (closed.step, value, value, value)
    seconds = closed.most("step_ms") / 1000
    if seconds > 0:
        for name in ("samples", "tokens"):
            rate = closed.total(name) / seconds
            if not math.isnan(rate):
                yield f"{name}_per_s", (closed.step, rate, rate, rate)


@dataclass(slots=True)
class Progress:
    """How far an attempt is and how fast it goes: medians of the last 20 steps."""

    last_step: int = -1
    step_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_THROUGHPUT_STEPS))
    rates: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, closed: ClosedStep, points: Iterable[tuple[str, Point]]) -> None:
        """Take a whole step, and what it adds to the curves."""
        self.last_step = max(self.last_step, closed.step)
        step_ms = closed.most("step_ms")
        if step_ms > 0:
            self.step_ms.append(step_ms)
        for name, point in points:
            if name.endswith("_per_s"):
                self.rates.setdefault(name, deque(maxlen=_THROUGHPUT_STEPS)).append(point[1])

    def told(self, planned_steps: int | None) -> dict[str, Any]:
        """Return step, planned steps, share, step time, rates and the time left in seconds."""
        step_ms = middle(sorted(self.step_ms))
        told: dict[str, Any] = {
            "step": self.last_step if self.last_step >= 0 else None,
            "planned_steps": planned_steps,
            "share": None,
            "step_ms": None if math.isnan(step_ms) else round(step_ms, 3),
            "eta_s": None,
        }
        for name, rates in self.rates.items():
            told[name] = round(middle(sorted(rates)), 3)
        if planned_steps and self.last_step >= 0:
            told["share"] = round(min(1.0, self.last_step / planned_steps), 4)
            if not math.isnan(step_ms):
                left = max(0, planned_steps - self.last_step)
                told["eta_s"] = round(left * step_ms / 1000)
        return told


def thinned(points: list[Point], most: int) -> list[Point]:
    """Return at most ``most`` of ``points``, evenly chosen, the newest always among them."""
    if len(points) <= most or most < 1:
        return points
    stride = -(-len(points) // most)
    return points[::-1][::stride][::-1]
