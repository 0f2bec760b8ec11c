"""Following a job: what changed, as it changes, until it ends.

A watch survives the platform's restart: it says so once and goes on when it is back.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError

TERMINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
STATE_EVERY_S = 0.4
PROGRESS_EVERY_S = 1.6


@dataclass(frozen=True, slots=True)
class Change:
    """Something new about a job.

    ``kind``: ``state`` (a new line of the timeline), ``progress`` (step, loss, ...), ``alert``,
    ``checkpoint``, ``lost`` and ``back`` (the platform went away, came back). ``job`` is the whole
    state at that moment.
    """

    kind: str
    data: dict[str, Any]
    job: dict[str, Any] = field(default_factory=dict)


async def watch(client: Client, job: str) -> AsyncIterator[Change]:
    """Yield each change of ``job`` until it is terminal."""
    seen = _Seen()
    loop = asyncio.get_running_loop()
    progress_at = 0.0
    while True:
        try:
            state = await client.wait_known(job)
            for change in seen.states(state):
                yield change
            if loop.time() >= progress_at or state["state"] in TERMINAL:
                progress_at = loop.time() + PROGRESS_EVERY_S
                for change in await _monitored(client, state, seen):
                    yield change
            if seen.is_lost:
                seen.is_lost = False
                yield Change("back", {}, state)
            if state["state"] in TERMINAL:
                return
        except PlatformError as error:
            if error.code not in ("unreachable", "unavailable", "not_leader"):
                raise
            if not seen.is_lost:
                seen.is_lost = True
                yield Change("lost", {"message": error.message})
        await asyncio.sleep(STATE_EVERY_S)


class _Seen:
    """What was shown already."""

    def __init__(self) -> None:
        self.timeline = 0
        self.checkpoints: set[tuple[int, int]] = set()
        self.alerts: dict[str, str] = {}
        self.progress: dict[str, Any] = {}
        self.is_lost = False

    def states(self, state: dict[str, Any]) -> list[Change]:
        """Return what of the timeline and the checkpoints is new."""
        lines = state.get("timeline", [])
        fresh = [Change("state", line, state) for line in lines[self.timeline :]]
        self.timeline = max(self.timeline, len(lines))
        for checkpoint in state.get("checkpoints", []):
            key = (checkpoint["attempt"], checkpoint["step"])
            if key not in self.checkpoints:
                self.checkpoints.add(key)
                fresh.append(Change("checkpoint", checkpoint, state))
        return fresh


async def _monitored(client: Client, state: dict[str, Any], seen: _Seen) -> list[Change]:
    """Return progress and alerts; a monitor that is away only means that there are none now."""
    job = state["job"]
    fresh: list[Change] = []
    try:
        alerts = await client.request("monitor", "alerts", job=job, open=False, timeout_ms=2_000)
        curves = await client.request("monitor", "curves", job=job, points=40, timeout_ms=2_000)
    except PlatformError:
        return fresh
    for alert in alerts.get("alerts", []):
        if seen.alerts.get(alert["alert"]) != alert["status"]:
            seen.alerts[alert["alert"]] = alert["status"]
            fresh.append(Change("alert", alert, state))
    now = progress_of(curves)
    if now and now != seen.progress:
        seen.progress = now
        fresh.append(Change("progress", now, state))
    return fresh


def progress_of(curves: dict[str, Any]) -> dict[str, Any]:
    """Return the last step, the planned steps, the last values of the curves, rates, time left."""
    progress: dict[str, Any] = {}
    for name, points in (curves.get("series") or {}).items():
        if points:
            progress[name] = points[-1][1]
            progress["step"] = max(progress.get("step", 0), points[-1][0])
    told = curves.get("throughput") or {}
    for name in ("planned_steps", "eta_s", "step_ms", "samples_per_s", "tokens_per_s"):
        if told.get(name) is not None:
            progress[name] = told[name]
    if progress and curves.get("planned_steps") is not None:
        progress["planned_steps"] = curves["planned_steps"]
    return progress
