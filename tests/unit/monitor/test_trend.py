"""A loss that stays or climbs, steps that become slower: told; healthy courses: left alone."""

import math
import random

from lineshaft.contracts.telemetry import Metric
from services.monitor.domain.observations import Observation, StepRows
from services.monitor.domain.resume import Course
from services.monitor.domain.trend import slope
from services.monitor.domain.watch import Watch
from tests.builders_monitor import NOW, a_watch, losses, phases, rows, see, told


def _planned(steps: int) -> Watch:
    watch = a_watch()
    see(watch, StepRows("n0", rows([]), (Metric("planned_steps", float(steps), 0),)), NOW)
    return watch


def _noisy(level: float, count: int, *, seed: int = 1, fall: float = 0.0) -> list[float]:
    draw = random.Random(seed)
    return [level - fall * n + draw.gauss(0, 0.02) for n in range(count)]


def _of(seen: list[Observation], kind: str, subject: str = "run") -> list[str]:
    return [str(o.phase) for o in seen if (o.kind, o.subject) == (kind, subject)]


def test_a_loss_that_stays_is_told_and_cleared_when_it_falls() -> None:
    """A whole window without a fall: opened, confirmed; falling again: cleared."""
    watch = _planned(20_000)
    flat = told(watch, losses([4.0 - 1e-6 * (n % 3) for n in range(2_500)]))
    assert _of(flat, "loss_not_falling") == ["opened", "confirmed"]
    assert str(flat[-1].severity) == "warning"
    falling = told(watch, losses(_noisy(4.0, 1_500, fall=0.001), start=2_501))
    assert _of(falling, "loss_not_falling") == ["cleared"]


def test_a_loss_that_falls_slowly_is_left_alone() -> None:
    """Two percent per window under noise of a fifth of that."""
    assert not told(_planned(20_000), losses(_noisy(4.0, 6_000, fall=8e-5)))


def test_the_end_of_the_plan_may_be_flat() -> None:
    """The last fifth is not judged: the learning rate has died down there."""
    watch = _planned(2_000)
    falling = losses(_noisy(4.0, 1_600, fall=1e-3))
    assert not told(watch, falling + losses([2.4] * 400, start=1_601))


def test_a_climbing_loss_is_critical_within_200_steps() -> None:
    """From 2.5 upwards by 1 in 1,000 steps: opened, then critical; back at its lowest: cleared."""
    watch = _planned(10_000)
    told(watch, losses(_noisy(3.5, 1_000, fall=1e-3)))
    seen = told(watch, losses([2.5 + 1e-3 * n for n in range(400)], start=1_001))
    assert _of(seen, "loss_not_falling", "diverging") == ["opened", "confirmed"]
    assert str(seen[-1].severity) == "critical"
    assert seen[-1].evidence["step"] <= 1_000 + 75 + 100 + 200
    back = told(watch, losses([2.4] * 300, start=1_401))
    assert _of(back, "loss_not_falling", "diverging") == ["cleared"]


def _times(count: int, ms: float, *, start: int, seed: int = 3) -> list[dict[str, float]]:
    draw = random.Random(seed + start)
    return [
        {"step": start + n, "rank": 0, "step_ms": ms * draw.gauss(1, 0.02)} for n in range(count)
    ]


def test_a_step_that_becomes_a_fifth_slower_is_told_within_20_steps() -> None:
    """Opened at the change, confirmed when it stays, cleared when it is over."""
    watch = a_watch()
    assert not told(watch, _times(500, 100.0, start=1))
    seen = told(watch, _times(60, 120.0, start=501))
    assert phases(seen) == [("job_slow", "run", "opened"), ("job_slow", "run", "confirmed")]
    assert seen[0].evidence["step"] <= 520
    over = told(watch, _times(60, 100.0, start=561))
    assert phases(over) == [("job_slow", "run", "cleared")]


def test_noise_and_drift_of_step_times_are_no_change_point() -> None:
    """30 % of noise, a slow drift of 5 % over 500 steps, single steps ten times as long."""
    draw = random.Random(5)
    made = []
    for step in range(1, 3_001):
        ms = 100 * (1 + 1e-4 * step) * math.exp(draw.gauss(0, 0.3)) * (10 if step % 97 == 0 else 1)
        made.append({"step": step, "rank": 0, "step_ms": ms})
    assert not told(a_watch(), made)


def test_the_slope_is_that_of_the_line() -> None:
    """Least squares of a straight line is its own slope."""
    assert math.isclose(slope([3.0 + 0.5 * n for n in range(20)]), 0.5)


def test_the_course_of_the_rate_is_the_one_that_engines_walk() -> None:
    """Warm-up to the rate, then down to the floor; linear and cosine meet at both ends."""
    for schedule in ("linear", "cosine"):
        course = Course(1e-3, 1e-4, schedule, warmup_steps=10)
        assert math.isclose(course.at(5, 100), 5e-4)
        assert math.isclose(course.at(11, 100), 1e-3)
        assert 1e-4 <= course.at(100, 100) < 1.3e-4
    assert Course(1e-3, 0.0, "constant").at(90, 100) == 1e-3
    assert Course.of({"learningRate": 1e-3, "deepspeedConfig": {"scheduler": {}}}) is None
