"""Builders for the monitor's tests: telemetry rows, beats, watches, facts, and a small line.

``Line`` keeps one stream as the host does: known ids are dropped, events evolve the state, time
is virtual. Nothing here reads a clock.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineshaft.contracts import ids, records
from lineshaft.contracts.events import Event, Fact
from lineshaft.contracts.telemetry import DTYPE, Beat, LogLine
from services.monitor import signature_file
from services.monitor.domain.decider import CLOCK_DUE, MonitorDecider
from services.monitor.domain.observations import (
    BeatSeen,
    LinesSeen,
    Observation,
    Rows,
    RunFact,
    StepRows,
    Tick,
)
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import stream_of
from services.monitor.domain.signatures import Signatures
from services.monitor.domain.state import WatchState
from services.monitor.domain.watch import Watch, new_watch, observe

JOB = ids.job_id("team", "key")
NOW = 1_700_000_000_000
DATASETS = "LINESHAFT_DATASETS"


def recordings(folder: str) -> Path:
    """Return a folder of real recordings, or skip the test and say why."""
    root = os.environ.get(DATASETS)
    if not root:
        pytest.skip(f"{DATASETS} is not set: no recordings to judge on", allow_module_level=True)
    found = Path(root) / folder
    if not found.is_dir():
        pytest.skip(f"{found} is not there: no recordings to judge on", allow_module_level=True)
    return found


@cache
def signatures() -> Signatures:
    """Return the project's signatures, compiled once."""
    return signature_file.load()


def a_watch(policy: Policy | None = None, attempt: int = 1) -> Watch:
    """Return the empty memory of one attempt."""
    return new_watch(JOB, attempt, signatures(), policy or Policy())


def rows(steps: Iterable[Mapping[str, float]]) -> Rows:
    """Return telemetry records; absent fields are NaN, an absent rank is 0."""
    made = [
        tuple(
            int(row.get(name, 0)) if name in ("step", "rank") else float(row.get(name, np.nan))
            for name, _ in DTYPE
        )
        for row in steps
    ]
    return np.array(made, dtype=np.dtype(DTYPE))


def told(
    watch: Watch, steps: Iterable[Mapping[str, float]], *, node: str = "n0", now: int = NOW
) -> list[Observation]:
    """Feed records one step at a time and return what was observed."""
    made: list[Observation] = []
    policy = Policy()
    for row in steps:
        made += observe(watch, StepRows(node, rows([row])), now, policy)
    return made


def gang(
    watch: Watch, steps: Iterable[tuple[int, Mapping[int, Mapping[str, float]]]], **nodes: str
) -> list[Observation]:
    """Feed whole steps of several ranks; ``nodes`` maps ``r<rank>`` to a node's name."""
    made: list[Observation] = []
    policy = Policy()
    for step, ranks in steps:
        by_node: dict[str, list[dict[str, float]]] = {}
        for rank, values in ranks.items():
            node = nodes.get(f"r{rank}", "n0")
            by_node.setdefault(node, []).append({"step": step, "rank": rank, **values})
        for node, group in sorted(by_node.items()):
            made += observe(watch, StepRows(node, rows(group)), NOW, policy)
    return made


def losses(values: Iterable[float], start: int = 1) -> list[dict[str, float]]:
    """Return one record of rank 0 per loss."""
    return [{"step": start + n, "rank": 0, "loss": value} for n, value in enumerate(values)]


def beat(at: int, *, node: str = "n0", **values: Any) -> BeatSeen:
    """Return a beat; give ``last_step``, ``age`` (ms), ``phase``, ``ranks`` as needed."""
    return BeatSeen(
        Beat(
            JOB,
            values.get("attempt", 1),
            node,
            at,
            values.get("phase", "training"),
            values.get("last_step", 10),
            values.get("age", 0),
            0,
            tuple(values.get("ranks", ({"rank": 0, "pid": 7, "state": "R", "cpu_ms": at},))),
        )
    )


def lines(texts: Sequence[str], at: int = NOW, *, rank: int = 0, node: str = "n0") -> LinesSeen:
    """Return log lines a millisecond apart."""
    made = tuple(LogLine(at + n, rank, "stderr", text) for n, text in enumerate(texts))
    return LinesSeen(node, made)


