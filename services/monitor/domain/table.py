"""Aligning ranks: rows arrive per node, rules need whole steps.

``StepTable`` keeps the last steps as matrices of (step, rank) and hands a step out once, when all
ranks that ever reported are there, or when later steps show that the rest will not come.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lineshaft.contracts.telemetry import DTYPE, FIELDS
from services.monitor.domain.observations import Rows, Values

DEPTH = 64
"""Steps that may be open at a time; an older one is closed when its place is needed."""

PATIENCE = 16
"""Steps a rank may lag before a step is closed without it."""

RANKS_MAX = 8_192
"""Ranks of a run that are looked at; those beyond are left out."""

_EMPTY = np.iinfo(np.int64).max
_COLUMNS = FIELDS[2:]
_COLUMN = {name: number for number, name in enumerate(_COLUMNS)}
_ROW = np.dtype(DTYPE)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """One optimiser step over all ranks that reported it. NaN: not reported.

    The aggregates over ranks are made once, because every rule and curve asks for them; they
    are over finite values, NaN where no rank reported one.
    """

    step: int
    ranks: NDArray[np.int64]
    values: Values  # (ranks, fields)
    _means: list[float]
    _mosts: list[float]
    _totals: list[float]

    @classmethod
    def of_ranks(cls, step: int, ranks: NDArray[np.int64], values: Values) -> "ClosedStep":
        """Return a step with its aggregates; ``values`` is by rank and field."""
        finite = np.isfinite(values)
        counts = finite.sum(axis=0).tolist()
        sums = np.where(finite, values, 0.0).sum(axis=0).tolist()
        greatest = np.where(finite, values, -np.inf).max(axis=0, initial=-np.inf).tolist()
        nan = math.nan
        means = [total / count if count else nan for total, count in zip(sums, counts, strict=True)]
        mosts = [most if count else nan for most, count in zip(greatest, counts, strict=True)]
        totals = [total if count else nan for total, count in zip(sums, counts, strict=True)]
        return cls(step, ranks, values, means, mosts, totals)

    def of(self, name: str) -> Values:
        """Return a field of all ranks, in the order of ``ranks``."""
        column: Values = self.values[:, _COLUMN[name]]
        return column

    def mean(self, name: str) -> float:
        """Return the mean over the ranks that reported a finite value, else NaN."""
        return self._means[_COLUMN[name]]

    def most(self, name: str) -> float:
        """Return the greatest finite value, else NaN."""
        return self._mosts[_COLUMN[name]]

    def total(self, name: str) -> float:
        """Return the sum over the ranks that reported, or NaN when none did."""
        return self._totals[_COLUMN[name]]


@dataclass(slots=True)
class StepTable:
    """The open steps of one attempt. Rows for a step that was closed are counted and dropped."""

    ranks: list[int] = field(default_factory=list)  # in the order they were first seen
    node_of: dict[int, str] = field(default_factory=dict)
    closed_to: int = -1
    late_rows: int = 0
    _place: dict[int, int] = field(default_factory=dict)
    _steps: NDArray[np.int64] = field(default_factory=lambda: np.full(DEPTH, _EMPTY))
    _values: NDArray[np.float64] = field(
        default_factory=lambda: np.full((DEPTH, 0, len(_COLUMNS)), np.nan)
    )
    _kept: NDArray[np.int64] = field(default_factory=lambda: np.full(DEPTH, -1))
    _sorted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    _order: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    _seen: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((DEPTH, 0), bool))

    def add(self, node: str, rows: Rows) -> list[ClosedStep]:
        """Take rows of one node and return the steps that are whole now, in order."""
        self._join(np.unique(rows["rank"]).tolist(), node)
        if len(self.ranks) >= RANKS_MAX:
            rows = rows[[rank in self._place for rank in rows["rank"].tolist()]]
        values = rows.view("<u1").reshape(len(rows), _ROW.itemsize)[:, 8:].copy().view("<f8")
        places = self._order[np.searchsorted(self._sorted, rows["rank"])]
        steps = rows["step"].astype(np.int64)
        made: list[ClosedStep] = []
        bounds = np.flatnonzero(np.diff(steps)) + 1
        for chosen in np.split(np.arange(len(steps)), bounds):
            if len(chosen):
                made += self._take(int(steps[chosen[0]]), places[chosen], values[chosen])
        return made

    def rest(self) -> list[ClosedStep]:
        """Close every open step (the run ended) and return them in order."""
        return [self._close(slot) for slot in self._open_slots()]

    def last_steps(self) -> dict[int, int]:
        """Return the highest step each rank has reported among the open and newest steps."""
        newest = np.where(self._seen, self._kept[:, None], -1).max(axis=0, initial=-1).tolist()
        return {rank: step for rank, step in zip(self.ranks, newest, strict=True) if step >= 0}

    def _join(self, ranks: list[int], node: str) -> None:
        """Take in ranks that were not seen before, as long as there is room for them."""
        new = [rank for rank in ranks if rank not in self._place]
        new = new[: RANKS_MAX - len(self.ranks)]
        if new:
            for rank in new:
                self._place[rank] = len(self.ranks)
                self.ranks.append(rank)
            wider = np.full((DEPTH, len(new), len(_COLUMNS)), np.nan)
            self._values = np.concatenate([self._values, wider], axis=1)
            self._seen = np.concatenate([self._seen, np.zeros((DEPTH, len(new)), bool)], axis=1)
            known = np.array(self.ranks, dtype=np.int64)
            self._order = np.argsort(known)
            self._sorted = known[self._order]
        self.node_of.update((rank, node) for rank in ranks if rank in self._place)

    def _take(self, step: int, places: NDArray[np.int64], values: Values) -> list[ClosedStep]:
        if step <= self.closed_to:
            self.late_rows += len(places)
            return []
        made = []
        slot = step % DEPTH
        if self._steps[slot] != step:
            for old in self._open_slots():
                if self._steps[old] < step - PATIENCE or old == slot:
                    made.append(self._close(old))
            if step <= self.closed_to:
                self.late_rows += len(places)
                return made
            self._steps[slot] = self._kept[slot] = step
            self._values[slot] = np.nan
            self._seen[slot] = False
        self._values[slot, places] = values
        self._seen[slot, places] = True
        if bool(self._seen[slot].all()):
            made += [self._close(old) for old in self._open_slots() if self._steps[old] <= step]
        return made

    def _open_slots(self) -> list[int]:
        slots = np.flatnonzero(self._steps != _EMPTY)
        ordered: list[int] = slots[np.argsort(self._steps[slots])].tolist()
        return ordered

    def _close(self, slot: int) -> ClosedStep:
        step = int(self._steps[slot])
        self._steps[slot] = _EMPTY
        self.closed_to = max(self.closed_to, step)
        seen = self._seen[slot]
        if seen.all():  # the same arrays for step after step, so that rules need not look again
            return ClosedStep.of_ranks(step, self._sorted, self._values[slot, self._order])
        chosen = self._order[seen[self._order]]
        ranks = self._sorted[seen[self._order]]
        return ClosedStep.of_ranks(step, ranks, self._values[slot, chosen])
