"""Builders for the scheduler's tests: a pool in virtual time, driven by facts.

``a_pool()`` gives a decider with its state; each fact is decided and its events evolved, as the
host does, and the pool's invariants are checked after every step.
"""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from lineshaft.contracts.events import KINDS, Event, Fact, check
from lineshaft.contracts.failures import Budget
from lineshaft.contracts.lifecycle import Place
from lineshaft.runtime.decider import CLOCK_DUE, FactRefused
from services.scheduler.domain.decider import PoolDecider
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import Job, PoolState

POOL = "default"
STREAM = "pool/default"


def job_named(number: int | str) -> str:
    """Return a job id with a readable beginning."""
    return f"j-{number}"


class Pool:
    """One pool under test. Times are milliseconds of a clock that only the test moves."""

    def __init__(self, nodes: dict[str, int] | None = None, policy: Policy | None = None):
        self.decider = PoolDecider([POOL])
        self.policy = policy or Policy()
        self.state: PoolState = self.decider.initial(STREAM)
        self.now = 1_000_000
        self.journal: list[tuple[int, Event]] = []
        self.facts = 0
        for name, slots in (nodes if nodes is not None else {"n0": 2}).items():
            self.node(name, slots)

    # -- facts

    def tell(
        self,
        kind: str,
        data: dict[str, Any],
        job: str = "-",
        attempt: int | None = None,
        **more: Any,
    ) -> list[Event]:
        """Hand in one fact; return the events it caused."""
        self.facts += 1
        fact = Fact(
            id=f"fact-{self.facts}", kind=kind, data=data, at=self.now, source="test",
            subject=job, attempt=attempt, pool=POOL, **more,
        )  # fmt: skip
        if kind in KINDS:
            check(kind, data)
        return self.hand_in(fact)

    def hand_in(self, fact: Fact) -> list[Event]:
        """Decide a fact, evolve its events and check the invariants."""
        decided = self.decider.decide(self.state, fact, now=self.now, policy=self.policy)
        events = [replace(e, data=json.loads(json.dumps(e.data))) for e in decided]
        for event in events:
            if event.is_public:
                check(event.kind, event.data)
            self.journal.append((self.now, event))
            self.state = self.decider.evolve(self.state, event, at=self.now)
        check_invariants(self.state, self.policy)
        return events

    def node(self, name: str, slots: int, status: str = "ready", gpu_type: str = "cpu") -> None:
        data = {"node": name, "status": status, "slots": slots, "gpu_type": gpu_type}
        self.tell("run.node_changed", data)

    def admit(
        self, job: str = "j-1", *, nodes: int = 1, slots: int = 2, gpu_type: str = "cpu",
        priority: int = 0, team: str = "research", budgets: dict[str, int] | None = None,
        spec: dict[str, Any] | None = None, at: int | None = None,
    ) -> list[Event]:  # fmt: skip
        data = {
            "job": job,
            "name": f"name-of-{job}",
            "team": team,
            "pool": POOL,
            "spec": {"name": f"name-of-{job}", "jobType": "script", **(spec or {})},
            "resolved": {"output": {"model_name": "tiny"}, "launcher": "torchrun"},
            "gang": {"nodes": nodes, "slots_per_node": slots, "gpu_type": gpu_type},
            "priority": priority,
            "budgets": budgets or {},
            "estimate": {},
            "warnings": [],
            "submitted_at": self.now if at is None else at,
        }
        return self.tell("job.admitted", data, job)

    def command(self, verb: str, job: str = "j-1", **more: Any) -> list[Event]:
        data = {"job": job, "verb": verb, "actor": "ada", "reason": f"{verb} please", **more}
        return self.tell("job.command_accepted", data, job)

    def started(self, job: str = "j-1", attempt: int = 1, node: str = "n0") -> list[Event]:
        return self.tell("run.started", {"node": node, "ranks": [0, 1]}, job, attempt)

    def rank_exited(
        self, job: str = "j-1", attempt: int = 1, *, node: str = "n0", rank: int = 1,
        signal: int | None = 9, exit_code: int | None = None, lines: tuple[str, ...] = (),
    ) -> list[Event]:  # fmt: skip
        data = {
            "node": node, "rank": rank, "exit_code": exit_code, "signal": signal,
            "last_lines": list(lines),
        }  # fmt: skip
        return self.tell("run.rank_exited", data, job, attempt)

    def ended(
        self, job: str = "j-1", attempt: int = 1, *, node: str = "n0",
        outcome: str = "failed", failure: str | None = None,
    ) -> list[Event]:  # fmt: skip
        data = {"node": node, "outcome": outcome, "class": failure}
        return self.tell("run.ended", data, job, attempt)

    def stopped(self, job: str = "j-1", attempt: int = 1, intent: str = "fault") -> list[Event]:
        data = {"intent": intent, "reason": "its processes are gone"}
        return self.tell("run.stopped", data, job, attempt)

    def completed(self, job: str = "j-1", attempt: int = 1, step: int = 100) -> list[Event]:
        return self.tell("run.completed", {"manifest": "sha256:aa", "step": step}, job, attempt)

    def checkpoint(self, job: str = "j-1", attempt: int = 1, step: int = 10) -> list[Event]:
        data = {"step": step, "digest": f"d{step}", "bytes": 5, "path": f"{job}/{attempt}/{step}"}
        return self.tell("run.checkpoint_committed", data, job, attempt)

    def launch_failed(
        self, job: str = "j-1", attempt: int = 1, failure: str = "infrastructure"
    ) -> list[Event]:
        data = {"class": failure, "reason": "no port was free", "evidence": {}}
        return self.tell("run.launch_failed", data, job, attempt)

    def diagnosed(
        self, job: str = "j-1", attempt: int = 1, *, what: str = "hang", action: str = "restart",
        failure: str | None = "infrastructure", **more: Any,
    ) -> list[Event]:  # fmt: skip
        data = {
            "diagnosis": f"d-{self.facts}", "what": what, "class": failure, "action": action,
            "evidence": {}, "summary": f"{what} seen", **more,
        }  # fmt: skip
        return self.tell("run.diagnosed", data, job, attempt)

    def crash(self, job: str = "j-1", attempt: int | None = None) -> None:
        """Let the only node's rank be killed, its agent end, and the diagnosis be waited for."""
        attempt = attempt or self.job(job).attempt
        self.started(job, attempt)
        self.rank_exited(job, attempt)
        self.ended(job, attempt)
        self.wait(self.policy.diagnosis_wait_ms)

    # -- time

    def wait(self, milliseconds: int) -> list[Event]:
        """Let time pass; every timer fires when it is due."""
        end = self.now + milliseconds
        events: list[Event] = []
        while (due := self.decider.due(self.state)) is not None and due <= end:
            self.now = max(self.now, due)
            events += self.tell(CLOCK_DUE, {})
        self.now = end
        return events

    # -- what is seen

    def job(self, job: str = "j-1") -> Job:
        return self.state.jobs[job]

    def place(self, job: str = "j-1") -> Place:
        return self.state.jobs[job].place

    def orders(self, job: str = "j-1") -> list[dict[str, Any]]:
        """Return the launch orders of a job, the first one first."""
        wanted = [e for _, e in self.journal if e.kind == "run.launch_ordered"]
        return [event.data["order"] for event in wanted if event.subject == job]

    def kinds(self, job: str = "j-1") -> list[str]:
        """Return the kinds of the job's public events."""
        return [e.kind for _, e in self.journal if e.subject == job and e.is_public]

    def told(self, kind: str) -> list[Event]:
        """Return the events of a kind."""
        return [event for _, event in self.journal if event.kind == kind]

    def replayed(self) -> PoolState:
        """Return the state that the journal alone makes."""
        state = self.decider.initial(STREAM)
        for at, event in self.journal:
            state = self.decider.evolve(state, event, at=at)
        return state


