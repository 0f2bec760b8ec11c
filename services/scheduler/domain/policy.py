"""What an operator may set about scheduling: quotas, declared nodes, durations.

Values only. Durations are in milliseconds; the defaults are the platform's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lineshaft.contracts import limits
from lineshaft.contracts.failures import DEFAULT_LIMITS, Budget


@dataclass(frozen=True, slots=True)
class DeclaredNodes:
    """``count`` nodes that the pool has when all of them are there."""

    gpu_type: str
    slots: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of one pool; the defaults suit a laptop and a cluster alike."""

    version: int = 1
    # Slots that a team may hold at a time; a team that is not named has no limit.
    quotas: Mapping[str, int] = field(default_factory=dict)
    # What the pool has at most; empty: what was ever reported.
    declared: tuple[DeclaredNodes, ...] = ()
    budgets: Mapping[Budget, int] = field(default_factory=lambda: dict(DEFAULT_LIMITS))
    attempts_max: int = limits.ATTEMPTS_MAX
    placements_per_decision_max: int = 32

    launch_not_after_ms: int = limits.LAUNCH_NOT_AFTER_S * 1000
    start_timeout_ms: int = limits.START_TIMEOUT_S * 1000
    stop_grace_ms: int = limits.STOP_GRACE_S_MIN * 1000
    # After a fault nobody can save: the gang is broken.
    fault_grace_ms: int = 10_000
    # How much longer than its grace a stop may take before it is a finding.
    stop_slack_ms: int = 60_000
    # How long processes may outlive their whole result before they are stopped.
    finish_wait_ms: int = 120_000
    completion_wait_ms: int = 15_000
    diagnosis_wait_ms: int = 3_000
    backoff_first_ms: int = 1_000
    backoff_max_ms: int = 60_000
    # Failures without progress from the same place before the run goes one checkpoint back.
    same_place_max: int = 3
    hang_limit_ms: int = 60_000
    first_step_limit_ms: int = 20 * 60_000
