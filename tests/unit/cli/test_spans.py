"""Lengths of time as the commands take them."""

import pytest
import typer

from lineshaft.cli.alerts import milliseconds


def test_a_length_of_time_is_read_with_its_unit() -> None:
    """Seconds, minutes, hours, days."""
    assert [milliseconds(text) for text in ("30s", "90m", "8h", "7d")] == [
        30_000,
        5_400_000,
        28_800_000,
        604_800_000,
    ]


@pytest.mark.parametrize("text", ["", "8", "h", "-1h", "1.5h", "0m", "9999d", "8 h"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    """The message holds what was given."""
    with pytest.raises(typer.BadParameter, match="no length of time"):
        milliseconds(text)