def a_pool(nodes: dict[str, int] | None = None, **policy: Any) -> Pool:
    """Return a pool of one node with two slots, unless told otherwise."""
    return Pool(nodes, Policy(**policy))


def a_running_job(pool: Pool, job: str = "j-1", **more: Any) -> Pool:
    """Admit a job and let its first attempt start on the node that it was placed on."""
    pool.admit(job, **more)
    run = pool.job(job).run
    assert run is not None
    for share in run.nodes:
        pool.started(job, 1, share.node)
    return pool


def check_invariants(state: PoolState, policy: Policy) -> None:
    """Fail when a slot is leased twice or to nobody, a gang is torn, or a count is off."""
    expected: dict[tuple[str, int], str] = {}
    held: Counter[str] = Counter()
    for job in state.jobs.values():
        assert job.launches <= policy.attempts_max, f"{job.id}: {job.launches} launches"
        for budget in (Budget.NODE, Budget.PLATFORM):
            over = 1 if job.place.is_terminal or job.place is Place.HELD else 0
            over = 1 if job.used.get(budget, 0) and job.place is not Place.BACKING_OFF else over
            assert job.used.get(budget, 0) <= job.limits[budget] + over
        run = job.live_run
        if run is None:
            continue
        assert not job.place.is_terminal, f"{job.id} ended and holds slots"
        assert len({share.node for share in run.nodes}) == job.gang.nodes
        for share in run.nodes:
            assert len(share.slots) == job.gang.slots_per_node
            for slot in share.slots:
                assert (share.node, slot) not in expected, f"{share.node}/{slot} is leased twice"
                expected[share.node, slot] = job.id
                held[job.team] += 1
    leased = {(n.name, slot): who for n in state.nodes.values() for slot, who in n.leases.items()}
    assert leased == expected
    assert {team: n for team, n in state.used.items() if n} == dict(held)
    assert state.queue == sorted(job.queue_key for job in state.jobs.values() if job.is_waiting)


__all__ = ["FactRefused", "Pool", "a_pool", "a_running_job", "check_invariants", "job_named"]
