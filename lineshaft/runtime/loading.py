"""Bringing a lane's state up to the journal's end, and keeping snapshots so that it stays quick."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from lineshaft.ports import Journal, Objects, StoreUnavailable
from lineshaft.runtime.lane import Lane
from lineshaft.runtime.snapshots import SnapshotDamaged, Snapshots


class Loader:
    """Loads lanes from snapshot and journal, and writes snapshots in the background."""

    def __init__(
        self,
        service: str,
        journal: Journal,
        objects: Objects | None,
        alarm: Callable[[str, str, str], None],
    ) -> None:
        self._journal = journal
        self._snapshots = None if objects is None else Snapshots(service, journal, objects)
        self._alarm = alarm
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def load(self, lane: Lane) -> None:
        """Read what ``lane`` does not hold yet. Raises ``StoreUnavailable``.

        A lane that is not trusted starts from the last snapshot; any damage of one means a full
        replay. It changes in one step, so nobody sees a part of it.
        """
        if lane.is_loaded:
            async for entry in self._journal.read(lane.stream, lane.seq):
                lane.apply(entry)
            return
        loading = await self._restored(lane)
        async for entry in self._journal.read(lane.stream, loading.seq):
            loading.apply(entry)
        lane.become(loading)

    async def _restored(self, lane: Lane) -> Lane:
        """Return a lane as the last snapshot has it, or an empty one."""
        made = lane.empty()
        if self._snapshots is None:
            return made
        try:
            dumped = await self._snapshots.find(lane.stream)
            if dumped is not None:
                made.restore(dumped, json.loads(json.dumps(dumped)))
        except SnapshotDamaged as error:
            self._alarm("snapshot_damaged", lane.stream, str(error))
            return lane.empty()
        except StoreUnavailable:
            raise
        except Exception as error:  # what the decider's load makes of an old or foreign dump
            self._alarm("snapshot_damaged", lane.stream, repr(error))
            return lane.empty()
        return made

    def snapshot(self, lane: Lane) -> None:
        """Write a snapshot of what ``lane`` has committed, unless one is being written.

        Called between rounds, so the state is whole; it is made JSON at once, stored later.
        """
        if self._snapshots is None or lane.stream in self._writing:
            return
        try:
            dumped = lane.dump()
            raw = json.dumps(dumped, ensure_ascii=False, separators=(",", ":")).encode()
        except Exception as error:
            self._alarm("snapshot_failed", lane.stream, repr(error))
            return
        lane.snapshot_seq = lane.seq
        task = asyncio.create_task(self._keep(dumped, raw))
        self._writing[lane.stream] = task
        task.add_done_callback(lambda _: self._writing.pop(lane.stream, None))

    async def _keep(self, dumped: dict[str, Any], raw: bytes) -> None:
        assert self._snapshots is not None
        try:
            await self._snapshots.keep(dumped, raw)
        except Exception as error:
            self._alarm("snapshot_failed", str(dumped["stream"]), repr(error))

    async def finish(self) -> None:
        """Wait for snapshots that are being written."""
        await asyncio.gather(*self._writing.values(), return_exceptions=True)
