"""Comparing what runs have staged with what was handed in: no succeeded job is forgotten.

The bus may lose ``job.succeeded``. At the start and every minute this asks the scheduler about
each staging session that has never been a candidate, and hands the fact in again when the job
has succeeded. Decided by the decider like any other; what it knows changes nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from lineshaft.contracts import ids, limits, manifest, records, subjects
from lineshaft.contracts.events import NOT_APPLICABLE, Fact
from lineshaft.ports import BusUnavailable, StoreUnavailable
from lineshaft.runtime import rpc
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.registry.domain.decider import stream_of

_EVERY_MS = 60_000
_SETTLED_MS = 30_000
"""A session younger than this is still on its usual way."""


class Reconciler:
    """Finds succeeded runs that never became candidates."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self) -> None:
        """Compare for ever."""
        while True:
            try:
                await self.compare()
            except (StoreUnavailable, BusUnavailable) as error:
                self._service.log.info("comparison postponed", detail=str(error))
            await self._service.clock.sleep(_EVERY_MS)

    async def compare(self) -> int:
        """Hand in what is missing; return how much that was."""
        found = 0
        async for session in self._strange_sessions():
            fact = await self._succeeded(session)
            if fact is not None:
                await self._service.host.handle([fact])
                self._service.log.warning("a lost job.succeeded was handed in", session=session)
                found += 1
        return found

    async def _strange_sessions(self) -> AsyncIterator[str]:
        """Yield the sessions with a manifest that were never candidates, of streams we lead."""
        host, after = self._service.host, ""
        while session := await self._next_session(after):
            after = records.staging(session, "~")  # behind every name that is staged
            job, attempt = _run_of(session)
            if attempt is None or not host.is_leader(stream_of(job)):
                continue
            if session in host.state(stream_of(job)).sessions:
                continue
            staged = await self._service.objects.stat(records.staging(session, "manifest.json"))
            if staged and self._service.clock.now() - staged.modified > _SETTLED_MS:
                yield session

    async def _next_session(self, after: str) -> str | None:
        async for found in self._service.objects.list("staging/", after):
            return found.key.split("/")[1]
        return None

    async def _succeeded(self, session: str) -> Fact | None:
        """Return the scheduler's word on a session's run, when the run made its job succeed."""
        job, attempt = _run_of(session)
        raw = json.dumps({"job": job}).encode()
        try:
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_MS / 1000):
                reply = await self._service.bus.request(subjects.rpc("scheduler", "job"), raw)
            state = rpc.decode_reply(reply)
        except (RpcError, TimeoutError):
            return None
        is_it = (state.get("state"), state.get("attempt")) == ("Succeeded", attempt)
        if not is_it or not manifest.is_digest(state.get("manifest")):
            return None
        return _fact(job, session, state)


def _run_of(session: str) -> tuple[str, int | None]:
    job, _, attempt = session.rpartition("-")
    is_run = ids.is_job_id(job) and attempt.isascii() and attempt.isdigit()
    return job, int(attempt) if is_run else None


def _fact(job: str, session: str, state: dict[str, Any]) -> Fact:
    output = (state.get("resolved") or {}).get("output") or {}
    data = {
        "attempt": state["attempt"],
        "manifest": state["manifest"],
        "name": str(state.get("name")),
        "model_name": output.get("model_name"),
    }
    return Fact(
        id=f"reconciled:{session}",
        kind="job.succeeded",
        data=data,
        at=int(state.get("since") or 0),
        source="registry",
        subject=job,
        team=str(state.get("team") or NOT_APPLICABLE),
    )
