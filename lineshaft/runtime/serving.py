"""Which requests a process answers: those that need a leader only while it leads.

Every process of a service is in the queue group of its reading verbs. In that of the others only
a leader is, so that a request never reaches a standby that could but refuse it.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from lineshaft.contracts import subjects
from lineshaft.ports import BusUnavailable
from lineshaft.runtime import answering
from lineshaft.runtime.answering import Shell, Verb
from lineshaft.runtime.wiring import Ports

RETRY_MS = 250
LOOK_MS = 200

End = Callable[[], Awaitable[None]]


class Serving:
    """The subscriptions to one service's requests."""

    def __init__(self, shell: Shell, verbs: Mapping[str, Verb], ports: Ports) -> None:
        self._shell = shell
        self._verbs = verbs
        self._bus = ports.bus
        self._clock = ports.clock
        self._ends: dict[str, End] = {}
        self._is_ended = False

    async def start(self) -> None:
        """Serve what this process may answer now; waits for the bus."""
        for name, verb in self._verbs.items():
            if self._leads() or not verb.needs_leader:
                await self._serve(name)

    async def follow(self) -> None:
        """Serve the leader's verbs while this process leads and not otherwise, for ever."""
        while True:
            await self._clock.sleep(LOOK_MS)
            leads = self._leads()
            for name, verb in self._verbs.items():
                if verb.needs_leader and leads != (name in self._ends):
                    await (self._serve(name) if leads else self._end(name))

    def _leads(self) -> bool:
        # Not whether the lease is fresh: a request waits out a renewal that comes late.
        return any(lane.is_led for lane in self._shell.host.lanes.values())

    async def _serve(self, name: str) -> None:
        subject = subjects.rpc(self._shell.name, name)
        handler = partial(answering.reply, self._shell, name, self._verbs[name])
        while not self._is_ended:
            try:
                self._ends[name] = await self._bus.serve(subject, self._shell.name, handler)
            except BusUnavailable as error:
                self._shell.log.warning("bus_unavailable", subject=subject, detail=str(error))
                await self._clock.sleep(RETRY_MS)
            else:
                return

    async def _end(self, name: str) -> None:
        await self._ends.pop(name)()

    async def stop(self) -> None:
        """Take no more requests, finish those that are being answered."""
        self._is_ended = True
        for name in list(self._ends):
            await self._end(name)
