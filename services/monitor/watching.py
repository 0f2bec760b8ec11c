"""The watcher's work: samples go to the run they belong to, observations to the decider.

Judges nothing by itself (``domain/watch.py`` does) and reads no wire (``ingest.py`` does). Only
partitions that this process leads are watched.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.events import Fact
from lineshaft.contracts.subjects import RunAddress
from lineshaft.contracts.telemetry import LogLine
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.observability import logger
from lineshaft.runtime.service import Service
from services.monitor.domain.diagnosis import last_words
from services.monitor.domain.observations import Sample, Tick
from services.monitor.domain.observing import observed, plain
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import stream_of
from services.monitor.domain.signatures import Signatures, distinct
from services.monitor.domain.state import WatchState
from services.monitor.runs import Run, Runs, run_fact

TICK_MS = 1_000
ADOPT_EVERY_TICKS = 30
RETRY_MS = 500
AROUND_MS = 60_000
AROUND_HITS_MAX = 8
OUTBOX_MAX = 10_000
LINES_LOOKED_AT_MAX = 60
_ENDS = frozenset({"job.succeeded", "job.failed", "job.cancelled", "job.suspended"})
_ENDS_ATTEMPT = frozenset({"run.stopped", "run.launch_failed", "job.retrying"})


class Watching:
    """All watched runs of this process, and the way from them to the decider."""

    def __init__(self, service: Service, policy: Policy, signatures: Signatures) -> None:
        self._service = service
        self._policy = policy
        self._log = logger("monitor.watching")
        self._outbox: deque[Fact] = deque()
        self._has_news = asyncio.Event()
        self.signatures = signatures
        self.runs = Runs(signatures, policy)
        self.canary_at: int | None = None
        self.ignored: dict[str, int] = {}

    # -- what comes in ------------------------------------------------------------------------

    def feed(self, address: RunAddress, sample: Sample) -> Run | None:
        """Give a sample to its run; None when the run is stale, unknown here, or one too many."""
        run = self.run_of(address)
        if run is None:
            return None
        now = self._service.clock.now()
        try:
            made = run.take(sample, now, self._policy)
        except Exception as error:
            self._failed(address, error)
            return None
        for seen in made:
            self._tell(observed(seen, address.job, address.attempt, run.place))
        return run

    def run_of(self, address: RunAddress) -> Run | None:
        """Return the run that an address names, if it is the job's present attempt."""
        stream = stream_of(address.job)
        if not self._service.host.is_leader(stream):
            self._ignore("not_leader")
            return None
        state: WatchState = self._service.host.state(stream)
        known = state.jobs.get(address.job)
        is_stale = known is not None and address.attempt < known.attempt
        if is_stale or address.job in state.ended or address.attempt > limits.ATTEMPTS_MAX:
            self._ignore("stale")
            return None
        place = (address.pool, address.team)
        run = self.runs.open(address.job, address.attempt, place, known)
        if run is None or not run.admits(address.node):
            self._ignore("too_many")
            return None
        return run

    async def look(self, fact: Fact) -> Fact:
        """Let the watchers see a fact before it is decided; add what was seen around an exit."""
        if fact.kind.startswith("run.") and fact.attempt is not None:
            address = RunAddress(fact.subject, fact.attempt, "-", fact.pool, fact.team)
            run = self.feed(address, run_fact(fact)) or self.runs.get(fact.subject, fact.attempt)
            if fact.kind == "run.started" and run is not None:
                run.started[str(fact.data["node"])] = fact.data
            if fact.kind == "run.rank_exited":
                return fact.with_data(observed=self._around(fact, run))
        self._note_end(fact)
        return fact

    def _note_end(self, fact: Fact) -> None:
        now = self._service.clock.now()
        for attempt, run in self.runs.of_job(fact.subject):
            is_over = fact.kind in _ENDS or (
                fact.kind in _ENDS_ATTEMPT and fact.attempt is not None and attempt <= fact.attempt
            )
            if is_over and run.ended_at is None:
                run.ended_at = now

    def _around(self, fact: Fact, run: Run | None) -> dict[str, Any]:
        """Return what bears on a rank's end: matches in its last words, in the log, memory."""
        data = fact.data
        error = data.get("error")
        error = error if isinstance(error, Mapping) else {}
        texts = [*_texts(data["last_lines"]), *_error_texts(error)]
        lines = [LogLine(fact.at, int(data["rank"]), "stderr", text) for text in texts]
        node = str(data["node"])
        hits = self.signatures.hits(node, lines)
        said = [f"{error['kind']}: {error['message']}"] if error.get("kind") else []
        told: dict[str, Any] = {
            "hits": [hit.told() for hit in hits[:AROUND_HITS_MAX]],
            "last_line": last_words([*texts, *said]),
            "class": error.get("class"),
            "agent_class": data.get("class"),
            "kind": error.get("kind"),
            "around": [],
            "host_memory": None,
        }
        if run is not None:
            lately = [hit for hit in run.watch.hits if fact.at - hit.at <= AROUND_MS]
            some = distinct(lately, self._policy.same_signature_ms)[-AROUND_HITS_MAX:]
            told["around"] = [hit.told() for hit in some]
            told["host_memory"] = _memory_share(run.watch.samples.get(node, {}))
        return dict(plain(told))

    def _failed(self, address: RunAddress, error: Exception) -> None:
        """A fault of ours in one run's rules: begin that run anew, and spare the others."""
        self._log.exception("rules_failed", job=address.job, attempt=address.attempt)
        self._service.audit("rules_failed", address.job, "open", repr(error)[:500])
        self.runs.by_key.pop((address.job, address.attempt), None)
        self._ignore("failed")

    def _ignore(self, why: str) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1

    # -- time ---------------------------------------------------------------------------------

    async def tick_forever(self) -> None:
        """Let time pass for every living run, once a second."""
        turn = 0
        while True:
            if turn % ADOPT_EVERY_TICKS == 0:
                self.adopt()
            await self._service.clock.sleep(TICK_MS)
            self.tick()
            turn += 1

    def tick(self) -> None:
        """Let time pass once; silence is judged only while our own canary comes through."""
        now = self._service.clock.now()
        is_proved = self.canary_at is not None and now - self.canary_at <= self._policy.own_path_ms
        for (job, attempt), run in self.runs.living():
            address = RunAddress(job, attempt, "-", *run.place)
            self.feed(address, Tick(is_proved))

    def adopt(self) -> None:
        """Watch what the journal says is running: after a start, and after a takeover."""
        for stream in self._service.host.led_streams():
            state: WatchState = self._service.host.state(stream)
            for job in state.jobs.values():
                if job.attempt > 0 and not job.is_over:
                    self.runs.open(job.job, job.attempt, (job.pool, job.team), job)

    # -- what goes out ------------------------------------------------------------------------

    def _tell(self, fact: Fact) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self._ignore("outbox_full")
            return
        self._outbox.append(fact)
        self._has_news.set()

    async def report_forever(self) -> None:
        """Hand observations to the decider, in order, again and again until it took them."""
        while True:
            self._has_news.clear()
            if not self._outbox:
                await self._has_news.wait()
                continue
            batch = [self._outbox[i] for i in range(min(len(self._outbox), 64))]
            if await self._decided(batch):
                for _ in batch:
                    self._outbox.popleft()
            else:
                await self._service.clock.sleep(RETRY_MS)

    async def _decided(self, batch: Sequence[Fact]) -> bool:
        outcomes = await self._service.host.handle(batch)
        for fact, outcome in zip(batch, outcomes, strict=True):
            if outcome.kind is OutcomeKind.REFUSED:
                self._log.error("observation_refused", id=fact.id, reason=outcome.reason)
        # Repeating a batch repeats nothing: what was taken is known by its id. What another
        # process leads now is that process's to observe.
        return not any(
            outcome.kind is OutcomeKind.AGAIN
            and self._service.host.is_leader(stream_of(fact.subject))
            for fact, outcome in zip(batch, outcomes, strict=True)
        )


def _texts(lines: Sequence[Any]) -> list[str]:
    """Return the texts of last lines, whatever form a publisher gave them."""
    made = []
    for line in lines[-LINES_LOOKED_AT_MAX:]:
        if isinstance(line, Mapping):
            made.append(str(line.get("text", "")))
        elif isinstance(line, list | tuple):
            made.append(str(line[-1]) if line else "")
        else:
            made.append(str(line))
    return made


def _error_texts(error: Mapping[str, Any]) -> list[str]:
    traceback = str(error.get("traceback") or "").splitlines()[-LINES_LOOKED_AT_MAX:]
    message = f"{error.get('kind') or ''}: {error.get('message') or ''}".strip(": ")
    return [*traceback, *([message] if message else [])]


def _memory_share(sample: Mapping[str, float]) -> float | None:
    used, total = sample.get("host_memory_used_bytes"), sample.get("host_memory_total_bytes")
    if used is None or not total or total <= 0:
        return None
    return round(used / total, 4)
