"""Rules on who is there: ranks that never joined, nodes that are not heard any more.

Silence alone gives an alert and never a reason to stop anything. Each rule keeps its memory of
one attempt and yields verdicts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lineshaft.contracts.alerts import Severity
from services.monitor.domain.observations import RUN, Phase, Verdict
from services.monitor.domain.policy import Policy


@dataclass(slots=True)
class NotJoined:
    """Fifteen minutes after the launch some ranks of the gang have not reported."""

    expected: dict[str, int] = field(default_factory=dict)  # node -> ranks
    launched_at: int = 0
    joined: set[str] = field(default_factory=set)

    def judge(self, now: int, policy: Policy) -> Iterator[Verdict]:
        """Judge when time passes."""
        missing = sorted(set(self.expected) - self.joined)
        if not self.launched_at or not self.expected:
            return
        if not missing:
            yield Verdict("not_joined", RUN, Phase.CLEARED, summary="All nodes reported.")
        elif now - self.launched_at > policy.join_ms:
            ranks = sum(self.expected[node] for node in missing)
            named = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            yield Verdict(
                "not_joined",
                RUN,
                Phase.CONFIRMED,
                Severity.WARNING,
                f"{ranks} ranks have not reported since the launch, on: {named}.",
                {"nodes": missing[:64], "ranks": ranks, "since": self.launched_at},
            )


@dataclass(slots=True)
class NodeLost:
    """A node whose beats stopped: unobserved after three, lost only with a second channel.

    The second channel is what peers show: a collective error in their logs, or no step made
    while they beat. Nothing is judged unless the monitor's own path is proved, nor when more
    than a fifth of ten or more nodes fall silent together: then the network or the bus is the
    suspect, not the nodes.
    """

    heard: dict[str, int] = field(default_factory=dict)  # node -> received, ms
    peers_failed_at: int = 0

    def judge(
        self, now: int, policy: Policy, *, path_proved: bool, stalled: bool
    ) -> Iterator[Verdict]:
        """Judge when time passes. ``stalled``: the nodes that do beat say that no step is made."""
        silent = {
            node: now - at for node, at in self.heard.items() if now - at > policy.unobserved_ms
        }
        for node in sorted(set(self.heard) - set(silent)):
            yield Verdict(
                "node_lost", f"node-{node}", Phase.CLEARED, summary=f"Node {node} is heard again."
            )
        crowd = len(self.heard) >= policy.silent_nodes_min
        if not path_proved or (crowd and len(silent) > policy.silent_share * len(self.heard)):
            return
        has_peers = len(silent) < len(self.heard)
        failed = bool(self.peers_failed_at) and now - self.peers_failed_at < 2 * policy.lost_ms
        for node, silence in sorted(silent.items()):
            second = "peers make no step" if stalled else "peers report collective errors"
            is_lost = silence >= policy.lost_ms and has_peers and (stalled or failed)
            summary = f"Node {node} has not been heard for {silence / 1000:.0f} s"
            summary += f", and {second}." if is_lost else "; nothing else says that it is lost."
            yield Verdict(
                "node_lost",
                f"node-{node}",
                Phase.CONFIRMED if is_lost else Phase.OPENED,
                Severity.CRITICAL,
                summary,
                {"node": node, "silence_ms": silence, "second": second if is_lost else None},
                node,
            )
