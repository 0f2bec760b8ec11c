"""Comparing what was admitted with what the pool knows: no admitted job is forgotten.

The bus may lose ``job.admitted``. Jobs that the pool has not shown to be queued some minutes
after their admission are asked for, and told again from the journal when the pool does not know
them. What was admitted before this process began is looked through once, at the start.
"""

from dataclasses import dataclass
from typing import Final

from lineshaft.contracts import events, limits, subjects
from lineshaft.contracts.events import Fact
from lineshaft.ports import BusUnavailable, Entry, StoreUnavailable
from lineshaft.runtime import relay
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.admission.asking import Neighbours
from services.admission.domain.decider import ADMITTED, stream_of
from services.admission.projector import KIND

EVERY_MS: Final = 60_000
SETTLED_MS: Final = (limits.DEDUP_WINDOW_S + 30) * 1000
"""Behind the bus's window of de-duplication, so that a repetition is stored."""
WAITING_MAX: Final = 50_000
ASKED_PER_ROUND_MAX: Final = 500
FINDING: Final = "admitted_not_queued"
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    stream: str
    seq: int
    at: int


class Reconciler:
    """Finds admitted jobs that no pool knows, and tells them again."""

    def __init__(self, service: Service, ask: Neighbours) -> None:
        self._service = service
        self._ask = ask
        self._waiting: dict[str, _Waiting] = {}
        self._has_looked_back = False

    def committed(self, entry: Entry) -> None:
        """Note the jobs that an entry admits."""
        for event in entry.events:
            if event.kind == ADMITTED:
                self._note(event.subject, _Waiting(entry.stream, entry.seq, entry.at))

    def _note(self, job: str, waiting: _Waiting) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting[job] = waiting

    async def queued(self, fact: Fact) -> Fact:
        """Note that a pool knows a job."""
        self._waiting.pop(fact.subject, None)
        return fact

    async def run(self) -> None:
        """Compare for ever."""
        while True:
            try:
                await self.compare()
            except (StoreUnavailable, BusUnavailable) as error:
                self._service.log.info("comparison postponed", detail=str(error))
            await self._service.clock.sleep(EVERY_MS)

    async def compare(self) -> int:
        """Tell again what the pool does not know; return how much that was."""
        if not self._has_looked_back:
            await self._look_back()
            self._has_looked_back = True
        now = self._service.clock.now()
        old = [job for job, row in self._waiting.items() if now - row.at >= SETTLED_MS]
        told = 0
        for job in old[:ASKED_PER_ROUND_MAX]:
            if await self._is_known(job):
                self._waiting.pop(job, None)
                self._service.audit(FINDING, job, "closed", "the pool knows the job")
            elif self._service.host.is_leader(stream_of(job)):
                told += await self._tell(job)
        return told

    async def _look_back(self) -> None:
        """Take over what was admitted before and is younger than what the bus publishes again."""
        since = self._service.clock.now() - limits.REPUBLISH_WINDOW_S * 1000
        after = ""
        while True:
            page = await self._service.views.find(
                KIND, {"admitted": True}, after=after, limit=_PAGE
            )
            for document in page:
                place = document.body.get("place")
                if document.body.get("at", 0) >= since and isinstance(place, dict):
                    row = _Waiting(str(place["stream"]), int(place["seq"]), document.body["at"])
                    self._note(document.id, row)
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _is_known(self, job: str) -> bool:
        try:
            await self._ask.job_id(job)
        except RpcError as error:
            if error.code == "not_found":
                return False
            raise BusUnavailable(error.message) from None
        return True

    async def _tell(self, job: str) -> int:
        row = self._waiting[job]
        async for entry in self._service.journal.read(row.stream, row.seq - 1, limit=1):
            for index, event in enumerate(entry.events):
                if event.kind == ADMITTED and event.subject == job:
                    fact = relay.fact_of(self._service.name, entry, index, is_replay=True)
                    raw = events.encode(fact)
                    await self._service.bus.publish(subjects.of_fact(fact), raw)
                    self._service.audit(FINDING, job, "open", "no pool knows this admitted job")
                    return 1
        self._waiting.pop(job, None)
        return 0
