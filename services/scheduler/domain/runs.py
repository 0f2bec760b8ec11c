"""What the facts of launcher, agent and monitor about the current attempt do to a job.

Who calls has seen to it that a fact is of the current attempt. No order is assumed between facts:
a later one implies the earlier ones, a repeated one changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lineshaft.contracts.events import Fact
from lineshaft.contracts.failures import BUDGET_OF, Budget, FailureClass, StopIntent
from lineshaft.contracts.lifecycle import Happening, Place
from lineshaft.runtime.decider import FactRefused
from services.scheduler.domain import verdict as verdicts
from services.scheduler.domain.endings import (
    Gone,
    add_fault,
    await_diagnosis,
    conclude_stop,
    decide_failure,
    fail_attempt,
    gone,
    note_fault,
    succeed,
)
from services.scheduler.domain.state import Fault, Job
from services.scheduler.domain.work import PLATFORM, Work

_LIVE = (Place.LAUNCHING, Place.RUNNING, Place.UNOBSERVED)
_AT_REST = (Place.PENDING, Place.PREPARING, Place.BACKING_OFF)
_CLEAN = ("completed",)


def launched(work: Work, job: Job, fact: Fact) -> None:
    """Note that the run's claim exists and its agents start: from now on they may prepare."""
    if work.allows(job, Happening.LAUNCHED) is None or work.run(job).is_launched:
        return
    work.emit("pool.launched", {}, job=job)
    if "start" in work.job(job).timers:
        work.timers(job, start=work.now + work.policy.prepare_timeout_ms)


def launch_failed(work: Work, job: Job, fact: Fact) -> None:
    """End an attempt that never started, by the standing stop or by the failure's class."""
    run = work.run(job)
    if run.is_gone or work.allows(job, Happening.LAUNCH_FAILED) is None:
        return
    reason = f"it could not be launched: {fact.data['reason']}"
    work.emit("pool.run_gone", {"how": reason}, job=job)
    if work.job(job).place is Place.FINISHING:
        succeed(work, work.job(job), Happening.LAUNCH_FAILED)
        return
    if run.stop is not None and run.stop.intent is not StopIntent.FAULT:
        conclude_stop(work, work.job(job), Happening.LAUNCH_FAILED)
        return
    failure = _class(fact.data["class"]) or FailureClass.INFRASTRUCTURE
    # The platform pays for what the job cannot help; its own configuration is its own.
    budget = None if BUDGET_OF[failure] is Budget.USER else Budget.PLATFORM
    node = fact.data["evidence"].get("node")
    note_fault(
        work, job, Fault("launch_failed", reason, failure, fact.at, node=node, budget=budget)
    )
    decide_failure(work, job, Happening.LAUNCH_FAILED)


def started(work: Work, job: Job, fact: Fact) -> None:
    """Note that a node's ranks were started; the first one makes the job Running."""
    node = _node_of(work, job, fact)
    answer = work.allows(job, Happening.STARTED)
    if answer is None or node in work.run(job).started:
        return
    work.emit("pool.node_started", {"node": node}, job=job)
    run = work.run(job)
    if run.started >= run.node_names:
        work.timers(job, start=None)
    _become(work, job, Happening.STARTED, f"the ranks on {node} were started")


def _become(work: Work, job: Job, happening: Happening, reason: str) -> None:
    """Move to Running (or to its drain) if the job is not there yet."""
    job = work.job(job)
    answer = work.allows(job, happening)
    if answer is None or answer.to[0] is job.place:
        return
    target = answer.to[0]
    if target is Place.DRAINING:
        stop = work.run(job).stop
        reason, actor = (stop.reason, stop.actor) if stop else (reason, PLATFORM)
        work.move(job, happening, target, reason=reason, actor=actor)
        return
    work.move(job, happening, target, reason=reason)
    spent = work.job(job).run_ms
    longest = run_time_max_ms(job)
    if longest is not None and "runtime" not in work.job(job).timers:
        work.timers(job, runtime=work.now + max(longest - spent, 0))


def run_time_max_ms(job: Job) -> int | None:
    """Return the job's ``schedule.maxRunTime`` in milliseconds, over all of its attempts."""
    seconds = (job.spec_part("schedule") or {}).get("maxRunTime")
    return None if seconds is None else int(float(seconds) * 1000)


def rank_exited(work: Work, job: Job, fact: Fact) -> None:
    """Take a rank's early end as a fault, unless it was told to stop or ended well."""
    data = fact.data
    node = _node_of(work, job, fact)
    if work.allows(job, Happening.RANK_EXITED) is None:
        return
    if data["exit_code"] == 0 and data["signal"] is None:
        return  # its node's own end says what that means
    summary = verdicts.describe_exit(data)
    at = data.get("ended_at")
    at = at if isinstance(at, int) else fact.at
    what = "cascade" if data.get("root") is False else "rank_exited"
    failure = verdicts.class_of_exit(data)
    fault = Fault(what, summary, failure, at, node=node, rank=data["rank"])
    if work.job(job).place in _LIVE:
        fail_attempt(work, job, Happening.RANK_EXITED, fault)
        return
    _become(work, job, Happening.RANK_EXITED, summary)
    add_fault(work, job, Happening.RANK_EXITED, fault)


