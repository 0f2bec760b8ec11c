"""One decision under way: the events so far, and the state as they would leave it.

Every change of a job's place goes through ``move``, which asks the life-cycle table. The other
modules of the domain decide with it; it decides nothing by itself.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lineshaft.contracts.events import NOT_APPLICABLE, Event
from lineshaft.contracts.failures import StopIntent
from lineshaft.contracts.lifecycle import (
    Happening,
    Ignore,
    Impossible,
    Place,
    State,
    Transition,
    rule,
)
from lineshaft.runtime.decider import FactRefused
from services.scheduler.domain.evolve import evolve
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import Job, PoolState, Run

PLATFORM = "platform"
"""The actor of what the scheduler does by its own rules."""

_KIND_OF = {
    State.PENDING: "job.queued",
    State.SCHEDULED: "job.placed",
    State.RUNNING: "job.running",
    State.SUSPENDED: "job.suspended",
    State.RETRYING: "job.retrying",
    State.SUCCEEDED: "job.succeeded",
    State.FAILED: "job.failed",
    State.CANCELLED: "job.cancelled",
}


class Work:
    """The events of one decision, applied to a fork of the state as they are made."""

    def __init__(self, state: PoolState, *, now: int, policy: Policy, ignored: Counter[str]):
        self.state = state.fork()
        self.now = now
        self.policy = policy
        self.events: list[Event] = []
        self.ignored = ignored
        """Counts of facts that changed nothing, by reason: for metrics, never read here."""

    def emit(self, kind: str, data: dict[str, Any], *, job: Job | None = None) -> None:
        """Add an event, about ``job`` or about the pool, and apply it."""
        event = Event(
            kind=kind,
            data=data,
            subject=job.id if job else NOT_APPLICABLE,
            attempt=job.attempt if job and job.attempt else None,
            pool=self.state.pool,
            team=job.team if job else NOT_APPLICABLE,
        )
        self.add(event)

    def add(self, event: Event) -> None:
        """Add an event as it is, and apply it."""
        self.events.append(event)
        evolve(self.state, event, at=self.now)

    def job(self, job: Job) -> Job:
        """Return the job as it is by now."""
        return self.state.jobs[job.id]

    def run(self, job: Job) -> Run:
        """Return the job's current run as it is by now."""
        run = self.state.jobs[job.id].run
        assert run is not None, f"{job.id} has no run"
        return run

    def allows(self, job: Job, happening: Happening) -> Transition | None:
        """Ask the table; None when it says ignore, ``FactRefused`` when it can never be."""
        answer = rule(self.job(job).place, happening)
        if isinstance(answer, Impossible):
            raise FactRefused(f"{job.id}: {answer.story}")
        if isinstance(answer, Ignore):
            self.ignored[answer.reason] += 1
            return None
        return answer

    def move(
        self, job: Job, happening: Happening, to: Place, *, reason: str, actor: str = PLATFORM,
        **more: Any,
    ) -> Job:  # fmt: skip
        """Move a job as the table allows, and say so with a public event."""
        place = self.job(job).place
        answer = rule(place, happening)
        assert isinstance(answer, Transition), f"{job.id}: {happening} in {place}"
        assert to in answer.to, f"{job.id}: {happening} does not lead from {place} to {to}"
        return self.tell(job, to, reason=reason, actor=actor, **more)

    def tell(self, job: Job, place: Place, *, reason: str, actor: str, **more: Any) -> Job:
        """Write the public event of a job's place."""
        job = self.job(job)
        data: dict[str, Any] = {
            "state": place.state.value,
            "substate": place.substate,
            "reason": reason,
            "actor": actor,
            "job_version": job.version + 1,
            "name": job.name,
            "job_type": job.spec_part("jobType"),
            "model_name": job.resolved.get("output", {}).get("model_name"),
            "priority": job.priority,
            **more,
        }
        attempt = more.get("attempt", job.attempt) or None
        if attempt:
            data["attempt"] = attempt
        self.add(Event(_KIND_OF[place.state], data, job.id, attempt, self.state.pool, job.team))
        return self.job(job)

    def timers(self, job: Job, **timers: int | None) -> None:
        """Set timers of a job (ms since the epoch), or clear them (None)."""
        known = self.job(job).timers
        changed = {name: at for name, at in timers.items() if known.get(name) != at}
        if changed:
            self.emit("pool.timer", {"timers": changed}, job=self.job(job))

    def clear_timers(self, job: Job) -> None:
        """Clear every timer of a job."""
        self.timers(job, **dict.fromkeys(self.job(job).timers))

    def order_stop(self, job: Job, intent: StopIntent, *, reason: str, actor: str) -> bool:
        """Order the current run to stop, or raise the intent of the stop under way.

        Returns whether anything was ordered: not when it is gone, or stops for as much already.
        """
        run = self.run(job)
        if run.is_gone or (run.stop is not None and not run.stop.is_below(intent)):
            return False
        grace_ms = grace_of(job, self.policy)
        if intent is StopIntent.FAULT:
            is_seen = any(fault.what == "diagnosed" for fault in run.faults)
            grace_ms = self.policy.stacks_grace_ms if is_seen else self.policy.fault_grace_ms
        self.emit(
            "run.stop_ordered",
            {
                "epoch": self.state.epoch,
                "intent": intent.value,
                "reason": reason,
                "actor": actor,
                "grace_ms": grace_ms,
                "at": self.now,
            },
            job=self.job(job),
        )
        self.timers(job, stop=self.now + grace_ms + self.policy.stop_slack_ms)
        return True

    def finding(self, kind: str, subject: str, summary: str, *, job: Job | None = None) -> None:
        """Open an audit finding, unless it is open."""
        if subject not in self.state.findings:
            self._audit(kind, subject, "open", summary=summary, job=job)

    def close_finding(self, subject: str, *, job: Job | None = None) -> None:
        """Close an audit finding, if it is open."""
        kind = self.state.findings.get(subject)
        if kind is not None:
            self._audit(kind, subject, "closed", summary="it is over", job=job)

    def _audit(
        self, kind: str, subject: str, status: str, *, summary: str, job: Job | None
    ) -> None:
        data = {"kind": kind, "subject": subject, "status": status, "summary": summary}
        self.emit("audit.finding", data, job=job)


def grace_of(job: Job, policy: Policy) -> int:
    """Return how long (ms) a stopped run has to save and end: the job's wish or the policy's."""
    seconds = job.spec_part("gracePeriod")
    return policy.stop_grace_ms if seconds is None else int(seconds) * 1000


def start_timeout_of(job: Job, policy: Policy) -> int:
    """Return how long (ms) a launch may take to start: the job's wish or the policy's."""
    seconds = job.spec_part("startTimeout")
    return policy.start_timeout_ms if seconds is None else int(seconds) * 1000


def resume_of(source: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a resume source as a plain object for an event."""
    return dict(source) if source is not None else None
