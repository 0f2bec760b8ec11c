"""The straggler rule on synthetic gangs: who is named, who is not, when it clears."""

import random
from collections.abc import Callable

import pytest

from tests.builders_monitor import Line, a_watch, gang, phases

Slow = Callable[[int, int], float]


def _steps(
    ranks: int, count: int, slow: Slow, *, seed: int = 0, start: int = 1, spread: float = 0.02
) -> list[tuple[int, dict[int, dict[str, float]]]]:
    draw = random.Random(seed)
    return [
        (
            step,
            {
                rank: {"compute_ms": 100 * draw.gauss(1, spread) * slow(step, rank)}
                for rank in range(ranks)
            },
        )
        for step in range(start, start + count)
    ]


def _nodes(ranks: int, per_node: int) -> dict[str, str]:
    return {f"r{rank}": f"n{rank // per_node}" for rank in range(ranks)}


@pytest.mark.parametrize("seed", range(6))
def test_noise_blames_nobody(seed: int) -> None:
    """Ranks that vary by some per cent, and single slow steps, are no stragglers."""
    draw = random.Random(seed)
    steps = _steps(8, 400, lambda s, r: 1.6 if draw.random() < 0.05 else 1.0, seed=seed)
    assert not gang(a_watch(), steps, **_nodes(8, 4))


def test_a_slow_rank_is_named_within_ten_steps_and_cleared() -> None:
    """Slow from step 41: confirmed by step 50; fast again from step 80: cleared."""
    steps = _steps(8, 120, lambda s, r: 1.3 if r == 5 and 41 <= s < 80 else 1.0)
    seen = gang(a_watch(), steps, **_nodes(8, 4))
    assert phases(seen) == [
        ("straggler", "rank-5", "opened"),
        ("straggler", "rank-5", "confirmed"),
        ("straggler", "rank-5", "cleared"),
    ]
    assert (seen[0].node, seen[0].rank) == ("n1", 5)
    assert seen[1].evidence["step"] <= 50


def test_a_little_slow_is_only_a_notice() -> None:
    """Between 1.10 and 1.15 it opens and is not confirmed."""
    steps = _steps(8, 80, lambda s, r: 1.125 if r == 2 else 1.0, spread=0.004)
    assert phases(gang(a_watch(), steps)) == [("straggler", "rank-2", "opened")]


def test_all_slow_ranks_on_one_node_are_the_nodes() -> None:
    """Four slow ranks of a four-rank node: the node is the subject, whatever the share."""
    steps = _steps(16, 60, lambda s, r: 1.4 if r // 4 == 2 else 1.0)
    seen = gang(a_watch(), steps, **_nodes(16, 4))
    assert {o.subject for o in seen} == {"node-n2"}


def test_many_slow_ranks_over_nodes_are_an_imbalance() -> None:
    """Three of eight ranks on two nodes: the load is uneven, no machine is blamed."""
    steps = _steps(8, 60, lambda s, r: 1.4 if r in (0, 1, 5) else 1.0)
    seen = gang(a_watch(), steps, **_nodes(8, 4))
    assert phases(seen) == [("straggler", "imbalance", "opened")]


def test_two_ranks_need_their_own_past() -> None:
    """With one peer only: slower by design is nothing, slower than before and than the peer is."""
    by_design = _steps(2, 100, lambda s, r: 2.0 if r == 1 else 1.0)
    assert not gang(a_watch(), by_design)
    later = _steps(2, 100, lambda s, r: 1.5 if r == 1 and s > 50 else 1.0)
    assert ("straggler", "rank-1", "confirmed") in phases(gang(a_watch(), later))


def test_a_plain_script_names_nobody() -> None:
    """Without a time outside collectives there is nothing to compare."""
    steps = [(s, {r: {"step_ms": 100.0 * (1 + r)} for r in range(8)}) for s in range(1, 100)]
    assert not gang(a_watch(), steps)


def test_the_step_after_a_checkpoint_is_left_out() -> None:
    """A rank that is slow only around checkpoints is never looked at there."""
    steps = _steps(8, 100, lambda s, r: 1.0)
    for step, ranks in steps:
        if step % 2 == 0:
            for rank in ranks.values():
                rank["checkpoint_ms"] = 50.0
        ranks[3]["compute_ms"] *= 2.0
    assert not gang(a_watch(), steps)


def test_the_builder_is_fair() -> None:
    """An untouched line has raised nothing."""
    assert not Line().events
