"""The state of one ``submission/<shard>`` stream: answered submissions and parked commands.

Values only; ``services.admission.domain.decider`` changes them.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answered:
    """A submission that has its answer. ``based_on``: what the last applied command had seen."""

    digest: str
    is_admitted: bool
    pool: str
    team: str
    based_on: int | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """A command for a job that is not known yet. ``at``: milliseconds, when it was parked."""

    id: str
    at: int
    verb: str
    team: str
    data: dict[str, Any]


@dataclass(slots=True)
class SubmissionState:
    """Answers by job id; parked commands by job id, in the order of their arrival."""

    jobs: dict[str, Answered] = field(default_factory=dict)
    parked: dict[str, tuple[Parked, ...]] = field(default_factory=dict)

    @property
    def parked_count(self) -> int:
        """How many commands wait."""
        return sum(len(waiting) for waiting in self.parked.values())

    @property
    def oldest_parked_at(self) -> int | None:
        """When the command that waits longest was parked."""
        return min((row.at for rows in self.parked.values() for row in rows), default=None)


def dump(state: SubmissionState) -> dict[str, Any]:
    """Return the state as JSON values."""
    return {
        "jobs": {
            job: [row.digest, row.is_admitted, row.pool, row.team, row.based_on]
            for job, row in state.jobs.items()
        },
        "parked": {job: [asdict(row) for row in rows] for job, rows in state.parked.items()},
    }


def load(dumped: dict[str, Any]) -> SubmissionState:
    """Read ``dump`` back."""
    return SubmissionState(
        jobs={job: Answered(*row) for job, row in dumped["jobs"].items()},
        parked={
            job: tuple(Parked(**row) for row in rows) for job, rows in dumped["parked"].items()
        },
    )
