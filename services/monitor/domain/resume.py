"""The rule on resumed runs: they go on where they stopped, with the rate and loss of that place.

Keeps its memory of one attempt and yields verdicts.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import Phase, Verdict
from services.monitor.domain.policy import Policy
from services.monitor.domain.table import ClosedStep

_KEPT = 20
_REMEMBERED = 2_000  # steps: a checkpoint may be that old


@dataclass(frozen=True, slots=True)
class Course:
    """How the learning rate was asked to go; the same formula as the engines walk.

    Linear warm-up to the full rate, then linear or cosine down to ``floor``, or constant.
    """

    rate: float
    floor: float = 0.0
    schedule: str = "linear"
    warmup_steps: int = 0
    warmup_ratio: float = 0.0

    @classmethod
    def of(cls, hyper: Mapping[str, Any]) -> "Course | None":
        """Read a job's hyperparameters; None where the rate is somebody else's to set."""
        rate: Any = hyper.get("learningRate")
        foreign = hyper.get("deepspeedConfig")
        if not _is_number(rate) or rate <= 0:
            return None
        if isinstance(foreign, Mapping) and ("scheduler" in foreign or "optimizer" in foreign):
            return None
        return cls(
            float(rate),
            float(hyper.get("minLearningRate") or 0.0),
            str(hyper.get("lrScheduler") or "linear"),
            int(hyper.get("warmupSteps") or 0),
            float(hyper.get("warmupRatio") or 0.0),
        )

    def at(self, step: int, total: int) -> float:
        """Return the learning rate of ``step`` (from 1) of ``total``."""
        warmup = self.warmup_steps or math.ceil(self.warmup_ratio * total)
        if step <= warmup:
            return self.rate * step / warmup
        if self.schedule == "constant":
            return self.rate
        passed = min(1.0, (step - 1 - warmup) / max(1, total - warmup))
        falling = 1 - passed if self.schedule == "linear" else (1 + math.cos(math.pi * passed)) / 2
        floor = min(1.0, self.floor / self.rate)
        return self.rate * (floor + (1 - floor) * falling)


@dataclass(slots=True)
class ResumeCheck:
    """The first 20 steps after a resume: step, learning rate and loss fit the checkpoint.

    The first step is the checkpoint's plus one; the learning rate is within 1 % of the asked
    schedule; the mean loss is at most 5 % above the mean of the 20 steps before the checkpoint
    (and 4 standard errors, for small noisy runs). A published 80B run lost two restarts to a
    learning rate that a resume had set back without a word. What is not known (no schedule, an
    earlier attempt that this process never saw) is not judged. Clears after the 20 steps when
    all of them fit.
    """

    from_step: int = -1  # -1: not a resumed attempt
    course: Course | None = None
    planned_steps: int = 0
    before: tuple[tuple[int, float], ...] = ()  # (step, loss) of the attempt before
    lately: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    losses: list[float] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    checked: int = 0

    def judge(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        """Judge one whole step."""
        loss = closed.mean("loss")
        if not math.isnan(loss):
            self.lately.append((closed.step, loss))
        if self.from_step < 0 or self.checked >= _KEPT:
            return
        self.checked += 1
        if not math.isnan(loss):
            self.losses.append(loss)
        yield from self._place(closed)
        yield from self._rate(closed, policy)
        if self.checked == _KEPT:
            yield from self._loss(closed.step, policy)
            for subject in ("step", "rate", "loss"):
                if subject not in self.faults:
                    summary = "The resumed run goes on as before."
                    yield Verdict("resume_check", subject, Phase.CLEARED, summary=summary)

    def _place(self, closed: ClosedStep) -> Iterator[Verdict]:
        if self.checked == 1 and closed.step != self.from_step + 1:
            expected = self.from_step + 1
            summary = f"The run resumed at step {closed.step}; the checkpoint asks for {expected}."
            yield self._fault("step", summary, {"step": closed.step, "expected": expected})

    def _rate(self, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
        rate = closed.most("learning_rate")
        if self.course is None or self.planned_steps <= 0 or math.isnan(rate):
            return
        wanted = self.course.at(closed.step, self.planned_steps)
        if abs(rate - wanted) > policy.resume_rate * wanted + 1e-6 * self.course.rate:
            summary = (
                f"The learning rate is {rate:.4g} at step {closed.step} after the resume; "
                f"the schedule asks for {wanted:.4g}."
            )
            evidence = {"step": closed.step, "learning_rate": rate, "expected": wanted}
            yield self._fault("rate", summary, evidence)

    def _loss(self, step: int, policy: Policy) -> Iterator[Verdict]:
        before = [loss for at, loss in self.before if at <= self.from_step][-_KEPT:]
        if len(before) < _KEPT // 2 or len(self.losses) < _KEPT // 2:
            return
        (old, old_error), (new, new_error) = _mean(before), _mean(self.losses)
        margin = max(policy.resume_loss * abs(old), 4 * math.hypot(old_error, new_error))
        if new - old > margin:
            summary = (
                f"The loss is {new:.4g} over the first {len(self.losses)} steps after the resume; "
                f"it was {old:.4g} before the checkpoint."
            )
            yield self._fault("loss", summary, {"step": step, "loss": new, "before": old})

    def _fault(self, subject: str, summary: str, evidence: Mapping[str, Any]) -> Verdict:
        self.faults.add(subject)
        told = {**evidence, "checkpoint_step": self.from_step}
        return Verdict("resume_check", subject, Phase.CONFIRMED, Severity.CRITICAL, summary, told)


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    count = len(values)
    mean = sum(values) / count
    spread = sum((value - mean) ** 2 for value in values) / max(1, count - 1)
    return mean, math.sqrt(spread / count)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
