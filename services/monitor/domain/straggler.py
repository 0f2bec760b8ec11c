"""The straggler rule: a rank, or a node, whose own work takes longer than its peers'.

Compares time outside collectives, because inside them everybody waits for the slowest and all
look alike. The rule keeps its memory of one attempt and yields verdicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import Phase, Values, Verdict
from services.monitor.domain.peers import Peers, median, widened
from services.monitor.domain.policy import Policy
from services.monitor.domain.table import ClosedStep

NOTICE, WARNING, CRITICAL = range(3)
_BASELINE_VALUES = 32
_BASELINE_VALUES_MIN = 10

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Blamed:
    """Whom the slow ranks point at."""

    subject: str
    ranks: tuple[int, ...]
    node: str | None = None

    @property
    def is_imbalance(self) -> bool:
        """Whether the work, not a machine, is uneven."""
        return self.subject == "imbalance"


@dataclass(slots=True)
class Straggler:
    """Compute time over the median of peers of the same pipeline stage, in 8 of 10 steps.

    Above 1.15 in 8 of the last 10 steps, always the same rank; notice from 1.10, critical from
    1.5. On three recorded production traces this found the one bad rank and no other; 3 of 5
    steps gave 22 false ones, and comparing across pipeline stages flagged whole stages, since the
    last stage carries the loss and is slower by design. With fewer than four peers a median means
    little: there a rank must exceed 1.3 times the fastest peer and 1.3 times its earlier self.
    Slow ranks on one node of several are that node's; slow ranks spread over nodes that make up
    more than a quarter of eight or more are an uneven load, not a machine.
    """

    peers: Peers = field(default_factory=Peers)
    looks: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 3, 0), bool))  # a ring
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((3, 0), np.int64))
    taken: int = 0
    own: dict[int, list[float]] = field(default_factory=dict)
    ratios: Values = field(default_factory=lambda: np.zeros(0))  # by place
    opened: dict[str, Blamed] = field(default_factory=dict)

    def judge(
        self,
        closed: ClosedStep,
        policy: Policy,
        *,
        node_of: Mapping[int, str],
        stage_of: Mapping[int, int],
    ) -> Iterator[Verdict]:
        """Judge one whole step; ranks without a compute time take no part."""
        compute = closed.of("compute_ms")
        told = np.isfinite(compute) & (compute > 0)
        ranks = closed.ranks
        if not told.all():
            ranks, compute = ranks[told], compute[told]
        if len(ranks) < 2:
            return
        self._widen(self.peers.meet(ranks, stage_of), policy)
        self._look(self._flags(ranks, compute, policy), policy)
        if self.taken < policy.straggler_hits:
            return
        if self.opened or self.counts[NOTICE].max() >= policy.straggler_hits:
            yield from self._verdicts(self.counts, policy, node_of, closed.step)

    def _flags(self, ranks: NDArray[np.int64], compute: Values, policy: Policy) -> Flags:
        flags = np.zeros((3, len(ranks)), bool)
        for chosen in self.peers.groups:
            if len(chosen) < 2:
                continue
            values = compute[chosen]
            if len(chosen) >= policy.straggler_peers_min:
                ratio = values / median(values)
                limits = (policy.straggler_notice, policy.straggler_warning)
            else:
                ratio = np.minimum(
                    values / _fastest_other(values), values / self._own(ranks[chosen])
                )
                limits = (policy.straggler_few_peers, policy.straggler_few_peers)
                self._learn(ranks[chosen], values, ratio > policy.straggler_notice)
            for level, limit in enumerate((*limits, policy.straggler_critical)):
                flags[level, chosen] = ratio > limit
            self.ratios[self.peers.places[chosen]] = ratio
        return flags

    def _own(self, ranks: NDArray[np.int64]) -> Values:
        """Return each rank's own earlier compute time; infinite while it is not known."""
        known = (self.own.get(rank, []) for rank in ranks.tolist())
        return np.array([np.median(v) if len(v) >= _BASELINE_VALUES_MIN else np.inf for v in known])

    def _learn(self, ranks: NDArray[np.int64], compute: Values, slow: Flags) -> None:
        for rank, value, is_slow in zip(ranks.tolist(), compute.tolist(), slow, strict=True):
            kept = self.own.setdefault(rank, [])
            if len(kept) < _BASELINE_VALUES and not is_slow:
                kept.append(value)

    def _widen(self, count: int, policy: Policy) -> None:
        """Make room for ranks that were not seen before."""
        if not len(self.looks):
            self.looks = np.zeros((policy.straggler_of, 3, 0), bool)
        if count:
            more = np.zeros((len(self.looks), 3, count), bool)
            self.looks = np.concatenate([self.looks, more], axis=2)
            self.counts = np.concatenate([self.counts, np.zeros((3, count), np.int64)], axis=1)
            self.ratios = widened(self.ratios, count)

    def _look(self, flags: Flags, policy: Policy) -> None:
        """Put a step's flags into the ring, in place of the oldest, and count again."""
        slot = self.taken % policy.straggler_of
        self.taken += 1
        self.counts -= self.looks[slot]
        self.looks[slot] = False
        self.looks[slot][:, self.peers.places] = flags
        self.counts += self.looks[slot]

    def _verdicts(
        self,
        hits: NDArray[np.int64],
        policy: Policy,
        node_of: Mapping[int, str],
        step: int,
    ) -> Iterator[Verdict]:
        known = list(self.peers.place)
        slow = [known[i] for i in np.flatnonzero(hits[NOTICE] >= policy.straggler_hits)]
        blamed = attribute(sorted(slow), known, node_of, policy=policy) if slow else []
        for who in blamed:
            places = [self.peers.place[rank] for rank in who.ranks]
            self.opened[who.subject] = who
            yield self._verdict(who, hits[:, places].max(axis=1), policy, step)
        now = {who.subject for who in blamed}
        for subject, who in list(self.opened.items()):
            places = [self.peers.place[rank] for rank in who.ranks]
            if subject not in now and hits[NOTICE, places].max() <= policy.straggler_clear_hits:
                del self.opened[subject]
                summary = f"{called(who)} keeps up with its peers again at step {step}."
                yield Verdict("straggler", subject, Phase.CLEARED, summary=summary)

    def _verdict(self, who: Blamed, hits: NDArray[np.int64], policy: Policy, step: int) -> Verdict:
        ratio = float(self.ratios[[self.peers.place[rank] for rank in who.ranks]].max())
        evidence = {
            "step": step,
            "ratio": round(ratio, 3),
            "steps": int(hits[NOTICE]),
            "of": policy.straggler_of,
            "ranks": list(who.ranks)[:64],
        }
        is_confirmed = hits[WARNING] >= policy.straggler_hits and not who.is_imbalance
        is_critical = hits[CRITICAL] >= policy.straggler_hits
        summary = (
            f"{called(who)} takes {ratio:.2f} times as long as its peers, "
            f"in {int(hits[NOTICE])} of the last {policy.straggler_of} steps."
        )
        if who.is_imbalance:
            summary += " The slow ranks are spread over nodes: the load is uneven."
        return Verdict(
            "straggler",
            who.subject,
            Phase.CONFIRMED if is_confirmed else Phase.OPENED,
            Severity.CRITICAL if is_critical else Severity.WARNING,
            summary,
            evidence,
            who.node,
            who.ranks[0] if len(who.ranks) == 1 else None,
        )


