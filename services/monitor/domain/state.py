"""What the monitor remembers of jobs: alerts, diagnoses, exits; and how events change it.

Only journaled events change this state, so replaying a stream gives the same state. Values are
JSON-like throughout, so that a snapshot is a plain dump. Nothing here decides.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lineshaft.contracts.alerts import AlertStatus
from lineshaft.contracts.events import NOT_APPLICABLE, Event

STREAM_PREFIX = "watch/"
JOBS_ENDED_KEPT = 5_000
DIAGNOSES_KEPT = 16
EXITS_KEPT = 64

JOB_SEEN = "watch.job_seen"
ATTEMPT_OPENED = "watch.attempt_opened"
ATTEMPT_OVER = "watch.attempt_over"
EXIT_NOTED = "watch.exit_noted"
FAILURE_COUNTED = "watch.failure_counted"
CHECKPOINT_SEEN = "watch.checkpoint_seen"
STOP_SEEN = "watch.stop_seen"
JOB_ENDED = "watch.job_ended"
SILENCED = "watch.silenced"
COMMAND_NOTED = "watch.command_noted"
OBSERVED = "watch.observed"
"""Kind of the internal fact that carries a watcher's observation."""

Alert = dict[str, Any]
"""An alert as ``alert.firing`` carries it whole: alert, job, attempt, kind, subject, episode,
status, severity, title, summary, evidence, node, rank, runbook, advice, opened_at, changed_at,
acknowledged_by, silenced_until, inhibited_by, reason."""


@dataclass(slots=True)
class JobWatch:
    """What is remembered of one job that has not ended."""

    job: str
    name: str = ""
    pool: str = NOT_APPLICABLE
    team: str = NOT_APPLICABLE
    attempt: int = 0
    opened_at: int = 0
    plan: dict[str, Any] = field(default_factory=dict)  # what the launch order promised
    stop_intent: str | None = None  # of the present attempt
    is_over: bool = False  # the present attempt is stopped, or was never launched
    checkpoint_step: int = -1
    alerts: dict[str, Alert] = field(default_factory=dict)  # open ones, by id
    episodes: dict[str, list[Any]] = field(default_factory=dict)  # "kind subject" -> see evolve
    diagnosed: dict[str, int] = field(default_factory=dict)  # "attempt/what/subject" -> at
    diagnoses: list[dict[str, Any]] = field(default_factory=list)  # the newest last
    exits: list[dict[str, Any]] = field(default_factory=list)  # of the present attempt
    waiting: list[dict[str, Any]] = field(default_factory=list)  # exits whose root may yet come
    failures: list[list[int]] = field(default_factory=list)  # [attempt, at, checkpoint step]
    silences: dict[str, int] = field(default_factory=dict)  # "kind subject" -> until

    def open_alert(self, kind: str, subject: str) -> Alert | None:
        """Return the open alert of (kind, subject); there is at most one."""
        for alert in self.alerts.values():
            if alert["kind"] == kind and alert["subject"] == subject:
                return alert
        return None


@dataclass(slots=True)
class WatchState:
    """The state of one ``watch/<partition>`` stream."""

    partition: int
    jobs: dict[str, JobWatch] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)  # job -> at, oldest first

    def alert(self, alert: str) -> Alert | None:
        """Return an open alert by its id."""
        for job in self.jobs.values():
            if alert in job.alerts:
                return job.alerts[alert]
        return None

    def due(self) -> int | None:
        """Return when the first waiting exit has waited long enough."""
        times = [int(w["until"]) for job in self.jobs.values() for w in job.waiting]
        return min(times, default=None)


def key_of(kind: str, subject: str) -> str:
    """Return the key of (kind, subject) in a job's maps."""
    return f"{kind} {subject}"


def initial(stream: str) -> WatchState:
    """Return the state of an empty stream."""
    return WatchState(int(stream.removeprefix(STREAM_PREFIX)))


def dump(state: WatchState) -> dict[str, Any]:
    """Return the state as JSON values."""
    return {
        "jobs": [asdict(job) for job in state.jobs.values()],
        "ended": dict(state.ended),
    }


