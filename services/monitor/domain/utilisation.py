"""Rules on how well devices and time are used: idle devices, low use, throughput below its plan.

Device rules speak only where nodes report devices. Each keeps its memory of one attempt and
yields verdicts.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import RUN, Phase, Verdict
from services.monitor.domain.policy import Policy
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.windows import middle

DEVICE = "gpu_utilisation_"
"""Beginning of the fields that hold one device's utilisation, in the order of the node's ranks."""

_STEPS = 20


@dataclass(slots=True)
class StepSplit:
    """Where the time of the last 20 steps went, and how much was done in a second."""

    parts: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_STEPS))
    rates: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, closed: ClosedStep) -> None:
        """Take a whole step; what was not reported counts as nothing."""
        whole = closed.most("step_ms")
        if math.isnan(whole) or whole <= 0:
            return
        self.parts.append(
            (whole, _known(closed.mean("data_ms")), _known(closed.mean("collective_ms")))
        )
        for name in ("samples", "tokens"):
            total = closed.total(name)
            if not math.isnan(total):
                kept = self.rates.setdefault(f"{name}_per_s", deque(maxlen=_STEPS))
                kept.append(total * 1000 / whole)

    def rate(self, name: str) -> float:
        """Return the median rate of the last 20 steps; NaN while fewer are known."""
        kept = self.rates.get(name, ())
        return middle(sorted(kept)) if len(kept) == _STEPS else math.nan

    def shares(self) -> dict[str, float]:
        """Return the shares of a step that wait for data and for other ranks, and the rest."""
        whole = sum(part[0] for part in self.parts)
        if not whole:
            return {}
        data = min(1.0, sum(part[1] for part in self.parts) / whole)
        waits = min(1.0 - data, sum(part[2] for part in self.parts) / whole)
        shares = {"data": data, "communication": waits, "other": 1.0 - data - waits}
        return {name: round(share, 3) for name, share in shares.items()}


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


@dataclass(slots=True)
class Devices:
    """The newest utilisation of every device of the run, by node and place."""

    newest: dict[tuple[str, int], float] = field(default_factory=dict)

    def take(self, node: str, sample: Mapping[str, float]) -> bool:
        """Take a node's sample; False when it tells of no device."""
        found = False
        for name, value in sample.items():
            place = name.removeprefix(DEVICE)
            if place != name and place.isdigit() and math.isfinite(value):
                self.newest[node, int(place)] = value
                found = True
        if not found and math.isfinite(sample.get("gpu_utilisation", math.nan)):
            self.newest[node, 0] = sample["gpu_utilisation"]
            found = True
        return found

    def forget(self, node: str) -> None:
        """Drop the devices of a node whose ranks are done."""
        for key in [key for key in self.newest if key[0] == node]:
            del self.newest[key]


@dataclass(slots=True)
class ZeroUtilisation:
    """Devices at 1 % or less for five minutes while no step is made; confirmed at six.

    All idle: nothing is computed anywhere. Some idle while every other shows more than 90 %:
    those ranks are the ones that the others wait for, since a waiting collective keeps a device
    busy (in a recorded hang seven victims showed 100 %, at a fifth of their power). Not judged
    before the first step, nor while checkpoints, evaluations or the final upload run.
    """

    steps: int = 0
    since: int = -1

    def judge(
        self, devices: Devices, now: int, policy: Policy, *, steps: int, is_stepping: bool
    ) -> Iterator[Verdict]:
        """Judge the devices; ``steps`` made so far, ``is_stepping``: steps are what is due."""
        newest = devices.newest
        idle = sorted(key for key, value in newest.items() if value <= policy.zero_utilisation)
        busy = [value for value in newest.values() if value > policy.zero_utilisation]
        is_strange = bool(idle) and (not busy or min(busy) > policy.zero_peers_busy)
        if not is_strange or not is_stepping or not steps or steps != self.steps:
            self.steps, self.since = steps, -1
            summary = "Devices work or steps are made again."
            yield Verdict("zero_utilisation", RUN, Phase.CLEARED, summary=summary)
            return
        if self.since < 0:
            self.since = now
        wait = now - self.since
        if wait < policy.zero_ms:
            return
        node, place = idle[0]
        is_one = bool(busy)
        who = f"Device {place} of node {node} does" if is_one else "All devices do"
        summary = f"{who} nothing for {wait // 60_000} min, and no step is made."
        yield Verdict(
            "zero_utilisation",
            RUN,
            Phase.CONFIRMED if wait >= 1.2 * policy.zero_ms else Phase.OPENED,
            Severity.CRITICAL,
            summary,
            {"idle": [f"{n}/{p}" for n, p in idle[:64]], "busy": len(busy), "for_ms": wait},
            node if is_one else None,
        )


