"""What a failed attempt means: evidence to class, class to budget, budget to what follows.

The rules are ordered data, the first that matches wins. Pure functions of a job and the evidence;
nothing is written here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts.failures import (
    BUDGET_OF,
    EXIT_FENCED,
    EXIT_OF_CLASS,
    Budget,
    FailureClass,
)
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import Checkpoint, Fault, Job, Run

_CLASS_OF_EXIT = {code: failure for failure, code in EXIT_OF_CLASS.items()}
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows a failed attempt.

    ``rule`` names the rule that matched, for metrics; ``outcome`` is ``retry``, ``hold`` or
    ``fail``; ``rejected`` is the checkpoint that runs kept failing from, when the next attempt
    goes one further back.
    """

    rule: str
    outcome: str
    failure: FailureClass
    budget: Budget
    summary: str
    used: int
    limit: int
    failures: int
    same_place: int
    rejected: Checkpoint | None = None
    avoid: tuple[str, ...] = ()
    mutation: Mapping[str, Any] = field(default_factory=dict)


def describe_exit(data: Mapping[str, Any]) -> str:
    """Say what became of a rank, from the fields of ``run.rank_exited``."""
    who = f"rank {data['rank']} on {data['node']}"
    if data.get("signal") is not None:
        number = data["signal"]
        return f"{who} was ended by signal {number} ({_SIGNALS.get(number, 'unnamed')})"
    if data.get("exit_code") is None:
        return f"{who} vanished without an exit code"
    error = data.get("error") or {}
    lines = [str(line).strip() for line in data["last_lines"] if str(line).strip()]
    said = f"{error['kind']}: {error.get('message')}" if error.get("kind") else "".join(lines[-1:])
    return f"{who} ended with exit code {data['exit_code']}" + (f": {said[:300]}" if said else "")


def class_of_exit(data: Mapping[str, Any]) -> FailureClass | None:
    """Return the class that a rank's end suggests: the agent's word, else its code or signal."""
    named = data.get("class") or (data.get("error") or {}).get("class")
    if named in set(FailureClass):
        return FailureClass(named)
    if data.get("signal") is not None or data.get("exit_code") in (None, EXIT_FENCED):
        return FailureClass.INFRASTRUCTURE
    return _CLASS_OF_EXIT.get(data["exit_code"], FailureClass.USER_CODE)


_WEIGHT = {"launch_failed": 0, "diagnosed": 1, "node_failed": 3, "cascade": 4}


def _kind(fault: Fault, faults: Sequence[Fault]) -> str:
    """Return what a piece of evidence is worth: of a rank that was taken along, a cascade."""
    taken_along = {one.rank for one in faults if one.what == "cascade"} - {None}
    return "cascade" if fault.rank in taken_along else fault.what


def root_of(faults: Sequence[Fault]) -> Fault:
    """Return the evidence that counts as the cause.

    A launch that failed outranks what it left half a gang to say, a diagnosis that asks for
    something outranks the rest, and what others took along comes last; then the earliest, since
    the first rank to go takes its peers along (of two at once, the one that was killed takes the
    other).
    """

    def order(one: Fault) -> tuple[int, int, bool, str]:
        is_killed = one.failure is FailureClass.INFRASTRUCTURE
        return (_WEIGHT.get(_kind(one, faults), 2), one.at, not is_killed, one.summary)

    return min(faults, key=order)


def is_settled(faults: Sequence[Fault]) -> bool:
    """Tell whether the cause is known, so that no diagnosis need be waited for."""
    return any(_kind(one, faults) in ("diagnosed", "launch_failed") for one in faults)


def source_of(job: Job) -> Checkpoint | None:
    """Return the checkpoint that the next attempt resumes from.

    The newest of the newest attempt, since each attempt continues an earlier one's line; those
    that runs kept failing from are passed over, unless nothing else is left.
    """
    if job.spec_part("resume") == "never" or not job.checkpoints:
        return None
    good = [one for one in job.checkpoints if not one.is_rejected]
    return max(good or job.checkpoints, key=lambda one: (one.attempt, one.step))


def back_off_ms(job: Job, policy: Policy) -> int:
    """Return how long to wait before the next attempt: doubling with failures in a row."""
    exponent = min(max(job.failures - 1, 0), 30)
    return min(policy.backoff_first_ms << exponent, policy.backoff_max_ms)


@dataclass(frozen=True, slots=True)
class _Case:
    """What the rules look at."""

    root: Fault
    failure: FailureClass
    budget: Budget
    used: int
    limit: int
    same_place: int
    can_step_back: bool
    is_stepped_back: bool
    is_spent: bool
    has_no_required_source: bool
    is_new: bool  # no checkpoint is committed yet
    same_place_max: int


def _says_hold(case: _Case) -> bool:
    return case.root.action == "hold"


def _is_launch_failure(case: _Case) -> bool:
    return case.root.what in ("launch_failed", "start_overdue") and case.budget is Budget.PLATFORM


