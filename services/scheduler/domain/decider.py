"""The scheduler's decider: which fact concerns which pool, and who decides it.

``PoolDecider`` is what the host runs. Each decision ends with a walk of the queue, so that whatever
freed capacity or added a job is followed by what may start now.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lineshaft.contracts.events import NOT_APPLICABLE, Event, Fact
from lineshaft.contracts.failures import Budget
from lineshaft.runtime.decider import CLOCK_DUE, FactRefused
from services.scheduler.domain import codec, commands, due, runs
from services.scheduler.domain.evolve import evolve
from services.scheduler.domain.placement import place_waiting
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import PoolState
from services.scheduler.domain.work import Work

STREAM_PREFIX = "pool/"
CONFIRM_GONE = "scheduler.confirm_gone"
RELEASE_NODE = "scheduler.release_node"
LEADS = "scheduler.leads"
"""A new leader's epoch, which orders carry from then on."""

_OF_EVERY_ATTEMPT = ("run.checkpoint_committed",)
_OF_POOL = {
    "job.command_accepted": commands.command_accepted,
    CONFIRM_GONE: commands.confirm_gone,
    RELEASE_NODE: commands.release_node,
}
CONSUMED = frozenset(
    {LEADS, "job.admitted", "run.node_changed", CLOCK_DUE, *_OF_POOL, *runs.HANDLERS}
)


class PoolDecider:
    """Decides for the pools of one scheduler; one journal stream per pool."""

    service = "scheduler"

    def __init__(self, pools: Sequence[str] = ("default",)) -> None:
        self._pools = tuple(pools)
        self.ignored: Counter[str] = Counter()
        """How many facts changed nothing, by reason; for metrics only."""

    def streams(self) -> Sequence[str]:
        """Return the stream of each pool."""
        return [STREAM_PREFIX + pool for pool in self._pools]

    def route(self, fact: Fact) -> Sequence[str]:
        """Return the stream of the fact's pool, if it is one of ours and we know the kind."""
        if fact.kind not in CONSUMED:
            return ()
        pool = fact.data.get("pool") if fact.pool == NOT_APPLICABLE else fact.pool
        if pool is None and len(self._pools) == 1:
            pool = self._pools[0]
        return (STREAM_PREFIX + pool,) if pool in self._pools else ()

    def initial(self, stream: str) -> PoolState:
        """Return an empty pool."""
        return PoolState(pool=stream.removeprefix(STREAM_PREFIX))

    def decide(self, state: PoolState, fact: Fact, *, now: int, policy: Policy) -> list[Event]:
        """Return what ``fact`` causes; ``FactRefused`` for what can never be."""
        work = Work(state, now=now, policy=policy, ignored=self.ignored)
        if fact.kind in runs.HANDLERS:
            self._of_run(work, fact)
        elif fact.kind == "job.admitted":
            _admitted(work, fact)
        elif fact.kind == "run.node_changed":
            _node_changed(work, fact)
        elif fact.kind in _OF_POOL:
            _OF_POOL[fact.kind](work, fact)
        elif fact.kind == LEADS:
            work.emit("pool.led", {"epoch": fact.data["epoch"]})
        elif fact.kind == CLOCK_DUE:
            due.fire(work)
        if work.events or work.state.is_pass_owed:
            place_waiting(work)
        return work.events

    def _of_run(self, work: Work, fact: Fact) -> None:
        job = work.state.jobs.get(fact.subject)
        attempt = fact.attempt
        if job is None:
            self.ignored["of a job that is not ours"] += 1
            return
        if attempt is None or attempt > job.attempt or attempt < 1:
            raise FactRefused(
                f"{fact.kind} of {job.id} names attempt {attempt}; "
                f"the newest ever launched is {job.attempt}"
            )
        if attempt < job.attempt and fact.kind not in _OF_EVERY_ATTEMPT:
            self.ignored["stale: of an older attempt"] += 1
            return
        runs.HANDLERS[fact.kind](work, job, fact)

    def evolve(self, state: PoolState, event: Event, *, at: int) -> PoolState:
        """Apply one event."""
        return evolve(state, event, at=at)

    def due(self, state: PoolState) -> int | None:
        """Return when the nearest timer is due."""
        if state.is_pass_owed:
            return 0
        nearest = state.next_timer()
        return nearest[0] if nearest else None

    def dump(self, state: PoolState) -> dict[str, Any]:
        """Return the state as JSON values."""
        return codec.dump(state)

    def load(self, stream: str, dumped: dict[str, Any]) -> PoolState:
        """Read a snapshot back."""
        return codec.load(stream.removeprefix(STREAM_PREFIX), dumped)

    def open_since(self, state: PoolState) -> int | None:
        """Return when the oldest job that has not ended was submitted."""
        open_jobs = (j.submitted_at for j in state.jobs.values() if not j.place.is_terminal)
        return min(open_jobs, default=None)


def _admitted(work: Work, fact: Fact) -> None:
    data = fact.data
    if data["job"] in work.state.jobs:
        work.ignored["it was admitted before"] += 1
        return
    admitted = {
        name: data[name]
        for name in ("name", "team", "spec", "resolved", "gang", "priority", "estimate")
    }
    event = Event(
        "pool.admitted",
        {
            **admitted,
            "limits": _limits(data["budgets"], work.policy),
            "submitted_at": data.get("submitted_at", fact.at),
            "warnings": data["warnings"],
        },
        data["job"],
        pool=work.state.pool,
        team=data["team"],
    )
    work.add(event)
    job = work.state.jobs[data["job"]]
    work.tell(job, job.place, reason="admitted; it waits for its gang", actor="admission")
    commands.apply_parked(work, job)


def _limits(budgets: Mapping[str, Any], policy: Policy) -> dict[str, int]:
    """Return the retries per budget: the job's own where it has some, else the policy's."""
    limits = {}
    for budget in Budget:
        wish = budgets.get(budget.value)
        limits[budget.value] = policy.budgets[budget] if wish is None else int(wish)
    return limits


def _node_changed(work: Work, fact: Fact) -> None:
    data = fact.data
    node = work.state.nodes.get(data["node"])
    labels = dict(data.get("labels", {}))
    gpu_type = data.get("gpu_type", "cpu")
    told = (gpu_type, data["slots"], data["status"], labels)
    if node is not None and (node.gpu_type, node.slots, node.status, dict(node.labels)) == told:
        return
    work.emit(
        "pool.node_changed",
        {
            "node": data["node"],
            "gpu_type": gpu_type,
            "slots": data["slots"],
            "status": data["status"],
            "labels": labels,
        },
    )
    if node is None or node.is_ready is (data["status"] == "ready"):
        return
    act = runs.node_lost if node.is_ready else runs.node_back
    for job_id in sorted(set(node.leases.values())):
        act(work, work.state.jobs[job_id], data["node"])
