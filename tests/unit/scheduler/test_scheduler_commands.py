"""Commands of people: cancel, suspend, resume, priority, and those of operators."""

import pytest

from lineshaft.contracts import limits
from lineshaft.contracts.failures import StopIntent
from lineshaft.contracts.lifecycle import Place
from lineshaft.runtime.decider import FactRefused
from tests.builders_scheduler import a_pool, a_running_job


def test_cancel_of_a_waiting_job_is_at_once():
    """Nothing lives, so nothing is waited for."""
    pool = a_pool({})
    pool.admit()
    pool.command("cancel")
    assert pool.place() is Place.CANCELLED
    assert pool.job().actor == "ada"
    assert pool.state.queue == []


def test_cancel_of_a_running_job_drains_first():
    """Cancelled is said only when every process is gone."""
    pool = a_running_job(a_pool())
    pool.command("cancel")
    assert pool.place() is Place.DRAINING
    pool.stopped(intent="cancel")
    assert pool.place() is Place.CANCELLED
    assert not pool.state.nodes["n0"].leases


def test_cancel_before_the_start_withdraws_the_launch():
    """A launch order that was given is withdrawn, and the launcher confirms it."""
    pool = a_pool()
    pool.admit()
    pool.command("cancel")
    assert pool.place() is Place.WITHDRAWING
    pool.stopped(intent="cancel")
    assert pool.place() is Place.CANCELLED


def test_a_withdrawn_launch_that_did_start_drains():
    """A start that crossed the stop is part of the stop."""
    pool = a_pool()
    pool.admit()
    pool.command("suspend")
    pool.started()
    assert pool.place() is Place.DRAINING
    pool.ended(outcome="stopped")
    assert pool.place() is Place.SUSPENDED


def test_suspend_and_resume():
    """A suspended job keeps its checkpoint and goes on from it."""
    pool = a_running_job(a_pool())
    pool.command("suspend")
    pool.checkpoint(step=40)
    pool.ended(outcome="stopped")
    assert pool.place() is Place.SUSPENDED
    assert pool.job().used == {}
    pool.command("resume")
    assert pool.place() is Place.LAUNCHING
    assert pool.orders()[-1]["resume"]["step"] == 40


def test_an_exit_after_a_stop_order_is_a_stop():
    """Exit 0 and even a crash after a stop order end as the order meant."""
    for outcome in ("stopped", "completed", "failed"):
        pool = a_running_job(a_pool())
        pool.command("suspend")
        pool.ended(outcome=outcome)
        assert pool.place() is Place.SUSPENDED


def test_a_resume_during_the_drain_counts_afterwards():
    """An intent is never lowered, but the wish is kept."""
    pool = a_running_job(a_pool())
    pool.command("suspend")
    pool.command("resume")
    assert pool.place() is Place.DRAINING
    pool.ended(outcome="stopped")
    assert pool.place() is Place.LAUNCHING
    assert "job.queued" in pool.kinds()[3:]


def test_intents_are_only_raised():
    """Cancel beats suspend, and a later suspend does not take it back."""
    pool = a_running_job(a_pool())
    pool.command("suspend")
    pool.command("cancel")
    pool.command("suspend")
    run = pool.job().run
    assert run is not None
    assert run.stop is not None
    assert run.stop.intent is StopIntent.CANCEL
    pool.ended(outcome="stopped")
    assert pool.place() is Place.CANCELLED


def test_a_completion_record_beats_a_suspend():
    """Work that is whole is not suspended."""
    pool = a_running_job(a_pool())
    pool.command("suspend")
    pool.completed()
    assert pool.place() is Place.FINISHING
    pool.ended(outcome="completed")
    assert pool.place() is Place.SUCCEEDED


def test_against_cancel_the_first_journaled_wins():
    """Cancel first: cancelled. Completion first: succeeded."""
    pool = a_running_job(a_pool())
    pool.command("cancel")
    pool.completed()
    pool.ended(outcome="completed")
    assert pool.place() is Place.CANCELLED
    pool = a_running_job(a_pool())
    pool.completed()
    pool.command("cancel")
    pool.ended(outcome="completed")
    assert pool.place() is Place.SUCCEEDED


def test_cancel_while_a_failed_gang_ends():
    """A job that would be retried is cancelled instead, when all are gone."""
    pool = a_running_job(a_pool())
    pool.rank_exited()
    pool.command("cancel")
    assert pool.place() is Place.AWAITING_GONE
    pool.ended()
    assert pool.place() is Place.CANCELLED


