"""Rules on the pace of a run: ranks that wait for data, checkpoints that do not come.

Each rule keeps its own memory of one attempt and yields verdicts; none raises anything itself.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import RUN, Phase, Verdict
from services.monitor.domain.policy import Policy
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.windows import middle


@dataclass(slots=True)
class DataStarvation:
    """The share of a step that ranks spend waiting for data, as the median of 20 steps.

    More than 20 % warns, more than 50 % is critical; either only when it is also 10 points above
    the run's own beginning, because a small model on a slow disk starts that way and a person
    chose it. Clears below four fifths of the limit.
    """

    shares: deque[float] = field(default_factory=deque)
    baseline: float = math.nan

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step; ranks that report no data time take no part."""
        data, whole = closed.mean("data_ms"), closed.most("step_ms")
        if math.isnan(data) or math.isnan(whole) or whole <= 0:
            return
        self.shares.append(min(1.0, data / whole))
        if len(self.shares) > policy.starvation_window:
            self.shares.popleft()
        if len(self.shares) < policy.starvation_window:
            return
        share = middle(sorted(self.shares))
        if math.isnan(self.baseline):
            self.baseline = share
        limit = max(policy.starvation_warning, self.baseline + policy.starvation_above_baseline)
        if share > limit:
            is_critical = share > policy.starvation_critical
            yield Verdict(
                "data_starvation",
                RUN,
                Phase.CONFIRMED,
                Severity.CRITICAL if is_critical else Severity.WARNING,
                f"Ranks wait for data in {share:.0%} of a step at step {closed.step}.",
                {"step": closed.step, "share": round(share, 3), "baseline": self.baseline},
            )
        elif share < 0.8 * limit:
            yield Verdict("data_starvation", RUN, Phase.CLEARED, summary="Data arrives in time.")


@dataclass(slots=True)
class CheckpointOverdue:
    """The age of the last committed checkpoint, against the job's own plan in steps or minutes.

    More than 1.5 plans warn, more than 3 are critical. Where the job says nothing, the plan is
    what trainers keep by themselves, ten minutes. Minutes count from the first step, and only
    while steps are made: a long evaluation saves nothing, and is meant to.
    """

    every_steps: int = 0  # 0: no plan in steps
    every_ms: int = 0  # 0: no plan in minutes
    committed: int = -1
    committed_at: int = 0  # the monitor's clock
    first: int = -1

    def commit(self, step: int, now: int) -> None:
        """Take note of a checkpoint that counts."""
        self.committed = max(self.committed, step)
        self.committed_at = now

    def judge(self, closed: ClosedStep, now: int, policy: Policy) -> Iterator[Verdict]:
        """Judge a plan in steps after one whole step."""
        if self.first < 0:
            self.first = closed.step - 1
            self.committed_at = self.committed_at or now
        if self.every_steps <= 0:
            return
        age = closed.step - max(self.committed, self.first)
        text = f"No checkpoint for {age} steps; the plan is one in {self.every_steps}."
        evidence = {"step": closed.step, "age_steps": age, "every_steps": self.every_steps}
        yield from _overdue(age / self.every_steps, text, evidence, policy)

    def judge_time(self, now: int, policy: Policy) -> Iterator[Verdict]:
        """Judge a plan in minutes when time passes while steps are due."""
        if self.every_ms <= 0 or self.every_steps > 0 or self.first < 0:
            return
        age = now - self.committed_at
        minutes = (age / 60_000, self.every_ms / 60_000)
        text = f"No checkpoint for {minutes[0]:.1f} min; the plan is one in {minutes[1]:.4g} min."
        evidence = {"age_ms": age, "every_ms": self.every_ms}
        yield from _overdue(age / self.every_ms, text, evidence, policy)


def _overdue(
    plans: float, text: str, evidence: Mapping[str, Any], policy: Policy
) -> Iterator[Verdict]:
    kind = "checkpoint_overdue"
    if plans > policy.overdue_warning:
        is_critical = plans > policy.overdue_critical
        severity = Severity.CRITICAL if is_critical else Severity.WARNING
        yield Verdict(kind, RUN, Phase.CONFIRMED, severity, text, evidence)
    elif plans <= 1.0:
        yield Verdict(kind, RUN, Phase.CLEARED, summary="A checkpoint was committed.")


@dataclass(slots=True)
class CheckpointFailing:
    """Saves that failed since the last commit: one warns, two in a row are critical.

    Told by the metric ``checkpoint_failed`` of rank 0 (or of a script). A third failure ends the
    run, and with it everything since the last commit. Clears with the
    next commit.
    """

    steps: list[int] = field(default_factory=list)

    def failed(self, step: int, policy: Policy) -> Iterator[Verdict]:
        """Judge the word that the save of ``step`` failed."""
        if step in self.steps:
            return
        self.steps = [*self.steps, step][-16:]
        count = len(self.steps)
        is_critical = count >= policy.failing_critical
        yield Verdict(
            "checkpoint_failing",
            RUN,
            Phase.CONFIRMED,
            Severity.CRITICAL if is_critical else Severity.WARNING,
            f"The checkpoint of step {step} could not be saved"
            + (f"; {count} saves in a row failed." if count > 1 else "."),
            {"step": step, "failures": count},
        )

    def commit(self) -> Iterator[Verdict]:
        """Judge the word that a checkpoint was committed."""
        self.steps = []
        summary = "A checkpoint was committed again."
        yield Verdict("checkpoint_failing", RUN, Phase.CLEARED, summary=summary)
