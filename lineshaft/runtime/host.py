"""The host of a decider: it drains facts, decides, appends, answers. It knows only ports.

One round at a time: whatever arrived during the last commit is the next batch. A round groups
its facts by stream, drops those whose id is recorded, decides the rest one after the other on
the uncommitted state, and appends one entry per stream in one commit. What the append answers is
judged in ``commit.py``; after anything but "committed" the stream is loaded again before it is
decided on. Leadership is in ``leading.py``, the state of a stream in ``lane.py``.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.events import Fact
from lineshaft.ports import Clock, Entry, Journal, Objects, StoreUnavailable
from lineshaft.runtime import commit
from lineshaft.runtime.commit import Verdict
from lineshaft.runtime.decider import Decider, Outcome, OutcomeKind
from lineshaft.runtime.lane import (
    Draft,
    Lane,
    LaneBroken,
    Piece,
    entry_of,
    events_of_cause,
)
from lineshaft.runtime.leading import Leading
from lineshaft.runtime.loading import Loader

UNAVAILABLE = "unavailable: "
NOT_LEADER = "not leader: "
_ROUNDS_PER_FACT_MAX = 8
_FAULTS_REMEMBERED = 10_000
_WORST = [OutcomeKind.KNOWN, OutcomeKind.DECIDED, OutcomeKind.AGAIN, OutcomeKind.REFUSED]

Commits = Callable[[Entry], None]
Alarm = Callable[[str, str, str], None]
"""Told what went wrong with the host itself: kind, subject, summary."""


class NotLeader(Exception):
    """Another process leads the stream now, or this one soon will."""


class DecisionFailed(Exception):
    """The decider raised, or wrote what may not be written; a fault of ours."""


@dataclass(slots=True, eq=False)
class _Ask:
    pieces: list[Piece]
    answered: asyncio.Future[None]
    early: Outcome | None = None


class DeciderHost:
    """Runs one decider over the streams it owns.

    ``holder`` names this process (``lease.holder_of_this_process``). ``on_commit`` is called with
    each entry that this host appended; ``on_alarm`` with what a person should hear of. A policy
    may have a ``version``, a whole number that entries carry.
    """

    def __init__(
        self,
        decider: Decider[Any],
        journal: Journal,
        clock: Clock,
        *,
        holder: str,
        objects: Objects | None = None,
        policy: Any = None,
        on_commit: Commits | None = None,
        on_alarm: Alarm | None = None,
    ) -> None:
        self._decider = decider
        self._journal = journal
        self._clock = clock
        self._policy = policy
        self._policy_version = int(getattr(policy, "version", 0))
        self._listeners: list[Commits] = [on_commit] if on_commit else []
        self.alarm = on_alarm or (lambda kind, subject, summary: None)
        self.lanes = {stream: Lane(decider, stream) for stream in decider.streams()}
        self._turn = asyncio.Lock()
        self._loader = Loader(decider.service, journal, objects, self.alarm)
        self._leading = Leading(self, journal, clock, service=decider.service, holder=holder)
        self._waiting: list[_Ask] = []
        self._arrived = asyncio.Event()
        self._faults: OrderedDict[str, int] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the streams, take what is free to lead, begin to decide."""
        await self._leading.turn()
        self._tasks = [
            asyncio.create_task(self._run(), name="host.rounds"),
            asyncio.create_task(self._leading.run(), name="host.leading"),
            asyncio.create_task(self._leading.run_due(), name="host.due"),
        ]

    async def stop(self) -> None:
        """Answer what is in hand, release the leases, stop."""
        self._is_stopping = True
        self._arrived.set()
        if self._tasks:
            rounds, *others = self._tasks
            for task in others:
                task.cancel()
            await asyncio.gather(rounds, *others, return_exceptions=True)
            self._tasks = []
        await self._loader.finish()
        await self._leading.release()

    def add_listener(self, listener: Commits) -> None:
        """Call ``listener`` with each entry that this host appends from now on."""
        self._listeners.append(listener)

    # -- what others ask ----------------------------------------------------------------------

    def state(self, stream: str) -> Any:
        """Return the committed state of ``stream``: read it at once, never change or keep it."""
        return self.lanes[stream].state

    def position(self, stream: str) -> int:
        """Return the seq of the last entry that ``state`` holds."""
        return self.lanes[stream].seq

    def epoch(self, stream: str) -> int:
        """Return the epoch of the stream's present leader."""
        return self.lanes[stream].epoch

    def is_leader(self, stream: str) -> bool:
        """Tell whether this process leads ``stream`` and renewed its lease recently enough."""
        lane = self.lanes[stream]
        return lane.is_led and lane.is_loaded and self._leading.is_fresh()

    def is_fresh(self) -> bool:
        """Tell whether this process renewed its lease recently enough, leading or not."""
        return self._leading.is_fresh()

    @property
    def is_alive(self) -> bool:
        """Whether the host's loops run, as they do from its start to its stop."""
        return not any(task.done() for task in self._tasks)

    def led_streams(self) -> list[str]:
        """Return the streams for which ``is_leader`` holds."""
        return [stream for stream in self.lanes if self.is_leader(stream)]

    async def wait_position(self, stream: str, seq: int, timeout_ms: int) -> bool:
        """Wait until ``state`` holds ``seq``; False when ``timeout_ms`` passed before."""
        deadline = self._clock.monotonic() + timeout_ms
        while self.lanes[stream].seq < seq:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return False
            await self._clock.sleep(min(20, left))
        return True

    async def handle(self, facts: Sequence[Fact]) -> list[Outcome]:
        """Decide ``facts``; return an outcome for each, the worst over its streams.

        Never raises for a fact: what went wrong is in its outcome. ``again`` carries a reason
        that begins with ``unavailable:``, ``not leader:`` or tells our own fault.
        """
        asks = [self._ask(fact, is_request=False) for fact in facts]
        await asyncio.gather(*(ask.answered for ask in asks))
        return [_answer(ask) for ask in asks]

    async def submit(self, fact: Fact) -> Outcome:
        """Decide one request and return after the append; it always leaves an entry.

        A known id gives kind ``known`` with the events of its first decision. Raises
        ``NotLeader``, ``StoreUnavailable`` or ``DecisionFailed``; a refusal is an outcome.
        """
        ask = self._ask(fact, is_request=True)
        await ask.answered
        outcome = _answer(ask)
        if outcome.kind is not OutcomeKind.AGAIN:
            return outcome
        if outcome.reason.startswith(NOT_LEADER):
            raise NotLeader(outcome.reason.removeprefix(NOT_LEADER))
        if outcome.reason.startswith(UNAVAILABLE):
            raise StoreUnavailable(outcome.reason.removeprefix(UNAVAILABLE))
        raise DecisionFailed(outcome.reason)

    def _ask(self, fact: Fact, *, is_request: bool) -> _Ask:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ask = _Ask([], answered)
        try:
            streams = list(dict.fromkeys(self._decider.route(fact)))
            ask.pieces = [Piece(fact, self.lanes[s].stream, is_request) for s in streams]
        except Exception as error:
            reason = f"the fact could not be routed: {error!r}"
            ask.early = self._count_fault(Outcome(OutcomeKind.AGAIN, reason=reason), fact.id)
        if ask.pieces and self._is_stopping:
            ask.early = Outcome(OutcomeKind.AGAIN, reason=NOT_LEADER + "this process stops")
        if ask.early is not None or not ask.pieces:
            answered.set_result(None)
        else:
            self._waiting.append(ask)
            self._arrived.set()
        return ask

    # -- rounds -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._waiting or not self._is_stopping:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            asks = self._waiting[: limits.BATCH_FACTS_MAX]
            del self._waiting[: limits.BATCH_FACTS_MAX]
            pieces = [piece for ask in asks for piece in ask.pieces]
            try:
                await self._round(pieces)
            except Exception as error:
                self.alarm("host_failed", self._decider.service, repr(error))
                self._give_up(pieces, UNAVAILABLE + repr(error))
            for ask in asks:
                if not ask.answered.done():
                    ask.answered.set_result(None)

    def _give_up(self, pieces: Iterable[Piece], reason: str) -> None:
        """Answer what has no outcome, and distrust the state of its streams."""
        for piece in pieces:
            if piece.outcome is None:
                self.lanes[piece.stream].distrust()
                piece.settle(OutcomeKind.AGAIN, reason)

    async def _round(self, pieces: list[Piece]) -> None:
        async with self._turn:
            for _ in range(_ROUNDS_PER_FACT_MAX + len(pieces)):
                open_pieces = [piece for piece in pieces if piece.outcome is None]
                if not open_pieces:
                    break
                await self._step(open_pieces)
            else:
                self._give_up(pieces, UNAVAILABLE + "the entry did not settle")
        for piece in pieces:
            if piece.outcome is not None and piece.is_fault:
                piece.outcome = self._count_fault(piece.outcome, piece.fact.id)
        self._leading.wake()

    async def _step(self, pieces: list[Piece]) -> None:
        """Decide as much as fits into one entry per stream, append, settle."""
        drafts: list[tuple[Lane, Draft, Entry]] = []
        by_stream: dict[str, list[Piece]] = {}
        for piece in pieces:
            by_stream.setdefault(piece.stream, []).append(piece)
        now = self._clock.now()  # one time for the decisions and their entry: replay sees it too
        for stream, mine in by_stream.items():
            lane = self.lanes[stream]
            draft = await self._draft(lane, mine, now)
            if draft is None:
                continue
            if draft.causes:
                entry = entry_of(
                    draft,
                    lane,
                    at=now,
                    holder=self._leading.holder,
                    policy_version=self._policy_version,
                )
                drafts.append((lane, draft, entry))
            else:
                for piece in draft.pieces:
                    piece.settle(OutcomeKind.DECIDED)
        if drafts:
            await self._append(drafts)

    async def _draft(self, lane: Lane, pieces: list[Piece], now: int) -> Draft | None:
        """Return the next draft of a lane, or None when nothing of it can go on now."""
        try:
            if not lane.is_loaded:
                await self._loader.load(lane)
                self._leading.judge(lane)
            if not lane.is_led:
                for piece in pieces:
                    reason = f"{NOT_LEADER}{lane.stream} is led by {lane.holder or 'nobody'}"
                    piece.settle(OutcomeKind.AGAIN, reason)
                return None
            fresh = await self._drop_known(lane, pieces)
            return lane.draft(fresh, now=now, policy=self._policy)[0]
        except LaneBroken:
            lane.distrust()
            return None
        except StoreUnavailable as error:
            lane.distrust()
            for piece in pieces:
                if piece.outcome is None:
                    piece.settle(OutcomeKind.AGAIN, UNAVAILABLE + str(error))
            return None

    async def _drop_known(self, lane: Lane, pieces: list[Piece]) -> list[Piece]:
        """Settle what is recorded; return the first piece of each new id."""
        first: dict[str, Piece] = {}
        for piece in pieces:
            first.setdefault(piece.fact.id, piece)
        known = await self._journal.causes(lane.stream, list(first))
        for piece in pieces:
            seq = known.get(piece.fact.id)
            if seq is None:
                continue
            if piece.is_request:
                entry = await commit.entry_at(self._journal, lane.stream, seq)
                piece.events = list(events_of_cause(entry, piece.fact.id)) if entry else []
            piece.settle(OutcomeKind.KNOWN, seq=seq)
        # A repeated id waits for the first one's entry; the next step finds it recorded. A
        # repeated one that left no entry is decided again, which changes nothing.
        return [piece for key, piece in first.items() if key not in known]

    async def _append(self, drafts: list[tuple[Lane, Draft, Entry]]) -> None:
        verdicts = await commit.append(self._journal, [entry for _, _, entry in drafts])
        for (lane, draft, entry), (verdict, answer) in zip(drafts, verdicts, strict=True):
            if verdict is Verdict.COMMITTED:
                self._committed(lane, entry)
                for piece in draft.pieces:
                    is_recorded = piece.fact.id in entry.causes
                    piece.settle(OutcomeKind.DECIDED, seq=entry.seq if is_recorded else None)
                continue
            lane.distrust()
            if verdict is Verdict.UNDECIDED:
                # A commit may still arrive late; then the repeated facts are known by their ids.
                for piece in draft.pieces:
                    piece.settle(OutcomeKind.AGAIN, UNAVAILABLE + f"append: {answer.status}")

    def _committed(self, lane: Lane, entry: Entry) -> None:
        lane.committed(entry)
        for listener in self._listeners:
            try:
                listener(entry)
            except Exception as error:
                self.alarm("listener_failed", lane.stream, repr(error))
        if lane.seq - lane.snapshot_seq >= limits.SNAPSHOT_EVERY_ENTRIES:
            self._loader.snapshot(lane)

    def _count_fault(self, outcome: Outcome, fact_id: str) -> Outcome:
        if outcome.kind is not OutcomeKind.AGAIN:
            return outcome
        count = self._faults.pop(fact_id, 0) + 1
        self._faults[fact_id] = count
        if len(self._faults) > _FAULTS_REMEMBERED:
            self._faults.popitem(last=False)
        if count < limits.DELIVERIES_OF_OUR_FAULT_MAX:
            return outcome
        del self._faults[fact_id]
        self.alarm("fact_gave_up", fact_id, outcome.reason)
        return Outcome(OutcomeKind.REFUSED, outcome.stream, reason=outcome.reason)

    # -- for leading.py -----------------------------------------------------------------------

    @property
    def turn(self) -> asyncio.Lock:
        """Held while a lane is read, decided on or taken over."""
        return self._turn

    async def hand_in(self, fact: Fact, stream: str) -> None:
        """Have ``stream`` decide a fact of the host's own; what goes wrong comes again."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Ask([Piece(fact, stream, is_request=False)], answered))
        self._arrived.set()
        await answered

    async def load(self, lane: Lane) -> None:
        """Bring ``lane`` up to the journal's end. Raises ``StoreUnavailable``."""
        await self._loader.load(lane)

    def took(self, lane: Lane, entry: Entry) -> None:
        """Note the entry by which this process took ``lane`` over."""
        self._committed(lane, entry)
        lane.is_led = True


def _answer(ask: _Ask) -> Outcome:
    if ask.early is not None:
        return ask.early
    outcomes = [piece.outcome for piece in ask.pieces if piece.outcome is not None]
    if not outcomes:
        return Outcome(OutcomeKind.DECIDED)
    return max(outcomes, key=lambda outcome: _WORST.index(outcome.kind))
