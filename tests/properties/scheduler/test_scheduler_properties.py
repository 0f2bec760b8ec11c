"""What holds for the scheduler whatever it is told, in whatever order, however often."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineshaft.contracts.events import Fact
from lineshaft.contracts.lifecycle import Place
from lineshaft.runtime.decider import CLOCK_DUE, FactRefused
from services.scheduler.domain import codec
from services.scheduler.domain.policy import Policy
from tests.builders_scheduler import POOL, Pool

JOBS = ("j-a", "j-b", "j-c")
NODES = {"n0": 2, "n1": 2, "n2": 1}

_attempts = st.integers(1, 4)
_nodes = st.sampled_from(sorted(NODES))


def _of_run(kind: str, data: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(kind), data, st.sampled_from(JOBS), _attempts)


def _fixed(**data: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            name: value if isinstance(value, st.SearchStrategy) else st.just(value)
            for name, value in data.items()
        }
    )


_classes = st.sampled_from(["infrastructure", "transient", "user_code", "data", "config", None])
RUN_FACTS = st.one_of(
    _of_run("run.launched", _fixed()),
    _of_run("run.started", _fixed(node=_nodes, ranks=[0])),
    _of_run(
        "run.launch_failed",
        _fixed(
            **{"class": st.sampled_from(["infrastructure", "config"])}, reason="no", evidence={}
        ),
    ),
    _of_run(
        "run.rank_exited",
        _fixed(
            node=_nodes, rank=0, exit_code=st.sampled_from([0, 1, None]), signal=None, last_lines=[]
        ),
    ),
    _of_run(
        "run.ended",
        _fixed(
            node=_nodes,
            outcome=st.sampled_from(["completed", "stopped", "failed"]),
            **{"class": _classes},
        ),
    ),
    _of_run("run.stopped", _fixed(intent=st.sampled_from(["lost", "fault"]), reason="gone")),
    _of_run("run.completed", _fixed(manifest="sha256:aa", step=9)),
    _of_run(
        "run.checkpoint_committed",
        _fixed(step=st.integers(1, 9), digest="d", bytes=1, path="p"),
    ),
    _of_run(
        "run.diagnosed",
        _fixed(
            diagnosis="d",
            what=st.sampled_from(["hang", "unobserved", "observed"]),
            action=st.sampled_from(["restart", "hold", "fail", "note"]),
            evidence={},
            summary="seen",
            **{"class": _classes},
        ),
    ),
)
COMMANDS = st.tuples(
    st.just("job.command_accepted"),
    _fixed(
        job=st.sampled_from(JOBS),
        verb=st.sampled_from(["cancel", "suspend", "resume", "resume", "priority"]),
        actor="ada",
        reason="",
        value=st.integers(0, 9),
    ),
    st.sampled_from(JOBS),
    st.none(),
)
NODE_FACTS = st.tuples(
    st.just("run.node_changed"),
    _fixed(node=_nodes, status=st.sampled_from(["ready", "lost"]), slots=2, gpu_type="cpu"),
    st.just("-"),
    st.none(),
)
ONE_STEP = st.one_of(
    st.tuples(st.just("admit"), st.sampled_from(JOBS)),
    st.tuples(st.just("fact"), RUN_FACTS),
    *[st.tuples(st.just("current"), RUN_FACTS)] * 6,
    st.tuples(st.just("goes_on"), st.sampled_from(JOBS)),
    st.tuples(st.just("is_gone"), st.sampled_from(JOBS)),
    st.tuples(st.just("fact"), COMMANDS),
    st.tuples(st.just("fact"), NODE_FACTS),
    st.tuples(st.just("again"), st.integers(0, 200)),
    *[st.tuples(st.just("wait"), st.sampled_from([1_000, 5_000, 100_000, 2_000_000]))] * 2,
)
STEPS = st.lists(st.sampled_from(JOBS), max_size=2).flatmap(
    lambda late: st.lists(ONE_STEP, min_size=10, max_size=60).map(
        lambda steps: [("admit", job) for job in JOBS if job not in late] + steps
    )
)
GANGS = {"j-a": (1, 2), "j-b": (2, 1), "j-c": (1, 1)}


class Story:
    """Plays a list of steps against a pool and looks at what each leaves behind."""

    def __init__(self) -> None:
        self.pool = Pool(NODES, Policy(attempts_max=6, quotas={"research": 4}))
        self.told: list[Fact] = []

    def play(self, steps: list[tuple[str, Any]]) -> None:
        for what, detail in steps:
            if what == "admit":
                nodes, slots = GANGS[detail]
                self.safely(lambda j=detail, n=nodes, s=slots: self.pool.admit(j, nodes=n, slots=s))
            elif what in ("fact", "current"):
                self.tell(detail, is_current=what == "current")
            elif what == "again" and self.told:
                fact = self.told[detail % len(self.told)]
                self.safely(lambda fact=fact: self.pool.hand_in(fact))
            elif what in ("goes_on", "is_gone"):
                self.answer(detail, is_gone=what == "is_gone")
            elif what == "wait":
                self.wait(detail)

    def answer(self, job: str, *, is_gone: bool) -> None:
        """Let the job's live run, if there is one, start on all its nodes, or be gone."""
        known = self.pool.state.jobs.get(job)
        run = known.live_run if known is not None else None
        if run is None:
            return
        if is_gone:
            intent = run.stop.intent.value if run.stop else "lost"
            data = {"intent": intent, "reason": "all are gone"}
            self.tell(("run.stopped", data, job, run.attempt), is_current=False)
            return
        for share in run.nodes:
            data = {"node": share.node, "ranks": [0]}
            self.tell(("run.started", data, job, run.attempt), is_current=False)

    def tell(
        self, detail: tuple[str, dict[str, Any], str, int | None], *, is_current: bool
    ) -> None:
        kind, data, job, attempt = detail
        known = self.pool.state.jobs.get(job)
        if is_current and known is not None and known.run is not None:
            attempt = known.attempt
            if "node" in data:
                data = {**data, "node": known.run.nodes[0].node}
        fact = Fact(f"f{len(self.told)}", kind, data, self.pool.now, "test", job, attempt, POOL)
        self.told.append(fact)
        self.safely(lambda: self.pool.hand_in(fact))

    def wait(self, milliseconds: int) -> None:
        end = self.pool.now + milliseconds
        while (due := self.pool.decider.due(self.pool.state)) is not None and due <= end:
            self.pool.now = max(self.pool.now, due)
            self.safely(lambda: self.pool.tell(CLOCK_DUE, {}))
        self.pool.now = end

    def safely(self, act: Any) -> None:
        """Run one step; whatever it does, what held before must hold after it."""
        before = dict(self.pool.state.jobs)
        seen = len(self.pool.journal)
        try:
            act()
        except FactRefused:
            assert len(self.pool.journal) == seen, "a refused fact leaves nothing behind"
        events = [event for _, event in self.pool.journal[seen:]]
        for job_id, job in before.items():
            after = self.pool.state.jobs[job_id]
            if job.place.is_terminal:
                assert (after.place, after.attempt, after.run) == (job.place, job.attempt, job.run)
            if after.attempt > job.attempt:
                assert after.attempt == job.attempt + 1
                self.launched(job_id, events)
            if job.live_run is not None and after.live_run is None:
                assert any(e.kind == "pool.run_gone" and e.subject == job_id for e in events)

    def launched(self, job_id: str, events: list[Any]) -> None:
        """A new attempt needs the old one gone, and the newest checkpoint there is."""
        job = self.pool.state.jobs[job_id]
        journal = [event for _, event in self.pool.journal if event.subject == job_id]
        orders = [i for i, e in enumerate(journal) if e.kind == "run.launch_ordered"]
        gone = [i for i, e in enumerate(journal) if e.kind == "pool.run_gone"]
        assert len(orders) <= len(gone) + 1
        order = journal[orders[-1]].data["order"]
        if job.checkpoints:
            assert order["resume"] is not None, "never from zero when a checkpoint is committed"
        if len(orders) > 1:
            assert any(orders[-2] < i < orders[-1] for i in gone)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(STEPS)
