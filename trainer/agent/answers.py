"""What the ranks ask, and what the agent answers: may this be kept, was it kept.

Every answer begins with the look for a newer attempt. Not being able to look means no.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from lineshaft.contracts import records
from lineshaft.ports import StoreUnavailable
from trainer.agent import desk
from trainer.agent.keeping import NotRecorded, Records
from trainer.agent.order import Order
from trainer.agent.progress import Finished, Progress

_LOOK_S = 8.0


class Answers:
    """Answers the questions of one node's ranks."""

    def __init__(self, order: Order, progress: Progress, kept: Records) -> None:
        self.order = order
        self.progress = progress
        self.records = kept

    def by_question(self) -> desk.Answers:
        """Return what answers each question."""
        return {
            "may_commit": self._may_commit,
            "committed": self._committed,
            "finished": self._finished,
        }

    async def _may_commit(self, _: Mapping[str, Any]) -> desk.Answer:
        return await self._refusal() or {"ok": True}

    async def _committed(self, message: Mapping[str, Any]) -> desk.Answer:
        refusal = await self._refusal()
        if refusal is not None:
            return refusal
        step = int(message["step"])
        body = {
            "step": step,
            "digest": str(message["digest"]),
            "bytes": int(message["bytes"]),
            "path": str(message["path"]),
            "metrics": dict(message.get("metrics") or {}),
        }
        key = records.checkpoint(self.order.job, self.order.attempt, step)
        try:
            await self.records.keep(key, "run.checkpoint_committed", body)
        except NotRecorded as error:
            return {"ok": False, "reason": str(error)}
        self.progress.last_checkpoint = step
        return {"ok": True}

    async def _finished(self, message: Mapping[str, Any]) -> desk.Answer:
        refusal = await self._refusal()
        if refusal is not None:
            return refusal
        self.progress.finished = Finished(str(message["folder"]), int(message["step"]))
        return {"ok": True}

    async def _refusal(self) -> desk.Answer | None:
        try:
            if not await asyncio.wait_for(self.records.is_fenced(), _LOOK_S):
                return None
        except (StoreUnavailable, OSError, TimeoutError) as error:
            return {"ok": False, "reason": f"the fence could not be looked for: {error}"}
        self.progress.is_fenced = True
        return {"ok": False, "fenced": True, "reason": "a newer attempt owns this job"}
