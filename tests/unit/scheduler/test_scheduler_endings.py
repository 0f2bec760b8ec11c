"""How attempts end, and what follows."""

import pytest

from lineshaft.contracts.failures import Budget
from lineshaft.contracts.lifecycle import Place
from lineshaft.runtime.decider import FactRefused
from tests.builders_scheduler import a_pool, a_running_job


def test_a_job_runs_to_success():
    """A job is queued, placed, launched, run and succeeds once its processes are gone."""
    pool = a_pool()
    pool.admit()
    assert pool.place() is Place.LAUNCHING
    pool.tell("run.launched", {}, "j-1", 1)
    pool.started()
    assert pool.place() is Place.RUNNING
    pool.completed()
    assert pool.place() is Place.FINISHING
    pool.ended(outcome="completed")
    assert pool.place() is Place.SUCCEEDED
    assert pool.kinds() == [
        "job.queued", "job.placed", "run.launch_ordered", "job.running", "job.running",
        "job.succeeded",
    ]  # fmt: skip
    assert not pool.state.nodes["n0"].leases
    assert pool.job().timers == {}


def test_a_killed_rank_is_retried_from_the_last_checkpoint():
    """A fault stops the gang, waits for its end and a diagnosis, and resumes where it was."""
    pool = a_running_job(a_pool())
    pool.checkpoint(step=50)
    pool.checkpoint(step=100)
    pool.rank_exited()
    assert pool.place() is Place.AWAITING_GONE
    assert pool.kinds()[-2:] == ["job.retrying", "run.stop_ordered"]
    assert "rank 1 on n0 was ended by signal 9 (SIGKILL)" in pool.job().reason
    assert pool.state.nodes["n0"].leases, "the slots stay leased while processes may live"
    pool.ended()
    assert pool.place() is Place.AWAITING_GONE, "the monitor has 3 s to say why"
    pool.wait(3_000)
    assert pool.place() is Place.BACKING_OFF
    assert "resume from step 100 of attempt 1" in pool.job().reason
    pool.wait(1_000)
    assert pool.place() is Place.LAUNCHING
    order = pool.orders()[-1]
    assert order["attempt"] == 2
    assert order["resume"] == {
        "attempt": 1, "step": 100, "digest": "d100", "path": "j-1/1/100",
    }  # fmt: skip


def test_a_diagnosis_ends_the_wait():
    """When the monitor says why, the verdict is made at once, with its class."""
    pool = a_running_job(a_pool())
    pool.rank_exited()
    pool.ended()
    pool.diagnosed(what="rank_exited", failure="transient")
    assert pool.place() is Place.BACKING_OFF
    assert pool.job().used == {Budget.PLATFORM: 1}
    assert "rank_exited seen" in pool.job().reason


def test_an_early_diagnosis_needs_no_wait():
    """A diagnosis that came before the processes were gone counts when they are."""
    pool = a_running_job(a_pool())
    pool.diagnosed()
    assert pool.place() is Place.AWAITING_GONE
    pool.stopped()
    assert pool.place() is Place.BACKING_OFF


@pytest.mark.parametrize("failure", ["user_code", "data", "config"])
def test_what_a_retry_cannot_help_fails_at_once(failure):
    """User code, data and configuration fail the job once its processes are gone."""
    pool = a_running_job(a_pool())
    pool.rank_exited(signal=None, exit_code=1, lines=("Traceback", "ValueError: no"))
    assert pool.place() is Place.DRAINING, "no retry is promised"
    pool.ended(failure=failure)
    pool.wait(3_000)
    assert pool.place() is Place.FAILED
    assert "ValueError: no" in pool.job().reason


def test_the_jobs_own_limits_count():
    """A job that allows two user retries gets two."""
    pool = a_pool()
    pool.admit(budgets={"user": 2})
    for attempt in (1, 2, 3):
        pool.started(attempt=attempt)
        pool.rank_exited(attempt=attempt, signal=None, exit_code=1)
        pool.ended(attempt=attempt, failure="user_code")
        pool.wait(60_000)
    assert pool.place() is Place.FAILED
    assert pool.job().attempt == 3


def test_back_off_grows_to_its_cap():
    """1 s, 2 s, 4 s and so on, at most the cap; progress starts over."""
    pool = a_pool(backoff_max_ms=5_000)
    pool.admit(budgets={"node": 9})
    delays = []
    for _ in range(5):
        pool.crash()
        delays.append(pool.job().timers["back_off"] - pool.now)
        pool.wait(5_000)
    assert delays == [1_000, 2_000, 4_000, 5_000, 5_000]
    pool.checkpoint(attempt=6, step=7)
    pool.crash()
    assert pool.job().timers["back_off"] - pool.now == 1_000
    assert pool.job().used == {Budget.NODE: 1}


