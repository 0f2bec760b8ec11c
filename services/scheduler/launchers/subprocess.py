"""The launcher for this machine: a process per node, a folder per run.

It compares what should run with what the run folders and the process table say, takes the
steps that are missing, and reports. It remembers nothing that it could not find again: after its
own restart it adopts what lives. Each pass is short; graces and starts go on between passes.
"""

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path

from lineshaft.contracts import limits, records
from lineshaft.contracts.events import Fact
from lineshaft.contracts.failures import FailureClass, StopIntent
from lineshaft.ports import Clock, ObjectExists, Objects, StoreUnavailable
from lineshaft.runtime.settings import Settings
from services.scheduler.launchers import orders, processes
from services.scheduler.launchers.claims import (
    LAUNCH_FAILED,
    LAUNCHED,
    STOPPED,
    Claim,
    Claims,
    RunFolder,
    Stop,
)
from services.scheduler.launchers.port import Desired, DesiredRun, NodeReport
from services.scheduler.launchers.sight import Sight, see
from services.scheduler.launchers.telling import Telling

_BUSY_MS = 200
_IDLE_MS = 2_000
_DELIVERY_GRACE_MS = 5_000
_AGENT_GRACE_MS = 3_000
_FAILING = "failing"
_LOG = logging.getLogger(__name__)


