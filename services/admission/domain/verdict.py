"""A verdict in the making, and everything that it depends on. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts.job import TrainingJob
from services.admission.domain.inventory import Inventory
from services.admission.domain.policy import AdmissionPolicy
from services.admission.domain.reading import Reading


@dataclass(slots=True)
class Verdict:
    """What admission makes of one job file."""

    reasons: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    estimate: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    # What does not fit now, or not comfortably: a plan says no, a submission waits.
    misfits: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a verdict depends on."""

    reading: Reading
    job: TrainingJob
    observed: Mapping[str, Any]
    policy: AdmissionPolicy
    inventory: Inventory | None
