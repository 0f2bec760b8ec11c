"""Builders for tests of the launcher and the agent: a folder, a real bus, desired runs."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer
from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.contracts import ids, records
from lineshaft.contracts.events import Fact
from lineshaft.contracts.failures import StopIntent
from lineshaft.runtime.settings import Node, Settings, load
from services.scheduler.launchers import processes
from services.scheduler.launchers.port import Desired, DesiredRun, NodeShare
from services.scheduler.launchers.subprocess import SubprocessLauncher
from trainer.agent.order import Order
from trainer.agent.order import read as read_order

POOL, TEAM = "default", "research"
DEADLINE_S = 40.0

REPORTING = """\
import os, sys, time
import lineshaft

rank = int(os.environ.get("RANK", "0"))
print("rank", rank, "of", os.environ.get("WORLD_SIZE", "-"), flush=True)
for step in range(1, 4):
    lineshaft.report(step=step, loss=1.0 / step, accuracy=0.5)
"""
WAITING = REPORTING + "while True:\n    time.sleep(0.05)\n"


def a_job(word: str = "demo") -> str:
    """Return a job id."""
    return ids.job_id(TEAM, f"{word}-{time.monotonic_ns()}")


async def until(look: Callable[[], Any], what: str, *, within_s: float = DEADLINE_S) -> Any:
    """Look again and again until there is something; fail after the deadline."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        seen: Any = await found if isinstance(found, Awaitable) else found
        if seen:
            return seen
        assert time.monotonic() < deadline, f"never seen: {what}"
        await asyncio.sleep(0.02)


class Place:
    """A machine of its own in a folder: settings, objects, bus, and a launcher on them."""

    def __init__(self, root: Path, server: NatsServer | None = None) -> None:
        self.root = root
        nodes = (Node("alpha", "cpu", 4), Node("beta", "cpu", 4))
        loaded = load(None, {}, {"state_dir": str(root / "state")})
        self.settings: Settings = loaded.with_values("test", nodes=nodes)
        if server is not None:
            self.settings = self.settings.with_values(
                "test", bus_url=server.url, bus_token_file=server.token_file
            )
        self.objects = FolderObjects(root / "state" / "objects")
        self.clock = SystemClock()
        self.facts: list[Fact] = []
        self.launcher = self.a_launcher()
        self._reading: asyncio.Task[None] | None = None

    def a_launcher(self) -> SubprocessLauncher:
        """Return a launcher that knows nothing yet, as after a restart of the platform."""
        return SubprocessLauncher(self.settings, self.objects, self.clock)

    async def restart_launcher(self) -> None:
        """End the launcher as a platform does that goes down with ``leave_running``."""
        await self.launcher.aclose(leave_running=True)
        await self.stop_reading()
        self.launcher = self.a_launcher()

    def read(self) -> None:
        """Collect what the launcher tells from now on."""

        async def collect() -> None:
            async for fact in self.launcher.facts():
                self.facts.append(fact)

        if self._reading is None:
            self._reading = asyncio.create_task(collect())

    async def stop_reading(self) -> None:
        """Collect no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def want(self, *runs: DesiredRun, epoch: int = 1) -> None:
        """Tell the launcher what should run."""
        self.read()
        await self.launcher.reconcile(Desired(POOL, epoch, runs))

    async def told(self, kind: str, job: str) -> Fact:
        """Wait for a fact of a kind about a job."""

        def look() -> Fact | None:
            found = (f for f in self.facts if f.kind == kind and f.subject == job)
            return next(found, None)

        fact = await until(look, f"{kind} of {job}; told: {[f.kind for f in self.facts]}")
        assert fact is not None
        return fact

    async def record(self, key: str) -> dict[str, Any]:
        """Wait for a record in Objects and return it."""

        async def look() -> dict[str, Any] | None:
            if await self.objects.stat(key) is None:
                return None
            return dict(json.loads(b"".join([part async for part in self.objects.open(key)])))

        found = await until(look, f"the record {key}")
        assert found is not None
        return found

    async def started(self, job: str, attempt: int = 1, node: str = "alpha") -> dict[str, Any]:
        """Wait until a node's ranks are recorded as started."""
        return await self.record(records.started(job, attempt, node))

    def folder(self, job: str, attempt: int = 1) -> Path:
        """Return a run's folder."""
        return self.settings.runs_dir / ids.run_name(job, attempt)

    def output(self, job: str, rank: int = 0, node: str = "alpha") -> str:
        """Return what a rank has written until now."""
        path = self.folder(job) / node / "ranks" / f"rank-{rank}.out"
        return path.read_text() if path.exists() else ""

    def living(self, job: str, attempt: int = 1) -> list[int]:
        """Return the pids of all processes of a run, whoever started them."""
        folder = self.folder(job, attempt)
        nodes = [node for node in folder.iterdir() if node.is_dir()] if folder.exists() else []
        return [one.pid for each in processes.marked(nodes).values() for one in each]

    async def close(self) -> None:
        """End everything that this place started."""
        await self.launcher.aclose(leave_running=True)
        await self.stop_reading()
        folders = self.settings.runs_dir.glob("*/*")
        for each in processes.marked(f for f in folders if f.is_dir()).values():
            processes.kill(each)

    def a_bus(self) -> NatsBus:
        """Return a client of this place's bus."""
        return NatsBus(self.settings.bus_url, self.settings.token())