def test_the_same_place_three_times_goes_one_checkpoint_back_then_stops():
    """A checkpoint that runs keep failing from is passed over once; then the job fails."""
    pool = a_running_job(a_pool(), budgets={"node": 50})
    pool.checkpoint(step=10)
    pool.checkpoint(step=20)
    for _ in range(6):
        pool.crash()
        pool.wait(60_000)
    assert [order["resume"] and order["resume"]["step"] for order in pool.orders()] == [
        None, 20, 20, 10, 10, 10,
    ]  # fmt: skip
    assert pool.place() is Place.FAILED
    assert "same place" in pool.job().reason


def test_reaching_an_old_step_again_is_no_progress():
    """Only a step further than ever before gives budgets back."""
    pool = a_running_job(a_pool(), budgets={"node": 50})
    pool.checkpoint(step=20)
    pool.crash()
    pool.wait(60_000)
    pool.checkpoint(attempt=2, step=20)
    assert pool.job().used == {Budget.NODE: 1}
    pool.checkpoint(attempt=2, step=21)
    assert pool.job().used == {}


def test_launch_failures_are_held_in_the_end_never_failed():
    """The platform's fault is no terminal state: the job is held, and a person resumes it."""
    pool = a_pool()
    pool.admit(budgets={"platform": 1})
    pool.launch_failed()
    assert pool.place() is Place.BACKING_OFF
    pool.wait(1_000)
    pool.launch_failed(attempt=2)
    assert pool.place() is Place.HELD
    pool.command("resume")
    assert pool.place() is Place.LAUNCHING
    assert pool.job().attempt == 3


def test_a_launch_that_fails_for_its_configuration_fails_the_job():
    """A missing path stays missing: no second try."""
    pool = a_pool()
    pool.admit()
    pool.launch_failed(failure="config")
    assert pool.place() is Place.FAILED


def test_an_agent_that_never_starts_is_launched_again():
    """The start's time-out is an attempt of the platform's budget, stopped before the next."""
    pool = a_pool()
    pool.admit()
    pool.wait(pool.policy.start_timeout_ms)
    assert pool.place() is Place.AWAITING_GONE
    assert "no ranks were started in time on n0" in pool.job().reason
    pool.stopped()
    pool.wait(3_000)
    assert pool.place() is Place.BACKING_OFF
    assert pool.job().used == {Budget.PLATFORM: 1}


def test_agents_may_prepare_for_long():
    """Once its agents run, a launch is not taken for lost while they prepare data."""
    pool = a_pool()
    pool.admit()
    pool.tell("run.launched", {}, "j-1", 1)
    pool.wait(4 * pool.policy.start_timeout_ms)
    assert pool.place() is Place.LAUNCHING
    pool.wait(pool.policy.prepare_timeout_ms)
    assert pool.place() is Place.AWAITING_GONE


def test_an_end_without_a_completion_record_is_no_success():
    """Exit 0 everywhere without the record is waited for, then an infrastructure failure."""
    pool = a_running_job(a_pool())
    pool.ended(outcome="completed")
    assert pool.place() is Place.RUNNING
    pool.wait(pool.policy.completion_wait_ms)
    assert pool.place() is Place.BACKING_OFF
    assert "no completion record" in pool.job().reason


def test_a_late_completion_record_still_makes_a_success():
    """A whole result beats the failure that was assumed without it."""
    pool = a_running_job(a_pool())
    pool.ended(outcome="completed")
    pool.wait(pool.policy.completion_wait_ms)
    pool.completed()
    assert pool.place() is Place.SUCCEEDED


def test_a_record_that_comes_after_the_end_of_the_ranks_is_a_success():
    """The two facts may come in any order."""
    pool = a_running_job(a_pool())
    pool.ended(outcome="completed")
    pool.completed()
    assert pool.place() is Place.SUCCEEDED


def test_a_vanished_agent_is_a_fault():
    """Processes that are gone without a stop order and without a word are infrastructure."""
    pool = a_running_job(a_pool())
    pool.stopped(intent="lost")
    assert pool.place() is Place.AWAITING_GONE
    pool.wait(3_000)
    assert pool.place() is Place.BACKING_OFF
    assert "an agent vanished" in pool.job().reason


def test_a_stop_from_outside_is_nobodys_failure():
    """A platform that goes down stops its runs; they go on afterwards, without a charge."""
    for tell in (
        lambda pool: pool.ended(outcome="stopped"),
        lambda pool: pool.stopped(intent="migrate"),
    ):
        pool = a_running_job(a_pool())
        pool.checkpoint(step=12)
        tell(pool)
        assert pool.place() is Place.LAUNCHING
        assert pool.job().used == {}
        assert pool.orders()[-1]["resume"]["step"] == 12
        assert any("stopped from outside" in e.data["reason"] for e in pool.told("job.queued"))


