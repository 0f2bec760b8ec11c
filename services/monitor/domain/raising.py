"""Alerts as events: opening, confirming, resolving, acknowledging, silencing one.

Builds events from a job's state; appends and decides nothing by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts import ids
from lineshaft.contracts.alerts import (
    KINDS,
    SEVERITY_RANK,
    AlertKey,
    AlertStatus,
    Severity,
    alert_id,
    runbook,
)
from lineshaft.contracts.events import Event
from services.monitor.domain.state import Alert, JobWatch, WatchState, key_of

EVIDENCE_CHARS_MAX = 16_000
CAUSES: dict[str, tuple[str, ...]] = {
    "below_plan": ("straggler", "data_starvation"),
    "job_slow": ("straggler", "data_starvation"),
    "low_utilisation": ("straggler", "data_starvation"),
    "zero_utilisation": ("hang",),
}
"""Kinds that are consequences: while a cause is confirmed for the same job, it alone is told."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an alert is to say. ``episode`` 0: the next one of its (kind, subject)."""

    kind: str
    subject: str
    status: AlertStatus
    severity: Severity
    summary: str
    attempt: int
    evidence: Mapping[str, Any] = field(default_factory=dict)
    node: str | None = None
    rank: int | None = None
    episode: int = 0


def raise_alert(state: WatchState, job: JobWatch, trouble: Trouble, now: int) -> list[Event]:
    """Return the event that opens or confirms an alert; none when it says nothing new.

    An open alert of the same (kind, subject) is confirmed under its own id, also when another
    attempt opened it.
    """
    standing = job.open_alert(trouble.kind, trouble.subject)
    episode = trouble.episode or _next_episode(job, trouble)
    if standing is not None:
        if not _says_more(standing, trouble):
            return []
        changed = {
            **standing,
            "status": str(trouble.status),
            "severity": str(trouble.severity),
            "summary": trouble.summary,
            "evidence": _bounded(trouble.evidence),
            "node": trouble.node,
            "rank": trouble.rank,
            "changed_at": now,
            "last_episode": episode,
        }
        return [_event("alert.firing", job, changed, trouble.attempt)]
    if _is_old_episode(job, trouble):
        return []
    key = AlertKey(job.job, trouble.attempt, trouble.kind, trouble.subject, episode)
    is_opened = trouble.status is AlertStatus.OPENED
    kind = KINDS[trouble.kind]
    alert: Alert = {
        "alert": alert_id(key, state.partition),
        "job": job.job,
        "name": job.name,
        "attempt": trouble.attempt,
        "kind": trouble.kind,
        "subject": trouble.subject,
        "episode": episode,
        "last_episode": episode,
        "status": str(trouble.status),
        "severity": str(Severity.NOTICE if is_opened else trouble.severity),
        "title": kind.title,
        "advice": kind.advice,
        "runbook": runbook(trouble.kind),
        "summary": trouble.summary,
        "evidence": _bounded(trouble.evidence),
        "node": trouble.node,
        "rank": trouble.rank,
        "opened_at": now,
        "changed_at": now,
        "acknowledged_by": None,
        "silenced_until": job.silences.get(key_of(trouble.kind, trouble.subject), 0),
        "inhibited_by": _inhibitor(state, job, trouble),
        "reason": None,
    }
    return [_event("alert.firing", job, alert, trouble.attempt)]


def resolve(job: JobWatch, alert: Alert, *, reason: str, actor: str, now: int) -> Event:
    """Return the event that ends an alert."""
    ended = {
        **alert,
        "status": str(AlertStatus.RESOLVED),
        "reason": reason,
        "resolved_by": actor,
        "resolved_at": now,
        "changed_at": now,
    }
    return _event("alert.resolved", job, ended, alert["attempt"])


def resolve_all(job: JobWatch, reason: str, now: int) -> list[Event]:
    """Return the events that end every open alert of a job, in the order of their ids."""
    return [
        resolve(job, alert, reason=reason, actor="monitor", now=now)
        for _, alert in sorted(job.alerts.items())
    ]


def acknowledge(job: JobWatch, alert: Alert, *, actor: str, reason: str, now: int) -> Event:
    """Return the event that says who took an alert."""
    taken = {**alert, "acknowledged_at": now, "reason": reason, "actor": actor}
    taken["acknowledged_by"] = actor
    return _event("alert.acknowledged", job, taken, alert["attempt"])


def _event(kind: str, job: JobWatch, alert: Alert, attempt: int) -> Event:
    return Event(kind, alert, job.job, attempt, job.pool, job.team)


def _says_more(standing: Alert, trouble: Trouble) -> bool:
    if trouble.status is AlertStatus.OPENED:
        return False
    if str(standing["status"]) == AlertStatus.OPENED:
        return True
    rank = SEVERITY_RANK[str(standing["severity"])]
    return SEVERITY_RANK[trouble.severity] > rank


def _next_episode(job: JobWatch, trouble: Trouble) -> int:
    attempt, episode = job.episodes.get(key_of(trouble.kind, trouble.subject), [0, 0])[:2]
    return episode + 1 if attempt == trouble.attempt else 1


def _is_old_episode(job: JobWatch, trouble: Trouble) -> bool:
    """Tell whether this episode was raised and ended before: a late or repeated word of it."""
    known = job.episodes.get(key_of(trouble.kind, trouble.subject))
    if known is None or not trouble.episode:
        return False
    attempt, episode = int(known[0]), int(known[1])
    return attempt == trouble.attempt and trouble.episode <= episode


def _inhibitor(state: WatchState, job: JobWatch, trouble: Trouble) -> str | None:
    """Return the alert that already tells of the same trouble: one fault is one alarm.

    That is an open alert of a cause in the same job, or one of the same node in another; only
    jobs of the same partition are looked at, since each stream decides by itself.
    """
    for _, cause in sorted(job.alerts.items()):
        is_sure = cause["status"] == AlertStatus.CONFIRMED
        if is_sure and cause["kind"] in CAUSES.get(trouble.kind, ()):
            return str(cause["alert"])
    if not trouble.subject.startswith("node-"):
        return None
    for other in state.jobs.values():
        standing = other.open_alert(trouble.kind, trouble.subject)
        if other is not job and standing is not None and standing["inhibited_by"] is None:
            return str(standing["alert"])
    return None


def _bounded(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return evidence whose JSON stays small, whatever a rule or a line put into it."""
    kept: dict[str, Any] = {}
    left = EVIDENCE_CHARS_MAX
    for name, value in evidence.items():
        left -= len(name) + len(repr(value))
        if left < 0:
            kept["cut"] = True
            break
        kept[name] = value
    return kept


def partition_stream(partition: int) -> str:
    """Return the journal stream of a partition."""
    return f"watch/{partition}"


def stream_of(job: str) -> str:
    """Return the journal stream that holds what is known of a job."""
    return partition_stream(ids.partition(job))
