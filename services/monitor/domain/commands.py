"""Commands of people to alerts: acknowledge, resolve, silence. Each always leaves an entry."""

from lineshaft.contracts.events import Event, Fact
from lineshaft.runtime.decider import FactRefused
from services.monitor.domain import state
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import acknowledge, resolve
from services.monitor.domain.state import Alert, JobWatch, WatchState

ACKNOWLEDGE, RESOLVE, SILENCE = "watch.acknowledge", "watch.resolve", "watch.silence"
VERBS = (ACKNOWLEDGE, RESOLVE, SILENCE)
"""Kinds of the internal facts that carry a command."""


def decide(current: WatchState, fact: Fact, *, now: int, policy: Policy) -> list[Event]:
    """Return what a command changes, or a note that it changed nothing.

    Data: alert, actor, reason, and for a silence ``for_ms``. Raises ``FactRefused`` for an alert
    that this stream never held open.
    """
    name = str(fact.data["alert"])
    for job in current.jobs.values():
        if name in job.alerts:
            return _apply(job, job.alerts[name], fact, now, policy)
    raise FactRefused(f"no open alert has the id {name}; it may have ended already")


def _apply(job: JobWatch, alert: Alert, fact: Fact, now: int, policy: Policy) -> list[Event]:
    actor, reason = str(fact.data["actor"]), str(fact.data.get("reason") or "")
    if fact.kind == RESOLVE:
        return [resolve(job, alert, reason=reason or "ended by hand", actor=actor, now=now)]
    if fact.kind == SILENCE:
        until = now + int(fact.data.get("for_ms") or policy.silence_ms)
        data = {
            "alert": alert["alert"],
            "kind": alert["kind"],
            "of": alert["subject"],
            "until": until,
            "actor": actor,
            "reason": reason,
        }
        return [Event(state.SILENCED, data, job.job, alert["attempt"], job.pool, job.team)]
    if alert["acknowledged_by"] == actor:
        data = {"alert": alert["alert"], "verb": fact.kind, "actor": actor}
        return [Event(state.COMMAND_NOTED, data, job.job, alert["attempt"], job.pool, job.team)]
    return [acknowledge(job, alert, actor=actor, reason=reason, now=now)]
