"""Rules on numbers of the optimisation itself: not finite, loss spikes, gradient norms.

Each rule keeps its own memory of one attempt and yields verdicts; none raises anything itself.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import RUN, Phase, Rows, Verdict
from services.monitor.domain.policy import Policy
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.windows import MAD_TO_SIGMA, HitWindow, MedianWindow

_MOVES = {
    subject: Verdict("non_finite", subject, Phase.CLEARED, summary="The value moves again.")
    for subject in ("zero-loss", "frozen-norm")
}
SUSPECTS_MAX = 32
SUSPECT_STEPS_MAX = 8


@dataclass(slots=True)
class NonFinite:
    """Any reported loss or gradient norm that is no finite number, at once and for good.

    On the wire NaN means "not reported" and an infinity "reported, and not a finite number".
    A single such value poisons every later step through the optimiser's moments, which is why
    large trainers stop on the first one (ByteRobust, 2025; torchtitan's loss check). A loss of
    exactly zero twice, or a gradient norm frozen to six digits, is the same fault in disguise:
    seen when half precision underflows and the labels are all masked.
    """

    zeros: int = 0
    frozen: int = 0
    last_norm: float = math.nan
    suspects: dict[int, list[int]] = field(default_factory=dict)  # step -> rows of the data

    def suspect(self, step: int, row: int) -> None:
        """Take the word that a row of the data was in a step that came out broken."""
        if step not in self.suspects and len(self.suspects) >= SUSPECT_STEPS_MAX:
            return
        rows = self.suspects.setdefault(step, [])
        if len(rows) < SUSPECTS_MAX:
            rows.append(row)

    def judge_rows(self, node: str, rows: Rows) -> Iterator[Verdict]:
        """Look at raw rows, before ranks are aligned, so that nothing waits for a peer."""
        for name in ("loss", "grad_norm"):
            bad = np.flatnonzero(np.isinf(rows[name]))
            if not len(bad):
                continue
            first = rows[bad[np.argmin(rows["step"][bad])]]
            step, rank = int(first["step"]), int(first["rank"])
            what = "loss" if name == "loss" else "gradient norm"
            samples = self.suspects.get(step, [])
            named = f" Its rows of the data: {', '.join(map(str, samples))}." if samples else ""
            yield Verdict(
                "non_finite",
                RUN,
                Phase.CONFIRMED,
                Severity.CRITICAL,
                f"Rank {rank} reported a {what} that is not a finite number at step {step}."
                + named,
                {"field": name, "step": step, "rank": rank, "rows": len(bad), "samples": samples},
                node,
                rank,
            )

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Look at a whole step for values that are finite and cannot be right."""
        loss, norm = closed.mean("loss"), closed.most("grad_norm")
        if not math.isnan(loss):
            self.zeros = self.zeros + 1 if loss == 0.0 else 0
        if not math.isnan(norm):
            same = norm != 0.0 and f"{norm:.6g}" == f"{self.last_norm:.6g}"
            self.frozen = self.frozen + 1 if same else 1
            self.last_norm = norm
        for subject, count, limit, text in (
            ("zero-loss", self.zeros, policy.zero_losses, "The loss is exactly zero"),
            ("frozen-norm", self.frozen, policy.frozen_norms, "The gradient norm does not change"),
        ):
            if count >= limit:
                summary = f"{text} for {count} steps, up to step {closed.step}."
                evidence = {"step": closed.step, "steps": count}
                yield Verdict(
                    "non_finite", subject, Phase.CONFIRMED, Severity.WARNING, summary, evidence
                )
            else:
                yield _MOVES[subject]


@dataclass(slots=True)
class LossSpike:
    """A loss that leaves its range upwards, in three of five steps.

    A value is a hit when it exceeds the median of the last 128 accepted values by more than
    8 robust sigmas (1.4826 x MAD) and by 15 % of the median. Single hits ("blips") are ordinary:
    over 75 healthy recorded runs (310,257 steps) a limit of 6 sigmas gave 518 alarms, three of
    five none, while the spike of the published BLOOM-176B run is found one step after its peak.
    Hits stay out of the window, so that a spike does not raise its own baseline. More than five
    medians is critical at once.
    """

    window: MedianWindow
    hits: HitWindow
    blips: deque[int] = field(default_factory=deque)  # steps
    baseline: float = math.nan  # median when the spike was found
    since_step: int = -1
    calm: int = 0
    rejected: int = 0

    @classmethod
    def by(cls, policy: Policy) -> "LossSpike":
        """Return the rule with empty windows."""
        return cls(MedianWindow(policy.spike_window), HitWindow(policy.spike_of))

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step's mean loss."""
        loss = closed.mean("loss")
        if math.isnan(loss):
            return
        median = self.window.median()
        is_hit = self._is_hit(loss, median, policy)
        count = self.hits.look(is_hit)
        if not is_hit:
            self.window.accept(loss)
            self.rejected, self.calm = 0, self.calm + 1
            if self.calm >= policy.spike_calm_steps:
                yield from self._calmed(closed.step, policy)
            return
        self.calm, self.rejected = 0, self.rejected + 1
        self.blips.append(closed.step)
        while self.blips and self.blips[0] <= closed.step - policy.spike_blips_within_steps:
            self.blips.popleft()
        yield from self._trouble(closed.step, loss, median, count, policy)
        if self.rejected >= policy.spike_relearn_steps:
            self.window.clear()  # this is a new level, not a spike; learn it
            self.rejected = 0

    def _is_hit(self, loss: float, median: float, policy: Policy) -> bool:
        if len(self.window) < policy.spike_window_min:
            return False
        above = loss - median
        if above <= policy.spike_share * abs(median):
            return False  # spares the deviation in almost every step
        return above > policy.spike_mads * MAD_TO_SIGMA * self.window.mad()

    def _trouble(
        self, step: int, loss: float, median: float, count: int, policy: Policy
    ) -> Iterator[Verdict]:
        is_huge = median > 0 and loss > policy.spike_critical_factor * median
        evidence = {"step": step, "loss": loss, "median": median, "hits": count}
        if count >= policy.spike_hits or is_huge:
            if self.since_step < 0:
                self.since_step, self.baseline = step, median
            stays = (
                step - self.since_step >= policy.spike_recover_steps
                and loss >= policy.spike_recovered_factor * self.baseline
            )
            severity = Severity.CRITICAL if is_huge or stays else Severity.WARNING
            summary = f"The loss rose to {loss:.4g} at step {step}, from a median of {median:.4g}."
            if stays:
                summary += " It did not come back: roll back to an earlier checkpoint."
            yield Verdict("loss_spike", RUN, Phase.CONFIRMED, severity, summary, evidence)
        elif len(self.blips) >= policy.spike_blips:
            summary = f"{len(self.blips)} single losses out of range, the last at step {step}."
            evidence["blips"] = len(self.blips)
            yield Verdict(
                "loss_spike", "blips", Phase.CONFIRMED, Severity.WARNING, summary, evidence
            )

    def _calmed(self, step: int, policy: Policy) -> Iterator[Verdict]:
        self.since_step, self.baseline = -1, math.nan
        summary = f"The loss is back in its range at step {step}."
        yield Verdict("loss_spike", RUN, Phase.CLEARED, summary=summary)
        while self.blips and self.blips[0] <= step - policy.spike_blips_within_steps:
            self.blips.popleft()
        if not self.blips:
            yield Verdict("loss_spike", "blips", Phase.CLEARED, summary=summary)


@dataclass(slots=True)
class GradNorm:
    """A gradient norm of more than ten medians in two of three steps, after step 200.

    In the published BLOOM-176B run the norm left its range four steps before the loss did; in
    19,500 healthy recorded steps nothing was found. The first 200 steps are left out: norms fall
    by orders of magnitude while the learning rate warms up.
    """

    window: MedianWindow
    hits: HitWindow
    calm: int = 0

    @classmethod
    def by(cls, policy: Policy) -> "GradNorm":
        """Return the rule with empty windows."""
        return cls(MedianWindow(policy.norm_window), HitWindow(policy.norm_of))

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step's greatest gradient norm."""
        norm = closed.most("grad_norm")
        if math.isnan(norm):
            return
        median = self.window.median()
        is_hit = (
            closed.step >= policy.norm_after_step
            and len(self.window) >= policy.spike_window_min
            and median > 0
            and norm > policy.norm_factor * median
        )
        count = self.hits.look(is_hit)
        if is_hit:
            self.calm = 0
        else:
            self.window.accept(norm)
            self.calm += 1
        if count >= policy.norm_hits and is_hit:
            yield Verdict(
                "grad_norm",
                RUN,
                Phase.CONFIRMED,
                Severity.CRITICAL,
                f"The gradient norm rose to {norm:.4g} at step {closed.step}, "
                f"from a median of {median:.4g}; a loss spike may follow.",
                {"step": closed.step, "grad_norm": norm, "median": median},
            )
        elif self.calm >= policy.spike_calm_steps:
            yield Verdict("grad_norm", RUN, Phase.CLEARED, summary="The gradient norm is calm.")
