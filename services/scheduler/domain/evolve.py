"""How one journaled event changes the state of a pool; one small function per kind.

Nothing is decided here: an event that is written is applied. The events of the kinds ``pool.*``
are internal; those of ``job.*`` and ``run.*`` that the scheduler writes are also published.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lineshaft.contracts.events import Event
from lineshaft.contracts.failures import Budget, FailureClass, StopIntent
from lineshaft.contracts.lifecycle import Place, State, place_of
from services.scheduler.domain.state import (
    Checkpoint,
    Fault,
    Gang,
    Job,
    Node,
    Parked,
    PoolState,
    Run,
    Stop,
)
from services.scheduler.launchers.port import NodeShare


def evolve(state: PoolState, event: Event, *, at: int) -> PoolState:
    """Apply ``event``, written at ``at``, and return the same state, changed."""
    if event.kind in _OF_POOL:
        _OF_POOL[event.kind](state, event, at)
        return state
    change = _OF_JOB.get(event.kind)
    if change is None and event.kind.startswith("job."):
        change = _moved
    if change is not None:
        state.put(change(state.jobs[event.subject], event.data, at))
    return state


def _admitted(state: PoolState, event: Event, at: int) -> None:
    data = event.data
    gang = data["gang"]
    state.put(
        Job(
            id=event.subject,
            name=data["name"],
            team=data["team"],
            spec=data["spec"],
            resolved=data["resolved"],
            gang=Gang(gang["nodes"], gang["slots_per_node"], gang["gpu_type"]),
            priority=data["priority"],
            submitted_at=data["submitted_at"],
            limits={Budget(name): limit for name, limit in data["limits"].items()},
            reason="admitted",
            since=at,
        )
    )


def _parked(state: PoolState, event: Event, at: int) -> None:
    waiting = state.parked.get(event.subject, ())
    parked = Parked(event.data["fact_id"], at, event.data["command"])
    state.parked[event.subject] = (*waiting, parked)


def _unparked(state: PoolState, event: Event, at: int) -> None:
    state.parked.pop(event.subject, None)


def _node_changed(state: PoolState, event: Event, at: int) -> None:
    data = event.data
    known = state.nodes.get(data["node"])
    state.nodes[data["node"]] = Node(
        name=data["node"],
        gpu_type=data["gpu_type"],
        slots=data["slots"],
        status=data["status"],
        labels=data["labels"],
        leases=known.leases if known else {},
    )


def _finding(state: PoolState, event: Event, at: int) -> None:
    if event.data["status"] == "open":
        state.findings[event.data["subject"]] = event.data["kind"]
    else:
        state.findings.pop(event.data["subject"], None)


def _pass_owed(state: PoolState, event: Event, at: int) -> None:
    state.is_pass_owed = event.data["is_owed"]


def _moved(job: Job, data: Mapping[str, Any], at: int) -> Job:
    """Apply one of the public ``job.*`` events: the job is in another place, or says more."""
    place = place_of(data["state"], data["substate"])
    job = replace(
        job,
        place=place,
        reason=data["reason"],
        actor=data["actor"],
        since=at if place is not job.place else job.since,
        version=data["job_version"],
    )
    if place is Place.LAUNCHING and data["attempt"] > job.attempt:
        job = _placed(job, data)
    return _clocked(job, at)


def _placed(job: Job, data: Mapping[str, Any]) -> Job:
    shares = tuple(NodeShare(one["node"], tuple(one["slots"])) for one in data["nodes"])
    run = Run(
        attempt=data["attempt"],
        nodes=shares,
        not_after=0,
        order={},
        resume=data["resume_from"],
    )
    return replace(
        job, run=run, attempt=data["attempt"], launches=job.launches + 1, is_resume_wanted=False
    )


def _clocked(job: Job, at: int) -> Job:
    """Keep the account of run time: it counts while the public state is Running."""
    is_running = job.place.state is State.RUNNING
    if is_running and job.running_since is None:
        return replace(job, running_since=at)
    if not is_running and job.running_since is not None:
        return replace(job, running_since=None, run_ms=job.run_ms + at - job.running_since)
    return job


def _run(job: Job, **changes: Any) -> Job:
    assert job.run is not None, f"{job.id} has no run"
    return replace(job, run=replace(job.run, **changes))


def _launch_ordered(job: Job, data: Mapping[str, Any], at: int) -> Job:
    return _run(job, order=data["order"], not_after=data["not_after"])


def _stop_ordered(job: Job, data: Mapping[str, Any], at: int) -> Job:
    stop = Stop(
        StopIntent(data["intent"]), data["reason"], data["actor"], data["grace_ms"], data["at"]
    )
    return _run(job, stop=stop)


def _launched(job: Job, data: Mapping[str, Any], at: int) -> Job:
    return _run(job, is_launched=True)


def _node_started(job: Job, data: Mapping[str, Any], at: int) -> Job:
    assert job.run is not None
    return _run(job, is_launched=True, started=job.run.started | {data["node"]})


def _node_gone(job: Job, data: Mapping[str, Any], at: int) -> Job:
    assert job.run is not None
    return _run(job, gone={**job.run.gone, data["node"]: data["outcome"]})


def _run_gone(job: Job, data: Mapping[str, Any], at: int) -> Job:
    return _run(job, is_gone=True)


def _run_completed(job: Job, data: Mapping[str, Any], at: int) -> Job:
    return _run(job, completed={"manifest": data["manifest"], "step": data["step"]})


def _fault(job: Job, data: Mapping[str, Any], at: int) -> Job:
    assert job.run is not None
    fault = Fault(
        what=data["what"],
        summary=data["summary"],
        failure=FailureClass(data["class"]) if data["class"] else None,
        at=data["at"],
        node=data["node"],
        rank=data["rank"],
        budget=Budget(data["budget"]) if data["budget"] else None,
        action=data["action"],
        mutation=data["mutation"],
    )
    return _run(job, faults=(*job.run.faults, fault))


def _diagnosis(job: Job, data: Mapping[str, Any], at: int) -> Job:
    return _run(job, diagnosis=dict(data))


def _charged(job: Job, data: Mapping[str, Any], at: int) -> Job:
    """Apply what a failed attempt costs and changes for the next one."""
    budget = Budget(data["budget"])
    rejected = data["rejected"]
    return replace(
        job,
        used={**job.used, budget: data["used"]},
        failures=data["failures"],
        same_place=data["same_place"],
        is_stepped_back=job.is_stepped_back or rejected is not None,
        avoid=tuple(data["avoid"]),
        mutation=data["mutation"],
        checkpoints=tuple(
            replace(one, is_rejected=True) if rejected == [one.attempt, one.step] else one
            for one in job.checkpoints
        ),
    )


RENEWED = frozenset({Budget.NODE, Budget.PLATFORM})
"""The budgets that a new checkpoint gives back."""


def _checkpoint(job: Job, data: Mapping[str, Any], at: int) -> Job:
    made = Checkpoint(
        data["attempt"], data["step"], data["digest"], data["path"], data["bytes"], data["at"]
    )
    kept = sorted((*job.checkpoints, made), key=lambda one: (one.attempt, one.step))
    job = replace(job, checkpoints=tuple(kept))
    if not data["is_progress"]:
        return job
    renewed: dict[Budget, int] = {b: n for b, n in job.used.items() if b not in RENEWED}
    return replace(job, used=renewed, failures=0, same_place=0, is_stepped_back=False, avoid=())


def _timer(job: Job, data: Mapping[str, Any], at: int) -> Job:
    timers = {name: when for name, when in job.timers.items() if name not in data["timers"]}
    set_now = {name: when for name, when in data["timers"].items() if when is not None}
    return replace(job, timers={**timers, **set_now})


def _command(job: Job, data: Mapping[str, Any], at: int) -> Job:
    """Apply a command's own traces; what it does to the job's life is told by other events."""
    if not data["is_applied"]:
        return replace(job, version=data["job_version"])
    changes: dict[str, Any] = {"version": data["job_version"], "command_floor": job.version}
    changes.update({name: data[name] for name in ("priority", "is_resume_wanted") if name in data})
    if data.get("is_renewed"):
        changes.update(launches=0, used={}, failures=0, same_place=0, is_stepped_back=False)
    return replace(job, **changes)


def _led(state: PoolState, event: Event, at: int) -> None:
    state.epoch = max(state.epoch, event.data["epoch"])


_OF_POOL: dict[str, Callable[[PoolState, Event, int], None]] = {
    "pool.admitted": _admitted,
    "pool.parked": _parked,
    "pool.unparked": _unparked,
    "pool.node_changed": _node_changed,
    "pool.pass_owed": _pass_owed,
    "pool.led": _led,
    "audit.finding": _finding,
}

_OF_JOB: dict[str, Callable[[Job, Mapping[str, Any], int], Job]] = {
    "run.launch_ordered": _launch_ordered,
    "run.stop_ordered": _stop_ordered,
    "pool.launched": _launched,
    "pool.node_started": _node_started,
    "pool.node_gone": _node_gone,
    "pool.run_gone": _run_gone,
    "pool.run_completed": _run_completed,
    "pool.fault": _fault,
    "pool.diagnosis": _diagnosis,
    "pool.charged": _charged,
    "pool.checkpoint": _checkpoint,
    "pool.timer": _timer,
    "pool.command": _command,
}
