"""The runs that are watched now: their watches, curves, newest beats and unflushed log lines.

Memory only, bounded, rebuilt after a restart; the truth is in the journal and in Objects.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts.alerts import AlertStatus, Severity
from lineshaft.contracts.events import NOT_APPLICABLE, Fact
from lineshaft.contracts.telemetry import Beat, LogLine
from services.monitor.domain.curves import Curves, Progress, points_of
from services.monitor.domain.observations import (
    Episode,
    Observation,
    Phase,
    RunFact,
    Sample,
    StepRows,
)
from services.monitor.domain.policy import Policy
from services.monitor.domain.signatures import Signatures
from services.monitor.domain.state import JobWatch
from services.monitor.domain.table import ClosedStep
from services.monitor.domain.watch import Watch, judge_step, new_watch, observe

RUNS_MAX = 4_096
NODES_MAX = 1_024
KEPT_AFTER_END_MS = 600_000
_PHASES = {AlertStatus.OPENED: Phase.OPENED, AlertStatus.CONFIRMED: Phase.CONFIRMED}


@dataclass(slots=True)
class Run:
    """One watched attempt."""

    watch: Watch
    place: tuple[str, str]  # pool, team
    curves: Curves  # whole, for answers
    unflushed: Curves  # since the last part in Objects
    lines: dict[str, deque[LogLine]] = field(default_factory=dict)  # node -> newest lines
    beats: dict[str, tuple[Beat, int]] = field(default_factory=dict)  # node -> beat, received
    started: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # node -> fact's data
    progress: Progress = field(default_factory=Progress)
    next_part: int = -1  # -1: not known yet
    flushed_at: int = 0
    flush_every_ms: int = 0
    is_loaded: bool = False  # the parts in Objects are in ``curves``
    ended_at: int | None = None
    nodes: set[str] = field(default_factory=set)  # that were ever heard
    dropped: int = 0  # blocks that the agents dropped, by their word

    def take(self, sample: Sample, now: int, policy: Policy) -> list[Observation]:
        """Let the watch see a sample; curves and progress grow with what it closed."""
        made = observe(self.watch, sample, now, policy)
        for closed in self.watch.closed:
            self._draw(closed)
        if isinstance(sample, StepRows):
            for metric in sample.metrics:
                self.curves.add_metric(metric)
                self.unflushed.add_metric(metric)
        return made

    def admits(self, node: str) -> bool:
        """Take a node in; False when too many names were heard already."""
        if node not in self.nodes and len(self.nodes) >= NODES_MAX:
            return False
        self.nodes.add(node)
        return True

    def close(self, policy: Policy) -> None:
        """Take in the steps that still wait for a rank: none will come."""
        for closed in self.watch.table.rest():
            list(judge_step(self.watch, closed, policy))
            self._draw(closed)

    def _draw(self, closed: ClosedStep) -> None:
        points = list(points_of(closed))
        self.progress.add(closed, points)
        for name, point in points:
            self.curves.add(name, point)
            self.unflushed.add(name, point)

    def keep_lines(self, node: str, lines: Sequence[LogLine], most: int) -> None:
        """Hold the newest lines of a node until they are in a segment."""
        ring = self.lines.get(node)
        if ring is None:
            ring = self.lines[node] = deque(maxlen=most)
        ring.extend(lines)


@dataclass(slots=True)
class Runs:
    """All watched runs, by job and attempt."""

    signatures: Signatures
    policy: Policy
    by_key: dict[tuple[str, int], Run] = field(default_factory=dict)
    refused: int = 0  # runs beyond the bound

    def get(self, job: str, attempt: int) -> Run | None:
        """Return a watched run."""
        return self.by_key.get((job, attempt))

    def of_job(self, job: str) -> list[tuple[int, Run]]:
        """Return the watched attempts of a job, in order."""
        return sorted((a, run) for (j, a), run in self.by_key.items() if j == job)

    def open(
        self, job: str, attempt: int, place: tuple[str, str], known: JobWatch | None
    ) -> Run | None:
        """Return the watch of a run, made anew if need be; None when there are too many.

        ``known`` is what the journal holds of the job: open alerts continue their episodes.
        """
        run = self.by_key.get((job, attempt))
        if run is not None:
            return run
        if len(self.by_key) >= RUNS_MAX:
            self.refused += 1
            return None
        watch = new_watch(job, attempt, self.signatures, self.policy)
        if known is not None and known.attempt == attempt:
            _seed(watch, known, self.policy)
            if known.pool != NOT_APPLICABLE:
                place = (known.pool, known.team)
        earlier = max((a for a, _ in self.of_job(job) if a < attempt), default=0)
        if earlier:  # for the check of a resume, whichever checkpoint it turns out to be from
            watch.resume.before = tuple(self.by_key[job, earlier].watch.resume.lately)
        points = self.policy.curve_points_max
        run = Run(watch, place, Curves(points), Curves(points))
        run.flush_every_ms = self.policy.curve_flush_ms
        self.by_key[job, attempt] = run
        return run

    def forget(self, now: int) -> list[tuple[str, int]]:
        """Drop runs that ended a while ago; return which."""
        gone = [
            key
            for key, run in self.by_key.items()
            if run.ended_at is not None and now - run.ended_at > KEPT_AFTER_END_MS
        ]
        for key in gone:
            del self.by_key[key]
        return gone

    def living(self) -> Iterator[tuple[tuple[str, int], Run]]:
        """Yield the runs that have not ended."""
        for key, run in list(self.by_key.items()):
            if run.ended_at is None:
                yield key, run


def _seed(watch: Watch, known: JobWatch, policy: Policy) -> None:
    """Continue the episodes that were journaled before this memory began."""
    for key, (attempt, number, status, severity, since) in known.episodes.items():
        kind, _, subject = key.partition(" ")
        if attempt == watch.attempt:
            phase = _PHASES.get(AlertStatus(status), Phase.CLEARED)
            watch.episodes.seed(kind, subject, Episode(number, phase, Severity(severity), since))
    if known.plan:
        order = {**known.plan.get("order", {}), "spec": known.plan.get("spec", {})}
        data = {"order": order, "nodes": known.plan.get("nodes", [])}
        observe(watch, RunFact("run.launch_ordered", data, known.opened_at), 0, policy)
    watch.not_joined.launched_at = known.opened_at
    watch.overdue.committed = known.checkpoint_step
    watch.is_stopping = known.is_over or known.stop_intent is not None or bool(known.exits)


def run_fact(fact: Fact) -> RunFact:
    """Return the sample that a fact about a run amounts to."""
    return RunFact(fact.kind, fact.data, fact.at)
