"""Who is compared with whom: the ranks of a step, their places in arrays, their stages.

Worked out once for a set of ranks, since the next step nearly always has the same. Judges nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.monitor.domain.observations import Values

Places = NDArray[np.int64]


def _none() -> Places:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Peers:
    """A place for every rank ever seen, and those of the newest step by pipeline stage."""

    place: dict[int, int] = field(default_factory=dict)
    places: Places = field(default_factory=_none)  # of the newest step's ranks
    groups: list[Places] = field(default_factory=list)  # positions among those, per stage
    _ranks: Places = field(default_factory=_none)
    _stages: int = -1

    def meet(self, ranks: Places, stage_of: Mapping[int, int]) -> int:
        """Take a step's ranks and return how many of them are new."""
        is_known = self._stages == len(stage_of) and len(ranks) == len(self._ranks)
        if is_known and (ranks is self._ranks or np.array_equal(ranks, self._ranks)):
            return 0
        known = ranks.tolist()
        new = [rank for rank in known if rank not in self.place]
        self.place.update(zip(new, range(len(self.place), len(self.place) + len(new)), strict=True))
        self.places = np.array([self.place[rank] for rank in known], dtype=np.int64)
        stages = np.array([stage_of.get(rank, 0) for rank in known])
        self.groups = [np.flatnonzero(stages == stage) for stage in np.unique(stages)]
        self._ranks, self._stages = ranks, len(stage_of)
        return len(new)


def widened(values: Values, count: int) -> Values:
    """Return an array with room for ``count`` more ranks at its end, zero there."""
    return np.concatenate([values, np.zeros(count)])


def median(values: Values) -> float:
    """Return the median of finite values; a tenth of the time that ``np.median`` takes."""
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    ordered = np.partition(values, (half - 1, half))
    return float(ordered[half - 1] + ordered[half]) / 2