def load(stream: str, dumped: Mapping[str, Any]) -> WatchState:
    """Read a dump back."""
    state = initial(stream)
    for row in dumped["jobs"]:
        state.jobs[row["job"]] = JobWatch(**row)
    state.ended.update(dumped["ended"])
    return state


# ---------------------------------------------------------------------------------------------
# Evolve: one small function per kind of event


def evolve(state: WatchState, event: Event, *, at: int) -> WatchState:
    """Apply one journaled event; kinds that are not ours change nothing."""
    change = _CHANGES.get(event.kind)
    if change is not None:
        job = state.jobs.get(event.subject)
        if job is None and event.kind != COMMAND_NOTED:
            job = state.jobs[event.subject] = JobWatch(event.subject)
        if job is not None:
            change(state, job, event, at)
    return state


def _job_seen(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    job.name = str(event.data.get("name") or job.name)
    if event.pool != NOT_APPLICABLE:
        job.pool, job.team = event.pool, event.team


def _attempt_opened(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    attempt = int(event.data["attempt"])
    if attempt > job.attempt:
        job.attempt, job.opened_at, job.stop_intent = attempt, int(event.data["at"]), None
        job.exits, job.waiting, job.diagnosed, job.plan = [], [], {}, {}
        job.is_over = False
    job.plan = {**job.plan, **event.data.get("plan", {})}


def _attempt_over(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    job.is_over = True


def _exit_noted(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    job.exits = [*job.exits, event.data["exit"]][-EXITS_KEPT:]
    if event.data.get("until") is not None:
        job.waiting.append({**event.data["exit"], "until": event.data["until"]})


def _diagnosed(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    data = event.data
    job.diagnosed[f"{event.attempt}/{data['what']}/{data['subject']}"] = at
    kept = {k: v for k, v in data.items() if k != "evidence"}
    job.diagnoses = [*job.diagnoses, {**kept, "attempt": event.attempt, "at": at}]
    job.diagnoses = job.diagnoses[-DIAGNOSES_KEPT:]
    if data["what"] == "rank_exited":
        job.waiting = []


def _failure_counted(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    row = [int(event.data[name]) for name in ("attempt", "at", "checkpoint")]
    job.failures = [*job.failures, row][-16:]


def _checkpoint_seen(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    job.checkpoint_step = max(job.checkpoint_step, int(event.data["step"]))


def _stop_seen(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    job.stop_intent = str(event.data["intent"])


def _job_ended(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    del state.jobs[job.job]
    state.ended[job.job] = at
    while len(state.ended) > JOBS_ENDED_KEPT:
        del state.ended[next(iter(state.ended))]


def _firing(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    alert = dict(event.data)
    job.alerts[alert["alert"]] = alert
    job.episodes[key_of(alert["kind"], alert["subject"])] = [
        event.attempt,
        alert["last_episode"],
        alert["status"],
        alert["severity"],
        at,
    ]


def _acknowledged(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    alert = job.alerts.get(event.data["alert"])
    if alert is not None:
        alert["acknowledged_by"] = event.data["actor"]
        alert["acknowledged_at"] = at


def _resolved(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    alert = job.alerts.pop(event.data["alert"], None)
    if alert is not None:
        episode = job.episodes.get(key_of(alert["kind"], alert["subject"]))
        if episode is not None:
            episode[2], episode[4] = str(AlertStatus.RESOLVED), at


def _silenced(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    until = int(event.data["until"])
    job.silences[key_of(event.data["kind"], event.data["of"])] = until
    alert = job.alerts.get(event.data["alert"])
    if alert is not None:
        alert["silenced_until"] = until


def _noted(state: WatchState, job: JobWatch, event: Event, at: int) -> None:
    return


_CHANGES = {
    JOB_SEEN: _job_seen,
    ATTEMPT_OPENED: _attempt_opened,
    ATTEMPT_OVER: _attempt_over,
    EXIT_NOTED: _exit_noted,
    "run.diagnosed": _diagnosed,
    FAILURE_COUNTED: _failure_counted,
    CHECKPOINT_SEEN: _checkpoint_seen,
    STOP_SEEN: _stop_seen,
    JOB_ENDED: _job_ended,
    "alert.firing": _firing,
    "alert.acknowledged": _acknowledged,
    "alert.resolved": _resolved,
    SILENCED: _silenced,
    COMMAND_NOTED: _noted,
}
