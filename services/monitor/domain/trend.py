"""Rules on the course of a run: a loss that does not fall or climbs, steps that became slower.

Each rule keeps its own memory of one attempt and yields verdicts; none raises anything itself.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import RUN, Phase, Verdict
from services.monitor.domain.policy import Policy
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.windows import MAD_TO_SIGMA, middle

DIVERGING = "diverging"
"""Subject of a loss that climbs; one that only stays where it is has the subject ``run``."""

_BUCKETS = 20
_RECOVERED = Verdict(
    "loss_not_falling", DIVERGING, Phase.CLEARED, summary="The loss is back at its lowest."
)


@dataclass(slots=True)
class LossTrend:
    """A loss that has not fallen for a whole window, or that climbs.

    The window is 1,000 steps or 5 % of the plan, whichever is more, in 20 buckets. Not falling:
    the slope over the buckets' medians is zero or more and the smoothed loss is at least 0.995
    of what it was a window ago. Opens when that has held for half a window, confirmed
    at a whole one: recorded healthy runs stand still for a window and a half at times. The
    last 20 % of the plan are not judged: there the learning rate has died down and the loss is
    meant to be flat. Climbing: the smoothed loss stays more than 3 % above its lowest value for
    200 steps, which single bad batches and recovered spikes do not do.
    """

    planned_steps: int = 0
    bucket: int = -1
    inside: list[float] = field(default_factory=list)
    ends: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_BUCKETS + 1))
    slow: float = math.nan  # smoothed over a tenth of the window
    fast: float = math.nan  # smoothed over 100 steps
    lowest: float = math.inf
    taken: int = 0
    above: int = 0
    flat: int = 0

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step's mean loss."""
        loss = closed.mean("loss")
        if math.isnan(loss):
            return
        width = self._window(policy) // _BUCKETS
        self.slow = _smoothed(self.slow, loss, 2 * width)
        self.fast = _smoothed(self.fast, loss, policy.trend_climb_span)
        self.taken += 1
        yield from self._climbing(closed.step, policy)
        number = closed.step // width
        if number != self.bucket and self.inside:
            self.ends.append((middle(sorted(self.inside)), self.slow))
            self.inside.clear()
            yield from self._falling(closed.step, policy)
        self.bucket = number
        self.inside.append(loss)

    def _window(self, policy: Policy) -> int:
        return max(policy.trend_window, int(policy.trend_window_share * self.planned_steps))

    def _falling(self, step: int, policy: Policy) -> Iterator[Verdict]:
        if self.planned_steps and step > (1 - policy.trend_tail) * self.planned_steps:
            return
        if len(self.ends) <= _BUCKETS:
            return
        ago = self.ends[0][1]
        is_flat = self.slow >= ago - (1 - policy.trend_flat) * abs(ago)
        is_flat = is_flat and slope([median for median, _ in self.ends][1:]) >= 0
        self.flat = min(self.flat + 1, policy.trend_buckets) if is_flat else max(0, self.flat - 1)
        if is_flat and self.flat >= policy.trend_buckets // 2:
            is_sure = self.flat >= policy.trend_buckets
            yield Verdict(
                "loss_not_falling",
                RUN,
                Phase.CONFIRMED if is_sure else Phase.OPENED,
                Severity.WARNING,
                f"The loss has not fallen for {self._window(policy)} steps, up to step {step}: "
                f"{self.slow:.4g}, from {ago:.4g}.",
                {"step": step, "loss": self.slow, "before": ago, "window": self._window(policy)},
            )
        elif not self.flat:
            yield Verdict("loss_not_falling", RUN, Phase.CLEARED, summary="The loss falls.")

    def _climbing(self, step: int, policy: Policy) -> Iterator[Verdict]:
        if self.taken < policy.trend_climb_span:
            return
        self.lowest = min(self.lowest, self.fast)
        height = (self.fast - self.lowest) / abs(self.lowest) if self.lowest else 0.0
        if height <= policy.trend_climb:
            self.above = 0
            if height <= policy.trend_climb / 3:
                yield _RECOVERED
            return
        self.above += 1
        if self.above < policy.trend_climb_steps * 3 // 4:
            return
        is_sure = self.above >= policy.trend_climb_steps
        yield Verdict(
            "loss_not_falling",
            DIVERGING,
            Phase.CONFIRMED if is_sure else Phase.OPENED,
            Severity.CRITICAL,
            f"The loss climbs: {self.fast:.4g} at step {step}, {height:.0%} above its lowest, "
            f"for {self.above} steps.",
            {"step": step, "loss": self.fast, "lowest": self.lowest, "steps": self.above},
        )


def _smoothed(before: float, value: float, span: int) -> float:
    return value if math.isnan(before) else before + (value - before) * 2 / (span + 1)


def slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through values at 0, 1, 2, ..."""
    count = len(values)
    centre = (count - 1) / 2
    above = sum((n - centre) * value for n, value in enumerate(values))
    return above / sum((n - centre) ** 2 for n in range(count))


@dataclass(slots=True)
class JobSlow:
    """A change point in the step time: 20 steps against the 20 before them.

    Opens when the later median is more than 10 % and more than 4 robust sigmas (of the earlier
    steps) above the earlier one; confirmed when the steps since stay there for 20 more; clears
    when their median is within 5 % of the level before. The two windows and the 10 % are those
    of a published detector of slow-downs in shared clusters (Greyhound, 2025: 0.998 accuracy);
    the sigma is floored at 1 % of the level, for times that were rounded.
    """

    times: deque[float] = field(default_factory=deque)
    level: float = math.nan  # before the change that is open
    since: int = 0
    taken: int = 0

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step; looked at every fifth, since medians hardly move between."""
        time = closed.most("step_ms")
        if math.isnan(time) or time <= 0:
            return
        size = policy.slow_window
        self.times.append(time)
        self.taken += 1
        if len(self.times) > 2 * size:
            self.times.popleft()
        if self.taken % 5 or len(self.times) < 2 * size:
            return
        known = list(self.times)
        after = middle(sorted(known[size:]))
        if math.isnan(self.level):
            yield from self._look(closed.step, sorted(known[:size]), after, policy)
        elif after <= (1 + policy.slow_share / 2) * self.level:
            self.level = math.nan
            yield Verdict("job_slow", RUN, Phase.CLEARED, summary="Steps are as fast as before.")
        elif after > (1 + policy.slow_share) * self.level and self.taken - self.since >= size:
            yield self._verdict(closed.step, after, Phase.CONFIRMED)

    def _look(
        self, step: int, before: list[float], after: float, policy: Policy
    ) -> Iterator[Verdict]:
        level = middle(before)
        spread = MAD_TO_SIGMA * middle(sorted(abs(value - level) for value in before))
        sigma = max(spread, policy.slow_sigma_floor * level)
        least = max(policy.slow_share * level, policy.slow_sigmas * sigma, policy.slow_ms_floor)
        if after - level > least:
            self.level, self.since = level, self.taken
            yield self._verdict(step, after, Phase.OPENED)

    def _verdict(self, step: int, after: float, phase: Phase) -> Verdict:
        return Verdict(
            "job_slow",
            RUN,
            phase,
            Severity.WARNING,
            f"Steps became {after / self.level - 1:.0%} slower: {after:.4g} ms at step {step}, "
            f"{self.level:.4g} ms before.",
            {"step": step, "step_ms": after, "before_ms": self.level},
        )