def ended(work: Work, job: Job, fact: Fact) -> None:
    """Note that a node is done with the run; the last one proves that the run is gone."""
    node = _node_of(work, job, fact)
    outcome, failure = fact.data["outcome"], _class(fact.data["class"])
    is_bad = outcome == "failed"
    happening = Happening.NODE_FAILED if is_bad else Happening.NODE_ENDED
    if node in work.run(job).gone or work.allows(job, happening) is None:
        return
    work.emit("pool.node_gone", {"node": node, "outcome": outcome}, job=job)
    said = fact.data.get("reason") or f"{outcome} on {node}"
    fault = Fault("node_failed", str(said)[:400], failure, fact.at, node=node)
    if is_bad and work.job(job).place in _LIVE:
        fail_attempt(work, job, happening, fault)
    elif is_bad:
        add_fault(work, job, happening, fault)
    else:
        _become(work, job, happening, f"the ranks on {node} were started and ended")
    run = work.run(job)
    if run.gone.keys() >= run.node_names:
        is_clean = all(how in _CLEAN for how in run.gone.values())
        is_unasked = outcome == "stopped" and {"failed", "fenced"}.isdisjoint(run.gone.values())
        proof = Gone(
            "every node's agent said so",
            is_clean=is_clean,
            unasked=_unasked(said) if is_unasked else "",
        )
        gone(work, job, proof)


def stopped(work: Work, job: Job, fact: Fact) -> None:
    """Take the launcher's word that every process of the attempt is gone."""
    run = work.run(job)
    if run.is_gone:
        return
    outcomes = run.gone.values()
    is_clean = run.gone.keys() >= run.node_names and all(how in _CLEAN for how in outcomes)
    what = f"an agent vanished and its ranks with it: {fact.data['reason']}"
    lost = Fault("agent_lost", what, FailureClass.INFRASTRUCTURE, fact.at)
    is_lost = fact.data["intent"] == "lost"
    is_unasked = fact.data["intent"] == StopIntent.MIGRATE
    proof = Gone(
        f"launcher: {fact.data['reason']}",
        is_clean=is_clean,
        fault=lost if is_lost else None,
        unasked=_unasked(fact.data["reason"]) if is_unasked else "",
    )
    gone(work, job, proof)


def _unasked(said: Any) -> str:
    return f"it was stopped from outside ({str(said)[:300]}) and goes on"


def completed(work: Work, job: Job, fact: Fact) -> None:
    """Take the completion record: it beats every ending but a cancel that was written first."""
    run = work.run(job)
    if run.completed is not None or work.allows(job, Happening.COMPLETED) is None:
        return
    data = {"manifest": fact.data["manifest"], "step": fact.data["step"]}
    work.emit("pool.run_completed", data, job=job)
    if run.stop is not None and run.stop.intent is StopIntent.CANCEL and not run.is_gone:
        return
    if run.is_gone:
        succeed(work, work.job(job), Happening.COMPLETED)
        return
    work.clear_timers(job)
    work.move(
        job,
        Happening.COMPLETED,
        Place.FINISHING,
        reason=f"the work is whole at step {data['step']}; its processes are ending",
    )
    work.timers(job, finish=work.now + work.policy.finish_wait_ms)


def checkpoint_committed(work: Work, job: Job, fact: Fact) -> None:
    """Remember a checkpoint of any attempt; a step further than ever before is progress."""
    job = work.job(job)
    attempt, data = fact.attempt or 0, fact.data
    known = {(one.attempt, one.step) for one in job.checkpoints}
    if job.place.is_terminal or (attempt, data["step"]) in known:
        return
    is_current = attempt == job.attempt
    furthest = max((one.step for one in job.checkpoints), default=-1)
    work.emit(
        "pool.checkpoint",
        {
            "attempt": attempt,
            "step": data["step"],
            "digest": data["digest"],
            "path": data["path"],
            "bytes": data["bytes"],
            "at": fact.at,
            "is_progress": is_current and data["step"] > furthest,
        },
        job=job,
    )
    if is_current and job.live_run is not None:
        _become(work, job, Happening.CHECKPOINT, f"a checkpoint at step {data['step']}")


def node_back(work: Work, job: Job, node: str) -> None:
    """Show that a node of a run is seen again."""
    _see(work, job, is_seen=True, reason=f"the node {node} is in sight again")


def node_lost(work: Work, job: Job, node: str) -> None:
    """Show that a node of a run is out of sight; that alone stops nothing."""
    if work.allows(job, Happening.NODE_LOST) is None:
        return
    if work.job(job).place not in (Place.RUNNING, Place.UNOBSERVED):
        return
    seen = work.run(job).diagnosis
    if seen is not None and seen["what"] == "node_lost" and seen["node"] == node:
        what = f"the node {node} is lost: neither the launcher nor the monitor sees it"
        fault = Fault("node_lost", what, FailureClass.INFRASTRUCTURE, work.now, node=node)
        fail_attempt(work, job, Happening.FAULT, fault)
    elif work.job(job).place is Place.RUNNING:
        reason = f"the node {node} is out of sight; the run goes on until there is proof"
        work.move(job, Happening.NODE_LOST, Place.UNOBSERVED, reason=reason)


