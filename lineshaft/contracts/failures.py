"""Failure classes, the budgets that pay for them, and the agent's exit codes.

A class says who has to act; a budget says how often the platform tries again by itself.
"""

from enum import StrEnum


class FailureClass(StrEnum):
    """Why an attempt failed, as far as the evidence goes."""

    INFRASTRUCTURE = "infrastructure"
    TRANSIENT = "transient"
    USER_CODE = "user_code"
    DATA = "data"
    CONFIG = "config"


class Budget(StrEnum):
    """What an attempt is charged to; counters are kept per job and per budget."""

    NODE = "node"
    PLATFORM = "platform"
    PREEMPTION = "preemption"
    USER = "user"


BUDGET_OF: dict[FailureClass, Budget] = {
    FailureClass.INFRASTRUCTURE: Budget.NODE,
    FailureClass.TRANSIENT: Budget.PLATFORM,
    FailureClass.USER_CODE: Budget.USER,
    FailureClass.DATA: Budget.USER,
    FailureClass.CONFIG: Budget.USER,
}

DEFAULT_LIMITS: dict[Budget, int] = {
    Budget.NODE: 5,
    Budget.PLATFORM: 5,
    Budget.PREEMPTION: 32,
    Budget.USER: 0,
}

# The agent's exit codes: all that a supervisor which sees only the process learns.
EXIT_COMPLETED = 0
EXIT_STOPPED = 40
EXIT_OF_CLASS: dict[FailureClass, int] = {
    FailureClass.INFRASTRUCTURE: 41,
    FailureClass.TRANSIENT: 42,
    FailureClass.USER_CODE: 43,
    FailureClass.DATA: 44,
    FailureClass.CONFIG: 45,
}
EXIT_FENCED = 46


class StopIntent(StrEnum):
    """Why a run is stopped; a drain keeps its intent, which may only be raised."""

    RESIZE = "resize"
    MIGRATE = "migrate"
    FAULT = "fault"
    PREEMPT = "preempt"
    SUSPEND = "suspend"
    CANCEL = "cancel"


INTENT_RANK: dict[StopIntent, int] = {intent: rank for rank, intent in enumerate(StopIntent)}