def test_whatever_happens_the_pool_stays_whole(steps):
    """Terminal absorbs; slots, gangs, counts and queue stay true; replay gives the same state."""
    story = Story()
    story.play(steps)
    pool = story.pool
    assert codec.dump(pool.replayed()) == codec.dump(pool.state)
    loaded = codec.load(POOL, codec.dump(pool.state))
    assert codec.dump(loaded) == codec.dump(pool.state)
    assert loaded.queue == pool.state.queue
    assert loaded.nodes == pool.state.nodes
    assert pool.decider.due(loaded) == pool.decider.due(pool.state)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(STEPS, RUN_FACTS)
def test_a_fact_told_twice_changes_nothing_twice(steps, detail):
    """The same fact at once again, or an hour later, moves no job a second time."""
    story = Story()
    story.play(steps)
    story.tell(detail, is_current=True)
    fact = story.told[-1]
    pool = story.pool
    places = {job.id: (job.place, job.attempt, job.used) for job in pool.state.jobs.values()}
    journal = len(pool.journal)
    try:
        pool.hand_in(fact)
    except FactRefused:
        return
    added = [event for _, event in pool.journal[journal:]]
    kept = ("pool.diagnosis", "pool.launched", "pool.fault")
    if fact.kind == "run.diagnosed":
        added = [event for event in added if event.kind not in kept]
    assert not added, [event.kind for event in added]
    assert places == {
        job.id: (job.place, job.attempt, job.used) for job in pool.state.jobs.values()
    }


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(STEPS)
def test_no_stop_without_positive_evidence(steps):
    """A stop is ordered only for a command, a fault, a diagnosis, a limit or a whole result."""
    story = Story()
    story.play(
        [
            step
            for step in steps
            if step[0] in ("admit", "wait")
            or (step[0] in ("fact", "current") and step[1][0] in ("run.started", "run.launched"))
            or (step[0] == "fact" and step[1][0] == "run.node_changed")
        ]
    )
    for _, event in story.pool.journal:
        if event.kind == "run.stop_ordered":
            assert event.data["reason"].startswith("no ranks were started in time")


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(STEPS)
def test_every_job_ends_once_its_runs_are_answered(steps):
    """When launcher and agents do their part, no job hangs: it ends, or waits for a person."""
    story = Story()
    story.play(steps)
    pool = story.pool
    for name in NODES:
        pool.node(name, 2)
    for _ in range(200):
        live = [job for job in pool.state.jobs.values() if job.live_run is not None]
        for job in live:
            answer(pool, job)
        story.wait(100_000)
        if not any(job.live_run or job.is_waiting for job in pool.state.jobs.values()):
            break
    resting = (Place.SUSPENDED, Place.HELD)
    for job in pool.state.jobs.values():
        assert job.place.is_terminal or job.place in resting, (job.id, job.place, job.reason)


def answer(pool: Pool, job: Any) -> None:
    """Do what a launcher and healthy agents would do for one run."""
    run = job.run
    if run.stop is not None:
        pool.stopped(job.id, run.attempt, run.stop.intent)
        return
    for share in run.nodes:
        if share.node not in run.gone and job.place is not Place.FINISHING:
            pool.started(job.id, run.attempt, share.node)
    pool.completed(job.id, run.attempt)
    for share in run.nodes:
        pool.ended(job.id, run.attempt, node=share.node, outcome="completed")
