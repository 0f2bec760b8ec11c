"""What the agent knows of its run at a moment: phase, steps, ranks, the stop, the result.

Plain state with the few rules that keep it true; several parts of the agent read it, the desk
and the supervisor write it. Nothing here waits, reads a clock or touches a disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from signal import SIGKILL
from typing import Any


@dataclass(slots=True)
class RankEnd:
    """How a rank ended. ``exit_code`` and ``signal`` are None when nobody saw it."""

    rank: int
    exit_code: int | None
    signal: int | None
    at: int

    @property
    def is_clean(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0 and self.signal is None

    @property
    def is_silent(self) -> bool:
        """Whether it was killed, or nobody saw its end: it could not say a word itself."""
        return self.signal == SIGKILL or (self.exit_code is None and self.signal is None)


@dataclass(slots=True)
class Rank:
    """One local rank. Pids and start times are 0 until its entry point named them."""

    rank: int
    pid: int = 0
    start_time: int = 0
    supervisor_pid: int = 0
    supervisor_start_time: int = 0
    phase: str = ""
    last_step: int = -1
    last_step_at: int = 0
    end: RankEnd | None = None

    def as_record(self) -> dict[str, int]:
        """Return what names its processes."""
        return {
            "rank": self.rank,
            "pid": self.pid,
            "supervisor_pid": self.supervisor_pid,
            "start_time": self.start_time,
            "supervisor_start_time": self.supervisor_start_time,
        }


@dataclass(frozen=True, slots=True)
class StopOrder:
    """A stop that was asked of this run. ``deadline_ms`` is milliseconds since the epoch."""

    intent: str
    reason: str
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Rank 0's word that the final artefacts lie in ``folder``."""

    folder: str
    step: int


@dataclass(slots=True)
class Progress:
    """The state of this node's part of the run."""

    ranks: dict[int, Rank]
    phase: str = "starting"
    stop: StopOrder | None = None
    finished: Finished | None = None
    is_fenced: bool = False
    dropped_reports: int = 0
    last_checkpoint: int | None = None
    errors: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, ranks: Sequence[int]) -> "Progress":
        """Return the state before anything started."""
        return cls({rank: Rank(rank) for rank in ranks})

    def step(self, rank: int, step: int, at: int) -> None:
        """Note that a rank finished a step."""
        known = self.ranks.get(rank)
        if known is not None and step > known.last_step:
            known.last_step, known.last_step_at = step, at

    @property
    def last_step(self) -> int:
        """The furthest step of any local rank; -1 before the first."""
        return max((rank.last_step for rank in self.ranks.values()), default=-1)

    @property
    def last_step_at(self) -> int:
        """When the last step of any local rank was reported; 0 before the first."""
        return max((rank.last_step_at for rank in self.ranks.values()), default=0)

    @property
    def ended(self) -> list[RankEnd]:
        """The ends of the ranks that ended, in the order of time."""
        ends = [rank.end for rank in self.ranks.values() if rank.end is not None]
        return sorted(ends, key=lambda end: (end.at, end.rank))

    @property
    def bad_ends(self) -> list[RankEnd]:
        """The ends that were no success, the one that took the others along first.

        That is the earliest; but a silent end may be noticed after what its peers, and the launcher
        that ends them, made of it.
        """
        bad = [end for end in self.ended if not end.is_clean]
        return sorted(bad, key=lambda end: not end.is_silent)  # else in the order of time

    @property
    def first_bad_end(self) -> RankEnd | None:
        """The end that took the others along, if any rank ended badly."""
        return next(iter(self.bad_ends), None)

    @property
    def have_all_ended(self) -> bool:
        """Whether no local rank is left."""
        return all(rank.end is not None for rank in self.ranks.values())

    @property
    def are_all_named(self) -> bool:
        """Whether every local rank's processes are known."""
        return all(rank.pid for rank in self.ranks.values())
