"""Rules on the pace of a run: ranks that wait for data, checkpoints that do not come.

Each rule keeps its own memory of one attempt and yields verdicts; none raises anything itself.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

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
    """The steps since the last committed checkpoint, against the job's own plan.

    More than 1.5 plans warn, more than 3 are critical. Only a plan in steps is judged.
    """

    every_steps: int = 0  # 0: no plan in steps
    committed: int = -1
    first: int = -1

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step."""
        if self.every_steps <= 0:
            return
        if self.first < 0:
            self.first = closed.step - 1
        age = closed.step - max(self.committed, self.first)
        plans = age / self.every_steps
        if plans > policy.overdue_warning:
            is_critical = plans > policy.overdue_critical
            yield Verdict(
                "checkpoint_overdue",
                RUN,
                Phase.CONFIRMED,
                Severity.CRITICAL if is_critical else Severity.WARNING,
                f"No checkpoint for {age} steps; the plan is one in {self.every_steps}.",
                {"step": closed.step, "age_steps": age, "every_steps": self.every_steps},
            )
        elif plans <= 1.0:
            yield Verdict(
                "checkpoint_overdue", RUN, Phase.CLEARED, summary="A checkpoint was committed."
            )
