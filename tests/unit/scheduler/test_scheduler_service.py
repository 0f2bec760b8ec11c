"""The scheduler as a service, on the memory adapters, with a launcher that follows a script."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.contracts import events, records, subjects
from lineshaft.contracts.events import Fact
from lineshaft.runtime.rpc import RpcError, decode_reply
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import SettingsError, load
from lineshaft.runtime.wiring import Ports
from services.scheduler.app import build
from services.scheduler.launchers.port import Desired, DesiredRun, NodeReport

DEADLINE_S = 20
JOB = "j-aaaaaaaaaaaaaaaa"


class ScriptedLauncher:
    """Runs nothing: each run is launched, started and completed, unless ``is_patient``."""

    def __init__(self, objects: MemoryObjects, *, is_patient: bool = False) -> None:
        self.objects = objects
        self.is_patient = is_patient
        self.seen: dict[tuple[str, int], DesiredRun] = {}
        self.epochs: list[int] = []
        self.fenced: list[bool] = []
        self.nodes = [NodeReport("local", "cpu", 4)]
        self.is_closed = False
        self._facts: asyncio.Queue[Fact] = asyncio.Queue()

    async def reconcile(self, desired: Desired) -> None:
        self.epochs.append(desired.epoch)
        for run in desired.runs:
            key = (run.job, run.attempt)
            known = self.seen.get(key)
            self.seen[key] = run
            if known is None:
                fence = await self.objects.stat(records.fence(run.job, run.attempt))
                self.fenced.append(fence is not None)
                self._play(run)
            if run.intent is not None and (known is None or known.intent is None):
                self.tell(run, "stopped", {"intent": run.intent.value, "reason": "as told"})

    def _play(self, run: DesiredRun) -> None:
        self.tell(run, "launched", {})
        node = run.nodes[0].node
        self.tell(run, "started", {"node": node, "ranks": []})
        if not self.is_patient:
            self.tell(run, "completed", {"manifest": None, "step": 3})
            self.tell(run, "ended", {"node": node, "outcome": "completed", "class": None})

    def tell(self, run: DesiredRun, kind: str, data: dict[str, Any]) -> None:
        fact = Fact(
            f"{records.run(run.job, run.attempt)}{kind}", f"run.{kind}", data, 1, "launcher",
            run.job, run.attempt, run.order["pool"], run.order["team"],
        )  # fmt: skip
        self._facts.put_nowait(fact)

    async def inventory(self) -> list[NodeReport]:
        return self.nodes

    async def facts(self) -> AsyncIterator[Fact]:
        while True:
            yield await self._facts.get()

    async def aclose(self, *, leave_running: bool) -> None:
        self.is_closed = True


class Line:
    """A started scheduler and what tests ask of it."""

    def __init__(self, *, is_patient: bool = False, **overrides: Any) -> None:
        clock = SystemClock()
        self.bus = MemoryBus(clock)
        self.objects = MemoryObjects(clock)
        ports = Ports(clock, self.bus, MemoryJournal(), MemoryViews(), self.objects)
        settings = load(environ={}, overrides={"bus_url": "memory://", **overrides})
        self.launcher = ScriptedLauncher(self.objects, is_patient=is_patient)
        self.service: Service = build(settings, ports, self.launcher)

    async def admit(self, job: str = JOB, name: str = "tiny") -> None:
        data = {
            "job": job, "name": name, "team": "research", "pool": "default",
            "spec": {"name": name, "jobType": "script"},
            "resolved": {"output": {}, "launcher": "none"},
            "gang": {"nodes": 1, "slots_per_node": 2, "gpu_type": "cpu"},
            "priority": 100, "budgets": {}, "estimate": {}, "warnings": [],
        }  # fmt: skip
        await self.publish(Fact(f"submission/1:{job}", "job.admitted", data, 5, "admission", job))

    async def publish(self, fact: Fact) -> None:
        await self.bus.publish(subjects.of_fact(fact), events.encode(fact), message_id=fact.id)

    async def ask(self, verb: str, **params: Any) -> dict[str, Any]:
        raw = json.dumps(params).encode()
        return decode_reply(await self.bus.request(subjects.rpc("scheduler", verb), raw))

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not await true():  # noqa: ASYNC110  (a reply is polled)
                await asyncio.sleep(0.02)

    async def until_state(self, state: str, job: str = JOB) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def is_there() -> bool:
            nonlocal found
            try:
                found = await self.ask("job", job=job)
            except RpcError:
                return False
            return found["state"] == state

        await self.until(is_there)
        return found


async def a_line(**more: Any) -> Line:
    line = Line(**more)
    await line.service.start()
    return line


async def test_a_job_goes_through_on_its_launchers_word():
    """Admitted on the bus, launched behind its fence, succeeded, with its whole timeline."""
    line = await a_line()
    try:
        await line.admit()
        job = await line.until_state("Succeeded")
        states = [(step["state"], step["substate"]) for step in job["timeline"]]
        assert states == [
            ("Pending", None), ("Scheduled", "launching"), ("Running", None),
            ("Running", "finishing"), ("Succeeded", None),
        ]  # fmt: skip
        assert all(step["reason"] and step["actor"] and step["at"] for step in job["timeline"])
        assert line.launcher.fenced == [True]
        assert max(line.launcher.epochs) == 1
        published = line.bus
        state = await published.state("job")
        assert state is not None
        assert state.messages >= 6
    finally:
        await line.service.stop()
    assert line.launcher.is_closed


async def test_a_stop_reaches_the_launcher_and_comes_back():
    """A cancel becomes a desired stop with its intent, and the word that all is gone its end."""
    line = await a_line(is_patient=True)
    try:
        await line.admit()
        await line.until_state("Running")
        command = {"job": JOB, "verb": "cancel", "actor": "ada", "reason": "enough"}
        await line.publish(
            Fact("c1", "job.command_accepted", command, 9, "admission", JOB, None, "default")
        )
        job = await line.until_state("Cancelled")
        assert job["actor"] == "ada"
        assert line.launcher.seen[JOB, 1].intent == "cancel"
        assert line.launcher.seen[JOB, 1].stop_reason == "enough"
    finally:
        await line.service.stop()


async def test_queries():
    """By id, beginning and name; the lists, the nodes, the queue, and why."""
    line = await a_line(is_patient=True)
    try:
        await line.admit()
        await line.until_state("Running")
        await line.admit("j-bbbbbbbbbbbbbbbb", "big")
        await line.admit("j-bccccccccccccccc", "other")
        await line.until_state("Running", "j-bbbbbbbbbbbbbbbb")
        assert (await line.ask("job", job="j-aaa"))["job"] == JOB
        assert (await line.ask("job", job="big"))["job"] == "j-bbbbbbbbbbbbbbbb"
        for ref, code in (("j-b", "usage"), ("nothing", "not_found"), ("j-zzz", "not_found")):
            with pytest.raises(RpcError) as error:
                await line.ask("job", job=ref)
            assert error.value.code == code
        await line.until_state("Pending", "other")
        listed = await line.ask("jobs", state="Running")
        assert [row["name"] for row in listed["jobs"]] == ["tiny", "big"]
        assert "spec" not in listed["jobs"][0]
        page = await line.ask("jobs", limit=2)
        assert page["next"] == "j-bbbbbbbbbbbbbbbb"
        (node,) = (await line.ask("nodes"))["nodes"]
        assert (node["node"], node["slots"], node["free"]) == ("local", 4, 0)
        assert node["leases"][0] == {"slot": 0, "job": JOB, "attempt": 1}
        queue = await line.ask("queue")
        assert [(row["name"], row["why"]) for row in queue["jobs"]] == [("other", "capacity")]
        why = await line.ask("explain", job="other")
        assert (why["reason"], why["position"], why["free"]["slots"]) == ("capacity", 1, 0)
        assert why["needs"]["slots"] == 2
    finally:
        await line.service.stop()


async def test_words_of_operators_are_answered_after_the_append():
    """A refused word says why; the same key again gives the same answer."""
    line = await a_line(is_patient=True)
    try:
        await line.admit()
        await line.until_state("Running")
        with pytest.raises(RpcError, match="not being stopped") as error:
            await line.ask("confirm_gone", job=JOB, attempt=1, actor="ada", key="k1")
        assert error.value.code == "refused"
        with pytest.raises(RpcError, match="is ready"):
            await line.ask("release_node", node="local", actor="ada", key="k2")
        line.launcher.nodes = []

        async def is_lost() -> bool:
            return (await line.ask("nodes"))["nodes"][0]["status"] == "lost"

        await line.until(is_lost)
        first = await line.ask("release_node", node="local", actor="ada", key="k3")
        assert first["stream"] == "pool/default"
        again = await line.ask("release_node", node="local", actor="ada", key="k3")
        assert again["seq"] == first["seq"]
        await line.until_state("Retrying")
    finally:
        await line.service.stop()


def test_wrong_policies_are_told_all_at_once():
    """Every fault of the table is named with its path."""
    with pytest.raises(SettingsError) as error:
        Line(policies={"scheduler": {"backof_max_ms": 3, "budgets": {"node": -1}, "version": "x"}})
    assert [fault.partition(":")[0] for fault in error.value.faults] == [
        "policy.scheduler.backof_max_ms",
        "policy.scheduler.budgets",
        "policy.scheduler.version",
    ]
