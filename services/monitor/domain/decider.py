"""The monitor's decider: facts about jobs and runs in, diagnoses and alerts out.

Owns the streams ``watch/<partition>``. Pure: measurements reach it as observations, journaled as
facts of the kind ``watch.observed`` whose ids name (job, attempt, kind, subject, episode, phase).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lineshaft.contracts import ids, limits
from lineshaft.contracts.alerts import AlertStatus, Severity, partition_of
from lineshaft.contracts.events import NOT_APPLICABLE, Event, Fact
from services.monitor.domain import commands, exits, observing, state
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import (
    Trouble,
    partition_stream,
    raise_alert,
    resolve,
    resolve_all,
    stream_of,
)
from services.monitor.domain.state import JobWatch, WatchState

CLOCK_DUE = "clock.due"
PLATFORM = "platform-"
"""Beginning of the name under which findings of the services about themselves are kept."""

_STATES = {
    "job.suspended": "the job was suspended",
    "job.succeeded": "the job succeeded",
    "job.failed": "the job failed",
    "job.cancelled": "the job was cancelled",
}
_TERMINAL = frozenset({"job.succeeded", "job.failed", "job.cancelled"})
_NEVER_STALE = _TERMINAL | {"job.retrying"}
_PROMISES = ("jobType", "checkpoint", "hyperparameters")
_BENIGN_STOPS = frozenset({"cancel", "suspend", "preempt", "resize", "migrate"})


class MonitorDecider:
    """Decides what is wrong with a run, and what to tell whom. See ``Decider``."""

    service = "monitor"

    def streams(self) -> Sequence[str]:
        """Return the streams of all partitions."""
        return [partition_stream(number) for number in range(limits.PARTITIONS)]

    def route(self, fact: Fact) -> Sequence[str]:
        """Return the one stream that a fact concerns: by its job, or by its alert."""
        if fact.kind in commands.VERBS:
            partition = partition_of(str(fact.data.get("alert", "")))
            return [] if partition is None else [partition_stream(partition)]
        if fact.kind == "audit.finding":
            return [stream_of(platform_name(fact))]
        if fact.kind not in _HANDLERS or fact.subject == NOT_APPLICABLE:
            return []
        return [stream_of(fact.subject)]

    def initial(self, stream: str) -> WatchState:
        """Return the state of an empty stream."""
        return state.initial(stream)

    def decide(self, state: WatchState, fact: Fact, *, now: int, policy: Policy) -> list[Event]:
        """Return the events that ``fact`` causes; none for what is stale or known."""
        if fact.kind == CLOCK_DUE:
            return exits.judge_waiting(state, now=now, policy=policy)
        if fact.kind in commands.VERBS:
            return commands.decide(state, fact, now=now, policy=policy)
        if fact.kind == "audit.finding":
            return _of_finding(state, fact, now)
        if fact.subject in state.ended:
            return []
        job = state.jobs.get(fact.subject) or JobWatch(fact.subject, pool=fact.pool, team=fact.team)
        attempt = fact.attempt or 0
        is_stale = fact.attempt is not None and attempt < job.attempt
        if is_stale and fact.kind not in _NEVER_STALE:
            return []
        made = _seen(state, job, fact)
        if attempt > job.attempt:
            made += _opened(job, fact, now)
            job = _after(job, attempt)
        handler = _HANDLERS.get(fact.kind)
        return made + (handler(state, job, fact, now, policy) if handler else [])

    def evolve(self, current: WatchState, event: Event, *, at: int) -> WatchState:
        """Apply one event."""
        return state.evolve(current, event, at=at)

    def due(self, current: WatchState) -> int | None:
        """Return when the first exit that waits for its root has waited long enough."""
        return current.due()

    def dump(self, current: WatchState) -> dict[str, Any]:
        """Return the state as JSON values."""
        return state.dump(current)

    def load(self, stream: str, dumped: dict[str, Any]) -> WatchState:
        """Read a dump back."""
        return state.load(stream, dumped)

    def open_since(self, current: WatchState) -> int | None:
        """Return when the oldest open alert was raised: a re-created bus must hold it again."""
        times = [a["opened_at"] for job in current.jobs.values() for a in job.alerts.values()]
        return min(times, default=None)


def platform_name(fact: Fact) -> str:
    """Return the name under which a service's finding about itself is kept."""
    return PLATFORM + ids.slug(fact.source)


# ---------------------------------------------------------------------------------------------
# Jobs and attempts


def _seen(state_: WatchState, job: JobWatch, fact: Fact) -> list[Event]:
    if job.job in state_.jobs and not (fact.kind == "job.admitted" and not job.name):
        return []
    pool = fact.pool if fact.pool != NOT_APPLICABLE else job.pool
    team = fact.team if fact.team != NOT_APPLICABLE else job.team
    return [Event(state.JOB_SEEN, {"name": fact.data.get("name")}, job.job, None, pool, team)]


