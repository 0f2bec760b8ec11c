"""A rank that is a little slower all the time is given as a notice, and nobody else is."""

import random

from services.monitor.domain.observations import Observation
from services.monitor.domain.watch import Watch
from tests.builders_monitor import a_watch, gang, phases

NODES = {f"r{rank}": f"n{rank // 4}" for rank in range(16)}


def _steps(
    watch: Watch, first: int, count: int, slow: dict[int, float], seed: int = 11
) -> list[Observation]:
    draw = random.Random(seed + first)
    steps = [
        (
            step,
            {
                rank: {"compute_ms": 100.0 * slow.get(rank, 1.0) * draw.gauss(1.0, 0.01)}
                for rank in range(16)
            },
        )
        for step in range(first, first + count)
    ]
    return gang(watch, steps, **NODES)


def test_five_percent_are_found_in_a_score_of_steps_as_a_notice() -> None:
    """The one rank is named, never confirmed, and cleared when it keeps up again."""
    watch = a_watch()
    assert not _steps(watch, 1, 30, {})
    seen = _steps(watch, 31, 40, {5: 1.05})
    assert phases(seen) == [("straggler", "rank-5", "opened")]
    assert str(seen[0].severity) == "notice"
    assert seen[0].evidence["step"] <= 31 + 20
    assert phases(_steps(watch, 71, 60, {})) == [("straggler", "rank-5", "cleared")]


def test_peers_that_only_differ_by_noise_are_left_alone() -> None:
    """3,000 steps of 16 ranks, and machines that differ by one percent for good."""
    watch = a_watch()
    made = {rank: 1.0 + 0.002 * (rank % 6) for rank in range(16)}
    assert not _steps(watch, 1, 3_000, made)


def test_what_the_straggler_rule_tells_is_not_told_twice() -> None:
    """A rank of 1.3 times its peers is one alert, confirmed by the rule of 8 in 10."""
    watch = a_watch()
    seen = _steps(watch, 1, 80, {5: 1.3})
    assert phases(seen) == [
        ("straggler", "rank-5", "opened"),
        ("straggler", "rank-5", "confirmed"),
    ]
