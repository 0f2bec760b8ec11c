"""The numeric rules on synthetic sequences: not finite, spikes, gradient norms."""

import random

import pytest

from lineshaft.contracts.telemetry import Metric, reported
from services.monitor.domain.observations import StepRows
from tests.builders_monitor import NOW, a_watch, losses, phases, rows, see, told


def _noise(seed: int, count: int, level: float = 2.0, spread: float = 0.02) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(level, spread) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_no_spike(seed: int) -> None:
    """Thousands of noisy steps, falling or flat, raise nothing."""
    draw = random.Random(seed)
    falling = [
        3 + 7 * 0.995**n + draw.gauss(0, 0.05) + (0.8 if draw.random() < 0.002 else 0)
        for n in range(3_000)
    ]
    assert not told(a_watch(), losses(falling))


def test_one_bad_step_is_only_a_blip() -> None:
    """A single value far out of range, back in the next step, raises nothing."""
    values = _noise(1, 200)
    values[150] = 5.0
    assert not told(a_watch(), losses(values))


def test_three_of_five_bad_steps_are_a_spike_and_it_clears() -> None:
    """The third bad value opens and confirms; twenty calm steps clear; it is told once."""
    values = [*_noise(2, 120), 4.0, 2.0, 4.1, 4.2, *_noise(3, 60)]
    seen = told(a_watch(), losses(values))
    assert phases(seen) == [
        ("loss_spike", "run", "opened"),
        ("loss_spike", "run", "confirmed"),
        ("loss_spike", "run", "cleared"),
    ]
    assert seen[1].evidence["step"] == 124
    assert seen[1].severity == "warning"


def test_more_than_five_medians_is_critical_at_once() -> None:
    """A loss of six times its median does not wait for a second one."""
    seen = told(a_watch(), losses([*_noise(4, 120), 12.5]))
    assert [str(o.severity) for o in seen] == ["notice", "critical"]


def test_a_spike_that_stays_becomes_critical() -> None:
    """A loss that is not back after 100 steps asks for a rollback."""
    seen = told(a_watch(), losses([*_noise(5, 120), *([4.0] * 130)]))
    seen = [o for o in seen if o.kind == "loss_spike"]
    assert [str(o.severity) for o in seen] == ["notice", "warning", "critical"]
    assert "roll back" in seen[-1].summary


def test_a_new_level_is_learnt() -> None:
    """A loss that moved for good (another task) stops being trouble."""
    seen = told(a_watch(), losses([*_noise(6, 120), *_noise(7, 600, level=4.0)]))
    assert str(seen[-1].phase) == "cleared"


def test_the_first_steps_are_left_out() -> None:
    """Warm-up values neither alarm nor enter the window."""
    assert not told(a_watch(), losses([50.0] * 16 + _noise(8, 100)))


def test_a_value_that_is_not_finite_is_told_at_once() -> None:
    """The first infinite loss confirms a critical alert, in the very first step too."""
    seen = told(a_watch(), losses([reported(float("nan"))]))
    assert phases(seen) == [("non_finite", "run", "opened"), ("non_finite", "run", "confirmed")]
    assert (seen[0].rank, str(seen[1].severity)) == (0, "critical")


def test_a_loss_that_is_not_reported_is_not_infinite() -> None:
    """Steps without a loss are no fault."""
    assert not told(a_watch(), [{"step": s, "rank": 0, "step_ms": 10.0} for s in range(200)])


def test_zero_losses_and_frozen_norms_are_suspicious() -> None:
    """Exactly zero twice, or the same norm five times, warns and clears when it moves again."""
    zero = told(a_watch(), losses([2.0, 0.0, 0.0, 2.0]))
    assert phases(zero)[-2:] == [
        ("non_finite", "zero-loss", "confirmed"),
        ("non_finite", "zero-loss", "cleared"),
    ]
    frozen = told(a_watch(), [{"step": s, "rank": 0, "grad_norm": 1.41421356} for s in range(6)])
    assert ("non_finite", "frozen-norm", "confirmed") in phases(frozen)


def test_a_norm_of_ten_medians_in_two_of_three_steps_is_a_precursor() -> None:
    """After step 200 it is critical; the same values before it are warm-up."""
    draw = random.Random(9)
    steps = [{"step": s, "rank": 0, "grad_norm": draw.gauss(1.0, 0.1)} for s in range(150, 300)]
    late = [{"step": 300 + n, "rank": 0, "grad_norm": v} for n, v in enumerate([15.0, 16.0])]
    assert ("grad_norm", "run", "confirmed") in phases(told(a_watch(), steps + late))
    early = [{**row, "step": row["step"] - 149} for row in steps]
    spiky = [{"step": 152 + n, "rank": 0, "grad_norm": v} for n, v in enumerate([15.0, 16.0])]
    assert not told(a_watch(), early + spiky)


def test_the_rows_of_data_that_a_trainer_suspects_are_in_the_alert() -> None:
    """Told beside or before the step, they stand in summary and evidence."""
    watch = a_watch()
    metrics = tuple(Metric("non_finite_sample", float(row), 7) for row in (12, 99))
    bad = rows([{"step": 7, "rank": 1, "loss": reported(float("nan"))}])
    seen = see(watch, StepRows("n0", bad, metrics), NOW)
    assert seen[-1].evidence["samples"] == [12, 99]
    assert "12, 99" in seen[-1].summary
