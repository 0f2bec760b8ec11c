"""Who starts next, and where; and why a job waits."""

from lineshaft.contracts.lifecycle import Place
from services.scheduler.domain.desired import desired
from services.scheduler.domain.explain import Reason, explain
from services.scheduler.domain.policy import DeclaredNodes
from tests.builders_scheduler import a_pool, a_running_job


def why(pool, job):
    return explain(pool.state, pool.job(job), now=pool.now, policy=pool.policy)


def placed_on(pool, job):
    return [(share.node, share.slots) for share in pool.job(job).run.nodes]


def test_priority_then_time_then_id():
    """The order is total."""
    pool = a_pool({})
    pool.admit("j-c", at=5)
    pool.admit("j-b", at=5)
    pool.admit("j-a", at=9)
    pool.admit("j-z", at=9, priority=1)
    assert [key[2] for key in pool.state.queue] == ["j-z", "j-b", "j-c", "j-a"]


def test_a_gang_is_placed_whole_or_not_at_all():
    """Two nodes with two free slots each, or nothing."""
    pool = a_pool({"n0": 2, "n1": 1})
    pool.admit(nodes=2, slots=2)
    assert pool.place() is Place.PENDING
    pool.node("n2", 2)
    assert placed_on(pool, "j-1") == [("n0", (0, 1)), ("n2", (0, 1))]


def test_the_fullest_node_that_fits_is_taken():
    """Large gaps stay whole."""
    pool = a_pool({"n0": 4, "n1": 2})
    pool.admit(slots=2)
    assert placed_on(pool, "j-1") == [("n1", (0, 1))]


def test_other_kinds_of_nodes_do_not_count():
    """A job for one device type neither takes nor waits for another."""
    pool = a_pool({"n0": 4})
    pool.admit("j-1", gpu_type="a100-80g")
    pool.admit("j-2", slots=1)
    assert pool.place("j-1") is Place.PENDING
    assert pool.place("j-2") is Place.LAUNCHING


def test_a_later_smaller_job_waits_behind_the_head():
    """What a large job waits for is not nibbled away."""
    pool = a_pool({"n0": 3})
    pool.admit("j-1", slots=2)
    pool.admit("j-2", slots=2)
    pool.admit("j-3", slots=1)
    assert pool.place("j-3") is Place.PENDING
    assert why(pool, "j-2").reason is Reason.CAPACITY
    answer = why(pool, "j-3")
    assert answer.reason is Reason.BEHIND
    assert "name-of-j-2" in answer.text
    assert (answer.position, answer.ahead) == (2, ("j-2",))


def test_quota_is_kept_and_passed_over():
    """A team at its quota waits; others go on."""
    pool = a_pool({"n0": 4}, quotas={"research": 2})
    pool.admit("j-1", slots=2)
    pool.admit("j-2", slots=1)
    pool.admit("j-3", slots=2, team="chat")
    assert pool.place("j-2") is Place.PENDING
    assert pool.place("j-3") is Place.LAUNCHING
    answer = why(pool, "j-2")
    assert answer.reason is Reason.QUOTA
    assert answer.free["quota"] == 0


def test_what_can_never_fit_blocks_nobody():
    """It is a fault of configuration, told apart from waiting."""
    pool = a_pool({"n0": 2}, quotas={"small": 1})
    pool.admit("j-1", slots=8)
    pool.admit("j-2", slots=2, team="small")
    pool.admit("j-3", slots=2)
    assert why(pool, "j-1").reason is Reason.NEVER_FITS
    assert "the quota of team small is 1" in why(pool, "j-2").text
    assert pool.place("j-3") is Place.LAUNCHING


def test_never_compares_with_what_is_declared():
    """A node that is away now is no reason to say never."""
    pool = a_pool({"n0": 2}, declared=(DeclaredNodes("cpu", 8, 2),))
    pool.admit("j-1", slots=8, nodes=2)
    assert why(pool, "j-1").reason is Reason.CAPACITY
    pool.admit("j-2", slots=8, nodes=3)
    assert why(pool, "j-2").reason is Reason.NEVER_FITS