def test_attempts_are_bounded_whatever_ends_them():
    """A job that is stopped from outside again and again is held, and a person lets it go on."""
    pool = a_pool(attempts_max=3)
    pool.admit()
    for attempt in (1, 2, 3):
        pool.ended(attempt=attempt, outcome="stopped")
    assert pool.place() is Place.HELD
    assert pool.job().attempt == 3
    pool.command("resume")
    assert pool.place() is Place.LAUNCHING


def test_half_a_gang_is_no_launch():
    """A node that never came up is the platform's fault, whatever its peers made of it."""
    pool = a_pool({"n0": 2, "n1": 2})
    pool.admit(nodes=2)
    pool.started(node="n0")
    pool.rank_exited(node="n0", rank=0, signal=None, exit_code=1, lines=("no peer came",))
    pool.launch_failed()
    assert pool.place() is Place.BACKING_OFF
    assert pool.job().used == {Budget.PLATFORM: 1}
    pool = a_pool({"n0": 2, "n1": 2})
    pool.admit(nodes=2)
    pool.started(node="n0")
    pool.launch_failed()
    assert pool.place() is Place.BACKING_OFF


def test_nothing_is_launched_while_the_last_attempt_may_live():
    """A stop that overruns is a finding; the slots stay leased until a person gives their word."""
    pool = a_running_job(a_pool())
    pool.rank_exited()
    pool.wait(3_600_000)
    assert pool.place() is Place.AWAITING_GONE
    assert pool.state.findings == {"j-1-1": "scheduler.not_gone"}
    assert pool.state.nodes["n0"].leases
    word = {"job": "j-1", "attempt": 1, "actor": "ada"}
    pool.tell("scheduler.confirm_gone", word)
    pool.wait(10_000)
    assert pool.place() is Place.LAUNCHING
    assert pool.state.findings == {}


def test_processes_that_outlive_their_result_are_stopped():
    """A whole result is not lost because a process hangs in its exit."""
    pool = a_running_job(a_pool())
    pool.completed()
    pool.wait(pool.policy.finish_wait_ms)
    assert pool.kinds()[-1] == "run.stop_ordered"
    pool.stopped()
    assert pool.place() is Place.SUCCEEDED


def test_a_two_node_gang_ends_as_a_whole():
    """One node's end is not the gang's."""
    pool = a_running_job(a_pool({"n0": 2, "n1": 2}), nodes=2)
    pool.rank_exited(node="n1")
    pool.ended(node="n1")
    pool.wait(5_000)
    assert pool.place() is Place.AWAITING_GONE
    pool.ended(node="n0", outcome="stopped")
    pool.wait(3_000)
    assert pool.place() is Place.BACKING_OFF
    assert pool.job().avoid == ("n1",)


def test_the_first_rank_to_go_is_the_cause():
    """Its peers' errors are a cascade, whatever order they are told in."""
    pool = a_running_job(a_pool({"n0": 2, "n1": 2}), nodes=2)
    pool.now += 10
    pool.rank_exited(node="n1", rank=2, signal=None, exit_code=1, lines=("connection closed",))
    pool.now -= 5
    pool.rank_exited(node="n0", rank=0, signal=9)
    pool.now += 5
    pool.stopped()
    pool.wait(3_000)
    assert "rank 0 on n0 was ended by signal 9" in pool.job().reason
    assert pool.place() is Place.BACKING_OFF


def test_a_rank_that_was_taken_along_is_no_cause():
    """The agent says who went first; neither a peer's end nor its diagnosis counts before that."""
    pool = a_running_job(a_pool())
    peer = {"rank": 0, "signal": 15, "exit_code": None, "node": "n0", "last_lines": []}
    root = {**peer, "rank": 1, "signal": 9, "root": True, "ended_at": pool.now - 60}
    pool.tell("run.rank_exited", {**peer, "root": False, "ended_at": pool.now - 10}, "j-1", 1)
    assert pool.place() is Place.AWAITING_GONE
    pool.diagnosed(what="rank_exited", rank=0, summary="Rank 0 was killed (signal 15).")
    pool.tell("run.rank_exited", root, "j-1", 1)
    assert "rank 1 on n0 was ended by signal 9 (SIGKILL)" in pool.job().reason
    pool.ended()
    assert pool.place() is Place.AWAITING_GONE, "its peer's diagnosis settles nothing"
    pool.diagnosed(what="rank_exited", rank=1, summary="Rank 1 was killed (signal 9).")
    assert pool.place() is Place.BACKING_OFF
    assert "Rank 1 was killed (signal 9)" in pool.job().reason


