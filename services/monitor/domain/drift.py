"""Slow drifts among peers: a rank that is a little slower, all the time.

The rule beside ``straggler.py`` for what its 8 of 10 steps cannot see; it only gives notice.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import Phase, Values, Verdict
from services.monitor.domain.peers import Peers, median, widened
from services.monitor.domain.policy import Policy
from services.monitor.domain.straggler import Blamed, attribute, called
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.windows import MAD_TO_SIGMA


@dataclass(slots=True)
class Drift:
    """A cumulative sum of robust z-scores of compute time among eight or more peers of a stage.

    Each step adds the rank's distance from the stage's median in robust sigmas, clipped at 2,
    less k = 1, never falling below zero; at h = 12 the rank is told (Page's CUSUM). A rank that
    is 5 % slower than peers with 1 % of noise is found in 12 steps, and one bad step of any size
    adds one at most. Since machines differ by a percent or two for good, the mean ratio since
    the sum began must be 3 % at least. Opens as a notice and is never confirmed: five percent
    are no ground to move a job. Clears when the sum is back at zero.
    """

    peers: Peers = field(default_factory=Peers)
    sums: Values = field(default_factory=lambda: np.zeros(0))
    ratios: Values = field(default_factory=lambda: np.zeros(0))  # summed since the sum began
    steps: Values = field(default_factory=lambda: np.zeros(0))
    opened: dict[str, Blamed] = field(default_factory=dict)

    def judge(
        self,
        closed: ClosedStep,
        policy: Policy,
        *,
        node_of: Mapping[int, str],
        stage_of: Mapping[int, int],
        told: Collection[str] = (),
    ) -> Iterator[Verdict]:
        """Judge one whole step; ``told`` are subjects that the straggler rule tells of itself."""
        compute = closed.of("compute_ms")
        known = np.isfinite(compute) & (compute > 0)
        ranks = closed.ranks
        if not known.all():
            ranks, compute = ranks[known], compute[known]
        if len(ranks) < policy.drift_peers_min:
            return
        self._widen(self.peers.meet(ranks, stage_of))
        self._add(compute, policy)
        slow = self._slow(policy)
        blamed = attribute(slow, list(self.peers.place), node_of, policy=policy) if slow else []
        for who in blamed:
            if who.subject not in told and not who.is_imbalance:
                self.opened[who.subject] = who
                yield self._verdict(who, closed.step)
        yield from self._calmed(closed.step, told)

    def _add(self, compute: Values, policy: Policy) -> None:
        for chosen in self.peers.groups:
            if len(chosen) < policy.drift_peers_min:
                continue
            values, at = compute[chosen], self.peers.places[chosen]
            centre = median(values)
            sigma = MAD_TO_SIGMA * median(np.abs(values - centre))
            score = (values - centre) / max(sigma, policy.drift_sigma_floor * centre)
            step = np.minimum(score, policy.drift_clip) - policy.drift_k
            # Once past h the sum is held there, so that it also falls in a few steps.
            sums = np.clip(self.sums[at] + step, 0.0, policy.drift_h)
            self.sums[at] = sums
            begun = sums > 0
            self.ratios[at] = np.where(begun, self.ratios[at] + values / centre, 0.0)
            self.steps[at] = np.where(begun, self.steps[at] + 1, 0.0)

    def _widen(self, count: int) -> None:
        if count:
            self.sums = widened(self.sums, count)
            self.ratios = widened(self.ratios, count)
            self.steps = widened(self.steps, count)

    def _slow(self, policy: Policy) -> list[int]:
        over = self.sums >= policy.drift_h
        if not over.any():
            return []
        over &= self.ratios >= policy.drift_ratio * self.steps
        known = list(self.peers.place)
        return sorted(known[number] for number in np.flatnonzero(over).tolist())

    def _verdict(self, who: Blamed, step: int) -> Verdict:
        places = [self.peers.place[rank] for rank in who.ranks]
        steps = float(self.steps[places].max())
        ratio = float((self.ratios[places] / self.steps[places]).max())
        return Verdict(
            "straggler",
            who.subject,
            Phase.OPENED,
            Severity.NOTICE,
            f"{called(who)} takes {ratio:.2f} times as long as its peers, "
            f"all the time over {steps:.0f} steps.",
            {"step": step, "ratio": round(ratio, 3), "steps": steps, "ranks": list(who.ranks)[:64]},
            who.node,
            who.ranks[0] if len(who.ranks) == 1 else None,
        )

    def _calmed(self, step: int, told: Collection[str]) -> Iterator[Verdict]:
        for subject, who in list(self.opened.items()):
            places = [self.peers.place[rank] for rank in who.ranks]
            if self.sums[places].max() > 0:
                continue
            del self.opened[subject]
            if subject not in told:
                summary = f"{called(who)} keeps up with its peers again at step {step}."
                yield Verdict("straggler", subject, Phase.CLEARED, summary=summary)
