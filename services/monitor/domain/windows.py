"""Sliding windows that rules measure against: a running median, and "n of the last m".

Pure and bounded; nothing here knows what is measured.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

MAD_TO_SIGMA = 1.4826
"""For normal noise, the standard deviation is 1.4826 times the median absolute deviation
(Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation", 1993)."""


@dataclass(slots=True)
class MedianWindow:
    """The newest ``size`` accepted values, kept sorted, so that the median costs nothing."""

    size: int
    _arrived: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._arrived)

    def accept(self, value: float) -> None:
        """Take a finite value in, the oldest out."""
        self._arrived.append(value)
        insort(self._sorted, value)
        if len(self._arrived) > self.size:
            oldest = self._arrived.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def clear(self) -> None:
        """Forget everything."""
        self._arrived.clear()
        self._sorted.clear()

    def median(self) -> float:
        """Return the median, NaN when empty."""
        return middle(self._sorted)

    def mad(self) -> float:
        """Return the median absolute deviation from the median, NaN when empty."""
        centre = self.median()
        return middle(sorted(abs(value - centre) for value in self._sorted))


@dataclass(slots=True)
class HitWindow:
    """How many of the last ``size`` looks were hits."""

    size: int
    _looks: deque[bool] = field(default_factory=deque)

    def look(self, is_hit: bool) -> int:
        """Record one look and return the number of hits among the last ones."""
        self._looks.append(is_hit)
        if len(self._looks) > self.size:
            self._looks.popleft()
        return sum(self._looks)

    def clear(self) -> None:
        """Forget everything."""
        self._looks.clear()


def middle(ordered: list[float]) -> float:
    """Return the median of a sorted list, NaN when it is empty."""
    if not ordered:
        return math.nan
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
