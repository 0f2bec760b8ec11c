"""The scheduler's doer: makes its launcher see what should run, and tells what it sees.

It acts only on streams that this process leads, on the committed state. Facts of the launcher are
handed to the decider here and published for everybody else; the copy that comes back over the bus
is known by its id, so neither the bus's absence nor its slowness holds a decision up.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from lineshaft.contracts import records
from lineshaft.contracts.events import Fact
from lineshaft.ports import BusUnavailable, Entry, ObjectExists
from lineshaft.runtime.service import Service
from services.scheduler.domain.decider import LEADS, STREAM_PREFIX
from services.scheduler.domain.desired import desired
from services.scheduler.domain.recount import differences
from services.scheduler.domain.state import PoolState
from services.scheduler.launchers.port import Desired, Launcher, NodeReport

RECONCILE_EVERY_MS = 3_000
RECOUNT_EVERY_MS = 60_000
PUBLISH_AGAIN_MS = 1_000
NODE_TOLD_AGAIN_MS = 15_000
SOURCE = "launcher"


class LaunchDoer:
    """Drives one launcher by the states of all pools that this process leads."""

    def __init__(self, service: Service, launcher: Launcher, streams: Sequence[str]) -> None:
        self._service = service
        self._launcher = launcher
        self._streams = tuple(streams)
        self._changed = asyncio.Event()
        self._fenced: set[tuple[str, int]] = set()
        self._differing: set[str] = set()
        self._told: dict[str, tuple[NodeReport, int]] = {}

    def wake(self, entry: Entry) -> None:
        """Note that a decision was committed; the next pass begins at once."""
        self._changed.set()

    # -- what should run

    async def run(self) -> None:
        """Reconcile after each commit and every few seconds, for ever."""
        while True:
            self._changed.clear()
            for stream in self._streams:
                if self._service.host.is_leader(stream):
                    await self._reconcile(stream)
            await self._pause(RECONCILE_EVERY_MS)

    async def _pause(self, milliseconds: int) -> None:
        woken = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._service.clock.sleep(milliseconds))
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            slept.cancel()

    async def _reconcile(self, stream: str) -> None:
        host = self._service.host
        epoch = host.epoch(stream)
        state: PoolState = host.state(stream)
        if state.epoch < epoch:
            await self._tell_epoch(stream, epoch)

        def is_current() -> bool:
            return host.is_leader(stream) and host.epoch(stream) == epoch

        wanted = replace(desired(host.state(stream), epoch=epoch), is_current=is_current)
        await self._fence(wanted)
        if is_current():
            await self._launcher.reconcile(wanted)

    async def _tell_epoch(self, stream: str, epoch: int) -> None:
        pool = stream.removeprefix(STREAM_PREFIX)
        fact = Fact(
            id=f"{stream}:leads:{epoch}",
            kind=LEADS,
            data={"epoch": epoch},
            at=self._service.clock.now(),
            source="scheduler",
            pool=pool,
        )
        await self._service.host.handle([fact])

    async def _fence(self, wanted: Desired) -> None:
        """Put up the fence of each run before it can be launched: older attempts stop at it."""
        for run in wanted.runs:
            if (run.job, run.attempt) in self._fenced:
                continue
            key = records.fence(run.job, run.attempt)
            with contextlib.suppress(ObjectExists):  # a decision is carried out again
                await self._service.objects.put(key, str(wanted.epoch).encode())
            self._fenced.add((run.job, run.attempt))
        self._fenced &= {(run.job, run.attempt) for run in wanted.runs}

    # -- what is seen

    async def report(self) -> None:
        """Hand the launcher's facts to the decider and publish them, for ever."""
        async for fact in self._launcher.facts():
            await self._service.host.handle([fact])
            await self._publish(fact)

    async def _publish(self, fact: Fact) -> None:
        while True:
            try:
                await self._service.publish(fact)
                return
            except BusUnavailable:
                await self._service.clock.sleep(PUBLISH_AGAIN_MS)

    async def watch_nodes(self) -> None:
        """Compare the nodes there are with those on record, every few seconds, for ever."""
        while True:
            if any(map(self._service.host.is_leader, self._streams)):
                reports = await self._launcher.inventory()
                for stream in self._streams:
                    if self._service.host.is_leader(stream):
                        await self._compare(stream, reports)
            await self._service.clock.sleep(RECONCILE_EVERY_MS)

    async def _compare(self, stream: str, reports: Sequence[NodeReport]) -> None:
        pool = stream.removeprefix(STREAM_PREFIX)
        now = self._service.clock.now()
        for report in changed_nodes(self._service.host.state(stream), reports, pool):
            told, at = self._told.get(report.name, (None, 0))
            if told == report and now - at < NODE_TOLD_AGAIN_MS:
                continue
            self._told[report.name] = (report, now)
            fact = _node_changed(report, pool, now)
            await self._service.host.handle([fact])
            await self._publish(fact)

    # -- what must hold

    async def recount(self) -> None:
        """Count reservations anew every minute; a difference is an open finding."""
        while True:
            for stream in self._streams:
                if self._service.host.is_leader(stream):
                    self._judge(stream, differences(self._service.host.state(stream)))
            await self._service.clock.sleep(RECOUNT_EVERY_MS)

    def _judge(self, stream: str, found: list[str]) -> None:
        if found:
            self._differing.add(stream)
            self._service.audit("recount", stream, "open", "; ".join(found[:5]))
        elif stream in self._differing:
            self._differing.discard(stream)
            self._service.audit("recount", stream, "closed", "reservations and runs agree")


def changed_nodes(state: PoolState, reports: Sequence[NodeReport], pool: str) -> list[NodeReport]:
    """Return the reports that differ from the record; a node without a report is lost."""
    seen = {report.name: report for report in reports if report.pool == pool}
    changed = []
    for name, report in sorted(seen.items()):
        node = state.nodes.get(name)
        known = node and (node.gpu_type, node.slots, dict(node.labels), node.status)
        if known != (report.gpu_type, report.slots, dict(report.labels), report.status):
            changed.append(report)
    for name, node in sorted(state.nodes.items()):
        if name not in seen and node.is_ready:
            changed.append(NodeReport(name, node.gpu_type, node.slots, node.labels, "lost", pool))
    return changed


def _node_changed(report: NodeReport, pool: str, now: int) -> Fact:
    return Fact(
        id=f"nodes/{pool}/{report.name}/{now}",
        kind="run.node_changed",
        data={
            "node": report.name,
            "status": report.status,
            "slots": report.slots,
            "gpu_type": report.gpu_type,
            "labels": dict(report.labels),
        },
        at=now,
        source=SOURCE,
        pool=pool,
    )
