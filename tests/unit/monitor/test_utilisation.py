"""Idle devices, devices used too little, throughput below its plan."""

import csv

from lineshaft.contracts.telemetry import Metric
from services.monitor.domain.observations import Observation, StepRows
from services.monitor.domain.watch import Watch
from tests.builders_monitor import NOW, a_watch, beat, phases, recordings, rows, see, told

MINUTE = 60_000


def _training(watch: Watch, steps: int = 40, at: int = 0, **values: float) -> list[Observation]:
    first = watch.table.closed_to + 1
    block = [{"step": first + n, "rank": 0, "step_ms": 100.0, **values} for n in range(steps)]
    return told(watch, block, now=NOW + at)


def _devices(watch: Watch, at: int, *use: float, node: str = "n0") -> list[Observation]:
    sample = {f"gpu_utilisation_{n}": value for n, value in enumerate(use)}
    return see(watch, StepRows(node, rows([]), (), sample), NOW + at)


def test_idle_devices_without_a_step_are_told_in_five_minutes() -> None:
    """Opened at five, confirmed at six, cleared by a step."""
    watch = a_watch()
    _training(watch)
    see(watch, beat(NOW, phase="training"), NOW)
    seen: list[Observation] = []
    for second in range(0, 420, 10):
        seen += _devices(watch, second * 1000, 0.0, 1.0)
    assert phases(seen, "zero_utilisation") == [
        ("zero_utilisation", "run", "opened"),
        ("zero_utilisation", "run", "confirmed"),
    ]
    seen = [o for o in seen if o.kind == "zero_utilisation"]
    assert 5 * MINUTE <= seen[0].evidence["for_ms"] <= 5 * MINUTE + 10_000
    _training(watch, 1)
    assert phases(_devices(watch, 430_000, 0.0, 1.0)) == [("zero_utilisation", "run", "cleared")]


def test_devices_may_idle_while_the_run_saves_or_has_no_step_yet() -> None:
    """Before the first step and in a checkpoint, idle devices say nothing."""
    fresh, saving = a_watch(), a_watch()
    _training(saving)
    see(saving, beat(NOW, phase="saving"), NOW)
    for second in range(0, 900, 10):
        assert not _devices(fresh, second * 1000, 0.0)
        assert not _devices(saving, second * 1000, 0.0)


def test_the_one_idle_device_of_a_recorded_hang_is_named() -> None:
    """Seven devices show 100 %, the culprit none: its place is in the alert."""
    path = recordings("hang") / "samples" / "hung_node_gpu.csv"
    with path.open(encoding="utf-8") as file:
        rows_ = list(csv.DictReader(file))
    column = next(name for name in rows_[0] if name.startswith("util"))
    use = [float(r[column]) for r in rows_]
    watch = a_watch()
    _training(watch)
    see(watch, beat(NOW, phase="training"), NOW)
    seen: list[Observation] = []
    for second in range(0, 420, 10):
        seen += _devices(watch, second * 1000, *use)
    (culprit,) = [n for n, value in enumerate(use) if value <= 1]
    seen = [o for o in seen if o.kind == "zero_utilisation"]
    assert phases(seen)[-1] == ("zero_utilisation", "run", "confirmed")
    assert seen[-1].evidence["idle"] == [f"n0/{culprit}"]
    assert seen[-1].node == "n0"


def test_low_use_says_what_is_short() -> None:
    """Half of the devices' time over ten minutes, a third of each step waits for data."""
    watch, seen = a_watch(), []
    for second in range(0, 720, 10):
        _training(watch, 5, at=second * 1000, data_ms=33.0)
        seen += _devices(watch, second * 1000, 50.0, 55.0)
    assert phases(seen) == [
        ("low_utilisation", "run", "opened"),
        ("low_utilisation", "run", "confirmed"),
    ]
    assert "wait for data in 33%" in seen[-1].summary
    over: list[Observation] = []
    for second in range(720, 900, 10):
        _training(watch, 5, at=second * 1000)
        over += _devices(watch, second * 1000, 95.0, 96.0)
    assert phases(over) == [("low_utilisation", "run", "cleared")]


def test_a_run_without_devices_is_not_judged_by_them() -> None:
    """On CPU nodes no sample names a device: none of these rules speaks."""
    watch = a_watch()
    _training(watch)
    for second in range(0, 900, 10):
        assert not see(watch, StepRows("n0", rows([]), (), {"cpu_percent": 1.0}), NOW + second)


def _planned(watch: Watch, rate: float) -> None:
    metric = Metric("planned_samples_per_s", rate, 0)
    see(watch, StepRows("n0", rows([]), (metric,)), NOW)


def test_throughput_below_its_plan_is_told_after_ten_minutes_with_the_gap() -> None:
    """80 of 100 samples a second: opened, warned; 60: critical; 100: cleared."""
    watch = a_watch()
    _planned(watch, 100.0)
    seen: list[Observation] = []
    for minute in range(14):
        seen += _training(watch, 10, at=minute * MINUTE, samples=8.0, collective_ms=40.0)
    assert phases(seen) == [("below_plan", "run", "opened"), ("below_plan", "run", "confirmed")]
    assert seen[-1].evidence["shares"]["communication"] == 0.4
    worse: list[Observation] = []
    for minute in range(14, 28):
        worse += _training(watch, 10, at=minute * MINUTE, samples=6.0)
    assert [str(o.severity) for o in worse] == ["critical"]
    well = _training(watch, 60, at=28 * MINUTE, samples=10.0)
    assert phases(well) == [("below_plan", "run", "cleared")]


def test_a_run_that_reports_no_plan_is_not_judged() -> None:
    """Nothing to compare with: no alert, however slow."""
    watch = a_watch()
    for minute in range(30):
        assert not _training(watch, 10, at=minute * MINUTE, samples=0.1)