@pytest.mark.parametrize("verb", ["cancel", "suspend"])
def test_a_stop_during_the_wait_for_a_diagnosis_is_at_once(verb):
    """All are gone already: there is nothing to wait for."""
    pool = a_running_job(a_pool())
    pool.rank_exited()
    pool.ended()
    pool.command(verb)
    assert pool.place() is (Place.CANCELLED if verb == "cancel" else Place.SUSPENDED)
    pool.wait(100_000)
    assert pool.place() is not Place.LAUNCHING


def test_cancel_during_back_off():
    """A job that waits for its next attempt is cancelled at once."""
    pool = a_running_job(a_pool())
    pool.crash()
    pool.command("cancel")
    assert pool.place() is Place.CANCELLED
    assert pool.decider.due(pool.state) is None


def test_a_command_always_leaves_an_event():
    """Also one that changes nothing is recorded, so that its redelivery is known."""
    pool = a_running_job(a_pool())
    events = pool.command("resume")
    assert [event.kind for event in events] == ["pool.command"]
    assert events[0].data["note"] == "nothing to do: the job is Running"


def test_an_old_command_is_void_but_a_cancel_is_not():
    """A sender who had not seen the last command's job does not overrule it."""
    pool = a_pool({})
    pool.admit()
    seen = pool.job().version
    pool.command("suspend")
    pool.command("resume", based_on=seen)
    assert pool.place() is Place.PENDING, "it saw the version before the last command"
    pool.command("suspend")
    pool.command("resume", based_on=seen)
    assert pool.place() is Place.SUSPENDED
    pool.command("cancel", based_on=0)
    assert pool.place() is Place.CANCELLED


def test_a_command_that_overtakes_its_job_waits_for_it():
    """The bus keeps no order between a job and a command for it."""
    pool = a_pool()
    pool.command("suspend")
    assert len(pool.state.parked["j-1"]) == 1
    pool.admit()
    assert pool.place() is Place.SUSPENDED
    assert pool.state.parked == {}


def test_parked_commands_do_not_stay_for_ever():
    """A command for a job that never came is dropped after a day."""
    pool = a_pool()
    pool.command("suspend", "j-never")
    pool.now += limits.PARKED_COMMAND_TTL_S * 1000 + 1
    pool.command("cancel", "j-other")
    assert list(pool.state.parked) == ["j-other"]


def test_priority_changes_the_order():
    """A raised job goes first; the value is a whole number."""
    pool = a_pool({})
    pool.admit("j-1")
    pool.admit("j-2")
    pool.command("priority", "j-2", value=7)
    assert [key[2] for key in pool.state.queue] == ["j-2", "j-1"]
    with pytest.raises(FactRefused, match="whole number"):
        pool.command("priority", "j-2", value="high")


def test_an_unknown_verb_is_refused():
    """A command that does not exist goes to the dead stream."""
    pool = a_pool()
    pool.admit()
    with pytest.raises(FactRefused, match="no command"):
        pool.command("explode")


def test_a_person_resets_the_counters():
    """A job that was held and resumed has its budgets again."""
    pool = a_pool()
    pool.admit(budgets={"platform": 0})
    pool.launch_failed()
    assert pool.place() is Place.HELD
    pool.command("resume")
    assert pool.job().used == {}
    assert pool.job().launches == 1


def test_no_word_is_taken_for_what_is_not_so():
    """confirm_gone concerns the current attempt while it is being stopped."""
    pool = a_running_job(a_pool())
    for attempt in (1, 2):
        word = {"job": "j-1", "attempt": attempt, "actor": "ada"}
        with pytest.raises(FactRefused):
            pool.tell("scheduler.confirm_gone", word)


def test_a_lost_node_is_released_by_a_person():
    """The word for a node counts for every run that holds slots there."""
    pool = a_running_job(a_pool({"n0": 2, "n1": 2}))
    pool.node("n0", 2, status="lost")
    pool.diagnosed(what="node_lost", action="note", node="n0")
    assert pool.place() is Place.AWAITING_GONE
    pool.tell("scheduler.release_node", {"node": "n0", "actor": "ada"})
    pool.wait(1_000)
    assert pool.place() is Place.LAUNCHING
    assert [share["node"] for share in pool.orders()[-1]["nodes"]] == ["n1"]
    with pytest.raises(FactRefused, match="only a lost one"):
        pool.tell("scheduler.release_node", {"node": "n1", "actor": "ada"})
