"""Who starts next, and where: the order of the queue, whole gangs, quotas.

The queue is walked strictly in order: priority, time of submission, id. A job is passed over only
where that cannot delay it: its team's quota is used up, or it can never fit. The first job that
waits for capacity keeps every later one that wants the same kind of node waiting too, so that
small jobs cannot starve a large one. A gang is placed whole, on exactly ``gang.nodes`` distinct
nodes, those with the fewest free slots first, so that large gaps stay whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts.lifecycle import Happening, Place
from services.scheduler.domain import verdict as verdicts
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import Checkpoint, Gang, Job, Node, PoolState
from services.scheduler.domain.work import PLATFORM, Work, grace_of, start_timeout_of
from services.scheduler.launchers.port import NodeShare

ORDER_SCHEMA = 1


def matches(gang: Gang, gpu_type: str) -> bool:
    """Tell whether nodes of ``gpu_type`` are what the gang asks for."""
    return gang.gpu_type == gpu_type


def fit(gang: Gang, nodes: Iterable[Node], avoid: tuple[str, ...] = ()) -> list[NodeShare] | None:
    """Return the gang's nodes and slots, or None when it does not fit now.

    Nodes to avoid are taken only when there are not enough others.
    """
    roomy = []
    for node in nodes:
        free = node.free() if matches(gang, node.gpu_type) else []
        if len(free) >= gang.slots_per_node:
            roomy.append((node.name in avoid, len(free), node.name, free))
    if len(roomy) < gang.nodes:
        return None
    chosen = sorted(roomy)[: gang.nodes]
    return [
        NodeShare(name, tuple(free[: gang.slots_per_node]))
        for _, _, name, free in sorted(chosen, key=lambda one: one[2])
    ]


def never_fits(job: Job, state: PoolState, policy: Policy) -> str:
    """Return why the job can never run in this pool as it is declared, or an empty text."""
    gang = job.gang
    quota = policy.quotas.get(job.team)
    if quota is not None and gang.slots > quota:
        return f"it needs {gang.slots} slots, and the quota of team {job.team} is {quota}"
    sizes = _declared(gang, state, policy)
    if not sizes and not policy.declared and not state.nodes:
        return ""  # nothing was declared or reported yet
    able = sum(size >= gang.slots_per_node for size in sizes)
    if able >= gang.nodes:
        return ""
    wanted = f"{gang.nodes} x {gang.slots_per_node} slots of {gang.gpu_type}"
    return f"it needs {wanted}; the pool has {len(sizes)} such nodes, {able} of them large enough"


def _declared(gang: Gang, state: PoolState, policy: Policy) -> list[int]:
    if policy.declared:
        kinds = [one for one in policy.declared if matches(gang, one.gpu_type)]
        return [one.slots for one in kinds for _ in range(one.count)]
    return [node.slots for node in state.nodes.values() if matches(gang, node.gpu_type)]


def lacks_quota(job: Job, state: PoolState, policy: Policy) -> bool:
    """Tell whether the job's team would hold more slots than its quota."""
    quota = policy.quotas.get(job.team)
    return quota is not None and state.used.get(job.team, 0) + job.gang.slots > quota


@dataclass(frozen=True, slots=True)
class Found:
    """A job of the queue and what the walk says of it."""

    job: Job
    why: str  # "fits", "quota", "never", "capacity", "behind"
    shares: tuple[NodeShare, ...] = ()


def walk(state: PoolState, policy: Policy, *, is_whole: bool = False) -> Iterable[Found]:
    """Walk the queue in order and say of each job whether it may start, or why not.

    The caller may change ``state`` between two steps, when it places what fits. The walk ends
    where every kind of node that anybody waits for is kept by an earlier job, unless
    ``is_whole``.
    """
    blocked: set[str] = set()
    for _, _, job_id in list(state.queue):
        if not is_whole and all(kind in blocked for kind, n in state.waiting.items() if n):
            return
        job = state.jobs[job_id]
        if lacks_quota(job, state, policy):
            yield Found(job, "never" if never_fits(job, state, policy) else "quota")
        elif job.gang.gpu_type in blocked:
            yield Found(job, "behind")
        else:
            shares = fit(job.gang, state.nodes.values(), job.avoid)
            if shares is not None:
                yield Found(job, "fits", tuple(shares))
            elif never_fits(job, state, policy):
                yield Found(job, "never")
            else:
                blocked.add(job.gang.gpu_type)
                yield Found(job, "capacity")


def place_waiting(work: Work) -> None:
    """Start every job that may start now, up to the bound of one decision."""
    placed = 0
    for found in walk(work.state, work.policy):
        if found.why != "fits":
            continue
        if found.job.launches >= work.policy.attempts_max:
            reason = f"{found.job.launches} attempts were launched; held for a person"
            work.move(found.job, Happening.HOLD, Place.HELD, reason=reason)
            continue
        if placed >= work.policy.placements_per_decision_max:
            if not work.state.is_pass_owed:
                work.emit("pool.pass_owed", {"is_owed": True})
            return
        _place(work, found.job, found.shares)
        placed += 1
    if work.state.is_pass_owed:
        work.emit("pool.pass_owed", {"is_owed": False})


def _place(work: Work, job: Job, shares: tuple[NodeShare, ...]) -> None:
    source = verdicts.source_of(job)
    attempt = job.attempt + 1
    nodes = [{"node": share.node, "slots": list(share.slots)} for share in shares]
    where = ", ".join(f"{share.node} ({len(share.slots)})" for share in shares)
    resume = source.source() if source else None
    again = f"; {verdicts.where(resume)}" if attempt > 1 else ""
    work.move(
        job,
        Happening.PLACED,
        Place.LAUNCHING,
        reason=f"a gang of {job.gang.slots} slots was reserved on {where}{again}",
        actor=PLATFORM,
        attempt=attempt,
        nodes=nodes,
        resume_from=resume,
    )
    placed = work.job(job)
    work.emit(
        "run.launch_ordered",
        {
            "epoch": work.state.epoch,
            "not_after": work.now + work.policy.launch_not_after_ms,
            "nodes": nodes,
            "order": launch_order(work, placed, nodes, source),
        },
        job=placed,
    )
    work.timers(placed, start=work.now + start_timeout_of(placed, work.policy))


def launch_order(
    work: Work, job: Job, nodes: list[dict[str, Any]], source: Checkpoint | None
) -> dict[str, Any]:
    """Return what a launch order says of any machine; the launcher adds the rest per node."""
    return {
        "schema": ORDER_SCHEMA,
        "job": job.id,
        "attempt": job.attempt,
        "name": job.name,
        "team": job.team,
        "pool": work.state.pool,
        "spec": dict(job.spec),
        "resolved": dict(job.resolved),
        "grace_ms": grace_of(job, work.policy),
        "hang_limit_ms": work.policy.hang_limit_ms,
        "first_step_limit_ms": work.policy.first_step_limit_ms,
        "resume": source.source() if source else None,
        "mutation": dict(job.mutation),
        "nodes": nodes,
        "world_size": job.gang.slots,
        "launcher": job.resolved.get("launcher", "none"),
    }


def free_slots(gang: Gang, nodes: Mapping[str, Node]) -> int:
    """Return how many free slots of the gang's kind there are now."""
    return sum(len(node.free()) for node in nodes.values() if matches(gang, node.gpu_type))
