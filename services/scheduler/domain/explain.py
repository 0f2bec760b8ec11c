"""Why a job is where it is: a closed list of reasons, its place in the order, what it needs.

Computed from the state when asked; nothing of it is written anywhere.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lineshaft.contracts.lifecycle import Place, State
from services.scheduler.domain import placement
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import Job, PoolState


class Reason(StrEnum):
    """Why a job does not run; the first three are faults of configuration, not of time."""

    NEVER_FITS = "never_fits"
    HELD = "held"
    NO_NODES = "no_nodes"
    QUOTA = "quota"
    CAPACITY = "capacity"
    BEHIND = "behind"
    STARTING = "starting"
    BACKING_OFF = "backing_off"
    AWAITING_GONE = "awaiting_gone"
    SUSPENDED = "suspended"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why is it not running?". ``position`` counts from 1; None: not queued."""

    reason: Reason
    position: int | None
    ahead: tuple[str, ...]
    needs: dict[str, Any]
    free: dict[str, Any]
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "reason": self.reason.value,
            "position": self.position,
            "ahead": list(self.ahead),
            "needs": self.needs,
            "free": self.free,
            "text": self.text,
        }


AHEAD_SHOWN_MAX = 20


def explain(state: PoolState, job: Job, *, now: int, policy: Policy) -> Explanation:
    """Say why ``job`` is not running, or that it runs."""
    reason, text = _why(state, job, now=now, policy=policy)
    ids = [job_id for _, _, job_id in state.queue]
    position = ids.index(job.id) + 1 if job.is_waiting else None
    quota = policy.quotas.get(job.team)
    return Explanation(
        reason=reason,
        position=position,
        ahead=tuple(ids[: position - 1][-AHEAD_SHOWN_MAX:]) if position else (),
        needs={
            "nodes": job.gang.nodes,
            "slots_per_node": job.gang.slots_per_node,
            "gpu_type": job.gang.gpu_type,
            "slots": job.gang.slots,
        },
        free={
            "slots": placement.free_slots(job.gang, state.nodes),
            "nodes": {
                node.name: len(node.free())
                for _, node in sorted(state.nodes.items())
                if placement.matches(job.gang, node.gpu_type)
            },
            "quota": None if quota is None else quota - state.used.get(job.team, 0),
        },
        text=text,
    )


def _why(state: PoolState, job: Job, *, now: int, policy: Policy) -> tuple[Reason, str]:
    if job.is_waiting:
        return _of_waiting(state, job, policy)
    if job.place is Place.BACKING_OFF:
        left_s = max(job.timers["back_off"] - now, 0) / 1000
        return Reason.BACKING_OFF, f"{job.reason}; {left_s:.1f} s are left"
    fixed = _OF_PLACE.get(job.place)
    if fixed is not None:
        return fixed, job.reason
    kind = {State.RUNNING: Reason.RUNNING, State.SCHEDULED: Reason.STARTING}
    return kind.get(job.place.state, Reason.ENDED), job.reason


_OF_PLACE = {
    Place.PREPARING: Reason.STARTING,
    Place.HELD: Reason.HELD,
    Place.SUSPENDED: Reason.SUSPENDED,
    Place.AWAITING_GONE: Reason.AWAITING_GONE,
}


def _of_waiting(state: PoolState, job: Job, policy: Policy) -> tuple[Reason, str]:
    never = placement.never_fits(job, state, policy)
    if never:
        return Reason.NEVER_FITS, f"it can never run here: {never}"
    if not any(node.is_ready for node in state.nodes.values()):
        return Reason.NO_NODES, "no node of the pool is ready"
    whole = placement.walk(state, policy, is_whole=True)
    found = next(one for one in whole if one.job.id == job.id)
    gang = job.gang
    wanted = f"{gang.nodes} x {gang.slots_per_node} free slots of {gang.gpu_type}"
    if found.why == "quota":
        held, quota = state.used.get(job.team, 0), policy.quotas[job.team]
        return Reason.QUOTA, f"team {job.team} holds {held} of its {quota} slots"
    if found.why == "behind":
        head = _head(state, job, policy)
        return Reason.BEHIND, f"it waits its turn behind {head}, which waits for {gang.gpu_type}"
    if found.why == "fits":
        return Reason.STARTING, "it fits and starts with the next decision"
    free = placement.free_slots(gang, state.nodes)
    return Reason.CAPACITY, f"it needs {wanted}; {free} slots are free"


def _head(state: PoolState, job: Job, policy: Policy) -> str:
    """Return the job that keeps the later ones of the same kind waiting."""
    for found in placement.walk(state, policy):
        if found.why == "capacity" and found.job.gang.gpu_type == job.gang.gpu_type:
            return f"{found.job.name} ({found.job.id})"
    return "an earlier job"