@dataclass(slots=True)
class LowUtilisation:
    """Devices below 80 % of use, as the median over ten minutes in which steps are made.

    Opens after five minutes. The alert says what is short, by where the time of a step goes:
    data, communication, or neither (then the work per step is too small). Clears when the
    median of the last two minutes is 5 points above the mark.
    """

    seen: deque[tuple[int, float]] = field(default_factory=deque)
    steps: int = 0
    stepped_at: int = 0

    def judge(
        self, devices: Devices, now: int, policy: Policy, *, steps: int, split: StepSplit
    ) -> Iterator[Verdict]:
        """Judge the devices; ``steps`` counts the steps that count, those after the warm-up."""
        if not devices.newest or steps <= 0:
            return
        if steps != self.steps:
            self.steps, self.stepped_at = steps, now
        if now - self.stepped_at > policy.low_step_ms:
            self.seen.clear()  # other rules speak of a run that makes no step
            return
        self.seen.append((now, sum(devices.newest.values()) / len(devices.newest)))
        while now - self.seen[0][0] > policy.low_ms:
            self.seen.popleft()
        span = now - self.seen[0][0]
        use = middle(sorted(value for _, value in self.seen))
        lately = middle(sorted(v for at, v in self.seen if now - at <= 120_000))
        if lately >= policy.low_utilisation + 5:
            summary = f"The devices are used to {lately:.0f} %."
            yield Verdict("low_utilisation", RUN, Phase.CLEARED, summary=summary)
        elif use < policy.low_utilisation and span >= policy.low_ms // 2:
            shares = split.shares()
            yield Verdict(
                "low_utilisation",
                RUN,
                Phase.CONFIRMED if span >= 0.98 * policy.low_ms else Phase.OPENED,
                Severity.WARNING,
                f"The devices are used to {use:.0f} % over {span // 60_000} min: "
                f"{short_of(shares)}.",
                {"utilisation": round(use, 1), "shares": shares, "span_ms": span},
            )


def short_of(shares: Mapping[str, float]) -> str:
    """Return what a run lacks, by the shares of its steps."""
    if shares.get("data", 0.0) > 0.2:
        return f"ranks wait for data in {shares['data']:.0%} of a step"
    if shares.get("communication", 0.0) > 0.3:
        return f"ranks wait for one another in {shares['communication']:.0%} of a step"
    return "neither data nor communication holds them up, so the work per step is too small"


@dataclass(slots=True)
class BelowPlan:
    """Throughput, as the median of 20 steps, against the rate that the run was planned with.

    The plan is the metric ``planned_samples_per_s`` (else ``planned_tokens_per_s``) that the run
    reports: what its ranks reach without waiting. Below 90 % for ten minutes warns, below 70 %
    is critical; the gap is split into data, communication and the rest. A run that reports no
    plan is not judged. Clears at 95 %.
    """

    planned: dict[str, float] = field(default_factory=dict)
    since: dict[Severity, int] = field(default_factory=dict)
    looked: int = 0

    def plan(self, name: str, value: float) -> None:
        """Take a reported metric, if it is a plan of throughput."""
        rate = name.removeprefix("planned_")
        if rate in ("samples_per_s", "tokens_per_s") and name != rate and 0 < value < math.inf:
            self.planned[rate] = value

    def judge(self, split: StepSplit, now: int, policy: Policy, *, step: int) -> Iterator[Verdict]:
        """Judge after a whole step; looked at every fifth."""
        self.looked += 1
        name = "samples_per_s" if "samples_per_s" in self.planned else "tokens_per_s"
        rate = split.rate(name) if self.planned and self.looked % 5 == 0 else math.nan
        if math.isnan(rate) or name not in self.planned:
            return
        share = rate / self.planned[name]
        marks = {Severity.WARNING: policy.plan_warning, Severity.CRITICAL: policy.plan_critical}
        for severity, mark in marks.items():
            if share < mark:
                self.since.setdefault(severity, now)
            else:
                self.since.pop(severity, None)
        if share >= policy.plan_cleared:
            yield Verdict("below_plan", RUN, Phase.CLEARED, summary="The plan is met again.")
        if not self.since:
            return
        old = [s for s, since in self.since.items() if now - since >= policy.plan_ms]
        shares = split.shares()
        yield Verdict(
            "below_plan",
            RUN,
            Phase.CONFIRMED if old else Phase.OPENED,
            Severity.CRITICAL if Severity.CRITICAL in old else Severity.WARNING,
            f"Throughput is {share:.0%} of its plan at step {step}: {rate:.4g} of "
            f"{self.planned[name]:.4g} {name.replace('_per_s', '/s')}; {short_of(shares)}.",
            {"rate": rate, "planned": self.planned[name], "of": name, "shares": shares},
        )
