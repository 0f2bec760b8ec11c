"""What fills up is told before it is full; what only starts, or is half full, is left alone."""

import csv

from services.monitor.domain.observations import Observation, RunFact, StepRows
from services.monitor.domain.watch import Watch
from tests.builders_monitor import NOW, a_watch, phases, recordings, rows, see

GIB = float(1 << 30)
MINUTE = 60_000


def _sampled(watch: Watch, at: int, **sample: float) -> list[Observation]:
    return see(watch, StepRows("n0", rows([]), (), sample), NOW + at)


def _shm(watch: Watch, at: int, used: float, total: float = 24.0) -> list[Observation]:
    return _sampled(watch, at, shm_used_bytes=used * GIB, shm_total_bytes=total * GIB)


def test_a_recorded_fill_of_shared_memory_is_told_a_minute_before_the_mark() -> None:
    """Ten seconds between samples: the forecast is confirmed well before 92 % are used."""
    path = recordings("hang") / "samples" / "devshm_fill.csv"
    with path.open(encoding="utf-8") as file:
        points = [(int(r["t_s"]), float(r["used_gib"])) for r in csv.DictReader(file)]
    watch, first = a_watch(), {}
    for seconds, used in points:
        for seen in _shm(watch, seconds * 1000, used):
            first.setdefault((str(seen.phase), str(seen.severity)), seconds)
    full = next(seconds for seconds, used in points if used > 0.92 * 24)
    assert first["confirmed", "warning"] <= full - 45
    assert first["opened", "notice"] <= full - 60


def test_full_memory_is_told_by_its_marks_and_cleared_below_85_percent() -> None:
    """93 % warns at once, 98 % is critical, 88 % says nothing new, 80 % clears."""
    watch = a_watch()
    shares = (0.5, 0.93, 0.98, 0.88, 0.80)
    made = [
        _sampled(watch, n, host_memory_used_bytes=share * GIB, host_memory_total_bytes=GIB)
        for n, share in enumerate(shares)
    ]
    assert [len(seen) for seen in made] == [0, 2, 1, 0, 1]
    assert [str(seen[-1].severity) for seen in (made[1], made[2])] == ["warning", "critical"]
    assert made[4][0].subject == "node-n0.host"


def test_a_model_that_loads_is_no_leak() -> None:
    """Host memory rises for a minute and stays: nothing is said below half."""
    watch = a_watch()
    for second in range(0, 600, 2):
        used = min(10.0, 0.2 * second)
        seen = _sampled(
            watch, second * 1000, host_memory_used_bytes=used, host_memory_total_bytes=24.0
        )
        assert not seen


def _disk(watch: Watch, at: int, free: float, total: float = 1000.0) -> list[Observation]:
    used = (total - free) * GIB
    return _sampled(watch, at, disk_used_bytes=used, disk_total_bytes=total * GIB)


def test_a_disk_that_is_full_in_hours_is_told_and_cleared_when_it_is_pruned() -> None:
    """60 GiB an hour with 300 left: a warning; with under 200 and four hours: critical."""
    watch = a_watch()
    made: list[Observation] = []
    for minute in range(0, 220):
        made += _disk(watch, minute * MINUTE, 320.0 - minute)
    assert [str(o.severity) for o in made] == ["notice", "warning", "critical"]
    assert made[0].evidence["full_in_ms"] < 24 * 60 * MINUTE
    cleared: list[Observation] = []
    for minute in range(220, 600):
        cleared += _disk(watch, minute * MINUTE, 800.0)
    assert phases(cleared) == [("storage_filling", "node-n0.disk", "cleared")]


def test_a_disk_that_nobody_fills_is_judged_by_its_marks() -> None:
    """30 % free and steady: nothing; 4 % warns, 2 % is critical."""
    watch = a_watch()
    for minute in range(60):
        assert not _disk(watch, minute * MINUTE, 300.0)
    assert str(_disk(watch, 61 * MINUTE, 40.0)[-1].severity) == "warning"
    assert str(_disk(watch, 62 * MINUTE, 20.0)[-1].severity) == "critical"


def test_room_for_less_than_two_checkpoints_is_critical() -> None:
    """10 % of the disk is left, but a checkpoint takes 6 %."""
    watch = a_watch()
    data = {"step": 5, "digest": "d", "bytes": int(60 * GIB), "path": "p"}
    see(watch, RunFact("run.checkpoint_committed", data, NOW), NOW)
    assert str(_disk(watch, MINUTE, 100.0)[-1].severity) == "critical"


def test_values_that_make_no_sense_are_left_out() -> None:
    """No total, nothing known, not a number: no verdict and no fault."""
    watch = a_watch()
    nan = float("nan")
    assert not _sampled(watch, 1, host_memory_used_bytes=5.0)
    assert not _sampled(watch, 2, host_memory_used_bytes=5.0, host_memory_total_bytes=0.0)
    assert not _sampled(watch, 3, shm_used_bytes=nan, shm_total_bytes=1.0)
