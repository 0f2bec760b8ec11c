"""What should run, derived from the state of a pool: the launcher's desired set."""

from services.scheduler.domain.state import Job, PoolState, Run
from services.scheduler.launchers.port import Desired, DesiredRun


def desired(state: PoolState, *, epoch: int) -> Desired:
    """Return every run that holds slots: those that should live and those that should end.

    A run stays in the set until its processes are confirmed gone.
    """
    holders = sorted({who for node in state.nodes.values() for who in node.leases.values()})
    jobs = (state.jobs[job_id] for job_id in holders)
    runs = [(job, job.live_run) for job in jobs]
    return Desired(
        pool=state.pool,
        epoch=epoch,
        runs=tuple(_desired(job, run) for job, run in runs if run is not None),
    )


def _desired(job: Job, run: Run) -> DesiredRun:
    stop = run.stop
    return DesiredRun(
        job=job.id,
        attempt=run.attempt,
        order=run.order,
        nodes=run.nodes,
        not_after=run.not_after,
        intent=stop.intent if stop else None,
        grace_ms=stop.grace_ms if stop else run.order["grace_ms"],
        stop_reason=stop.reason if stop else "",
        stop_at=stop.at if stop else 0,
    )
