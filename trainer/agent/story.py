"""The story of one node of a run, from its order to its exit code.

Look for a newer attempt, check the node, prepare, start the ranks, supervise them, and end: by
completion, failure or stop. What each step does is in its own module; here is only the order of
things. Records are created before anyone is told.
"""

import asyncio
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineshaft.contracts import manifest, records
from lineshaft.contracts.failures import (
    EXIT_COMPLETED,
    EXIT_FENCED,
    EXIT_OF_CLASS,
    EXIT_STOPPED,
    FailureClass,
    StopIntent,
)
from lineshaft.ports import Bus, Clock, Objects, StoreUnavailable
from trainer.agent import procfs, starting
from trainer.agent.answers import Answers
from trainer.agent.desk import Desk
from trainer.agent.ending import ask_ranks, end_all
from trainer.agent.keeping import NotRecorded, Records, ended_key, started_key
from trainer.agent.logs import AGENT_RANK, Logs
from trainer.agent.order import Order
from trainer.agent.progress import Progress, RankEnd, StopOrder
from trainer.agent.relay import Relay
from trainer.agent.stacks import HangWatch, Stacks
from trainer.agent.staging import (
    Artifact,
    BadArtifact,
    NotStaged,
    Staging,
    described,
    fill,
    loose,
)
from trainer.agent.stops import Stops
from trainer.agent.watching import CLASS_OF_EXIT, LOOKS_UNTIL_VANISHED, RankWatch, describe

_LOOK_S = 0.1
_CLOSE_S = 8.0
_STARTERS_END_S = 10.0
_FENCE_LOOK_MS = 500
_FENCE_PATIENCE_MS = 60_000
_PEERS_LOOK_MS = 80
_PEERS_LOOKS = LOOKS_UNTIL_VANISHED + 1
_KILL_MARGIN_MS = 2_000
_REASON_CHARS_MAX = 400
_INFRASTRUCTURE = FailureClass.INFRASTRUCTURE


@dataclass(frozen=True, slots=True)
class Ending:
    """How this node's part ended. ``outcome``: completed, failed, stopped or fenced."""

    outcome: str
    failure: FailureClass | None = None
    reason: str = ""

    @property
    def exit_code(self) -> int:
        """The code that a supervisor sees."""
        if self.failure is not None:
            return EXIT_OF_CLASS[self.failure]
        codes = {"completed": EXIT_COMPLETED, "stopped": EXIT_STOPPED}
        return codes.get(self.outcome, EXIT_FENCED)