_ACTIONS = {"restart": Happening.FAULT, "hold": Happening.HOLD, "fail": Happening.FATAL}


def diagnosed(work: Work, job: Job, fact: Fact) -> None:
    """Weigh the monitor's evidence: stop a live run, settle an ending, or only keep it.

    A node that the monitor calls lost is lost only when the launcher cannot see it either.
    """
    data = fact.data
    if data["what"] in ("unobserved", "observed"):
        _see(work, job, is_seen=data["what"] == "observed", reason=data["summary"])
        return
    action = data["action"] if data["action"] in _ACTIONS else "note"
    if data["what"] == "node_lost":
        node = work.state.nodes.get(_named_node(fact) or "")
        action = "note" if node is None or node.is_ready else "restart"
    happening = _ACTIONS.get(action, Happening.NOTED)
    if work.allows(job, happening) is None:
        return
    _keep_diagnosis(work, job, fact, action)
    if happening is not Happening.NOTED:
        _act_on(work, work.job(job), happening, _fault_of(fact, action))
    elif data["what"] == "node_lost":
        _see(work, job, is_seen=False, reason=data["summary"])


def _see(work: Work, job: Job, *, is_seen: bool, reason: str) -> None:
    happening = Happening.SEEN if is_seen else Happening.UNSEEN
    target = Place.RUNNING if is_seen else Place.UNOBSERVED
    is_about_sight = work.job(job).place in (Place.RUNNING, Place.UNOBSERVED)
    if work.allows(job, happening) and is_about_sight and work.job(job).place is not target:
        work.move(job, happening, target, reason=reason)


def _keep_diagnosis(work: Work, job: Job, fact: Fact, action: str) -> None:
    """Keep what says most: a cause rather than its cascade, either rather than a note."""
    data = fact.data
    kept = {name: data[name] for name in ("diagnosis", "what", "class", "action", "summary")}
    kept |= {"node": _named_node(fact), "rank": data.get("rank"), "advice": data.get("advice")}
    taken_along = {one.rank for one in work.run(job).faults if one.what == "cascade"} - {None}
    is_cascade = bool(data.get("is_cascade")) or data.get("rank") in taken_along
    kept |= {"action": action, "is_cascade": is_cascade, "at": fact.at}
    known = work.run(job).diagnosis
    if known is None or _weight(kept) > _weight(known):
        work.emit("pool.diagnosis", kept, job=work.job(job))


def _weight(diagnosis: Mapping[str, Any]) -> int:
    return 0 if diagnosis["action"] == "note" else 1 + (not diagnosis["is_cascade"])


def _named_node(fact: Fact) -> str | None:
    named = fact.data.get("node") or fact.data["evidence"].get("node")
    return None if named is None else str(named)


def _act_on(work: Work, job: Job, happening: Happening, fault: Fault) -> None:
    if job.place in _LIVE:
        fail_attempt(work, job, happening, fault)
    elif job.place in _AT_REST:
        _act_at_rest(work, job, happening, fault)
    else:
        add_fault(work, job, happening, fault)
        if work.run(job).is_gone and "diagnosis" in work.job(job).timers:
            await_diagnosis(work, work.job(job))


def _act_at_rest(work: Work, job: Job, happening: Happening, fault: Fault) -> None:
    work.clear_timers(job)
    if happening is Happening.HOLD:
        work.move(job, happening, Place.HELD, reason=f"{fault.summary}; held for a person")
    else:
        failure = fault.failure or FailureClass.INFRASTRUCTURE
        work.move(job, happening, Place.FAILED, reason=fault.summary, **{"class": failure.value})


def _fault_of(fact: Fact, action: str) -> Fault:
    data: dict[str, Any] = fact.data
    seen_at = data["evidence"].get("at")
    return Fault(
        what="cascade" if data.get("is_cascade") else "diagnosed",
        summary=data["summary"].rstrip("."),
        failure=_class(data["class"]),
        at=seen_at if isinstance(seen_at, int) else fact.at,
        node=_named_node(fact),
        rank=data.get("rank") if data["what"] == "rank_exited" else None,
        action=action,
        mutation=data.get("mutation") if isinstance(data.get("mutation"), dict) else None,
    )


def _class(name: Any) -> FailureClass | None:
    return FailureClass(name) if name in set(FailureClass) else None


def _node_of(work: Work, job: Job, fact: Fact) -> str:
    node = fact.data["node"]
    if node not in work.run(job).node_names:
        raise FactRefused(f"{job.id}: attempt {fact.attempt} has no part on the node {node!r}")
    return str(node)


HANDLERS: dict[str, Callable[[Work, Job, Fact], None]] = {
    "run.launched": launched,
    "run.launch_failed": launch_failed,
    "run.started": started,
    "run.rank_exited": rank_exited,
    "run.ended": ended,
    "run.stopped": stopped,
    "run.completed": completed,
    "run.checkpoint_committed": checkpoint_committed,
    "run.diagnosed": diagnosed,
}
