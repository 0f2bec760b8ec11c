"""The state of one pool: jobs, runs, nodes, and what is derived from them.

Jobs, runs and nodes are frozen values that are replaced whole; ``PoolState.put`` keeps what is
derived from a job (its place in the queue, its slots, its timers) true with each change.
No decision stands here, and no event.
"""

import heapq
from bisect import bisect_left, insort
from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from lineshaft.contracts.failures import INTENT_RANK, Budget, FailureClass, StopIntent
from lineshaft.contracts.lifecycle import Place
from services.scheduler.launchers.port import NodeShare

QueueKey = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint. ``is_rejected``: runs failed from it and went further back."""

    attempt: int
    step: int
    digest: str
    path: str
    bytes: int
    at: int
    is_rejected: bool = False

    def source(self) -> dict[str, Any]:
        """Return it as a launch order names it."""
        return {
            "attempt": self.attempt,
            "step": self.step,
            "digest": self.digest,
            "path": self.path,
        }


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop under way; its intent may only be raised."""

    intent: StopIntent
    reason: str
    actor: str
    grace_ms: int
    at: int

    def is_below(self, intent: StopIntent) -> bool:
        """Tell whether ``intent`` would raise this stop."""
        return INTENT_RANK[self.intent] < INTENT_RANK[intent]


@dataclass(frozen=True, slots=True)
class Fault:
    """One piece of evidence that an attempt failed.

    ``what``: rank_exited; cascade (a rank that another one took along); node_failed; diagnosed;
    launch_failed, start_overdue, no_record, agent_lost, node_lost, vanished.
    """

    what: str
    summary: str
    failure: FailureClass | None
    at: int
    node: str | None = None
    rank: int | None = None
    budget: Budget | None = None  # None: by the class
    action: str = "restart"  # restart, hold, fail
    mutation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The job's current attempt. It holds its slots until ``is_gone``."""

    attempt: int
    nodes: tuple[NodeShare, ...]
    not_after: int
    order: Mapping[str, Any]
    resume: Mapping[str, Any] | None = None
    is_launched: bool = False
    started: frozenset[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=dict)  # node -> outcome
    is_gone: bool = False
    completed: Mapping[str, Any] | None = None
    stop: Stop | None = None
    faults: tuple[Fault, ...] = ()
    diagnosis: Mapping[str, Any] | None = None

    @property
    def node_names(self) -> frozenset[str]:
        """The nodes of its gang."""
        return frozenset(share.node for share in self.nodes)


@dataclass(frozen=True, slots=True)
class Gang:
    """Exactly ``nodes`` distinct nodes with ``slots_per_node`` free slots each."""

    nodes: int
    slots_per_node: int
    gpu_type: str

    @property
    def slots(self) -> int:
        """All slots together."""
        return self.nodes * self.slots_per_node


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the pool, from its admission on."""

    id: str
    name: str
    team: str
    spec: Mapping[str, Any]
    resolved: Mapping[str, Any]
    gang: Gang
    priority: int
    submitted_at: int
    limits: Mapping[Budget, int]
    place: Place = Place.PENDING
    reason: str = ""
    actor: str = ""
    since: int = 0
    version: int = 0
    # The version before the last command that was applied: older senders had not seen it.
    command_floor: int = 0
    attempt: int = 0
    launches: int = 0  # since the admission or the last resume by a person
    used: Mapping[Budget, int] = field(default_factory=dict)
    failures: int = 0  # in a row, without a new checkpoint
    same_place: int = 0  # of those, from the present place to resume from
    is_stepped_back: bool = False
    avoid: tuple[str, ...] = ()
    mutation: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    run: Run | None = None
    timers: Mapping[str, int] = field(default_factory=dict)
    is_resume_wanted: bool = False
    run_ms: int = 0  # run time of the attempts before this one
    running_since: int | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it stands in the queue for a gang."""
        is_ready = self.place is Place.BACKING_OFF and "back_off" not in self.timers
        return self.place is Place.PENDING or is_ready

    @property
    def live_run(self) -> Run | None:
        """The run that holds slots, if one does."""
        return self.run if self.run is not None and not self.run.is_gone else None

    def spec_part(self, name: str) -> Any:
        """Return one field of the canonical job (camelCase), or None."""
        return self.spec.get(name)

    @property
    def queue_key(self) -> QueueKey:
        """Its place in the order: priority, then time of submission, then id."""
        return (-self.priority, self.submitted_at, self.id)


