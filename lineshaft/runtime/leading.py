"""Who leads: taking streams over, renewing, standing by, and handing in ``clock.due``."""

import asyncio
from typing import TYPE_CHECKING

from lineshaft.contracts import limits
from lineshaft.contracts.events import Event, Fact
from lineshaft.ports import Clock, Entry, Journal, StoreUnavailable
from lineshaft.runtime import commit
from lineshaft.runtime.commit import Verdict
from lineshaft.runtime.decider import CLOCK_DUE
from lineshaft.runtime.lane import LEASE_TAKEN, Lane, make_entry
from lineshaft.runtime.lease import Lease

if TYPE_CHECKING:
    from lineshaft.runtime.host import DeciderHost

_DUE_REPEAT_MS = 1_000  # a due fact that changed nothing is not repeated sooner


class Leading:
    """Keeps one host's lanes led or followed."""

    def __init__(
        self, host: "DeciderHost", journal: Journal, clock: Clock, *, service: str, holder: str
    ) -> None:
        self.holder = holder
        self._host = host
        self._journal = journal
        self._clock = clock
        self._service = service
        self._lease = Lease(journal, clock, service=service, holder=holder)
        self._was_away = True
        self._woken = asyncio.Event()
        self._not_before: dict[str, tuple[int, int]] = {}  # stream: (seq, due again at)

    def is_fresh(self) -> bool:
        """Tell whether the lease was renewed recently enough to answer and to act.

        Who was away that long may have been replaced: a renewal alone does not make it fresh
        again, its streams have to be looked at first.
        """
        return self._lease.is_fresh() and not self._was_away

    def judge(self, lane: Lane) -> None:
        """Set whether a lane that was just loaded is led by this process."""
        lane.is_led = lane.holder == self.holder and lane.epoch > 0

    async def run(self) -> None:
        """Renew, follow and take over, for ever."""
        while True:
            await self._clock.sleep(limits.LEASE_RENEW_MS)
            try:
                await self.turn()
            except Exception as error:
                self._host.alarm("leading_failed", self._service, repr(error))

    async def turn(self) -> None:
        """Renew once, bring the lanes up to date where that is needed, take what is free."""
        self._was_away = self._was_away or not self._lease.is_fresh()
        is_renewed = await self._lease.renew()
        async with self._host.turn:
            free, is_whole = [], True
            for lane in self._host.lanes.values():
                if lane.is_led and lane.is_loaded and not self._was_away:
                    continue
                is_followed = await self._follow(lane)
                is_whole = is_whole and is_followed
                if is_followed and not lane.is_led and is_renewed:
                    free += [lane] if self._lease.may_take(lane.holder) else []
            if free:
                await self._take(free)
            self._was_away = not is_whole
        self.wake()

    async def _follow(self, lane: Lane) -> bool:
        try:
            await self._host.load(lane)
        except StoreUnavailable:
            return False
        self.judge(lane)
        return True

    async def _take(self, lanes: list[Lane]) -> None:
        """Append ``lease.taken`` to every free lane, in one commit."""
        at = self._clock.now()
        entries: list[Entry] = []
        for lane in lanes:
            taken = Event(LEASE_TAKEN, {"epoch": lane.epoch + 1, "holder": self.holder})
            entries.append(make_entry(lane, [taken], (), at=at, holder=self.holder))
        verdicts = await commit.append(self._journal, entries)
        for lane, entry, (verdict, _) in zip(lanes, entries, verdicts, strict=True):
            if verdict is Verdict.COMMITTED:
                self._host.took(lane, entry)
            else:
                lane.distrust()
                lane.is_led = False

    async def release(self) -> None:
        """Give the lease back."""
        for lane in self._host.lanes.values():
            lane.is_led = False
        await self._lease.release()

    # -- due ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look again at what is due: a state has changed."""
        self._woken.set()

    async def run_due(self) -> None:
        """Hand in a ``clock.due`` fact for each led lane whose time has come, for ever."""
        while True:
            self._woken.clear()
            try:
                await self._hand_in()
                due = self._next_due()
            except Exception as error:
                self._host.alarm("due_failed", self._service, repr(error))
                due = self._clock.now() + _DUE_REPEAT_MS
            await self._wait(due)

    def _due_of(self, lane: Lane) -> int | None:
        if not (lane.is_led and lane.is_loaded):
            return None
        due = lane.due()
        seq, again = self._not_before.get(lane.stream, (-1, 0))
        return max(due, again) if due is not None and seq == lane.seq else due

    def _next_due(self) -> int | None:
        times = [self._due_of(lane) for lane in self._host.lanes.values()]
        return min((due for due in times if due is not None), default=None)

    async def _hand_in(self) -> None:
        now = self._clock.now()
        handed = []
        for lane in self._host.lanes.values():
            due = self._due_of(lane)
            if due is None or due > now:
                continue
            self._not_before[lane.stream] = (lane.seq, now + _DUE_REPEAT_MS)
            # The number is the place of the entry it would be in: recorded once, or never.
            name = f"due:{lane.epoch}:{lane.seq + 1}"
            fact = Fact(name, CLOCK_DUE, {"stream": lane.stream}, now, self._service)
            handed.append(self._host.hand_in(fact, lane.stream))
        await asyncio.gather(*handed)

    async def _wait(self, due: int | None) -> None:
        if due is None:
            await self._woken.wait()
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(max(1, due - self._clock.now())))
        waking = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
