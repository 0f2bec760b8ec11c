"""Saves that fail, saves that do not come, runs that do not go on where they stopped."""

import random
from typing import Any

from lineshaft.contracts.telemetry import Metric
from services.monitor.domain.observations import Observation, RunFact, StepRows, Tick
from services.monitor.domain.policy import Policy
from services.monitor.domain.resume import Course
from services.monitor.domain.watch import Watch
from services.monitor.runs import Runs
from tests.builders_monitor import JOB, NOW, a_watch, phases, rows, see, signatures, told

MINUTE = 60_000
HYPER = {"learningRate": 1e-3, "lrScheduler": "cosine", "warmupSteps": 10}


def _ordered(watch: Watch, spec: dict[str, Any], resume: int | None = None) -> None:
    order: dict[str, Any] = {"spec": spec}
    if resume is not None:
        order["resume"] = {"attempt": 1, "step": resume, "digest": "d", "path": "p"}
    see(watch, RunFact("run.launch_ordered", {"nodes": [], "order": order}, NOW), NOW)


def _failed(watch: Watch, step: int) -> list[Observation]:
    return see(watch, StepRows("n0", rows([]), (Metric("checkpoint_failed", 1.0, step),)), NOW)


def _committed(watch: Watch, step: int, at: int = 0) -> list[Observation]:
    data = {"step": step, "digest": "d", "bytes": 10, "path": "p"}
    return see(watch, RunFact("run.checkpoint_committed", data, NOW + at), NOW + at)


def test_a_failed_save_warns_two_in_a_row_are_critical_a_commit_clears() -> None:
    """Each failure is counted once, however often it is told."""
    watch = a_watch()
    assert str(_failed(watch, 10)[-1].severity) == "warning"
    assert not _failed(watch, 10)
    assert str(_failed(watch, 20)[-1].severity) == "critical"
    assert phases(_committed(watch, 30)) == [("checkpoint_failing", "run", "cleared")]


def _minutes(watch: Watch, first: int, last: int) -> list[Observation]:
    seen: list[Observation] = []
    for minute in range(first, last):
        step = watch.table.closed_to + 1
        seen += told(watch, [{"step": step, "rank": 0, "step_ms": 1.0}], now=NOW + minute * MINUTE)
        seen += see(watch, Tick(path_proved=True), NOW + minute * MINUTE)
    return seen


def test_a_plan_in_minutes_is_kept_too() -> None:
    """One in 10 minutes: warned behind 15, critical behind 30, over with a commit."""
    watch = a_watch()
    _ordered(watch, {"jobType": "pretrain", "checkpoint": {"everyMinutes": 10}})
    assert [str(o.severity) for o in _minutes(watch, 0, 35)] == ["notice", "warning", "critical"]
    _committed(watch, 40, at=35 * MINUTE)
    assert phases(_minutes(watch, 36, 37)) == [("checkpoint_overdue", "run", "cleared")]


def test_a_job_that_says_nothing_is_held_to_what_trainers_do_and_a_script_to_nothing() -> None:
    """Ten minutes for our own engines; a script commits as it likes."""
    ours, script = a_watch(), a_watch()
    _ordered(ours, {"jobType": "lora", "checkpoint": None})
    _ordered(script, {"jobType": "script", "checkpoint": None})
    assert phases(_minutes(ours, 0, 20))[-1] == ("checkpoint_overdue", "run", "confirmed")
    assert not _minutes(script, 0, 60)


def _resumed(rate: float = 1.0, loss: float = 2.5, first: int = 101) -> list[Observation]:
    """Return what is told of a run that resumes from step 100 with these values."""
    draw = random.Random(7)
    runs = Runs(signatures(), Policy())
    before = runs.open(JOB, 1, ("p", "t"), None)
    assert before is not None
    course = Course(1e-3, 0.0, "cosine", 10)
    told(
        before.watch,
        [{"step": s, "rank": 0, "loss": draw.gauss(2.5, 0.05)} for s in range(1, 131)],
    )
    run = runs.open(JOB, 2, ("p", "t"), None)
    assert run is not None
    _ordered(run.watch, {"hyperparameters": HYPER}, resume=100)
    see(run.watch, StepRows("n0", rows([]), (Metric("planned_steps", 1000.0, 0),)), NOW)
    made = [
        {
            "step": step,
            "rank": 0,
            "loss": draw.gauss(loss, 0.05),
            "learning_rate": rate * course.at(step, 1000),
        }
        for step in range(first, first + 30)
    ]
    return told(run.watch, made)


def test_a_resume_that_fits_says_nothing() -> None:
    """Step, rate and loss as the checkpoint left them."""
    assert not _resumed()


def test_a_rate_that_was_set_back_is_critical_at_the_first_step() -> None:
    """Two percent off the schedule is enough; it is said once."""
    seen = [o for o in _resumed(rate=1.02) if o.phase == "confirmed"]
    assert [(o.kind, o.subject, str(o.severity)) for o in seen] == [
        ("resume_check", "rate", "critical")
    ]
    assert seen[0].evidence["step"] == 101


def test_a_loss_that_starts_anew_is_critical_after_20_steps() -> None:
    """Ten percent above the mean before the checkpoint."""
    seen = [o for o in _resumed(loss=2.75) if o.phase == "confirmed"]
    assert [(o.subject, o.evidence["step"]) for o in seen] == [("loss", 120)]


def test_a_run_that_starts_at_another_step_is_told() -> None:
    """The checkpoint is of step 100, the first step is 1."""
    seen = [o for o in _resumed(first=1) if o.phase == "confirmed"]
    assert ("step", 1) in [(o.subject, o.evidence["step"]) for o in seen]


def test_a_first_attempt_is_not_judged() -> None:
    """Nothing was resumed: any rate and any loss will do."""
    watch = a_watch()
    _ordered(watch, {"hyperparameters": HYPER})
    made = [{"step": s, "rank": 0, "loss": 5.0, "learning_rate": 7.0} for s in range(1, 40)]
    assert not [o for o in told(watch, made) if o.kind == "resume_check"]
