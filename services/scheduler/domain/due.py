"""What happens when a timer of a job has come; one small function per timer."""

from collections.abc import Callable

from lineshaft.contracts.failures import Budget, FailureClass, StopIntent
from lineshaft.contracts.lifecycle import Happening
from services.scheduler.domain.endings import decide_failure, fail_attempt, note_fault, stop_for
from services.scheduler.domain.state import Fault, Job
from services.scheduler.domain.work import PLATFORM, Work

TIMERS_PER_DECISION_MAX = 64


def fire(work: Work) -> None:
    """Let every timer that has come do its work, in the order of their times, up to a bound."""
    for _ in range(TIMERS_PER_DECISION_MAX):
        nearest = work.state.next_timer()
        if nearest is None or nearest[0] > work.now:
            return
        _, job_id, name = nearest
        job = work.state.jobs[job_id]
        work.timers(job, **{name: None})
        _DUE[name](work, work.job(job))


def _start(work: Work, job: Job) -> None:
    if work.allows(job, Happening.START_OVERDUE) is None:
        return
    missing = sorted(work.run(job).node_names - work.run(job).started)
    summary = f"no ranks were started in time on {', '.join(missing)}"
    fault = Fault(
        "start_overdue",
        summary,
        FailureClass.INFRASTRUCTURE,
        work.now,
        node=missing[0],
        budget=Budget.PLATFORM,
    )
    fail_attempt(work, job, Happening.START_OVERDUE, fault)


def _stop(work: Work, job: Job) -> None:
    """Report a stop that overruns; the slots stay leased, nothing is launched in its place."""
    if work.allows(job, Happening.STOP_OVERDUE) is None:
        return
    left = sorted(work.run(job).node_names - work.run(job).gone.keys())
    work.finding(
        "scheduler.not_gone",
        f"{job.id}-{job.attempt}",
        f"{job.id} attempt {job.attempt} was told to stop and is not confirmed gone on "
        f"{', '.join(left)}; no other attempt starts until it is",
        job=job,
    )


def _completion(work: Work, job: Job) -> None:
    if work.allows(job, Happening.COMPLETION_OVERDUE) is None:
        return
    summary = "every rank ended well, but no completion record was written"
    note_fault(work, job, Fault("no_record", summary, FailureClass.INFRASTRUCTURE, work.now))
    decide_failure(work, job, Happening.COMPLETION_OVERDUE)


def _finish(work: Work, job: Job) -> None:
    if work.allows(job, Happening.FINISH_OVERDUE) is not None:
        reason = "the work is whole, and processes of the run are still there"
        work.order_stop(job, StopIntent.FAULT, reason=reason, actor=PLATFORM)


def _diagnosis(work: Work, job: Job) -> None:
    if work.allows(job, Happening.DIAGNOSIS_WAITED) is not None:
        decide_failure(work, job, Happening.DIAGNOSIS_WAITED)


def _back_off(work: Work, job: Job) -> None:
    work.allows(job, Happening.BACKED_OFF)  # clearing the timer has put it into the queue


def _runtime(work: Work, job: Job) -> None:
    stop_for(
        work,
        job,
        Happening.RUNTIME_SPENT,
        StopIntent.CANCEL,
        reason="its maxRunTime is used up",
        actor="policy",
    )


_DUE: dict[str, Callable[[Work, Job], None]] = {
    "start": _start,
    "stop": _stop,
    "completion": _completion,
    "finish": _finish,
    "diagnosis": _diagnosis,
    "back_off": _back_off,
    "runtime": _runtime,
}
