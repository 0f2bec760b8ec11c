"""A small plot of a curve for any terminal: plain characters, no colour."""

import math
from collections.abc import Sequence

WIDTH = 64
HEIGHT = 9


def plot(title: str, points: Sequence[Sequence[float]], marks: Sequence[int] = ()) -> list[str]:
    """Return lines that show ``points`` (step, value, ...) with ``marks`` at some steps.

    Each column shows the mean of its points; a mark is a ``|`` below the axis. Points that are
    not finite are left out; without any, the one line says so.
    """
    usable = [(p[0], p[1]) for p in points if p[1] is not None and math.isfinite(p[1])]
    if not usable:
        return [f"{title}: no points"]
    first, last = min(p[0] for p in usable), max(p[0] for p in usable)
    columns: list[list[float]] = [[] for _ in range(WIDTH)]
    for step, value in usable:
        columns[_column(step, first, last)].append(value)
    means = [sum(column) / len(column) if column else None for column in columns]
    known = [mean for mean in means if mean is not None]
    low, high = min(known), max(known)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, mean in enumerate(means):
        if mean is not None:
            share = (mean - low) / (high - low) if high > low else 0.5
            grid[HEIGHT - 1 - round(share * (HEIGHT - 1))][x] = "*"
    lines = [title]
    for y, row in enumerate(grid):
        label = f"{high:9.3f}" if y == 0 else f"{low:9.3f}" if y == HEIGHT - 1 else " " * 9
        lines.append(f"{label} |{''.join(row)}".rstrip())
    lines.append(" " * 10 + "+" + "-" * WIDTH)
    if marks:
        axis = [" "] * WIDTH
        for mark in marks:
            if first <= mark <= last:
                axis[_column(mark, first, last)] = "|"
        lines.append(" " * 11 + "".join(axis).rstrip() + "  | = resumed here")
    lines.append(f"{'step':>10} {int(first)}{int(last):>{WIDTH - len(str(int(first)))}}")
    return lines


def _column(step: float, first: float, last: float) -> int:
    return min(WIDTH - 1, int((step - first) / max(1, last - first) * WIDTH))
