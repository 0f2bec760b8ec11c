"""How attempts end: faults, stops, the whole gang gone, and what follows.

An attempt is over only when every process of it is confirmed gone. Until then its slots stay
leased and nothing else of the job is launched.
"""

from dataclasses import dataclass
from typing import Any

from lineshaft.contracts.failures import Budget, FailureClass, StopIntent
from lineshaft.contracts.lifecycle import Happening, Place, Transition
from services.scheduler.domain import verdict as verdicts
from services.scheduler.domain.state import Fault, Job
from services.scheduler.domain.verdict import Verdict
from services.scheduler.domain.work import PLATFORM, Work, resume_of

_AT_END = {
    StopIntent.CANCEL: Place.CANCELLED,
    StopIntent.SUSPEND: Place.SUSPENDED,
    StopIntent.PREEMPT: Place.PENDING,
    StopIntent.MIGRATE: Place.PENDING,
    StopIntent.RESIZE: Place.PENDING,
}


def note_fault(work: Work, job: Job, fault: Fault) -> None:
    """Keep a piece of evidence that the current attempt failed."""
    work.emit(
        "pool.fault",
        {
            "what": fault.what,
            "summary": fault.summary,
            "class": fault.failure.value if fault.failure else None,
            "at": fault.at,
            "node": fault.node,
            "rank": fault.rank,
            "budget": fault.budget.value if fault.budget else None,
            "action": fault.action,
            "mutation": dict(fault.mutation) if fault.mutation else None,
        },
        job=job,
    )


def fail_attempt(work: Work, job: Job, happening: Happening, fault: Fault) -> None:
    """Begin the end of a live attempt: stop what is left of its gang, then weigh the evidence.

    The first guess says whether people see Retrying or a drain towards Failed; the verdict is
    made when all processes are gone and the diagnosis came or was waited for.
    """
    note_fault(work, job, fault)
    job = work.job(job)
    guess = verdicts.judge(job, work.run(job), work.policy)
    reason = _waiting_for_the_end(job, guess)
    if guess.outcome == "retry":
        work.move(job, happening, Place.AWAITING_GONE, reason=reason, **_of_retry(job, guess))
    else:
        work.move(job, happening, Place.DRAINING, reason=reason)
    work.timers(job, start=None, completion=None, runtime=None)
    work.order_stop(job, StopIntent.FAULT, reason=fault.summary, actor=PLATFORM)
    if work.run(job).is_gone:
        await_diagnosis(work, job)


def add_fault(work: Work, job: Job, happening: Happening, fault: Fault) -> None:
    """Keep more evidence of a failure under way, and say so if it names another cause.

    A stop that was ordered by a person or a limit needs no evidence.
    """
    run = work.run(job)
    is_fault = run.stop is None or run.stop.intent is StopIntent.FAULT
    known = {(one.what, one.summary) for one in run.faults}
    if not run.faults or not is_fault or (fault.what, fault.summary) in known:
        return
    before = verdicts.root_of(run.faults)
    note_fault(work, job, fault)
    job = work.job(job)
    if verdicts.root_of(work.run(job).faults) == before or job.live_run is None:
        return
    guess = verdicts.judge(job, work.run(job), work.policy)
    more = _of_retry(job, guess) if job.place is Place.AWAITING_GONE else {}
    work.move(job, happening, job.place, reason=_waiting_for_the_end(job, guess), **more)


def _waiting_for_the_end(job: Job, guess: Verdict) -> str:
    return f"{guess.summary}; waiting until every process of attempt {job.attempt} is gone"


def _of_retry(job: Job, verdict: Verdict) -> dict[str, Any]:
    source = verdicts.source_of(job)
    return {
        "attempt": job.attempt,
        "class": verdict.failure.value,
        "budget": verdict.budget.value,
        "resume_from": resume_of(source.source() if source else None),
    }


@dataclass(frozen=True, slots=True)
class Gone:
    """What proves that a run is gone, and how it went.

    ``is_clean``: every node's agent said that its ranks ended well. ``fault`` is what counts as
    the cause when nothing else is known. ``unasked`` says who stopped it, when its agents were
    stopped from outside and not by an order of ours: that is nobody's failure.
    """

    how: str
    is_clean: bool = False
    fault: Fault | None = None
    unasked: str = ""


def gone(work: Work, job: Job, proof: Gone) -> None:
    """Act on the proof that every process of the current attempt is gone."""
    job = work.job(job)
    if work.run(job).is_gone or work.allows(job, Happening.GONE) is None:
        return
    work.emit("pool.run_gone", {"how": proof.how}, job=job)
    work.timers(job, stop=None, finish=None)
    work.close_finding(_subject(job), job=job)
    _settle(work, work.job(job), proof)


def _settle(work: Work, job: Job, proof: Gone) -> None:
    """Decide what a job does whose attempt has gone entirely."""
    run = work.run(job)
    if job.place is Place.FINISHING:
        succeed(work, job, Happening.GONE)
    elif run.stop is not None and run.stop.intent is not StopIntent.FAULT:
        conclude_stop(work, job, Happening.GONE)
    elif run.faults:
        await_diagnosis(work, job)
    elif proof.unasked:
        work.clear_timers(job)
        work.move(job, Happening.GONE, Place.PENDING, reason=proof.unasked)
    elif proof.is_clean:
        work.timers(job, start=None, completion=work.now + work.policy.completion_wait_ms)
    else:
        lost = "its processes ended without a stop order and without a record of why"
        unknown = Fault("vanished", lost, FailureClass.INFRASTRUCTURE, work.now)
        fail_attempt(work, job, Happening.GONE, proof.fault or unknown)