def test_a_pool_without_nodes_says_so():
    """Neither never nor capacity: no node is ready."""
    pool = a_pool({})
    pool.admit()
    assert why(pool, "j-1").reason is Reason.NO_NODES


def test_freed_capacity_starts_what_waits():
    """The end of one run starts the next in the same decision."""
    pool = a_running_job(a_pool())
    pool.admit("j-2")
    pool.completed()
    pool.ended(outcome="completed")
    assert pool.place("j-2") is Place.LAUNCHING


def test_a_decision_is_bounded_and_goes_on():
    """More placements than one entry may hold continue with the next decision."""
    pool = a_pool({}, placements_per_decision_max=2)
    for number in range(5):
        pool.admit(f"j-{number}", slots=1)
    pool.node("n0", 8)
    assert len(pool.state.queue) == 3
    assert pool.decider.due(pool.state) == 0
    pool.wait(0)
    assert pool.state.queue == []
    assert pool.decider.due(pool.state) == pool.now + pool.policy.start_timeout_ms


def test_a_suspected_node_is_avoided_when_there_are_others():
    """The next attempt prefers another node, and takes the same one if it must."""
    pool = a_running_job(a_pool({"n0": 2, "n1": 4}))
    pool.crash()
    pool.wait(1_000)
    assert placed_on(pool, "j-1") == [("n1", (0, 1))]


def test_the_launch_order_says_everything_that_no_machine_changes():
    """All fields of the agreed order but those that the launcher adds."""
    pool = a_pool()
    pool.admit(spec={"gracePeriod": 45})
    order = pool.orders()[0]
    assert set(order) == {
        "schema", "job", "attempt", "name", "team", "pool", "spec", "resolved", "grace_ms",
        "hang_limit_ms", "first_step_limit_ms", "resume", "mutation", "nodes", "world_size",
        "launcher",
    }  # fmt: skip
    assert order["grace_ms"] == 45_000
    assert order["world_size"] == 2
    assert order["nodes"] == [{"node": "n0", "slots": [0, 1]}]


def test_the_desired_set_holds_a_run_until_it_is_gone():
    """It lives, then it stops with its intent, then it is absent."""
    pool = a_running_job(a_pool())
    (run,) = desired(pool.state, epoch=3).runs
    assert (run.job, run.attempt, run.intent) == ("j-1", 1, None)
    pool.command("suspend")
    (run,) = desired(pool.state, epoch=3).runs
    assert run.intent == "suspend"
    assert run.stop_at == pool.now
    pool.ended(outcome="stopped")
    assert desired(pool.state, epoch=3).runs == ()


def test_from_zero_only_when_asked():
    """``resume: never`` is the only way to leave a checkpoint unused."""
    pool = a_running_job(a_pool(), spec={"resume": "never"})
    pool.checkpoint(step=10)
    pool.crash()
    pool.wait(1_000)
    assert pool.orders()[-1]["resume"] is None


def test_require_never_starts_over():
    """``resume: require`` holds the job when there is nothing to resume from."""
    pool = a_running_job(a_pool(), spec={"resume": "require"})
    pool.crash()
    assert pool.place() is Place.HELD


def test_a_jobs_own_start_timeout_counts():
    """``startTimeout`` replaces the policy's; the launch that takes longer is tried again."""
    pool = a_pool()
    pool.admit(spec={"startTimeout": 60})
    assert pool.decider.due(pool.state) == pool.now + 60_000
    pool.wait(59_999)
    assert len(pool.orders()) == 1
    assert pool.job().attempt == 1
    pool.wait(1)
    assert pool.place() is not Place.LAUNCHING


def test_the_run_time_of_all_attempts_is_bounded():
    """``schedule.maxRunTime`` cancels the job, and says so; waiting does not count."""
    pool = a_running_job(a_pool(), spec={"schedule": {"maxRunTime": 60}})
    pool.wait(40_000)
    pool.crash()
    pool.wait(30_000)
    pool.started(attempt=2)
    pool.wait(19_000)
    assert pool.place() is Place.RUNNING
    pool.wait(2_000)
    stop = pool.state.jobs["j-1"].run.stop
    assert (stop.intent.value, stop.reason) == ("cancel", "its maxRunTime is used up")
