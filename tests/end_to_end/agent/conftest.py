"""A real bus for the folder, and a machine of its own per test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer
from tests.builders_agent import Place


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Yield a machine with a running bus; nothing it started is left behind."""
    server = NatsServer(tmp_path / "bus")
    await server.start()
    bus = NatsBus(server.url, server.token)
    await bus.provision()
    made = Place(tmp_path, server)
    try:
        yield made
    finally:
        await made.close()
        await bus.aclose()
        await server.stop()
