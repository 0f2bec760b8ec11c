"""Keeping records: create the object first, then report the fact that restates it.

A record is created once and never changed; whoever creates it again gets what stands. A fact
that does not reach the bus is not lost: the launcher restates the record. Also here: the look
for a higher fence, which every commit begins with.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from lineshaft.contracts import limits, records
from lineshaft.contracts.events import EventError, Fact, encode
from lineshaft.contracts.subjects import of_fact
from lineshaft.ports import (
    Bus,
    BusUnavailable,
    Clock,
    ObjectExists,
    ObjectMissing,
    Objects,
    StoreUnavailable,
)
from trainer.agent.order import Order

SOURCE = "agent"
_RETRY_MS = 500


class NotRecorded(Exception):
    """A record could not be made in time; its text says why."""


class Records:
    """The durable records of one node of a run, and the facts that restate them."""

    def __init__(self, order: Order, objects: Objects, bus: Bus, clock: Clock) -> None:
        self._order = order
        self._objects = objects
        self._bus = bus
        self._clock = clock
        self._reports: set[asyncio.Task[None]] = set()

    async def keep(
        self, key: str, kind: str, body: Mapping[str, Any], *, patience_ms: int = 60_000
    ) -> dict[str, Any]:
        """Create the record ``key`` and report it as a fact; return the record that stands.

        Raises ``NotRecorded`` when the store took nothing for ``patience_ms``.
        """
        stands = await self._create(key, {**body, "at": self._clock.now()}, patience_ms)
        self._report(key, kind, stands)
        return stands

    async def is_fenced(self) -> bool:
        """Tell whether a newer attempt owns the job. Raises ``StoreUnavailable`` when unknown."""
        job, attempt = self._order.job, self._order.attempt
        newer = self._objects.list(records.fences(job), after=records.fence(job, attempt))
        async for _ in newer:
            return True
        return False

    async def flush(self, timeout_s: float) -> None:
        """Wait for reports under way, for ``timeout_s`` at most; what is left is restated later."""
        if self._reports:
            await asyncio.wait(self._reports, timeout=timeout_s)
        for report in self._reports:
            report.cancel()

    async def _create(self, key: str, body: dict[str, Any], patience_ms: int) -> dict[str, Any]:
        raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        if len(raw) > limits.RECORD_BYTES_MAX:
            raise NotRecorded(f"{key}: a record of {len(raw)} bytes is too large")
        deadline = self._clock.monotonic() + patience_ms
        while True:
            try:
                await self._objects.put(key, raw)
                return dict(json.loads(raw))
            except ObjectExists:
                return await self._standing(key)
            except (StoreUnavailable, OSError) as error:
                if self._clock.monotonic() >= deadline:
                    raise NotRecorded(f"{key}: {error}") from error
            await self._clock.sleep(_RETRY_MS)

    async def _standing(self, key: str) -> dict[str, Any]:
        try:
            raw = b"".join([part async for part in self._objects.open(key)])
            body = json.loads(raw)
        except (StoreUnavailable, ObjectMissing, OSError, ValueError) as error:
            raise NotRecorded(f"{key}: it exists and cannot be read: {error}") from error
        if not isinstance(body, dict):
            raise NotRecorded(f"{key}: it exists and is no record")
        return body

    def _report(self, key: str, kind: str, body: dict[str, Any]) -> None:
        order = self._order
        fact = Fact(
            id=key,
            kind=kind,
            data=body,
            at=int(body.get("at", 0)),
            source=SOURCE,
            subject=order.job,
            attempt=order.attempt,
            pool=order.pool,
            team=order.team,
        )
        report = asyncio.create_task(self._publish(fact))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    async def _publish(self, fact: Fact) -> None:
        try:
            raw, subject = encode(fact), of_fact(fact)
        except EventError:
            return  # too large for the bus; the record stands
        while True:
            try:
                await self._bus.publish(subject, raw, message_id=fact.id)
                return
            except BusUnavailable:
                await self._clock.sleep(_RETRY_MS)


def started_key(order: Order) -> str:
    """Return the key of this node's start."""
    return records.started(order.job, order.attempt, order.node)


def ended_key(order: Order) -> str:
    """Return the key of this node's end."""
    return records.ended(order.job, order.attempt, order.node)
