"""What an operator may set about scheduling: quotas, declared nodes, durations.

Values only. Durations are in milliseconds; the defaults are the platform's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.failures import DEFAULT_LIMITS, Budget


class PolicyError(ValueError):
    """Policy values are wrong; ``faults`` holds a line for each, fit for people."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


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
    # Whether runs live on when the scheduler's process is asked to stop; the next start takes
    # them over. False: every run is asked to save and end, and the stop waits for it.
    should_leave_running: bool = True
    # What the pool has at most; empty: what was ever reported.
    declared: tuple[DeclaredNodes, ...] = ()
    budgets: Mapping[Budget, int] = field(default_factory=lambda: dict(DEFAULT_LIMITS))
    attempts_max: int = limits.ATTEMPTS_MAX
    placements_per_decision_max: int = 32

    launch_not_after_ms: int = limits.LAUNCH_NOT_AFTER_S * 1000
    # Until the launcher says that agents start, then until ranks do: agents prepare data first.
    start_timeout_ms: int = limits.START_TIMEOUT_S * 1000
    prepare_timeout_ms: int = 6 * 3600 * 1000
    stop_grace_ms: int = limits.STOP_GRACE_S_MIN * 1000
    # After a fault nobody can save: the gang is broken.
    fault_grace_ms: int = 10_000
    # After a diagnosis the agents take the stacks of their ranks first.
    stacks_grace_ms: int = limits.STACKS_WAIT_S_MAX * 1000
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

    @classmethod
    def read(
        cls,
        values: Mapping[str, Any],
        *,
        quotas: Mapping[str, int],
        declared: Sequence[DeclaredNodes],
    ) -> "Policy":
        """Read ``[policy.scheduler]``: numbers and flags by their names here, ``budgets`` a table.

        Raises ``PolicyError`` with every fault.
        """
        faults: list[str] = []
        made: dict[str, Any] = {}
        for name, value in values.items():
            try:
                made[name] = _budgets(value) if name == "budgets" else _value(cls, name, value)
            except ValueError as error:
                faults.append(f"policy.scheduler.{name}: {error}")
        if faults:
            raise PolicyError(faults)
        return cls(**made, quotas=dict(quotas), declared=tuple(declared))


_NOT_HERE = ("quotas", "declared", "budgets")


def _value(policy: type[Policy], name: str, value: Any) -> int | bool:
    known = {one.name: one.default for one in fields(policy) if one.name not in _NOT_HERE}
    if name not in known:
        raise ValueError(f"is not known; known are budgets, {', '.join(sorted(known))}")
    if isinstance(known[name], bool):
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    return _whole(value, least=1)


def _whole(value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"must be a whole number, at least {least}")
    return value


def _budgets(value: Any) -> dict[Budget, int]:
    if not isinstance(value, Mapping) or not value.keys() <= set(Budget):
        raise ValueError(f"must be a table of {', '.join(Budget)}")
    return DEFAULT_LIMITS | {Budget(name): _whole(one, least=0) for name, one in value.items()}
