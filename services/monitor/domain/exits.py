"""Decisions about ranks that ended: which one was the root, when to wait, when a job storms."""

from collections.abc import Mapping, Sequence
from typing import Any

from lineshaft.contracts.alerts import Action, AlertStatus, Severity
from lineshaft.contracts.events import Event, Fact
from lineshaft.contracts.failures import FailureClass
from services.monitor.domain import state
from services.monitor.domain.diagnosis import (
    Diagnosis,
    Exit,
    action_of,
    explain_exit,
)
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import Trouble, raise_alert
from services.monitor.domain.state import JobWatch, WatchState


def of_exit(
    current: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    """Judge one rank's end.

    The rank that went first, by the agents' clocks, is the root. Ends that only say that a peer
    went away, and those that an agent saw after another's, wait a moment for it; they are
    diagnosed by themselves when it does not come. After a stop that somebody wanted, an end is
    no fault.
    """
    exit_ = exit_of(fact)
    if job.stop_intent is not None or _is_noted(job, exit_):
        return []
    found = explain_exit(exit_, policy)
    root = _root(job)
    told = _told(exit_, found)
    if root is not None and (exit_.at >= root["at"] or found.is_cascade):
        return [_noted(job, fact, told, None)]
    if found.is_cascade or fact.data.get("root") is False:
        return [_noted(job, fact, told, now + policy.cascade_wait_ms)]
    return [
        _noted(job, fact, told, None),
        *_diagnose(current, job, found, attempt=fact.attempt or 0, now=now),
        *_of_numbers(current, job, fact, found, now=now),
    ]


def _of_numbers(
    current: WatchState, job: JobWatch, fact: Fact, found: Diagnosis, *, now: int
) -> list[Event]:
    """Raise ``non_finite`` too when that is what a rank's own guard ended it for."""
    if (fact.data.get("observed") or {}).get("kind") != "non_finite":
        return []
    trouble = Trouble(
        "non_finite",
        "run",
        AlertStatus.CONFIRMED,
        Severity.CRITICAL,
        found.summary,
        fact.attempt or 0,
        {"at": found.evidence["at"], "last_line": found.evidence["last_line"]},
        found.node,
        found.rank,
    )
    return raise_alert(current, job, trouble, now)


def of_end(current: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy) -> list[Event]:
    """Judge a node that ended in failure without any rank's end being known.

    The ranks' own facts may still be on their way, so it waits like a cascade does.
    """
    data = fact.data
    if job.stop_intent is not None or data["outcome"] != "failed" or job.exits:
        return []
    failure_class = data["class"] or str(FailureClass.INFRASTRUCTURE)
    if failure_class not in list(FailureClass):
        return []
    why = str(data.get("reason") or data.get("summary") or "no rank's end was recorded")[:300]
    found = Diagnosis(
        what="node_failed",
        subject=f"node-{data['node']}",
        failure_class=FailureClass(failure_class),
        action=action_of(FailureClass(failure_class)),
        summary=f"Node {data['node']} ended the run as failed: {why}.",
        advice="Read the agent's last log lines of that node.",
        evidence={"outcome": data["outcome"], "reason": why},
        node=str(data["node"]),
    )
    told = {"node": found.node, "rank": None, "at": fact.at, "found": _plain(found)}
    return [_noted(job, fact, told, now + policy.cascade_wait_ms)]


def judge_waiting(current: WatchState, *, now: int, policy: Policy) -> list[Event]:
    """Diagnose the earliest of the ends that waited in vain for their root."""
    made: list[Event] = []
    for job in current.jobs.values():
        ripe = [row for row in job.waiting if row["until"] <= now]
        if ripe:
            first = min(job.waiting, key=lambda row: (row["at"], str(row["rank"])))
            found = _restored(first["found"])
            made += _diagnose(current, job, found, attempt=job.attempt, now=now)
    return made


def judge_storm(
    current: WatchState,
    job: JobWatch,
    failures: Sequence[Sequence[int]],
    *,
    now: int,
    policy: Policy,
) -> list[Event]:
    """Raise ``restart_storm``: five failures in 30 minutes, or three without a new checkpoint.

    ``failures`` are rows of (attempt, at, step of the newest checkpoint), the newest last. A
    crash loop costs others more than itself: one published cluster counted 548 preemptions
    caused by a single job that was started again 35 times.
    """
    at, checkpoint = failures[-1][1], failures[-1][2]
    lately = [row for row in failures if at - row[1] <= policy.storm_within_ms]
    recent = failures[-policy.storm_without_checkpoint :]
    is_stuck = len(recent) >= policy.storm_without_checkpoint and all(
        row[2] == checkpoint for row in recent
    )
    if len(lately) < policy.storm_attempts and not is_stuck:
        return []
    why = (
        f"{len(recent)} attempts in a row ended without a new checkpoint"
        if is_stuck
        else f"{len(lately)} attempts failed within {policy.storm_within_ms // 60_000} minutes"
    )
    attempt = failures[-1][0]
    evidence = {"failures": [list(row) for row in failures[-8:]]}
    trouble = Trouble(
        "restart_storm",
        "run",
        AlertStatus.CONFIRMED,
        Severity.CRITICAL,
        f"The job restarts without progress: {why}.",
        attempt,
        evidence,
    )
    found = Diagnosis(
        "restart_storm",
        "run",
        None,
        Action.HOLD,
        trouble.summary,
        "Hold the job and compare the diagnoses of its attempts.",
        evidence,
    )
    return [*raise_alert(current, job, trouble, now), *_once(job, found, attempt)]


def exit_of(fact: Fact) -> Exit:
    """Read a ``run.rank_exited`` fact, with what a handler observed beside it."""
    data = fact.data
    seen = data.get("observed") or {}
    return Exit(
        at=_when(fact),
        node=str(data["node"]),
        rank=int(data["rank"]),
        exit_code=data["exit_code"],
        signal=data["signal"],
        hits=tuple(seen.get("hits", ())),
        around=tuple(seen.get("around", ())),
        host_memory=seen.get("host_memory"),
        failure_class=_class_of(seen.get("class")),
        agent_class=_class_of(seen.get("agent_class")),
        last_line=str(seen.get("last_line") or ""),
    )


def _when(fact: Fact) -> int:
    """Return when the rank ended; the fact's own time is that of its record."""
    at = fact.data.get("ended_at")
    return at if isinstance(at, int) and at > 0 else fact.at


def _class_of(value: Any) -> FailureClass | None:
    return FailureClass(value) if value in list(FailureClass) else None


def _diagnose(
    current: WatchState, job: JobWatch, found: Diagnosis, *, attempt: int, now: int
) -> list[Event]:
    made = _once(job, found, attempt)
    if made:
        trouble = Trouble(
            "rank_exited",
            found.subject,
            AlertStatus.CONFIRMED,
            Severity.CRITICAL,
            found.summary,
            attempt,
            found.evidence,
            found.node,
            found.rank,
        )
        made += raise_alert(current, job, trouble, now)
    return made


def _once(job: JobWatch, found: Diagnosis, attempt: int) -> list[Event]:
    if f"{attempt}/{found.what}/{found.subject}" in job.diagnosed:
        return []
    data = found.told(job.job, attempt)
    return [Event("run.diagnosed", data, job.job, attempt, job.pool, job.team)]


def _noted(job: JobWatch, fact: Fact, told: dict[str, Any], until: int | None) -> Event:
    data = {"exit": told, "until": until}
    return Event(state.EXIT_NOTED, data, job.job, fact.attempt, job.pool, job.team)


def _told(exit_: Exit, found: Diagnosis) -> dict[str, Any]:
    return {
        "node": exit_.node,
        "rank": exit_.rank,
        "at": exit_.at,
        "exit_code": exit_.exit_code,
        "signal": exit_.signal,
        "is_cascade": found.is_cascade,
        "found": _plain(found),
    }


def _plain(found: Diagnosis) -> dict[str, Any]:
    return {
        "what": found.what,
        "subject": found.subject,
        "class": None if found.failure_class is None else str(found.failure_class),
        "action": str(found.action),
        "summary": found.summary,
        "advice": found.advice,
        "evidence": dict(found.evidence),
        "node": found.node,
        "rank": found.rank,
        "is_cascade": found.is_cascade,
    }


def _restored(row: Mapping[str, Any]) -> Diagnosis:
    return Diagnosis(
        row["what"],
        row["subject"],
        None if row["class"] is None else FailureClass(row["class"]),
        Action(row["action"]),
        row["summary"],
        row["advice"],
        row["evidence"],
        row["node"],
        row["rank"],
        row["is_cascade"],
    )


def _is_noted(job: JobWatch, exit_: Exit) -> bool:
    return any(row["rank"] == exit_.rank and row["node"] == exit_.node for row in job.exits)


def _root(job: JobWatch) -> Mapping[str, Any] | None:
    """Return the earliest noted end that explains itself, or None."""
    roots = [row for row in job.exits if row["rank"] is not None and not row["is_cascade"]]
    return min(roots, key=lambda row: row["at"], default=None)
