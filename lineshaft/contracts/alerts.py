"""Alerts: their kinds, severities and life cycle, as the list of record.

An alert is raised by the monitor alone. At most one is open per (job, kind, subject); it opens
(published as ``firing`` with severity ``notice``), may be confirmed (``firing`` again under the
same id, with the kind's severity), may be acknowledged, and is resolved.
Nothing here does anything.
Standard library only.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from lineshaft.contracts import limits


class Severity(StrEnum):
    """How much an alert matters, in rising order."""

    NOTICE = "notice"  # look when you have time; nothing is proved yet
    WARNING = "warning"  # look today
    CRITICAL = "critical"  # the run is stopped, lost or ruined


SEVERITY_RANK: dict[str, int] = {severity: rank for rank, severity in enumerate(Severity)}


class AlertStatus(StrEnum):
    """Where an alert is in its life. Only ``resolved`` is final."""

    OPENED = "opened"
    CONFIRMED = "confirmed"
    RESOLVED = "resolved"


NEXT: dict[AlertStatus, tuple[AlertStatus, ...]] = {
    AlertStatus.OPENED: (AlertStatus.CONFIRMED, AlertStatus.RESOLVED),
    AlertStatus.CONFIRMED: (AlertStatus.CONFIRMED, AlertStatus.RESOLVED),
    AlertStatus.RESOLVED: (),
}
"""Allowed changes. ``confirmed`` to itself is a rise of the severity; being acknowledged and being
silenced are marks beside the status, not states."""


class Action(StrEnum):
    """What a diagnosis proposes; the scheduler decides."""

    RESTART = "restart"  # the same job may be started again, from its last checkpoint
    HOLD = "hold"  # a person has to look before it runs again
    FAIL = "fail"  # starting it again would end the same way
    NOTE = "note"  # nothing has to be done to the run


@dataclass(frozen=True, slots=True)
class AlertKind:
    """One kind of alert: what it says, its severity once confirmed, what to do first."""

    title: str
    severity: Severity
    advice: str


KINDS: dict[str, AlertKind] = {
    "rank_exited": AlertKind(
        "A rank ended before its work was done",
        Severity.CRITICAL,
        "Read the diagnosis; the platform retries what a restart can heal.",
    ),
    "non_finite": AlertKind(
        "A loss or gradient is not a number",
        Severity.CRITICAL,
        "Go back to the last good checkpoint and leave out the data range that led here.",
    ),
    "loss_spike": AlertKind(
        "The loss jumped out of its range",
        Severity.WARNING,
        "Watch the next 100 steps; roll back when the loss does not return.",
    ),
    "grad_norm": AlertKind(
        "The gradient norm left its range",
        Severity.CRITICAL,
        "A loss spike often follows within a few steps; have a checkpoint ready.",
    ),
    "straggler": AlertKind(
        "One rank or node is slower than its peers",
        Severity.WARNING,
        "Check that node's clocks, temperature and neighbours; move the job if it stays slow.",
    ),
    "hang": AlertKind(
        "The run is alive and makes no step",
        Severity.CRITICAL,
        "Look at the stacks of all ranks; the run is restarted from its last checkpoint.",
    ),
    "data_starvation": AlertKind(
        "Ranks wait for data",
        Severity.WARNING,
        "Use more loader workers, deeper prefetch, or a packed data format.",
    ),
    "log_signature": AlertKind(
        "A log line has the form of a known fault",
        Severity.WARNING,
        "Read the line and the cause that the signature names.",
    ),
    "not_joined": AlertKind(
        "Not all ranks of the gang reported",
        Severity.WARNING,
        "Check that MASTER_ADDR resolves and its port answers on the missing nodes.",
    ),
    "node_lost": AlertKind(
        "A node of the run is not heard",
        Severity.CRITICAL,
        "Look at the node and the network; nothing is stopped on silence alone.",
    ),
    "checkpoint_overdue": AlertKind(
        "No checkpoint was committed for too long",
        Severity.WARNING,
        "Check the space and permissions of the checkpoint folder, and the ranks' logs.",
    ),
    "checkpoint_failing": AlertKind(
        "Checkpoints could not be saved",
        Severity.WARNING,
        "Read why in rank 0's log; the third failure in a row ends the run.",
    ),
    "loss_not_falling": AlertKind(
        "The loss does not fall, or climbs",
        Severity.WARNING,
        "Look at learning rate, labels and data; try to over-fit a small sample first.",
    ),
    "job_slow": AlertKind(
        "Steps became slower",
        Severity.WARNING,
        "Look at what changed at that step: the node, its neighbours, the data, the storage.",
    ),
    "zero_utilisation": AlertKind(
        "Devices do nothing and no step is made",
        Severity.CRITICAL,
        "Look at the stacks of the idle ranks; the run is started again as after a hang.",
    ),
    "low_utilisation": AlertKind(
        "The devices are used too little",
        Severity.WARNING,
        "Use more loader workers, packed data, or a larger micro-batch; the alert says which.",
    ),
    "below_plan": AlertKind(
        "Throughput is below its plan",
        Severity.WARNING,
        "Close the largest of the gaps that the alert names: data, communication or compute.",
    ),
    "resume_check": AlertKind(
        "A resumed run does not go on where it stopped",
        Severity.CRITICAL,
        "Stop it and compare its step, learning rate and data with the checkpoint's.",
    ),
    "out_of_memory_soon": AlertKind(
        "Memory of a node is nearly full",
        Severity.WARNING,
        "Use fewer loader workers and less prefetch, or a node with more memory.",
    ),
    "storage_filling": AlertKind(
        "Storage is nearly full",
        Severity.WARNING,
        "Remove old checkpoints, or suspend the job before a save fails.",
    ),
    "restart_storm": AlertKind(
        "The job restarts again and again without progress",
        Severity.CRITICAL,
        "Hold the job and compare the diagnoses of its attempts.",
    ),
    "platform_finding": AlertKind(
        "A service found something wrong with itself",
        Severity.WARNING,
        "Read the finding; the service that reported it names what differs.",
    ),
}
"""Every kind has a page of its name in ``docs/runbooks/``."""

_ALERT_ID = re.compile(r"^a(\d{1,2})-[a-z2-7]{16}\Z")


@dataclass(frozen=True, slots=True)
class AlertKey:
    """What makes an alert itself: the attempt and episode that opened it, and what it is about.

    ``subject`` is ``run``, ``rank-<n>``, ``node-<name>`` (``node-<name>.<what>`` for one of its
    resources), a signature's id, or a word of the rule's own (``diverging``, ``rate``).
    """

    job: str
    attempt: int
    kind: str
    subject: str
    episode: int


def alert_id(key: AlertKey, partition: int) -> str:
    """Derive an alert's id; its beginning names the partition whose stream holds it."""
    text = f"{key.job}\n{key.attempt}\n{key.kind}\n{key.subject}\n{key.episode}"
    return f"a{partition}-{_short(text)}"


def diagnosis_id(job: str, attempt: int, what: str, subject: str) -> str:
    """Derive a diagnosis' id: there is one per (job, attempt, what, subject)."""
    return f"d-{_short(f'{job}/{attempt}/{what}/{subject}')}"


def partition_of(alert: str) -> int | None:
    """Return the partition that an alert's id names, or None when it is not such an id."""
    match = _ALERT_ID.match(alert)
    number = int(match[1]) if match else limits.PARTITIONS
    return number if number < limits.PARTITIONS else None


def runbook(kind: str) -> str:
    """Return where the page about a kind of alert stands, relative to the repository's root."""
    return f"docs/runbooks/{kind}.md"


def may_become(status: str, following: str) -> bool:
    """Tell whether an alert may go from ``status`` to ``following``."""
    return AlertStatus(following) in NEXT[AlertStatus(status)]


def _short(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()[:10]).decode().lower()