def see(watch: Watch, sample: Any, now: int, policy: Policy | None = None) -> list[Observation]:
    """Let a watch see one sample."""
    return observe(watch, sample, now, policy or Policy())


def phases(seen: Iterable[Observation], kind: str | None = None) -> list[tuple[str, str, str]]:
    """Return (kind, subject, phase) of observations, of one kind if it is given."""
    return [(o.kind, o.subject, str(o.phase)) for o in seen if kind in (None, o.kind)]


# ---------------------------------------------------------------------------------------------
# Facts


def a_fact(kind: str, data: dict[str, Any] | None = None, **values: Any) -> Fact:
    """Return a fact about the job; ``attempt`` is 1 unless it is given."""
    attempt = values.get("attempt", 1)
    at = values.get("at", NOW)
    return Fact(
        id=values.get("id", f"{kind}/{attempt}/{at}"),
        kind=kind,
        data=data or {},
        at=at,
        source=values.get("source", "scheduler"),
        subject=values.get("job", JOB),
        attempt=attempt,
        pool="default",
        team="team",
    )


def an_exit(rank: int, *, at: int = NOW, attempt: int = 1, **values: Any) -> Fact:
    """Return a rank's end: ``exit_code``, ``signal``, and what a handler observed."""
    data = {
        "node": values.get("node", "n0"),
        "rank": rank,
        "exit_code": values.get("exit_code"),
        "signal": values.get("signal"),
        "last_lines": values.get("last_lines", []),
        "observed": observed_around(values.get("last_lines", []), at, values),
    }
    key = records.rank_exit(JOB, attempt, rank)
    return a_fact("run.rank_exited", data, id=key, at=at, attempt=attempt, source="agent")


def observed_around(texts: Sequence[str], at: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the handler would add to an exit with these last lines."""
    hits = signatures().hits("n0", [LogLine(at, 0, "stderr", text) for text in texts])
    return {
        "hits": [hit.told() for hit in hits],
        "around": values.get("around", []),
        "host_memory": values.get("host_memory"),
        "class": values.get("failure_class"),
        "kind": values.get("error_kind"),
        "last_line": texts[-1] if texts else "",
    }


def running(attempt: int = 1, at: int = NOW) -> list[Fact]:
    """Return the facts of a job up to its attempt's start."""
    state = {"state": "Running", "substate": None, "reason": "-", "actor": "-"}
    return [
        a_fact("job.admitted", {"job": JOB, "name": "demo"}, id="admitted", attempt=None, at=at),
        a_fact(
            "run.started",
            {"node": "n0", "ranks": []},
            id=records.started(JOB, attempt, "n0"),
            attempt=attempt,
            at=at,
        ),
        a_fact("job.running", {**state, "attempt": attempt}, attempt=attempt, at=at),
    ]


@dataclass
class Line:
    """One stream of the monitor, decided on as the host does."""

    policy: Policy = field(default_factory=Policy)
    decider: MonitorDecider = field(default_factory=MonitorDecider)
    now: int = NOW
    events: list[Event] = field(default_factory=list)
    causes: set[str] = field(default_factory=set)
    state: WatchState = field(default_factory=lambda: MonitorDecider().initial(stream_of(JOB)))

    def take(self, *facts: Fact) -> list[Event]:
        """Decide facts in turn and return the events they caused."""
        made: list[Event] = []
        for fact in facts:
            if fact.id in self.causes:
                continue
            for event in self._decide(fact):
                made.append(event)
        return made

    def _decide(self, fact: Fact) -> list[Event]:
        made = self.decider.decide(self.state, fact, now=self.now, policy=self.policy)
        for event in made:
            self.state = self.decider.evolve(self.state, event, at=self.now)
        if made:
            self.causes.add(fact.id)
        self.events += made
        return made

    def wait(self, milliseconds: int) -> list[Event]:
        """Let time pass, handing in ``clock.due`` when it is wanted."""
        self.now += milliseconds
        due = self.decider.due(self.state)
        if due is None or due > self.now:
            return []
        return self.take(Fact(f"due/{self.now}", CLOCK_DUE, {}, self.now, "monitor"))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of all events of a kind."""
        return [event.data for event in self.events if event.kind == kind]


__all__ = ["JOB", "NOW", "Line", "RunFact", "Tick"]
