"""The hang rule in virtual time: only beats that say alive and no step count."""

from typing import Any

import pytest

from services.monitor.domain.hang import kind_of_phase
from services.monitor.domain.observations import Observation, RunFact, StepRows, Tick
from services.monitor.domain.watch import Watch
from tests.builders_monitor import NOW, a_watch, beat, phases, rows, see, told


def _stepped(gap_ms: int = 1_000, steps: int = 30) -> tuple[Watch, int]:
    watch = a_watch()
    for step in range(1, steps + 1):
        at = NOW + step * gap_ms
        told(watch, [{"step": step, "rank": 0, "at": float(at)}], now=at)
        see(watch, beat(at, last_step=step), at)
    return watch, NOW + steps * gap_ms


def _stuck(watch: Watch, start: int, for_ms: int, **values: Any) -> list[Observation]:
    made: list[Observation] = []
    for age in range(5_000, for_ms + 1, 5_000):
        last = values.get("last_step", 30)
        sample = beat(start + age, age=age, **{**values, "last_step": last})
        made += see(watch, sample, start + age)
    return made


def test_no_step_for_a_minute_opens_then_confirms() -> None:
    """Opened behind the floor of 60 s, confirmed at 1.2 times it; told once each."""
    watch, now = _stepped()
    seen = _stuck(watch, now, 300_000)
    assert phases(seen) == [("hang", "run", "opened"), ("hang", "run", "confirmed")]
    assert 60_000 < seen[0].evidence["wait_ms"] <= 65_000
    assert 72_000 < seen[1].evidence["wait_ms"] <= 80_000


def test_silence_is_no_hang() -> None:
    """Missing beats and missing telemetry never make one."""
    watch, now = _stepped()
    made: list[Observation] = []
    for second in range(600):
        made += see(watch, Tick(path_proved=True), now + second * 1_000)
    assert not [o for o in made if o.kind == "hang"]


def test_slow_steps_widen_the_limit() -> None:
    """Steps of 40 s: nothing within five of them."""
    watch, now = _stepped(gap_ms=40_000)
    assert not _stuck(watch, now, 195_000)
    assert _stuck(watch, now + 195_000, 250_000, last_step=30)


def test_the_first_step_may_take_twenty_minutes() -> None:
    """Loading and compiling are no hang; after twenty minutes without a step it is one."""
    watch = a_watch()
    made: list[Observation] = []
    for age in range(0, 1_600_000, 5_000):
        made += see(watch, beat(NOW + age, last_step=0, age=0, phase="training"), NOW + age)
        if age <= 1_195_000:
            assert not made
    assert ("hang", "run", "confirmed") in phases(made)


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("saving", "checkpoint"),
        ("evaluating", "evaluation"),
        ("finishing", "finish"),
        ("building", "first"),
        ("training", "step"),
        ("data", "step"),
        ("a word of mine", "step"),
    ],
)
def test_phases_have_limits_of_their_own(phase: str, kind: str) -> None:
    """Every word that agents and users say for a phase falls under one limit."""
    assert kind_of_phase(phase) == kind


def test_a_long_evaluation_is_no_hang_and_neither_is_its_end() -> None:
    """The age counts from the last step: what passed in the evaluation is not held against it."""
    watch, now = _stepped()
    assert not _stuck(watch, now, 600_000, phase="evaluating")
    after = now + 600_000
    made: list[Observation] = []
    for more in range(5_000, 55_000, 5_000):
        made += see(watch, beat(after + more, last_step=30, age=600_000 + more), after + more)
    assert not made


def test_idle_devices_confirm_at_once() -> None:
    """Utilisation of 1 % or less on every node needs no second look."""
    watch, now = _stepped()
    see(watch, StepRows("n0", rows([]), (), {"gpu_utilisation": 0.0}), now)
    seen = _stuck(watch, now, 65_000)
    assert phases(seen)[-1] == ("hang", "run", "confirmed")


def test_a_stopped_rank_is_the_culprit() -> None:
    """A rank in state T is named, with its node, and confirms at once."""
    watch, now = _stepped()
    ranks = (
        {"rank": 0, "pid": 7, "state": "R", "cpu_ms": 10},
        {"rank": 1, "pid": 8, "state": "T", "cpu_ms": 10},
    )
    seen = _stuck(watch, now, 65_000, ranks=ranks)
    assert (seen[-1].rank, seen[-1].node, str(seen[-1].phase)) == (1, "n0", "confirmed")


def test_a_step_clears_it() -> None:
    """When steps are made again the alarm ends."""
    watch, now = _stepped()
    _stuck(watch, now, 100_000)
    seen = see(watch, beat(now + 105_000, last_step=31, age=200), now + 105_000)
    assert phases(seen) == [("hang", "run", "cleared")]


def test_one_moving_node_means_no_hang() -> None:
    """As long as any node says that it steps, the run does."""
    watch, now = _stepped()
    made: list[Observation] = []
    for age in range(5_000, 200_000, 5_000):
        made += see(watch, beat(now + age, node="n1", last_step=30, age=age), now + age)
        made += see(watch, beat(now + age, node="n0", last_step=30 + age, age=10), now + age)
    assert not made


def test_the_orders_limit_replaces_the_floor() -> None:
    """A launch order that names a hang limit is taken by its word."""
    watch, now = _stepped()
    data = {"epoch": 1, "not_after": 0, "nodes": [], "order": {"hang_limit_ms": 10_000}}
    see(watch, RunFact("run.launch_ordered", data, now), now)
    assert phases(_stuck(watch, now, 30_000))[-1] == ("hang", "run", "confirmed")


def test_nothing_is_judged_after_a_stop_was_ordered() -> None:
    """A run that saves and stops makes no steps, and that is right."""
    watch, now = _stepped()
    see(watch, RunFact("run.stop_ordered", {"intent": "suspend"}, now), now)
    assert not _stuck(watch, now, 300_000)
