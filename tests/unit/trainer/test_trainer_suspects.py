"""Who and what broke a step: the rank whose loss is no number, the rows that it computed."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from trainer import pacing
from trainer.pacing import Ballot


def test_the_rank_whose_loss_broke_is_named_before_those_whose_gradient_did() -> None:
    """Summed gradients are broken everywhere; only one rank's loss is."""
    rows = [Ballot(is_finite=False, loss=2.0).as_row() for _ in range(4)]
    assert pacing.resolve(rows, step=3, total_steps=9).broken_ranks == (0, 1, 2, 3)
    rows[2] = Ballot(is_finite=False, loss=math.nan).as_row()
    assert pacing.resolve(rows, step=3, total_steps=9).broken_ranks == (2,)


@pytest.mark.torch
def test_the_rows_of_a_rank_are_those_that_its_batches_are_made_of() -> None:
    """For every rank and step, and all ranks together take each row of the step once."""
    from trainer.datasets.loader import Loader, Share

    class Rows:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def __len__(self) -> int:
            return 1_000

        def row(self, number: int) -> None:
            self.asked.append(number)
            raise LookupError

    for rank in range(3):
        subset = Rows()
        loader = Loader(subset, Share(2, 2, rank, 3), seed=7, pad_id=0)  # type: ignore[arg-type]
        wanted = loader.rows_of(24, rank)
        assert len(wanted) == len(set(wanted)) == 4
        subset.asked.clear()
        with pytest.raises(LookupError):
            next(loader.at(24))
        assert subset.asked[0] == wanted[0]
    whole = [row for rank in range(3) for row in loader.rows_of(24, rank)]
    assert len(set(whole)) == 12


@pytest.mark.torch
@pytest.mark.parametrize(("is_kept", "is_leader"), [(True, True), (False, True), (False, False)])
def test_a_save_that_failed_is_told_once_by_rank_0(is_kept: bool, is_leader: bool) -> None:
    """The metric ``checkpoint_failed`` of that step; a kept checkpoint tells nothing of it."""
    from trainer import loop
    from trainer.meter import Done

    told: list[tuple[str, float, int]] = []
    link = SimpleNamespace(phase=lambda _: None, metric=lambda *each: told.append(each))
    parts = SimpleNamespace(
        link=link,
        meter=SimpleNamespace(saving=nullcontext),
        saver=SimpleNamespace(save=lambda *_: is_kept),
        engine=None,
        gang=SimpleNamespace(is_leader=is_leader),
    )
    done = Done(loss=1.0, grad_norm=1.0, learning_rate=1e-3, samples=1, tokens=1)
    loop.save(parts, loop.Progress(step=40, loss=1.0), done)  # type: ignore[arg-type]
    assert told == ([] if is_kept or not is_leader else [("checkpoint_failed", 1.0, 40)])