def a_script(root: Path, body: str = REPORTING, name: str = "train.py") -> Path:
    """Write a user's script."""
    path = root / name
    path.write_text(body)
    return path


def a_run(
    job: str,
    command: list[str] | None,
    *,
    attempt: int = 1,
    slots: Mapping[str, int] | None = None,
    intent: StopIntent | None = None,
    launcher: str = "none",
    grace_ms: int = 15_000,
    spec: Mapping[str, Any] | None = None,
    resolved: Mapping[str, Any] | None = None,
    **more: Any,
) -> DesiredRun:
    """Return a desired run of ``command`` with ``slots`` ranks per node (default: one on alpha)."""
    shares = tuple(NodeShare(n, tuple(range(c))) for n, c in (slots or {"alpha": 1}).items())
    now = SystemClock().now()
    order = {
        "schema": 1,
        "job": job,
        "attempt": attempt,
        "name": "demo",
        "team": TEAM,
        "pool": POOL,
        "spec": {
            "jobType": "script" if command else "pretrain",
            "command": command,
            "args": [],
            "env": {},
            "resources": {"gpuType": "cpu"},
            **(spec or {}),
        },
        "resolved": {"output": {"model_name": "demo"}, "datasets": [], **(resolved or {})},
        "grace_ms": grace_ms,
        "hang_limit_ms": 0,
        "first_step_limit_ms": 0,
        "resume": None,
        "mutation": {},
        "launcher": launcher,
        **more,
    }
    return DesiredRun(
        job=job,
        attempt=attempt,
        order=order,
        nodes=shares,
        not_after=now + 60_000,
        intent=intent,
        grace_ms=grace_ms,
        stop_reason="the test says so" if intent else "",
        stop_at=now if intent else 0,
    )


def python(path: Path, *arguments: str) -> list[str]:
    """Return the command that runs a script with this interpreter."""
    return [sys.executable, str(path), *arguments]


def shared_memory() -> set[str]:
    """Return what lies in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def an_order(root: Path, job: str = "j-aaaaaaaaaaaaaaaa", **more: Any) -> Order:
    """Write a node's order for one script rank into a run folder and read it back."""
    name = ids.run_name(job, int(more.get("attempt", 1)))
    body = {
        "schema": 1,
        "job": job,
        "attempt": 1,
        "name": "demo",
        "team": TEAM,
        "pool": POOL,
        "spec": {"resources": {"gpuType": "cpu"}},
        "resolved": {"output": {"model_name": "demo"}},
        "node": "alpha",
        "node_rank": 0,
        "nodes": [{"node": "alpha", "slots": [0]}],
        "slots": [0],
        "ranks": [0],
        "world_size": 1,
        "launcher": "none",
        "master_addr": "127.0.0.1",
        "master_port": 29_511,
        "env": {},
        "command": ["true"],
        "grace_ms": 10_000,
        "run_folder": str(root / name),
        "checkpoint_root": str(root / "checkpoints"),
        **more,
    }
    folder = root / name / "alpha"
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    (folder / "order.json").write_text(json.dumps(body))
    return read_order(folder / "order.json")
