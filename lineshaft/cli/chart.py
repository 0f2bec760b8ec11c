"""Small curves out of characters. Pure: numbers in, text out."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

BLOCKS: Final = " ▁▂▃▄▅▆▇█"
PLAIN: Final = " .:-=+*#@"


def values_of(points: Iterable[Sequence[Any]]) -> list[float]:
    """Return a curve's values by step; of a step that was repeated, the newest attempt's.

    ``points`` are [step, value, attempt]; what is no finite number is left out.
    """
    newest: dict[int, tuple[int, float]] = {}
    for step, value, attempt in points:
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if is_number and attempt >= newest.get(step, (0, 0.0))[0]:
            newest[step] = (attempt, float(value))
    return [newest[step][1] for step in sorted(newest)]


def sampled(values: Sequence[float], width: int) -> list[float]:
    """Return at most ``width`` values: means over equal parts."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * n // width for n in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def spark(values: Sequence[float], width: int, marks: str = BLOCKS) -> str:
    """Return a curve on one line; empty without values."""
    return "".join(rows(values, width, 1, marks))


def rows(values: Sequence[float], width: int, height: int, marks: str = BLOCKS) -> list[str]:
    """Return a curve as ``height`` lines of at most ``width`` characters, the top one first."""
    shown = sampled(values, width)
    if not shown:
        return []
    low, high = min(shown), max(shown)
    steps = len(marks) - 1
    scale = (height * steps - 1) / (high - low) if high > low else 0.0
    levels = [1 + round((value - low) * scale) for value in shown]
    return [
        "".join(marks[min(steps, max(0, level - row * steps))] for level in levels)
        for row in reversed(range(height))
    ]


def chart(values: Sequence[float], width: int, height: int, marks: str = BLOCKS) -> list[str]:
    """Return a curve with its highest and lowest value beside it."""
    lines = rows(values, width - 11, height, marks)
    if not lines:
        return []
    labels = [""] * height
    labels[-1], labels[0] = f"{min(values):.4g}", f"{max(values):.4g}"
    return [f"{label:>9} |{line}" for label, line in zip(labels, lines, strict=True)]


def bar(share: float, width: int) -> str:
    """Return a bar that is full at ``share`` 1."""
    full = min(width, max(0, int(width * share)))
    return "[" + "#" * full + "." * (width - full) + "]"