def _subject(job: Job) -> str:
    return f"{job.id}-{job.attempt}"


def succeed(work: Work, job: Job, happening: Happening) -> None:
    """End a job whose work is whole and whose processes are gone."""
    completed = work.run(job).completed or {}
    work.clear_timers(job)
    work.move(
        job,
        happening,
        Place.SUCCEEDED,
        reason=f"the work is whole at step {completed.get('step')}; every process is gone",
        attempt=job.attempt,
        manifest=completed.get("manifest"),
        step=completed.get("step"),
    )


def conclude_stop(work: Work, job: Job, happening: Happening) -> None:
    """End a stop by its intent, now that the run is gone."""
    stop = work.run(job).stop
    assert stop is not None
    work.clear_timers(job)
    place = _AT_END[stop.intent]
    reason, actor = stop.reason, stop.actor
    if place is Place.SUSPENDED and job.is_resume_wanted:
        place, reason = Place.PENDING, "it was suspended and resumed before it had stopped"
    if stop.intent is StopIntent.PREEMPT:
        used = job.used.get(Budget.PREEMPTION, 0) + 1
        _charge(work, job, budget=Budget.PREEMPTION, used=used)
    work.move(job, happening, place, reason=reason, actor=actor)


def _charge(work: Work, job: Job, *, budget: Budget, used: int) -> None:
    work.emit(
        "pool.charged",
        {
            "budget": budget.value,
            "used": used,
            "failures": job.failures,
            "same_place": job.same_place,
            "rejected": None,
            "avoid": list(job.avoid),
            "mutation": dict(job.mutation),
        },
        job=job,
    )


def await_diagnosis(work: Work, job: Job) -> None:
    """Give the monitor a moment to say why, unless it has; then make the verdict."""
    if verdicts.is_settled(work.run(job).faults):
        decide_failure(work, job, Happening.DIAGNOSIS_WAITED)
    else:
        work.timers(job, diagnosis=work.now + work.policy.diagnosis_wait_ms)


def decide_failure(work: Work, job: Job, happening: Happening) -> None:
    """Make the verdict on a failed attempt, charge its budget, and move the job."""
    job = work.job(job)
    run = work.run(job)
    if run.stop is not None and run.stop.intent is not StopIntent.FAULT:
        conclude_stop(work, job, happening)
        return
    verdict = verdicts.judge(job, run, work.policy)
    work.clear_timers(job)
    work.emit("pool.charged", _charges(verdict), job=job)
    job = work.job(job)
    found = verdicts.source_of(job)
    source = found.source() if found else None
    reason = verdicts.words(verdict, source)
    if verdict.outcome == "retry":
        delay_ms = verdicts.back_off_ms(job, work.policy)
        work.timers(job, back_off=work.now + delay_ms)
        work.move(
            job,
            happening,
            Place.BACKING_OFF,
            reason=f"{reason}; next attempt in {delay_ms / 1000:g} s",
            **_of_retry(job, verdict),
        )
    elif verdict.outcome == "hold":
        work.move(job, happening, Place.HELD, reason=reason)
    else:
        work.move(job, happening, Place.FAILED, reason=reason, **{"class": verdict.failure.value})


def _charges(verdict: Verdict) -> dict[str, Any]:
    rejected = verdict.rejected
    return {
        "budget": verdict.budget.value,
        "used": verdict.used,
        "failures": verdict.failures,
        "same_place": verdict.same_place,
        "rejected": [rejected.attempt, rejected.step] if rejected else None,
        "avoid": list(verdict.avoid),
        "mutation": dict(verdict.mutation),
        "rule": verdict.rule,
    }


def stop_for(
    work: Work, job: Job, happening: Happening, intent: StopIntent, *, reason: str, actor: str
) -> None:
    """Stop a job for a command or a limit: at once when nothing lives, else by a drain."""
    job = work.job(job)
    answer = work.allows(job, happening)
    if answer is None:
        return
    ends = _AT_END[intent]
    if job.live_run is None and ends in answer.to:
        work.clear_timers(job)
        work.move(job, happening, ends, reason=reason, actor=actor)
        return
    if work.order_stop(job, intent, reason=reason, actor=actor):
        _show_stop(work, job, happening, answer, f"{intent}: {reason}", actor)


def _show_stop(
    work: Work, job: Job, happening: Happening, answer: Transition, reason: str, actor: str
) -> None:
    target = answer.to[0]
    more: dict[str, Any] = {}
    if target.state.value == "Scheduled":
        more = _of_placement(work, job)
    elif target.state.value == "Retrying":
        more = _of_retry(job, verdicts.judge(job, work.run(job), work.policy))
    work.timers(job, start=None, completion=None, runtime=None)
    work.move(job, happening, target, reason=reason, actor=actor, **more)


def _of_placement(work: Work, job: Job) -> dict[str, Any]:
    run = work.run(job)
    nodes = [{"node": share.node, "slots": list(share.slots)} for share in run.nodes]
    return {"attempt": run.attempt, "nodes": nodes, "resume_from": resume_of(run.resume)}