class Agent:
    """Carries out one order on one node."""

    def __init__(self, order: Order, bus: Bus, objects: Objects, clock: Clock) -> None:
        self.order = order
        self.clock = clock
        self.progress = Progress.of(order.ranks)
        self.records = Records(order, objects, bus, clock)
        self.relay = Relay(order, self.progress, bus, clock)
        self.logs = Logs(order, objects, bus, clock)
        self.staging = Staging(order, objects, clock)
        self.stacks = Stacks(order, self.progress, objects, clock)
        self.hang = HangWatch(order, self.progress, self.stacks, clock)
        self.ranks = RankWatch(order, self.progress, clock)
        answers = Answers(order, self.progress, self.records)
        self.desk = Desk(self.progress, self.relay, answers.by_question(), now=clock.now)
        self.stops = Stops(order, self.progress, self.desk, clock)
        self._starters: list[asyncio.subprocess.Process] = []
        self._started: asyncio.Task[None] | None = None
        self._node: dict[str, Any] = {}
        self._warnings: list[str] = []

    async def run(self) -> int:
        """Carry out the order; return the agent's exit code."""
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.relay.run,
            self.relay.beat_forever,
            self.relay.devices.run,
            self.logs.run,
            self.logs.run_live,
            self.hang.run,
            self.stops.run,
        ]
        behind = [asyncio.create_task(work()) for work in works]
        try:
            ending = await self._live()
        except Exception as error:  # whatever it is, the ranks end and the run is told of
            traceback.print_exc()
            ending = Ending("failed", _INFRASTRUCTURE, f"the agent: {error!r}")
        try:
            return await self._end(ending)
        finally:
            for task in behind:
                task.cancel()
            await asyncio.gather(*behind, return_exceptions=True)
            await self.desk.close()

    # From the order to the ranks.

    async def _live(self) -> Ending:
        if await self._is_fenced():
            return Ending("fenced", reason="a newer attempt owns this job")
        self.order.ranks_folder.mkdir(parents=True, exist_ok=True)
        self._node = await asyncio.to_thread(starting.check_node, self.order)
        if self._node["faults"]:
            return Ending("failed", _INFRASTRUCTURE, "; ".join(self._node["faults"]))
        socket_path = await self.desk.open(self.order.node_folder)
        env = starting.environment(self.order, socket_path)
        self.order.output_folder.mkdir(parents=True, exist_ok=True)
        Path(env["LINESHAFT_CHECKPOINT_DIR"]).mkdir(parents=True, exist_ok=True)
        ending = None if self.order.is_script else await self._prepare(env)
        if ending is not None:
            return ending
        if self.progress.stop is not None:
            return self._stopped("before its ranks were started")
        await self._start(env)
        return await self._supervise()

    async def _is_fenced(self) -> bool:
        deadline = self.clock.monotonic() + _FENCE_PATIENCE_MS
        while True:
            try:
                return await self.records.is_fenced()
            except (StoreUnavailable, OSError):
                if self.clock.monotonic() > deadline:
                    raise NotRecorded("the store of fences does not answer") from None
            await self.clock.sleep(_FENCE_LOOK_MS)

    async def _prepare(self, env: dict[str, str]) -> Ending | None:
        """Run the preparation of data and model; return an ending when the run ends with it."""
        self.progress.phase = "preparing"
        output = self.order.node_folder / "prepare"
        for stream in ("out", "err"):
            self.logs.follow(output.with_suffix(f".{stream}"), AGENT_RANK, f"prepare {stream}")
        command = [sys.executable, "-u", "-m", "trainer.prepare", "--order", str(self.order.path)]
        child = await starting.start(command, env, output=output, cwd=self.order.node_folder)
        stop = asyncio.create_task(self.stops.came.wait())
        done = asyncio.create_task(child.wait())
        await asyncio.wait((stop, done), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not done.done():
            await end_all(self.order, self.clock)
            await done
            return self._stopped("while it prepared")
        code = await done
        if code == 0:
            return None
        self.logs.look()
        failure = CLASS_OF_EXIT.get(code, _INFRASTRUCTURE)
        last = " | ".join(self.logs.last_lines(AGENT_RANK)[-3:])
        return Ending("failed", failure, f"preparation ended with exit code {code}: {last}")

    async def _start(self, env: dict[str, str]) -> None:
        self.progress.phase = "starting"
        folder = self.order.ranks_folder
        for rank in self.order.ranks:
            for stream in ("out", "err"):
                self.logs.follow(folder / f"rank-{rank}.{stream}", rank, stream)
        for number, (command, its_env) in enumerate(starting.commands(self.order, env)):
            output = self.order.node_folder / f"launcher-{number}"
            for stream in ("out", "err"):
                self.logs.follow(Path(f"{output}.{stream}"), AGENT_RANK, f"launcher {stream}")
            self._starters.append(
                await starting.start(command, its_env, output=output, cwd=self.order.node_folder)
            )

    # While the ranks run.

    def _look(self) -> None:
        are_gone = all(child.returncode is not None for child in self._starters)
        self.ranks.look(are_starters_gone=are_gone)

    async def _wait_a_moment(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self.desk.ended.wait()
        self.desk.ended.clear()

    async def _supervise(self) -> Ending:
        while True:
            self._look()
            progress = self.progress
            if self._started is None and (progress.are_all_named or progress.ended):
                progress.phase = "running"
                self._started = asyncio.create_task(self._record_start())
            if progress.is_fenced:
                await end_all(self.order, self.clock, ask_ms=0)
                return Ending("fenced", reason="a newer attempt owns this job")
            if progress.stop is not None:
                return await self._stop(progress.stop)
            if progress.first_bad_end is not None:
                return await self._fail()
            if progress.have_all_ended:
                return await self._complete()
            await self._wait_a_moment()

    async def _record_start(self) -> None:
        body = {
            "node": self.order.node,
            "boot_id": procfs.boot_id(),
            "agent_pid": os.getpid(),
            "ranks": [rank.as_record() for rank in self.progress.ranks.values()],
            "check": self._node,
        }
        with contextlib.suppress(NotRecorded):  # what follows implies it
            await self.records.keep(started_key(self.order), "run.started", body)

    # Endings.

    async def _fail(self) -> Ending:
        """A rank ended badly: record it with its last words, then end the others."""
        self.progress.phase = "failing"
        for _ in range(_PEERS_LOOKS):  # as many as it takes to miss a rank without a word
            await self.clock.sleep(_PEERS_LOOK_MS)
            self._look()
        await self.logs.keep_now()
        bad = self.progress.bad_ends
        kept = [self._record_exit(end, is_root=end is bad[0]) for end in bad]
        self._kill_starters()
        await asyncio.gather(end_all(self.order, self.clock), *kept)
        self._look()
        last = self.logs.last_lines(bad[0].rank)
        return Ending("failed", self.ranks.class_of(bad[0]), describe(bad[0], last))

    async def _record_exit(self, end: RankEnd, *, is_root: bool) -> None:
        body = {
            "node": self.order.node,
            "rank": end.rank,
            "exit_code": end.exit_code,
            "signal": end.signal,
            "last_lines": self.logs.last_lines(end.rank),
            "error": self.ranks.error_of(end.rank),
            "class": self.ranks.class_of(end).value,
            "root": is_root,
            "last_step": self.progress.ranks[end.rank].last_step,
            "ended_at": end.at,
        }
        key = records.rank_exit(self.order.job, self.order.attempt, end.rank)
        await self.records.keep(key, "run.rank_exited", body)

    async def _stop(self, stop: StopOrder) -> Ending:
        """Let the ranks save and end until the deadline, then end what is left."""
        self.progress.phase = "stopping"
        if stop.intent == StopIntent.FAULT and self.hang.is_hanging:
            await self.stacks.take(f"before a stop: {stop.reason}")
        if self.order.is_script:
            ask_ranks(self.progress.ranks.values())
        while not self.progress.have_all_ended:
            standing = self.progress.stop or stop
            if self.clock.now() >= standing.deadline_ms - _KILL_MARGIN_MS:
                break
            await self._wait_a_moment()
            self._look()
        is_whole = self.progress.have_all_ended and self.progress.first_bad_end is None
        is_cancelled = (self.progress.stop or stop).intent == StopIntent.CANCEL
        if is_whole and self.progress.finished is not None and not is_cancelled:
            return await self._complete()  # whole work beats every stop but a cancel
        self._kill_starters()
        await end_all(self.order, self.clock)
        self._look()
        return self._stopped("after a save" if is_whole else "its ranks were ended")

    def _stopped(self, how: str) -> Ending:
        stop = self.progress.stop
        told = f"{stop.intent}: {stop.reason}" if stop is not None else "told to end"
        return Ending("stopped", reason=f"{told}; {how}")

    async def _complete(self) -> Ending:
        """Every local rank ended well: stage what rank 0 left, and say that the work is whole."""
        if not self.order.is_first_node:
            return Ending("completed")
        self.progress.phase = "finishing"
        try:
            artifact = await asyncio.to_thread(self._artifact)
            if await self._is_fenced():
                return Ending("fenced", reason="a newer attempt owns this job")
            made = await self._stage(artifact) if artifact is not None else None
            await self._record_completion(made)
        except BadArtifact as error:
            return Ending("failed", FailureClass.USER_CODE, f"no version can be made: {error}")
        except (NotStaged, NotRecorded) as error:
            return Ending("failed", _INFRASTRUCTURE, f"the result could not be staged: {error}")
        return Ending("completed")

    def _artifact(self) -> Artifact | None:
        if self.progress.finished is not None:
            return described(Path(self.progress.finished.folder))
        if self.order.is_script:
            return loose(self.order.output_folder)
        raise NotStaged("the ranks ended with 0 and left no result")

    async def _stage(self, artifact: Artifact) -> dict[str, Any]:
        self.logs.look()
        made = await self.staging.stage(artifact, self.logs.whole, self._final_step)
        try:
            warning = await asyncio.to_thread(fill, self.order, artifact, made)
        except OSError as error:
            warning = f"{self.order.save_path} could not be filled: {error}"
        if warning is not None:
            self._warnings.append(warning)
            self.logs.say(warning)
        return made

    @property
    def _final_step(self) -> int:
        finished = self.progress.finished
        return max(self.progress.last_step, 0) if finished is None else finished.step

    async def _record_completion(self, made: dict[str, Any] | None) -> None:
        body = {
            "manifest": None if made is None else manifest.digest(made),
            "session": self.staging.session,
            "step": self._final_step,
            "rank": 0,
        }
        key = records.complete(self.order.job, self.order.attempt)
        await self.records.keep(key, "run.completed", body)

    async def _let_starters_end(self) -> None:
        """Wait for the launchers of ranks that ended well: a signal would make them complain."""
        ends = [asyncio.ensure_future(child.wait()) for child in self._starters]
        if ends:
            _, late = await asyncio.wait(ends, timeout=_STARTERS_END_S)
            for end in late:
                end.cancel()

    def _kill_starters(self) -> None:
        """End the launchers before their ranks: they save nothing, and print traces when asked."""
        for child in self._starters:
            if child.returncode is None:
                child.kill()

    async def _end(self, ending: Ending) -> int:
        """Leave nothing running and nothing unsaid; return the exit code."""
        if ending.outcome == "completed":
            await self._let_starters_end()
        left = await end_all(self.order, self.clock, ask_ms=500)
        self.progress.phase = "ended"
        if ending.reason:
            self.logs.say(f"{ending.outcome}: {ending.reason}")
        closing = (self.relay.flush(), self.logs.close(), self.relay.beat())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*closing)
        if self._started is not None:
            await self._started
        body = {
            "node": self.order.node,
            "outcome": ending.outcome,
            "class": None if ending.failure is None else ending.failure.value,
            "reason": ending.reason[:_REASON_CHARS_MAX],
            "exit_codes": {str(e.rank): e.exit_code for e in self.progress.ended},
            "signals": {str(e.rank): e.signal for e in self.progress.ended},
            "last_step": self.progress.last_step,
            "last_checkpoint": self.progress.last_checkpoint,
            "warnings": self._warnings,
            "left": left,
        }
        with contextlib.suppress(NotRecorded):  # the launcher then reports that we are gone
            await self.records.keep(ended_key(self.order), "run.ended", body)
        await self.records.flush(3.0)
        return ending.exit_code