def _opened(job: JobWatch, fact: Fact, now: int) -> list[Event]:
    """Open a newer attempt: what an older one left open is over, and its memory with it."""
    attempt = fact.attempt or 0
    made = resolve_all(job, f"attempt {attempt} began", now)
    made.append(_note(job, state.ATTEMPT_OPENED, {"attempt": attempt, "at": fact.at}, attempt))
    return made


def _after(job: JobWatch, attempt: int) -> JobWatch:
    """Return the job as it stands once the newer attempt is open."""
    return JobWatch(
        job.job,
        job.name,
        job.pool,
        job.team,
        attempt,
        checkpoint_step=job.checkpoint_step,
        episodes=job.episodes,
        failures=job.failures,
        silences=job.silences,
    )


def _note(job: JobWatch, kind: str, data: dict[str, Any], attempt: int | None) -> Event:
    return Event(kind, data, job.job, attempt, job.pool, job.team)


def _nothing(
    state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    return []


def _of_end(state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy) -> list[Event]:
    made = resolve_all(job, _STATES[fact.kind], now)
    if fact.kind in _TERMINAL:
        made.append(_note(job, state.JOB_ENDED, {"state": fact.kind}, None))
    return made


def _of_order(
    state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    order = fact.data.get("order")
    order = order if isinstance(order, Mapping) else {}
    plan = {
        "nodes": fact.data.get("nodes", []),
        "order": {
            name: order[name]
            for name in ("hang_limit_ms", "first_step_limit_ms", "name", "resume")
            if name in order
        },
        "spec": promised(order),
    }
    if job.plan == plan:
        return []
    attempt = fact.attempt or 0
    data = {"attempt": attempt, "at": fact.at, "plan": plan}
    return [_note(job, state.ATTEMPT_OPENED, data, attempt)]


def promised(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of the job in a launch order that rules measure a run against."""
    spec = order.get("spec")
    body = spec.get("spec", spec) if isinstance(spec, Mapping) else {}
    body = body if isinstance(body, Mapping) else {}
    return {name: body[name] for name in _PROMISES if body.get(name) is not None}


def _of_stop(
    state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    intent = str(fact.data["intent"])
    if intent not in _BENIGN_STOPS or job.stop_intent == intent:
        return []
    return [_note(job, state.STOP_SEEN, {"intent": intent}, fact.attempt)]


def _of_over(
    state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    """Note that an attempt is over: nothing of it is expected any more."""
    if job.is_over or fact.attempt != job.attempt:
        return []
    return [_note(job, state.ATTEMPT_OVER, {}, fact.attempt)]


def _of_checkpoint(
    state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    step = int(fact.data["step"])
    if step <= job.checkpoint_step:
        return []
    return [_note(job, state.CHECKPOINT_SEEN, {"step": step}, fact.attempt)]


def _of_retry(
    state_: WatchState, job: JobWatch, fact: Fact, now: int, policy: Policy
) -> list[Event]:
    attempt = int(fact.data["attempt"])
    if any(row[0] == attempt for row in job.failures):
        return []
    counted = {"attempt": attempt, "at": fact.at, "checkpoint": job.checkpoint_step}
    made = [_note(job, state.FAILURE_COUNTED, counted, attempt)]
    made += _of_over(state_, job, fact, now, policy)
    rows = [*job.failures, [attempt, fact.at, job.checkpoint_step]]
    return made + exits.judge_storm(state_, job, rows, now=now, policy=policy)


# ---------------------------------------------------------------------------------------------
# Findings of the services about themselves


def _of_finding(state_: WatchState, fact: Fact, now: int) -> list[Event]:
    name = platform_name(fact)
    job = state_.jobs.get(name) or JobWatch(name)
    subject = f"{fact.data['kind']} {fact.data['subject']}"[:200]
    standing = job.open_alert("platform_finding", subject)
    if fact.data["status"] != "open":
        reason = fact.data["summary"] or "the finding was closed"
        closed = standing and resolve(job, standing, reason=reason, actor=fact.source, now=now)
        return [closed] if closed else []
    trouble = Trouble(
        "platform_finding",
        subject,
        AlertStatus.CONFIRMED,
        Severity.WARNING,
        f"{fact.source}: {fact.data['summary']}",
        0,
        {"kind": fact.data["kind"], "subject": fact.data["subject"]},
    )
    return raise_alert(state_, job, trouble, now)


Handler = Callable[[WatchState, JobWatch, Fact, int, Policy], list[Event]]

_HANDLERS: dict[str, Handler] = {
    "job.admitted": _nothing,
    "job.placed": _nothing,
    "job.running": _nothing,
    "job.retrying": _of_retry,
    **dict.fromkeys(_STATES, _of_end),
    "run.launch_ordered": _of_order,
    "run.started": _nothing,
    "run.stop_ordered": _of_stop,
    "run.stopped": _of_over,
    "run.launch_failed": _of_over,
    "run.rank_exited": exits.of_exit,
    "run.ended": exits.of_end,
    "run.checkpoint_committed": _of_checkpoint,
    state.OBSERVED: observing.of_observation,
}
"""What each kind of fact does beside being noted; a kind that is absent does not concern us."""