def _is_over(case: _Case) -> bool:
    # Evidence that says that a restart helps, or names a change, earns one try of its own.
    is_told = case.root.what == "diagnosed" and case.root.action == "restart"
    is_other_run = case.budget is Budget.USER and (is_told or case.root.mutation)
    return case.used > (max(case.limit, 1) if is_other_run else case.limit)


_Rule = tuple[str, Callable[[_Case], bool], str]

RULES: tuple[_Rule, ...] = (
    ("evidence_says_fail", lambda c: c.root.action == "fail", "fail"),
    # A job that a person can only hand in again, changed, has nothing to be held for.
    ("nothing_to_hold", lambda c: _says_hold(c) and c.budget is Budget.USER and c.is_new, "fail"),
    ("evidence_says_hold", _says_hold, "hold"),
    ("nothing_to_resume_from", lambda c: c.has_no_required_source, "hold"),
    ("attempts_spent", lambda c: c.is_spent, "hold"),
    ("launch_budget_spent", lambda c: _is_launch_failure(c) and _is_over(c), "hold"),
    ("budget_spent", _is_over, "fail"),
    (
        "same_place_again",
        lambda c: c.is_stepped_back and c.same_place >= c.same_place_max,
        "fail",
    ),
    ("same_place", lambda c: c.can_step_back and c.same_place >= c.same_place_max, "retry"),
    ("budget_left", lambda c: True, "retry"),
)
"""Name, condition, outcome. ``same_place`` also goes one checkpoint back."""


def judge(job: Job, run: Run, policy: Policy) -> Verdict:
    """Weigh all evidence of the current attempt and say what follows; ``run.faults`` is not empty.

    ``used`` counts this failure too.
    """
    root = root_of(run.faults)
    failure = _class_among(run.faults, root)
    budget = root.budget if root.budget and failure not in _USERS else BUDGET_OF[failure]
    same_place = job.same_place + 1
    source = source_of(job)
    older = [one for one in job.checkpoints if not one.is_rejected and one is not source]
    case = _Case(
        root=root,
        failure=failure,
        budget=budget,
        used=job.used.get(budget, 0) + 1,
        limit=job.limits.get(budget, policy.budgets[budget]),
        same_place=same_place,
        can_step_back=source is not None and bool(older),
        is_stepped_back=job.is_stepped_back,
        is_spent=job.launches >= policy.attempts_max,
        has_no_required_source=source is None and job.spec_part("resume") == "require",
        is_new=not job.checkpoints,
        same_place_max=policy.same_place_max,
    )
    rule, outcome = next((name, what) for name, holds, what in RULES if holds(case))
    steps_back = rule == "same_place"
    is_node = budget is Budget.NODE and root.node is not None
    return Verdict(
        rule=rule,
        outcome=outcome,
        failure=failure,
        budget=budget,
        summary=root.summary,
        used=case.used,
        limit=case.limit,
        failures=job.failures + 1,
        same_place=0 if steps_back else same_place,
        rejected=source if steps_back else None,
        avoid=_with(job.avoid, root.node) if is_node else job.avoid,
        mutation={**job.mutation, **(root.mutation or {})},
    )


_USERS = (FailureClass.USER_CODE, FailureClass.DATA, FailureClass.CONFIG)


def _class_among(faults: Sequence[Fault], root: Fault) -> FailureClass:
    """Return the failure's class: the diagnosis', else the agent's word, else the exit's."""
    named = [one for one in faults if one.failure is not None]
    of_agent = [one for one in named if one.what == "node_failed" and one.node == root.node]
    ranked = [root] if root.what == "diagnosed" else []
    for one in (*ranked, *of_agent, root, *named):
        if one.failure is not None:
            return one.failure
    return FailureClass.INFRASTRUCTURE


def _with(avoid: tuple[str, ...], node: str | None) -> tuple[str, ...]:
    if node is None or node in avoid:
        return avoid
    return (*avoid, node)


def words(verdict: Verdict, source: Mapping[str, Any] | None) -> str:
    """Return the reason text for what follows: what happened, why, and where it goes on."""
    charge = f"{verdict.failure}, {verdict.used} of {verdict.limit} {verdict.budget} retries"
    if verdict.outcome == "retry":
        return f"{verdict.summary} ({charge}); {where(source)}"
    if verdict.outcome == "hold":
        return f"{verdict.summary} ({verdict.failure}); held for a person: {_WHY[verdict.rule]}"
    return f"{verdict.summary} ({verdict.failure}); {_WHY[verdict.rule]}"


_WHY = {
    "evidence_says_fail": "the evidence says that no retry would help",
    "nothing_to_hold": "something has to change first, and no checkpoint is there to go on from",
    "evidence_says_hold": "the evidence asks for one",
    "nothing_to_resume_from": "the job asks to resume, and no checkpoint is committed",
    "attempts_spent": "no attempt is left",
    "launch_budget_spent": "it could not be launched",
    "budget_spent": "no retry is left for this class of failure",
    "same_place_again": "it fails at the same place, also from an earlier checkpoint",
}


def where(source: Mapping[str, Any] | None) -> str:
    """Say where the next attempt goes on."""
    if source is None:
        return "no checkpoint is committed yet: from the beginning"
    return f"resume from step {source['step']} of attempt {source['attempt']}"
