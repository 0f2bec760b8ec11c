"""Observations of watchers as facts, and what the decider makes of them.

A watcher's word becomes an alert, and once confirmed a diagnosis; silence of a node is told to
the scheduler as ``unobserved`` and ``observed``. Pure.
"""

import math
from collections.abc import Mapping
from typing import Any

from lineshaft.contracts.alerts import Action, AlertStatus, Severity
from lineshaft.contracts.events import Event, Fact
from services.monitor.domain.diagnosis import Diagnosis, explain_observation
from services.monitor.domain.observations import Observation, Phase
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import Trouble, raise_alert, resolve
from services.monitor.domain.state import OBSERVED, JobWatch, WatchState

_STATUS = {Phase.OPENED: AlertStatus.OPENED, Phase.CONFIRMED: AlertStatus.CONFIRMED}


def observed(seen: Observation, job: str, attempt: int, place: tuple[str, str]) -> Fact:
    """Return the fact that carries an observation; ``place`` is pool and team.

    The id is made of what the episode is, so that two watchers of one run say the same thing.
    """
    name = f"{seen.kind}/{seen.subject}/{seen.episode}/{seen.phase}"
    if seen.phase is Phase.CONFIRMED:
        name += f"/{seen.severity}"
    return Fact(
        id=f"watch/{job}/{attempt}/{name}",
        kind=OBSERVED,
        data={
            "kind": seen.kind,
            "subject": seen.subject,
            "episode": seen.episode,
            "phase": str(seen.phase),
            "severity": str(seen.severity),
            "summary": seen.summary,
            "evidence": plain(seen.evidence),
            "node": seen.node,
            "rank": seen.rank,
        },
        at=seen.at,
        source="monitor",
        subject=job,
        attempt=attempt,
        pool=place[0],
        team=place[1],
    )


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: no NaN, no infinity, no foreign types."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def of_observation(
    current: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    """Open, confirm or resolve the alert of an observation; a confirmation is diagnosed."""
    data = fact.data
    phase = Phase(data["phase"])
    if phase is Phase.CLEARED:
        standing = job.open_alert(data["kind"], data["subject"])
        if standing is None or standing["last_episode"] != data["episode"]:
            return []
        made = [resolve(job, standing, reason=data["summary"], actor="monitor", now=now)]
        return made + _of_sight(job, fact, is_seen=True)
    seen = _observation(data, fact.at, phase)
    attempt = fact.attempt or 0
    trouble = Trouble(
        seen.kind,
        seen.subject,
        _STATUS[phase],
        seen.severity,
        seen.summary,
        attempt,
        seen.evidence,
        seen.node,
        seen.rank,
        seen.episode,
    )
    made = raise_alert(current, job, trouble, now)
    if made and phase is Phase.OPENED:
        made += _of_sight(job, fact, is_seen=False)
    if made and phase is Phase.CONFIRMED:
        found = explain_observation(seen)
        made += diagnosed(job, found, attempt) if found else []
    return made


def _of_sight(job: JobWatch, fact: Fact, *, is_seen: bool) -> list[Event]:
    """Say that a node went out of sight, or that the last one of those is heard again.

    These two may repeat within an attempt, so their subject names the episode.
    """
    data = fact.data
    others = [a for a in job.alerts.values() if a["kind"] == "node_lost"]
    is_last = all(a["subject"] == data["subject"] for a in others)
    if data["kind"] != "node_lost" or (is_seen and not is_last):
        return []
    found = Diagnosis(
        what="observed" if is_seen else "unobserved",
        subject=f"{data['subject']}.{data['episode']}",
        failure_class=None,
        action=Action.NOTE,
        summary=data["summary"],
        advice="Nothing is stopped on silence alone.",
        evidence=data["evidence"],
        node=data["subject"].removeprefix("node-"),
    )
    return diagnosed(job, found, fact.attempt or 0)


def diagnosed(job: JobWatch, found: Diagnosis, attempt: int) -> list[Event]:
    """Return the ``run.diagnosed`` of ``found``, once per (attempt, what, subject)."""
    if f"{attempt}/{found.what}/{found.subject}" in job.diagnosed:
        return []
    data = found.told(job.job, attempt)
    return [Event("run.diagnosed", data, job.job, attempt, job.pool, job.team)]


def _observation(data: Mapping[str, Any], at: int, phase: Phase) -> Observation:
    return Observation(
        data["kind"],
        data["subject"],
        int(data["episode"]),
        phase,
        Severity(data["severity"]),
        data["summary"],
        data["evidence"],
        at,
        data["node"],
        data["rank"],
    )
