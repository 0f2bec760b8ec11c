"""Stops: the intent that the launcher leaves beside the order, noticed and passed on.

The signal only says "look"; the file says what is asked and until when. A stop that is raised
is passed on again; the same one twice changes nothing.
"""

import asyncio
import json

from lineshaft.contracts.failures import StopIntent
from lineshaft.ports import Clock
from trainer.agent.desk import Desk
from trainer.agent.order import Order
from trainer.agent.progress import Progress, StopOrder

INTENT_FILE = "intent.json"
_LOOK_EVERY_MS = 500


class Stops:
    """Notices stops for one node of a run."""

    def __init__(self, order: Order, progress: Progress, desk: Desk, clock: Clock) -> None:
        self._order = order
        self._progress = progress
        self._desk = desk
        self._clock = clock
        self.came = asyncio.Event()
        """Set once a stop was asked for."""

    def signalled(self) -> None:
        """Take a SIGTERM: obey the intent that stands beside the order. Twice is once."""
        if not self._look() and self._progress.stop is None:
            deadline = self._clock.now() + self._order.grace_ms
            self._obey(StopOrder(StopIntent.FAULT.value, "the agent was told to end", deadline))

    async def run(self) -> None:
        """Notice an intent also when its signal was missed, and one that is raised."""
        while True:
            self._look()
            await self._clock.sleep(_LOOK_EVERY_MS)

    def _look(self) -> bool:
        path = self._order.node_folder / INTENT_FILE
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            stop = StopOrder(
                str(body["intent"]), str(body.get("reason", "")), int(body["deadline_ms"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if stop != self._progress.stop:
            self._obey(stop)
        return True

    def _obey(self, stop: StopOrder) -> None:
        self._progress.stop = stop
        self.came.set()
        self._desk.announce(stop)
