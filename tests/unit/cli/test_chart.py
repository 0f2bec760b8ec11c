"""Small curves: what is drawn stands for the values."""

import math

import pytest

from lineshaft.cli import chart


def test_repeated_steps_show_the_newest_attempt() -> None:
    """A run that went back draws what it did last; what is no number is left out."""
    points = [[1, 3.0, 1], [2, 2.0, 1], [3, 9.0, 1], [2, 1.5, 2], [4, math.inf, 2], [5, None, 2]]
    assert chart.values_of(points) == [3.0, 1.5, 9.0]


def test_a_long_curve_keeps_its_mean_and_a_short_one_its_values() -> None:
    """Parts are of equal size and all of it is in one of them."""
    values = [float(n) for n in range(1000)]
    short = chart.sampled(values, 60)
    assert len(short) == 60
    assert sum(short) / 60 == pytest.approx(sum(values) / 1000, rel=0.01)
    assert chart.sampled([1.0, 2.0], 60) == [1.0, 2.0]


@pytest.mark.parametrize("marks", [chart.BLOCKS, chart.PLAIN])
def test_the_highest_is_full_and_the_lowest_is_seen(marks: str) -> None:
    """Also the lowest value leaves a mark, so that a point is not taken for a gap."""
    drawn = chart.rows([0.0, 1.0], 10, 3, marks)
    assert [line[1] for line in drawn] == [marks[-1]] * 3
    assert [line[0] for line in drawn] == [" ", " ", marks[1]]


def test_flat_and_empty_curves() -> None:
    """Nothing divides by zero."""
    assert chart.rows([], 10, 3) == []
    assert chart.chart([], 40, 3) == []
    assert len(set(chart.spark([2.0] * 5, 10))) == 1


def test_a_chart_names_its_bounds() -> None:
    """The top line has the highest value, the last the lowest."""
    lines = chart.chart([4.0, 2.0, 1.0], 40, 4)
    assert lines[0].strip().startswith("4 |")
    assert lines[-1].strip().startswith("1 |")


@pytest.mark.parametrize(("share", "full"), [(-1.0, 0), (0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10)])
def test_a_bar_stays_in_its_bounds(share: float, full: int) -> None:
    """More than all is all."""
    assert chart.bar(share, 10) == "[" + "#" * full + "." * (10 - full) + "]"