def test_facts_of_an_older_attempt_change_nothing():
    """Late facts of a dead attempt are ignored and counted."""
    pool = a_running_job(a_pool())
    pool.crash()
    pool.wait(1_000)
    assert pool.rank_exited(attempt=1) == []
    assert pool.stopped(attempt=1) == []
    assert pool.completed(attempt=1) == []
    assert pool.decider.ignored["stale: of an older attempt"] == 3


def test_facts_of_a_future_attempt_are_refused():
    """What was never launched cannot report."""
    pool = a_running_job(a_pool())
    with pytest.raises(FactRefused, match="names attempt 2"):
        pool.started(attempt=2)


def test_a_checkpoint_of_an_older_attempt_is_remembered():
    """A commit that is told late still counts as a place to resume from."""
    pool = a_running_job(a_pool())
    pool.crash()
    pool.wait(1_000)
    pool.checkpoint(attempt=1, step=30)
    pool.crash()
    pool.wait(2_000)
    assert pool.orders()[-1]["resume"]["step"] == 30


@pytest.mark.parametrize(
    ("action", "place"), [("hold", Place.HELD), ("fail", Place.FAILED), ("note", Place.RUNNING)]
)
def test_the_evidences_action_counts(action, place):
    """Evidence may ask for a person, for an end, or only be kept."""
    pool = a_running_job(a_pool())
    pool.diagnosed(action=action)
    if action != "note":
        pool.stopped()
    assert pool.place() is place


def test_a_hold_needs_something_to_go_on_from():
    """What a person must change first is held for them once there is a checkpoint to keep."""
    pool = a_running_job(a_pool())
    pool.diagnosed(action="hold", failure="config")
    pool.stopped()
    assert pool.place() is Place.FAILED
    pool = a_running_job(a_pool())
    pool.checkpoint(step=5)
    pool.diagnosed(action="hold", failure="config")
    pool.stopped()
    assert pool.place() is Place.HELD
    pool.command("resume")
    assert pool.orders()[-1]["resume"]["step"] == 5


def test_a_named_change_earns_one_more_try():
    """A diagnosis that names a mutation gets one retry of its own, with it in the order."""
    pool = a_running_job(a_pool())
    change = {"micro_batch": 2}
    pool.diagnosed(what="out_of_memory", failure="config", mutation=change)
    pool.stopped()
    pool.wait(1_000)
    assert pool.orders()[-1]["mutation"] == change
    pool.diagnosed(attempt=2, what="out_of_memory", failure="config", mutation=change)
    pool.stopped(attempt=2)
    assert pool.place() is Place.FAILED


def test_silence_stops_nothing():
    """An unobserved run goes on, and is observed again."""
    pool = a_running_job(a_pool())
    pool.diagnosed(what="unobserved", action="note")
    assert pool.place() is Place.UNOBSERVED
    pool.wait(10_000_000)
    assert pool.place() is Place.UNOBSERVED
    pool.diagnosed(what="observed", action="note")
    assert pool.place() is Place.RUNNING
    pool.node("n0", 2, status="lost")
    assert pool.place() is Place.UNOBSERVED
    pool.node("n0", 2)
    assert pool.place() is Place.RUNNING


def test_a_node_is_lost_when_two_channels_say_so():
    """The monitor and the launcher, in whatever order; one alone stops nothing."""
    pool = a_running_job(a_pool())
    pool.diagnosed(what="node_lost", action="note", node="n0")
    assert pool.place() is Place.UNOBSERVED
    pool.node("n0", 2, status="lost")
    assert pool.place() is Place.AWAITING_GONE
    assert "neither the launcher nor the monitor" in pool.job().reason


def test_a_cascade_does_not_settle_the_cause():
    """A peer's connection error is weighed only when nothing else is known in time."""
    pool = a_running_job(a_pool())
    pool.rank_exited(rank=0)
    pool.ended()
    pool.diagnosed(what="rank_exited", failure="transient", is_cascade=True)
    assert pool.place() is Place.AWAITING_GONE
    pool.diagnosed(what="rank_exited", failure="infrastructure")
    assert pool.place() is Place.BACKING_OFF


def test_evidence_that_says_restart_earns_one_try():
    """A class that is the user's has no retries, unless the evidence says that one helps."""
    pool = a_running_job(a_pool())
    pool.diagnosed(what="non_finite", failure="data")
    pool.stopped()
    assert pool.place() is Place.BACKING_OFF
    pool.wait(1_000)
    pool.started(attempt=2)
    pool.diagnosed(attempt=2, what="non_finite", failure="data")
    pool.stopped(attempt=2)
    assert pool.place() is Place.FAILED
