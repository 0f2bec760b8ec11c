"""Each test of this folder runs on the memory bus and on a real nats-server."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer
from lineshaft.adapters.bus.select import ClosableBus


@dataclass
class Rig:
    """A bus, and a way to make it lose everything while it is used."""

    bus: ClosableBus
    lose_everything: Callable[[], Awaitable[None]]


@pytest.fixture(params=["memory", "nats"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    if request.param == "memory":
        memory = MemoryBus()

        async def forget() -> None:
            memory.forget()

        yield Rig(memory, forget)
        return
    server = NatsServer(tmp_path / "bus")
    await server.start()
    bus = NatsBus(server.url, server.token)
    await bus.provision()

    async def delete() -> None:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        shutil.rmtree(server.store)

    try:
        yield Rig(bus, delete)
    finally:
        await bus.aclose()
        await server.stop()
