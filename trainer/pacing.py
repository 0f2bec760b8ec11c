"""When to save, evaluate and stop: pure decisions that all ranks take alike.

Each rank casts a ``Ballot`` after every optimiser step; the ballots of all ranks are gathered
in one small collective; ``resolve`` turns them into the same ``Decision`` on every rank. Only
rank 0's ballot carries proposals, made with rank 0's clock, which is an argument: no rank ever
acts on its own clock, and a stop that reached one rank stops all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

BALLOT_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Intervals:
    """What the job asks for. None: not by this measure."""

    save_every_steps: int | None = None
    save_every_ms: int | None = None
    save_first_step: int | None = None
    evaluate_every_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Rank 0's memory: when (its clock, ms) and at which step the last save was."""

    intervals: Intervals
    total_steps: int
    saved_step: int
    saved_at_ms: int
    first_step: int = 0


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's view after a step. ``loss`` may be any float, also NaN."""

    stop: bool = False
    save: bool = False
    evaluate: bool = False
    is_finite: bool = True
    loss: float = 0.0

    def as_row(self) -> list[float]:
        """Return the numbers that travel in the collective."""
        return [
            float(self.stop),
            float(self.save),
            float(self.evaluate),
            float(self.is_finite),
            self.loss,
        ]


@dataclass(frozen=True, slots=True)
class Decision:
    """What every rank does after this step, in this order: save, evaluate, leave."""

    save: bool = False
    evaluate: bool = False
    stop: bool = False
    finished: bool = False
    loss: float = math.nan
    broken_ranks: tuple[int, ...] = ()
    stopped_by: tuple[int, ...] = ()


def begin(intervals: Intervals, *, total_steps: int, step: int, now_ms: int) -> Pace:
    """Return the memory at the start of an attempt that continues after ``step``."""
    return Pace(intervals, total_steps, saved_step=step, saved_at_ms=now_ms, first_step=step)


def saved(pace: Pace, *, step: int, now_ms: int) -> Pace:
    """Return the memory after a save, also one that failed: the next waits its interval."""
    return replace(pace, saved_step=step, saved_at_ms=now_ms)


def is_save_due(pace: Pace, *, step: int, now_ms: int) -> bool:
    """Tell whether a checkpoint is due after ``step``.

    After every N-th step of the job, or once the interval has passed on rank 0's clock; the
    first, where asked for, that many steps after the attempt began; never twice at one step.
    """
    if step <= pace.saved_step:
        return False
    wanted = pace.intervals
    if wanted.save_every_steps is not None and step % wanted.save_every_steps == 0:
        return True
    is_first = pace.saved_step == pace.first_step
    if wanted.save_first_step is not None and is_first:
        return step - pace.first_step >= wanted.save_first_step
    interval = wanted.save_every_ms
    return interval is not None and now_ms - pace.saved_at_ms >= interval


def propose(pace: Pace, ballot: Ballot, *, step: int, now_ms: int) -> Ballot:
    """Return rank 0's ballot with its proposals in it."""
    every = pace.intervals.evaluate_every_steps
    is_last = step >= pace.total_steps
    return replace(
        ballot,
        save=is_last or is_save_due(pace, step=step, now_ms=now_ms),
        evaluate=bool(every) and not is_last and step % (every or 1) == 0,
    )


def resolve(rows: Sequence[Sequence[float]], *, step: int, total_steps: int) -> Decision:
    """Turn the gathered ballots (row r is rank r's) into what all ranks do.

    Broken numbers on any rank override everything: nothing is saved. A stop saves first.
    """
    broken = tuple(rank for rank, row in enumerate(rows) if not row[3])
    # A gradient is everybody's once it is summed; whose loss is broken began it.
    broken = tuple(rank for rank in broken if not math.isfinite(rows[rank][4])) or broken
    loss = sum(row[4] for row in rows) / len(rows)
    if broken:
        return Decision(loss=loss, broken_ranks=broken)
    stopped_by = tuple(rank for rank, row in enumerate(rows) if row[0])
    finished = step >= total_steps
    return Decision(
        save=bool(rows[0][1]) or bool(stopped_by),
        evaluate=bool(rows[0][2]) and not stopped_by,
        stop=bool(stopped_by) and not finished,
        finished=finished,
        loss=loss,
        stopped_by=stopped_by,
    )
