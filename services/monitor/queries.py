"""Answers to questions about runs: the run itself, its curves, its alerts.

Reads memory, the decider's state, views and records; changes nothing. The shapes of the answers
are agreed in ``ARCHITECTURE.md``.
"""

from collections.abc import Mapping
from typing import Any

from lineshaft.contracts import ids, limits, records
from lineshaft.contracts.telemetry import Beat
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.monitor.curve_store import CurveStore
from services.monitor.domain.curves import thinned
from services.monitor.domain.raising import partition_stream, stream_of
from services.monitor.domain.state import WatchState
from services.monitor.projector import ALERT, DIAGNOSIS
from services.monitor.runs import Run, Runs
from services.monitor.stored import read_json

POINTS_DEFAULT = 500
ALERTS_MAX = 1_000


def job_of(params: Mapping[str, Any]) -> str:
    """Return the parameter ``job``, a whole id. Raises ``RpcError`` (usage)."""
    job = params.get("job")
    if not isinstance(job, str) or not ids.is_job_id(job):
        raise RpcError("usage", "'job' must be a job's id", "ask the scheduler for a job by name")
    return job


class Queries:
    """What the monitor knows of runs."""

    def __init__(self, service: Service, runs: Runs, curves: CurveStore) -> None:
        self._service = service
        self._runs = runs
        self._curves = curves

    def _state(self, job: str) -> WatchState:
        state: WatchState = self._service.host.state(stream_of(job))
        return state

    async def run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return, per attempt, nodes with ranks, beats, phase, progress and diagnoses."""
        job = job_of(params)
        watched = dict(self._runs.of_job(job))
        started = await self._started(job)
        diagnoses = await self._diagnoses(job)
        known = self._state(job).jobs.get(job)
        numbers = {*watched, *started, *(d["attempt"] for d in diagnoses)}
        attempts = [
            self._attempt(number, watched.get(number), started.get(number, {}), diagnoses)
            for number in sorted(numbers)
        ]
        return {
            "job": job,
            "attempt": known.attempt if known is not None else max(numbers, default=None),
            "attempts": attempts,
            "alerts": sorted(known.alerts) if known is not None else [],
        }

    def _attempt(
        self,
        number: int,
        run: Run | None,
        started: Mapping[str, Mapping[str, Any]],
        diagnoses: list[dict[str, Any]],
    ) -> dict[str, Any]:
        now = self._service.clock.now()
        names = {*started, *(run.beats if run else ()), *(run.started if run else ())}
        nodes = []
        for name in sorted(names):
            born = (run.started.get(name) if run else None) or started.get(name, {})
            beat = run.beats.get(name) if run else None
            sample = dict(run.watch.samples.get(name, {})) if run else {}
            nodes.append(_node(name, born, beat, sample=sample, now=now))
        newest = max((run.beats.values() if run else ()), key=lambda pair: pair[1], default=None)
        planned = run.curves.planned_steps if run else None
        return {
            "attempt": number,
            "nodes": nodes,
            "phase": newest[0].phase if newest else None,
            "last_step": _last_step(run),
            "progress": run.progress.told(planned) if run else None,
            "dropped_blocks": run.dropped if run else 0,
            "is_watched": run is not None and run.ended_at is None,
            "diagnoses": [d for d in diagnoses if d["attempt"] == number],
        }

    async def _started(self, job: str) -> dict[int, dict[str, dict[str, Any]]]:
        """Read the agents' records of their starts: attempt, node, record."""
        found: dict[int, dict[str, dict[str, Any]]] = {}
        prefix = records.runs_of(job)
        async for stat in self._service.objects.list(prefix):
            attempt, _, name = stat.key.removeprefix(prefix).partition("/")
            if not attempt.isdigit() or not name.startswith("started-"):
                continue
            body = await read_json(self._service.objects, stat.key, limits.RECORD_BYTES_MAX)
            found.setdefault(int(attempt), {})[name.removeprefix("started-")] = body or {}
        return found

    async def _diagnoses(self, job: str) -> list[dict[str, Any]]:
        documents = await self._service.views.find(DIAGNOSIS, {"job": job})
        found = {d.id: dict(d.body) for d in documents}
        known = self._state(job).jobs.get(job)
        for newest in known.diagnoses if known is not None else ():
            found[newest["diagnosis"]] = {**found.get(newest["diagnosis"], {}), **newest}
        return sorted(found.values(), key=lambda d: (d["attempt"], d["at"], d["diagnosis"]))

    async def curves(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return each curve's points as [step, value, attempt], metrics and throughput."""
        job = job_of(params)
        points = params.get("points") or POINTS_DEFAULT
        if not isinstance(points, int) or isinstance(points, bool) or points < 2:
            raise RpcError("usage", "'points' must be a whole number, two or more")
        series: dict[str, list[list[Any]]] = {}
        metrics: list[dict[str, Any]] = []
        planned = None
        for attempt, curves in await self._curves.curves(job):
            planned = curves.planned_steps or planned
            for name, curve in sorted(curves.series.items()):
                rows = [[p[0], p[1], attempt] for p in thinned(curve.points, min(points, 2_000))]
                series.setdefault(name, []).extend(rows)
            metrics += [_metric(row, attempt) for row in curves.metrics]
        newest = max(self._runs.of_job(job), key=lambda pair: pair[0], default=None)
        progress = newest[1].progress.told(planned) if newest else _progress_of(series, planned)
        return {
            "job": job,
            "series": series,
            "metrics": metrics,
            "throughput": progress,
            "planned_steps": planned,
        }

    async def alerts(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return alerts, the newest change first: the open ones, or all (``open`` false)."""
        job = job_of(params) if params.get("job") is not None else None
        is_open = params.get("open", True)
        found: dict[str, dict[str, Any]] = {}
        if is_open is not True:
            where: dict[str, Any] = {"job": job} if job is not None else {}
            for document in await self._service.views.find(ALERT, where, limit=ALERTS_MAX):
                found[document.id] = dict(document.body)
        streams = [stream_of(job)] if job is not None else _streams()
        for stream in streams:
            state: WatchState = self._service.host.state(stream)
            for watched in state.jobs.values():
                if job in (None, watched.job):
                    found |= {a: {**alert, "is_open": True} for a, alert in watched.alerts.items()}
        ordered = sorted(found.values(), key=lambda a: (-a["changed_at"], a["alert"]))
        return {"alerts": ordered[:ALERTS_MAX]}


def _streams() -> list[str]:
    return [partition_stream(number) for number in range(limits.PARTITIONS)]


def _node(
    name: str,
    started: Mapping[str, Any],
    beat: tuple[Beat, int] | None,
    *,
    sample: Mapping[str, float],
    now: int,
) -> dict[str, Any]:
    ranks: dict[int, dict[str, Any]] = {}
    for born in started.get("ranks", ()):
        if isinstance(born, Mapping) and isinstance(born.get("rank"), int):
            ranks[born["rank"]] = {"state": None, "cpu_ms": None, **born}
    for seen in beat[0].ranks if beat else ():
        if isinstance(seen.get("rank"), int):
            told = {k: v for k, v in seen.items() if k != "pid" or v}
            ranks[seen["rank"]] = {**ranks.get(seen["rank"], {}), **told}
    for rank in ranks.values():
        for field in ("pid", "supervisor_pid"):
            rank.setdefault(field, None)
    told_beat = None
    if beat is not None:
        told_beat = {
            "at": beat[0].at,
            "age_ms": now - beat[1],
            "phase": beat[0].phase,
            "last_step": beat[0].last_step,
            "last_step_age_ms": beat[0].last_step_age_ms,
            "dropped_blocks": beat[0].dropped_blocks,
            "boot_id": beat[0].boot_id,
        }
    rows = [ranks[rank] for rank in sorted(ranks)]
    return {"node": name, "ranks": rows, "beat": told_beat, "sample": dict(sample)}


def _last_step(run: Run | None) -> int | None:
    if run is None:
        return None
    beaten = max((beat.last_step for beat, _ in run.beats.values()), default=-1)
    newest = max(run.progress.last_step, beaten)
    return newest if newest >= 0 else None


def _metric(row: list[Any], attempt: int) -> dict[str, Any]:
    names = ("name", "value", "step", "split", "subtask")
    return {**dict(zip(names, row, strict=True)), "attempt": attempt}


def _progress_of(series: Mapping[str, list[list[Any]]], planned: int | None) -> dict[str, Any]:
    """Return the progress of a run that is not watched any more, from its curve."""
    last = max((rows[-1][0] for rows in series.values() if rows), default=None)
    share = round(min(1.0, last / planned), 4) if planned and last is not None else None
    return {"step": last, "planned_steps": planned, "share": share, "step_ms": None, "eta_s": None}
