"""Pacing: who decides what, by which clock, and that all ranks come to the same."""

import math

import pytest

from trainer import pacing
from trainer.pacing import Ballot, Decision, Intervals


def a_pace(*, total: int = 1000, step: int = 0, now_ms: int = 0, **wish: int) -> pacing.Pace:
    return pacing.begin(Intervals(**wish), total_steps=total, step=step, now_ms=now_ms)


def saves(pace: pacing.Pace, upto: int, *, step_ms: int = 1000) -> list[int]:
    """Return the steps of rank 0's saves when each step takes ``step_ms``."""
    made = []
    for step in range(pace.first_step + 1, upto + 1):
        now = step * step_ms
        if pacing.propose(pace, Ballot(), step=step, now_ms=now).save:
            made.append(step)
            pace = pacing.saved(pace, step=step, now_ms=now)
    return made


def test_saving_by_steps_counts_the_steps_of_the_job() -> None:
    """An attempt that begins at step 130 saves at the same steps as one that began at zero."""
    assert saves(a_pace(save_every_steps=100), 450) == [100, 200, 300, 400]
    assert saves(a_pace(save_every_steps=100, step=130), 450) == [200, 300, 400]


def test_saving_by_time_follows_rank_0s_clock_alone() -> None:
    """The interval runs from the last save on the clock that is handed in."""
    assert saves(a_pace(save_every_ms=10_000), 35) == [10, 20, 30]


def test_the_first_save_of_a_job_that_named_no_interval_comes_after_twenty_steps() -> None:
    """Something worth keeping exists early; then the time interval rules."""
    pace = a_pace(save_first_step=20, save_every_ms=600_000)
    assert saves(pace, 1000) == [20, 620, 1000]


def test_the_last_step_is_saved_whatever_the_intervals_say() -> None:
    """What the run came to is kept before it is evaluated."""
    assert saves(a_pace(total=42), 42) == [42]


def test_a_step_is_never_saved_twice() -> None:
    """After a resume the step of the checkpoint itself is not due again."""
    pace = a_pace(save_every_steps=10, step=20)
    assert not pacing.is_save_due(pace, step=20, now_ms=0)


def test_only_rank_0s_proposals_count() -> None:
    """A rank with another clock may wish what it likes."""
    eager, calm = Ballot(save=True, evaluate=True).as_row(), Ballot().as_row()
    assert pacing.resolve([calm, eager], step=1, total_steps=9) == Decision(loss=0.0)
    assert pacing.resolve([eager, calm], step=1, total_steps=9).save


@pytest.mark.parametrize("rank", range(4))
def test_a_stop_seen_on_any_one_rank_saves_and_stops_all(rank: int) -> None:
    """The decision names who heard of it."""
    rows = [Ballot(stop=each == rank).as_row() for each in range(4)]
    decision = pacing.resolve(rows, step=5, total_steps=9)
    assert (decision.save, decision.stop, decision.stopped_by) == (True, True, (rank,))


def test_broken_numbers_override_everything() -> None:
    """Nothing is saved of a step whose loss is no number anywhere, stop or not."""
    rows = [
        Ballot(stop=True, save=True, loss=1.0).as_row(),
        Ballot(is_finite=False, loss=math.nan).as_row(),
    ]
    decision = pacing.resolve(rows, step=9, total_steps=9)
    assert decision.broken_ranks == (1,)
    assert decision == Decision(loss=decision.loss, broken_ranks=(1,))


def test_a_stop_at_the_last_step_finishes_instead() -> None:
    """Work that is done is handed in, not suspended."""
    decision = pacing.resolve([Ballot(stop=True).as_row()], step=9, total_steps=9)
    assert decision.finished
    assert not decision.stop


def test_the_loss_of_the_run_is_the_mean_over_ranks() -> None:
    """All ranks weigh the same: their batches have the same size."""
    rows = [Ballot(loss=1.0).as_row(), Ballot(loss=3.0).as_row()]
    assert pacing.resolve(rows, step=1, total_steps=9).loss == 2.0
    assert all(len(row) == pacing.BALLOT_FIELDS for row in rows)


def test_evaluation_by_steps_leaves_out_the_last_which_is_evaluated_anyway() -> None:
    """``everySteps`` of the evaluation counts the job's steps."""
    pace = a_pace(total=100, evaluate_every_steps=25)
    due = [s for s in range(1, 101) if pacing.propose(pace, Ballot(), step=s, now_ms=0).evaluate]
    assert due == [25, 50, 75]