class SubprocessLauncher:
    """Runs agents as processes of this machine; all nodes of the settings are this machine."""

    def __init__(self, settings: Settings, objects: Objects, clock: Clock) -> None:
        self._settings = settings
        self._objects = objects
        self._clock = clock
        self._claims = Claims(settings.runs_dir)
        self._desired: dict[str, Desired] = {}
        self._children: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._telling = Telling(objects, clock)
        self._pass = asyncio.Lock()
        self._wake = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._is_busy = False

    # The port.

    async def reconcile(self, desired: Desired) -> None:
        """Take one step towards ``desired``; the rest follows in a task of the launcher's own."""
        known = self._desired.get(desired.pool)
        if known is not None and desired.epoch < known.epoch:
            return
        self._desired[desired.pool] = desired
        if self._work is None:
            self._work = asyncio.create_task(self._go_on())
        await self._pass_once()
        self._wake.set()

    async def inventory(self) -> Sequence[NodeReport]:
        """Return the nodes of the settings; a machine that answers is ready."""
        return [
            NodeReport(node.name, node.gpu_type, node.slots, node.labels, pool=self._settings.pool)
            for node in self._settings.nodes
        ]

    def facts(self) -> AsyncIterator[Fact]:
        """Yield the facts to report, for ever; one reader."""
        return self._telling.facts()

    async def aclose(self, *, leave_running: bool) -> None:
        """Stop working; without ``leave_running`` ask every run to save and end, then kill."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if leave_running:
            return
        now, reason = self._clock.now(), "the platform is going down"
        # A standby that never led has nothing of its own to stop.
        ours = [(f, c) for f, c in self._claims.all() if c.pool in self._desired]
        living = [(f, c) for f, c in ours if not f.is_over]
        stops = [Stop(StopIntent.MIGRATE, reason, now + c.grace_ms) for _, c in living]
        while any(not folder.is_over for folder, _ in living):
            for (folder, claim), stop in zip(living, stops, strict=True):
                if not folder.is_over:
                    await self._guarded(claim.name, self._bring_down(folder, claim, stop))
            await self._clock.sleep(_BUSY_MS)
            if self._clock.now() > max(s.deadline_ms for s in stops) + 4 * _AGENT_GRACE_MS:
                break

    # Passes.

    async def _go_on(self) -> None:
        while True:
            wait_s = (_BUSY_MS if self._is_busy else _IDLE_MS) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            await self._clock.sleep(_BUSY_MS)
            await self._pass_once()

    async def _pass_once(self) -> None:
        async with self._pass:
            self._is_busy = False
            wanted = {(r.job, r.attempt) for d in self._desired.values() for r in d.runs}
            for desired in list(self._desired.values()):
                for run in desired.runs:
                    if desired.is_current():
                        await self._guarded(run.job, self._step(run, desired))
            for folder, claim in await asyncio.to_thread(lambda: list(self._claims.all())):
                led = self._desired.get(claim.pool)
                is_unwanted = (claim.job, claim.attempt) not in wanted
                is_ours = is_unwanted and led is not None and led.is_current()
                if is_ours and not folder.is_over:
                    stop = Stop(StopIntent.FAULT, "this run is not wanted", self._clock.now())
                    await self._guarded(claim.name, self._bring_down(folder, claim, stop))
                elif is_ours:
                    await asyncio.to_thread(self._forget, folder, claim)

    async def _guarded(self, name: str, step: Awaitable[None]) -> None:
        """Take a step; what the store or the disk refuses is taken again at the next pass."""
        try:
            await step
        except (StoreUnavailable, OSError) as error:
            self._is_busy = True
            _LOG.warning("%s: a step was put off: %s", name, error)

    def _forget(self, folder: RunFolder, claim: Claim) -> None:
        """Delete what is over and older than any order for it can be."""
        age_s = (self._clock.now() - max(claim.not_after, claim.made_at)) / 1000
        if age_s > limits.CLAIM_TTL_S:
            folder.remove()

    async def _step(self, run: DesiredRun, desired: Desired) -> None:
        folder = self._claims.find(run.job, run.attempt)
        if folder is None:
            folder = await self._claim(run, desired)
        claim = folder.claim() if folder is not None else None
        if folder is None or claim is None:
            return
        if folder.is_over:
            await self._telling.restate(claim)
            self._tell_marks(folder, claim)
            return
        self._is_busy = True
        if run.intent is None:
            await self._keep_up(folder, claim, run, desired)
        else:
            now = self._clock.now()
            grace = max(run.stop_at + run.grace_ms, now + min(run.grace_ms, _DELIVERY_GRACE_MS))
            await self._bring_down(folder, claim, Stop(run.intent, run.stop_reason, grace))
        await self._telling.restate(claim)
        self._tell_marks(folder, claim)

    # Coming up.

    async def _claim(self, run: DesiredRun, desired: Desired) -> RunFolder | None:
        """Claim a run that does not exist yet, or bury it at once when it must not begin."""
        claim = self._new_claim(run, desired.pool)
        if run.intent is not None:
            reason = f"{run.stop_reason}; it never started"
            return self._claims.make(
                claim, [(STOPPED, {"intent": run.intent.value, "reason": reason})]
            )
        refusal = await self._refusal(run)
        if refusal is not None:
            failure, reason, evidence = refusal
            told = {"class": failure.value, "reason": reason, "evidence": evidence}
            return self._claims.make(claim, [(LAUNCH_FAILED, told)])
        return await asyncio.to_thread(self._claims.make, claim)

    def _new_claim(self, run: DesiredRun, pool: str) -> Claim:
        return Claim(
            job=run.job,
            attempt=run.attempt,
            pool=pool,
            team=str(run.order.get("team") or "-"),
            nodes=tuple(share.node for share in run.nodes),
            not_after=run.not_after,
            made_at=self._clock.now(),
            grace_ms=run.grace_ms,
            master_port=orders.free_port(),
        )

    async def _refusal(self, run: DesiredRun) -> tuple[FailureClass, str, dict[str, object]] | None:
        if self._clock.now() >= run.not_after:
            reason = "the time in which it could be started had passed"
            return FailureClass.INFRASTRUCTURE, reason, {"not_after": run.not_after}
        faults = await asyncio.to_thread(orders.preflight, run.order, self._settings)
        if faults:
            return FailureClass.CONFIG, "; ".join(faults), {"faults": faults}
        fence = records.fence(run.job, run.attempt)
        with contextlib.suppress(ObjectExists):
            await self._objects.put(fence, b"{}")
        async for newer in self._objects.list(records.fences(run.job), after=fence):
            reason = "a newer attempt owns the job"
            return FailureClass.INFRASTRUCTURE, reason, {"fence": newer.key}
        return None

    async def _keep_up(
        self, folder: RunFolder, claim: Claim, run: DesiredRun, desired: Desired
    ) -> None:
        sight = await self._see(folder, claim)
        failing = folder.marked(_FAILING)
        if failing is not None:
            stop = Stop(StopIntent.FAULT, str(failing[1]["reason"]), self._clock.now())
            await self._bring_down(folder, claim, stop)
        elif sight.stillborn:
            self._fail(folder, sight.stillborn[0], "its agent ended before it began")
        elif sight.unstarted and self._clock.now() >= run.not_after:
            self._fail(folder, sight.unstarted[0], "it could not be started in time")
        elif sight.unstarted:
            await asyncio.to_thread(self._start, folder, claim, run, desired.epoch, sight)
        elif sight.vanished or not sight.is_alive:
            await self._settle_gone(folder, claim, sight)

    async def _see(self, folder: RunFolder, claim: Claim) -> Sight:
        running = {
            node: self._children[claim.name, node].poll() is None
            for node in claim.nodes
            if (claim.name, node) in self._children
        }
        return await asyncio.to_thread(see, folder, claim, running)

    def _start(
        self, folder: RunFolder, claim: Claim, run: DesiredRun, epoch: int, sight: Sight
    ) -> None:
        token_file = self._token_file()
        made = orders.per_node(
            run, claim, epoch=epoch, settings=self._settings, token_file=token_file
        )
        for node in sight.unstarted:
            at = folder.node(node)
            at.write_order(made[node])
            self._children[claim.name, node] = processes.start_agent(at.path)
        folder.mark(LAUNCHED, {}, self._clock.now())

    def _token_file(self) -> Path | None:
        """Return the file that holds the bus's token, made for agents if there is none."""
        if self._settings.bus_token_file is not None:
            return self._settings.bus_token_file
        token = self._settings.token()
        if token is None:
            return None
        path = self._settings.runs_dir / ".bus-token"
        path.touch(mode=0o600)
        path.write_text(token, encoding="utf-8")
        return path

    def _fail(self, folder: RunFolder, node: str, reason: str) -> None:
        evidence = {"node": node, "last_lines": folder.node(node).last_words()}
        told = {"class": FailureClass.INFRASTRUCTURE.value, "reason": f"{reason} on {node}"}
        folder.mark(_FAILING, {**told, "evidence": evidence}, self._clock.now())

    async def _settle_gone(self, folder: RunFolder, claim: Claim, sight: Sight) -> None:
        """An agent has gone that nobody stopped: bury the run, or bring the rest of it down."""
        if not sight.is_alive:
            await self._conclude(folder, claim, sight, None)
            return
        for node in sight.vanished:
            processes.kill(sight.left[node])
            if await self._objects.stat(records.ended(claim.job, claim.attempt, node)) is None:
                reason = f"the agent on {node} vanished"
                stop = Stop(StopIntent.FAULT, reason, self._clock.now() + claim.grace_ms)
                await self._bring_down(folder, claim, stop, is_ours=True)
                return

    # Coming down.

    async def _bring_down(
        self, folder: RunFolder, claim: Claim, stop: Stop, *, is_ours: bool = False
    ) -> None:
        """Tell the agents, wait for the grace, kill; conclude once nothing lives.

        ``is_ours``: the stop is the launcher's own, because an agent vanished.
        """
        self._is_busy = True
        for node in claim.nodes:
            at = folder.node(node)
            if at.tell(stop) and at.is_held and at.agent is not None:
                at.agent.send(processes.SIGTERM)
        sight = await self._see(folder, claim)
        if not sight.is_alive:
            await self._conclude(folder, claim, sight, None if is_ours else stop)
            return
        told = [each for node in claim.nodes if (each := folder.node(node).stop()) is not None]
        overdue = self._clock.now() - max(each.deadline_ms for each in told)
        if overdue >= 0:
            await asyncio.to_thread(self._kill, folder, claim, overdue >= _AGENT_GRACE_MS)

    def _kill(self, folder: RunFolder, claim: Claim, is_agent_too: bool) -> None:
        places = {node: folder.node(node) for node in claim.nodes}
        found = processes.marked(at.path for at in places.values())
        for node, at in places.items():
            agent = at.agent
            living = [*found[at.path], *at.recorded()]
            processes.kill(p for p in living if is_agent_too or (agent is not None and p != agent))
            child = self._children.get((claim.name, node))
            if is_agent_too and child is not None and child.poll() is None:
                child.kill()

    async def _conclude(
        self, folder: RunFolder, claim: Claim, sight: Sight, stop: Stop | None
    ) -> None:
        """No agent lives: end what it left, and once all is gone bury the run and say so."""
        left = [process for each in sight.left.values() for process in each]
        if left:
            processes.kill(left)
            return
        failing = folder.marked(_FAILING)
        if failing is not None and stop is not None and stop.intent is StopIntent.FAULT:
            folder.mark(LAUNCH_FAILED, failing[1], self._clock.now())
        else:
            folder.mark(STOPPED, await self._last_word(claim, stop), self._clock.now())
        for node in claim.nodes:
            self._children.pop((claim.name, node), None)
        await self._telling.restate(claim, again=True)
        self._tell_marks(folder, claim)

    async def _last_word(self, claim: Claim, stop: Stop | None) -> dict[str, str]:
        if stop is not None:
            return {"intent": stop.intent.value, "reason": stop.reason}
        for node in claim.nodes:
            if await self._objects.stat(records.ended(claim.job, claim.attempt, node)) is None:
                return {"intent": "lost", "reason": f"the agent on {node} ended without a word"}
        return {"intent": "ended", "reason": "every agent ended by itself"}

    def _tell_marks(self, folder: RunFolder, claim: Claim) -> None:
        kinds = {LAUNCHED: "launched", LAUNCH_FAILED: "launch_failed", STOPPED: "stopped"}
        for name, kind in kinds.items():
            marked = folder.marked(name)
            if marked is not None:
                self._telling.tell_own(claim, name, f"run.{kind}", marked)
