"""Curves in Objects: parts that only add, written now and then and at a run's end.

A part holds what was closed since the part before it; all parts of an attempt, merged in their
order, are its curve. Nothing is judged here.
"""

import json
from typing import Any

from lineshaft.contracts import records
from lineshaft.ports import ObjectExists, Objects, StoreUnavailable
from lineshaft.runtime.observability import logger
from lineshaft.runtime.service import Service
from services.monitor.domain.curves import Curves
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import stream_of
from services.monitor.runs import Run, Runs
from services.monitor.stored import read_json

SCHEMA = 1
PART_BYTES_MAX = 16 * 1024 * 1024
LOOK_EVERY_MS = 2_000
_TRIES = 8


class CurveStore:
    """Writes the parts of watched runs, and reads curves back."""

    def __init__(self, service: Service, runs: Runs, policy: Policy) -> None:
        self._service = service
        self._runs = runs
        self._policy = policy
        self._log = logger("monitor.curves")

    @property
    def _objects(self) -> Objects:
        return self._service.objects

    async def flush_forever(self) -> None:
        """Write what is due, every two seconds; forget runs that ended a while ago."""
        while True:
            await self._service.clock.sleep(LOOK_EVERY_MS)
            await self.flush()
            self._runs.forget(self._service.clock.now())

    async def flush(self, *, is_final: bool = False) -> None:
        """Write one part for each run that is due.

        With ``is_final`` (the service stops, its lease is given back) for all that have news:
        parts are created, never replaced, so that a new owner's are not touched.
        """
        now = self._service.clock.now()
        for (job, attempt), run in list(self._runs.by_key.items()):
            if run.ended_at is not None:
                run.close(self._policy)
            is_due = is_final or run.ended_at is not None
            is_due = is_due or now - run.flushed_at >= run.flush_every_ms
            if run.unflushed.is_empty or not is_due:
                continue
            if not is_final and not self._service.host.is_leader(stream_of(job)):
                continue
            try:
                await self._write(job, attempt, run)
            except StoreUnavailable as error:
                self._log.warning("curve_not_stored", job=job, attempt=attempt, reason=str(error))
                continue
            run.flushed_at = now
            # A long run needs fewer, larger parts: its curve is coarse by then.
            run.flush_every_ms = min(run.flush_every_ms * 2, self._policy.curve_flush_max_ms)

    async def _write(self, job: str, attempt: int, run: Run) -> None:
        await self.load(job, attempt, run)
        part, run.unflushed = run.unflushed, Curves(self._policy.curve_points_max)
        try:
            raw = json.dumps({"schema": SCHEMA, **part.dump()}, separators=(",", ":")).encode()
            for _ in range(_TRIES):
                try:
                    await self._objects.put(records.curve(job, attempt, run.next_part), raw)
                    run.next_part += 1
                    return
                except ObjectExists:
                    run.next_part += 1
            raise StoreUnavailable("other parts keep appearing")
        except StoreUnavailable:
            newer, run.unflushed = run.unflushed, part  # nothing is lost by a failed write
            run.unflushed.merge(newer.dump())
            raise

    async def load(self, job: str, attempt: int, run: Run) -> None:
        """Put the parts that were written before this process watched into a run's curves."""
        if run.is_loaded:
            return
        stored, parts = await self._read(job, attempt)
        now = run.curves  # whatever was added while the parts were read is in it too
        if parts:
            stored.merge(now.dump())
            run.curves = stored
        run.next_part = max(run.next_part, parts)
        run.is_loaded = True

    async def curves(self, job: str) -> list[tuple[int, Curves]]:
        """Return the curves of every attempt of a job, in order of the attempts."""
        found: dict[int, Curves] = {}
        for attempt, run in self._runs.of_job(job):
            await self.load(job, attempt, run)
            found[attempt] = run.curves
        attempts = set()
        async for stat in self._objects.list(records.curves(job)):
            piece = stat.key.removeprefix(records.curves(job)).partition("/")[0]
            attempts.add(int(piece) if piece.isdigit() else 0)
        for attempt in sorted(attempts - set(found)):
            found[attempt] = (await self._read(job, attempt))[0]
        return sorted(found.items())

    async def _read(self, job: str, attempt: int) -> tuple[Curves, int]:
        made, parts = Curves(self._policy.curve_points_max), 0
        prefix = f"{records.curves(job)}{attempt}/"
        async for stat in self._objects.list(prefix):
            name = stat.key.removeprefix(prefix)
            parts = max(parts, int(name) + 1 if name.isdigit() else 0)
            body: dict[str, Any] | None = await read_json(self._objects, stat.key, PART_BYTES_MAX)
            try:
                if body is not None:
                    made.merge(body)
            except (KeyError, TypeError, ValueError) as error:
                self._log.warning("curve_part_damaged", key=stat.key, reason=repr(error))
        return made, parts
