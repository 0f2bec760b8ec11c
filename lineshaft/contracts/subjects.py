"""Subjects and streams of the bus: how they are spelled, what each stream keeps.

``lineshaft.<family>.<kind>.<pool>.<team>.<id>``; the family ``run`` appends ``.<attempt>``;
beat, telemetry and logs are
``lineshaft.<family>.<partition>.<pool>.<team>.<job>.<attempt>.<node>``.
Each token is a checked name, or ``-`` where it does not apply; user text never enters a subject.
Standard library only: the agent imports this module.
"""

from dataclasses import dataclass

from lineshaft.contracts import ids
from lineshaft.contracts.events import NOT_APPLICABLE, Fact

ROOT = "lineshaft"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How one stream of the bus is made. Times are in seconds; None means without limit."""

    name: str
    subjects: tuple[str, ...]
    retention: str  # "limits" | "workqueue"
    storage: str  # "file" | "memory"
    age_max_s: int | None
    messages_max: int | None = None
    messages_max_per_subject: int | None = None
    bytes_max: int | None = None


_DAY = 86_400
STREAMS: tuple[StreamPlan, ...] = (
    StreamPlan("in", ("lineshaft.in.>",), "workqueue", "file", None, messages_max=1_000_000),
    StreamPlan("job", ("lineshaft.job.>",), "limits", "file", 30 * _DAY),
    StreamPlan("run", ("lineshaft.run.>",), "limits", "file", 30 * _DAY),
    StreamPlan("beat", ("lineshaft.beat.>",), "limits", "memory", 3600, messages_max_per_subject=1),
    StreamPlan(
        "telemetry", ("lineshaft.telemetry.>",), "limits", "memory", 1800, bytes_max=256 << 20
    ),
    StreamPlan("logs", ("lineshaft.logs.>",), "limits", "memory", 3600, bytes_max=256 << 20),
    StreamPlan("alert", ("lineshaft.alert.>",), "limits", "file", 90 * _DAY),
    StreamPlan("audit", ("lineshaft.audit.>",), "limits", "file", 30 * _DAY),
    StreamPlan("model", ("lineshaft.model.>",), "limits", "file", None),
    StreamPlan("dead", ("lineshaft.dead.>",), "limits", "file", 30 * _DAY, bytes_max=1 << 30),
)


def of_fact(fact: Fact) -> str:
    """Return the subject on which a job, run, alert, audit or model fact is published."""
    family, _, kind = fact.kind.partition(".")
    subject = f"{ROOT}.{family}.{kind}.{fact.pool}.{fact.team}.{fact.subject}"
    return f"{subject}.{fact.attempt or 0}" if family == "run" else subject


def command(verb: str) -> str:
    """Return the subject of a command: submit, cancel, suspend, resume, priority."""
    return f"{ROOT}.in.{verb}"


def rpc(service: str, verb: str) -> str:
    """Return the subject on which ``service`` answers ``verb``."""
    return f"{ROOT}.rpc.{service}.{verb}"


def dead(service: str) -> str:
    """Return the subject for what ``service`` could not handle."""
    return f"{ROOT}.dead.{service}"


@dataclass(frozen=True, slots=True)
class RunAddress:
    """Where a node of a run reports: the tokens of its beat, telemetry and log subjects."""

    job: str
    attempt: int
    node: str
    pool: str = NOT_APPLICABLE
    team: str = NOT_APPLICABLE

    def subject(self, family: str) -> str:
        """Return the subject of ``family``: beat, telemetry or logs."""
        place = f"{ids.partition(self.job)}.{self.pool}.{self.team}"
        return f"{ROOT}.{family}.{place}.{self.job}.{self.attempt}.{self.node}"


def run_address(subject: str) -> RunAddress:
    """Read a beat, telemetry or logs subject back. Raises ``ValueError`` when it is not one."""
    parts = subject.split(".")
    if len(parts) != 8 or parts[0] != ROOT or not parts[6].isdigit():
        raise ValueError(f"not the subject of a run's node: {subject}")
    return RunAddress(parts[5], int(parts[6]), parts[7], parts[3], parts[4])


def reports_of(family: str, partition: int | None = None, job: str | None = None) -> str:
    """Return the filter for a family's blocks, of one partition or of one job."""
    where = "*" if partition is None else str(partition)
    if job is None:
        return f"{ROOT}.{family}.{where}.>"
    return f"{ROOT}.{family}.{ids.partition(job)}.*.*.{job}.>"
