"""What watchers take in and give out: samples, verdicts of rules, observations; and episodes.

An episode is one stretch of trouble of a (kind, subject) within an attempt: it opens, may be
confirmed, clears, and is then followed by a cool-down. Pure values and their bookkeeping only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineshaft.contracts.alerts import SEVERITY_RANK, Severity
from lineshaft.contracts.telemetry import Beat, LogLine, Metric

RUN = "run"
"""Subject of what concerns a run as a whole."""

Rows = NDArray[np.void]
Values = NDArray[np.float64]


class Phase(StrEnum):
    """What an observation says of its episode."""

    OPENED = "opened"
    CONFIRMED = "confirmed"
    CLEARED = "cleared"


# ---------------------------------------------------------------------------------------------
# Samples: what a watcher is given.


@dataclass(frozen=True, slots=True)
class StepRows:
    """A node's telemetry records (``telemetry.DTYPE``), with what came beside them."""

    node: str
    rows: Rows
    metrics: tuple[Metric, ...] = ()
    sample: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """A node's beat."""

    beat: Beat


@dataclass(frozen=True, slots=True)
class LinesSeen:
    """Log lines of a node, in their order."""

    node: str
    lines: tuple[LogLine, ...]


@dataclass(frozen=True, slots=True)
class RunFact:
    """A fact about this run or its job that changes what is expected of it."""

    kind: str
    data: Mapping[str, Any]
    at: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. ``path_proved``: the monitor's own canary came through lately."""

    path_proved: bool


Sample = StepRows | BeatSeen | LinesSeen | RunFact | Tick


# ---------------------------------------------------------------------------------------------
# Verdicts and observations


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule thinks of one subject now. ``phase`` CLEARED: the trouble is over."""

    kind: str
    subject: str
    phase: Phase
    severity: Severity = Severity.NOTICE
    summary: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    node: str | None = None
    rank: int | None = None
    is_urgent: bool = False  # opens again in spite of the cool-down


@dataclass(frozen=True, slots=True)
class Observation:
    """A change of an episode, to be journaled; ``at`` is milliseconds since the epoch."""

    kind: str
    subject: str
    episode: int
    phase: Phase
    severity: Severity
    summary: str
    evidence: Mapping[str, Any]
    at: int
    node: str | None = None
    rank: int | None = None


# ---------------------------------------------------------------------------------------------
# Episodes


@dataclass(slots=True)
class Episode:
    """The newest episode of one (kind, subject)."""

    number: int
    phase: Phase
    severity: Severity
    since: int


@dataclass(slots=True)
class Episodes:
    """The episodes of one attempt: turns verdicts into changes, each told once."""

    newest: dict[tuple[str, str], Episode] = field(default_factory=dict)

    def is_open(self, kind: str, subject: str) -> bool:
        """Tell whether an episode of (kind, subject) is going on."""
        episode = self.newest.get((kind, subject))
        return episode is not None and episode.phase is not Phase.CLEARED

    def open_subjects(self, kind: str) -> list[str]:
        """Return the subjects with an open episode of ``kind``, in order."""
        return sorted(s for (k, s) in self.newest if k == kind and self.is_open(k, s))

    def seed(self, kind: str, subject: str, episode: Episode) -> None:
        """Take over an episode that was journaled before this memory began."""
        self.newest[kind, subject] = episode

    def apply(self, verdict: Verdict, at: int, cool_down_ms: int) -> list[Observation]:
        """Return the changes that ``verdict`` makes: none when it says nothing new.

        A confirmation without an opening gives both; a confirmed episode is told again only
        when its severity rises; after a clearing, nothing opens before the cool-down is over.
        """
        key = (verdict.kind, verdict.subject)
        episode = self.newest.get(key)
        is_open = episode is not None and episode.phase is not Phase.CLEARED
        if verdict.phase is Phase.CLEARED:
            if episode is None or not is_open:
                return []
            episode.phase, episode.since = Phase.CLEARED, at
            return [_told(verdict, episode, at)]
        made = []
        if episode is None or not is_open:
            if episode is not None and at - episode.since < cool_down_ms and not verdict.is_urgent:
                return []
            number = episode.number + 1 if episode else 1
            episode = Episode(number, Phase.OPENED, Severity.NOTICE, at)
            self.newest[key] = episode
            made.append(_told(verdict, episode, at))
        if verdict.phase is Phase.CONFIRMED and _rises(verdict, episode):
            episode.phase, episode.severity, episode.since = Phase.CONFIRMED, verdict.severity, at
            made.append(_told(verdict, episode, at))
        return made


def _rises(verdict: Verdict, episode: Episode) -> bool:
    if episode.phase is Phase.OPENED:
        return True
    return SEVERITY_RANK[verdict.severity] > SEVERITY_RANK[episode.severity]


def _told(verdict: Verdict, episode: Episode, at: int) -> Observation:
    return Observation(
        kind=verdict.kind,
        subject=verdict.subject,
        episode=episode.number,
        phase=episode.phase,
        severity=episode.severity,
        summary=verdict.summary,
        evidence=dict(verdict.evidence),
        at=at,
        node=verdict.node,
        rank=verdict.rank,
    )