def attribute(
    slow: Sequence[int], ranks: Sequence[int], node_of: Mapping[int, str], *, policy: Policy
) -> list[Blamed]:
    """Return whom the ranks that are slow point at: a node, the load, or each rank by itself."""
    if not slow:
        return []
    nodes = {node_of.get(rank, "") for rank in slow}
    everywhere = {node_of.get(rank, "") for rank in ranks}
    if len(nodes) == 1 and len(everywhere) > 1:
        node = next(iter(nodes))
        if len(slow) > 1:
            return [Blamed(f"node-{node}", tuple(slow), node)]
        return [Blamed(f"rank-{slow[0]}", tuple(slow), node)]
    is_large = len(ranks) >= policy.straggler_imbalance_ranks
    if is_large and len(slow) > policy.straggler_imbalance_share * len(ranks):
        return [Blamed("imbalance", tuple(slow))]
    return [Blamed(f"rank-{rank}", (rank,), node_of.get(rank)) for rank in slow]


def _fastest_other(values: Values) -> Values:
    ordered = np.sort(values)
    others: Values = np.where(values == ordered[0], ordered[1], ordered[0])
    return others


def called(who: Blamed) -> str:
    """Return how a sentence names whom the slow ranks point at."""
    if who.is_imbalance:
        return f"A group of {len(who.ranks)} ranks"
    if len(who.ranks) > 1:
        return f"Node {who.node}"
    return f"Rank {who.ranks[0]}" + (f" on node {who.node}" if who.node else "")
