"""The small plot of the terminal."""

import math

from lineshaft.cli.demo.plot import HEIGHT, plot


def test_a_falling_curve_falls() -> None:
    """The first column is high, the last one low, and the ends are labelled."""
    lines = plot("loss", [[step, 10 - step / 10] for step in range(100)])
    rows = lines[1 : HEIGHT + 1]
    assert "10.0" in rows[0] or "9.9" in rows[0]
    assert rows[0].index("*") < rows[-1].index("*")


def test_values_that_are_not_finite_are_left_out() -> None:
    """NaN neither breaks the plot nor is drawn."""
    assert plot("loss", [[1, math.nan], [2, math.inf]]) == ["loss: no points"]
    assert any("*" in line for line in plot("loss", [[1, math.nan], [2, 3.0]]))


def test_a_resume_is_marked() -> None:
    """The step at which an attempt went on is shown below the axis."""
    assert any("resumed" in line for line in plot("x", [[0, 1.0], [10, 2.0]], marks=[5]))