@dataclass(frozen=True, slots=True)
class Node:
    """A node and who holds its slots (slot number -> job id)."""

    name: str
    gpu_type: str
    slots: int
    status: str
    labels: Mapping[str, str] = field(default_factory=dict)
    leases: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether new runs may be placed on it."""
        return self.status == "ready"

    def free(self) -> list[int]:
        """Return its free slot numbers, ascending; none unless it is ready."""
        if not self.is_ready:
            return []
        return [slot for slot in range(self.slots) if slot not in self.leases]


@dataclass(frozen=True, slots=True)
class Parked:
    """A command for a job whose admission has not arrived yet."""

    fact_id: str
    at: int
    data: Mapping[str, Any]


@dataclass(slots=True)
class PoolState:
    """Everything the scheduler knows of one pool."""

    pool: str
    jobs: MutableMapping[str, Job] = field(default_factory=dict)
    nodes: MutableMapping[str, Node] = field(default_factory=dict)
    parked: MutableMapping[str, tuple[Parked, ...]] = field(default_factory=dict)
    findings: MutableMapping[str, str] = field(default_factory=dict)  # subject -> kind, open ones
    queue: list[QueueKey] = field(default_factory=list)
    waiting: MutableMapping[str, int] = field(default_factory=dict)  # gpu type -> jobs in queue
    used: MutableMapping[str, int] = field(default_factory=dict)  # team -> slots held
    timers: list[tuple[int, str, str]] = field(default_factory=list)  # a heap; may hold void ones
    is_pass_owed: bool = False
    epoch: int = 0

    def fork(self) -> "PoolState":
        """Return a state that can be changed without changing this one (for trying things out)."""
        return PoolState(
            pool=self.pool,
            jobs=ChainMap({}, self.jobs),
            nodes=dict(self.nodes),
            parked=dict(self.parked),
            findings=dict(self.findings),
            queue=list(self.queue),
            waiting=dict(self.waiting),
            used=dict(self.used),
            timers=list(self.timers),
            is_pass_owed=self.is_pass_owed,
            epoch=self.epoch,
        )

    def put(self, job: Job) -> None:
        """Store a job, and keep the queue, the slots held and the timers true."""
        before = self.jobs.get(job.id)
        self.jobs[job.id] = job
        self._queue(before, job)
        self._lease(before, job)
        known = before.timers if before else {}
        for name, at in job.timers.items():
            if known.get(name) != at:
                heapq.heappush(self.timers, (at, job.id, name))

    def _queue(self, before: Job | None, job: Job) -> None:
        old = before.queue_key if before and before.is_waiting else None
        new = job.queue_key if job.is_waiting else None
        if old == new:
            return
        kind = job.gang.gpu_type
        if old is not None:
            self.queue.pop(bisect_left(self.queue, old))
            self.waiting[kind] -= 1
        if new is not None:
            insort(self.queue, new)
            self.waiting[kind] = self.waiting.get(kind, 0) + 1

    def _lease(self, before: Job | None, job: Job) -> None:
        old = before.live_run if before else None
        new = job.live_run
        if (old.nodes if old else None) == (new.nodes if new else None):
            return
        if old is not None:
            self._release(old, job)
        for share in new.nodes if new else ():
            node = self.nodes[share.node]
            leases = {**node.leases, **dict.fromkeys(share.slots, job.id)}
            self.nodes[share.node] = replace(node, leases=leases)
            self.used[job.team] = self.used.get(job.team, 0) + len(share.slots)

    def _release(self, run: Run, job: Job) -> None:
        for share in run.nodes:
            node = self.nodes[share.node]
            leases = {slot: who for slot, who in node.leases.items() if slot not in share.slots}
            self.nodes[share.node] = replace(node, leases=leases)
            self.used[job.team] -= len(share.slots)

    def next_timer(self) -> tuple[int, str, str] | None:
        """Return the earliest timer that counts; void ones are dropped from the heap."""
        while self.timers:
            at, job_id, name = self.timers[0]
            job = self.jobs.get(job_id)
            if job is not None and job.timers.get(name) == at:
                return self.timers[0]
            heapq.heappop(self.timers)
        return None
