"""The bundled bus over folders that people really have."""

from pathlib import Path

import pytest

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer, ServerFailed


async def test_spaces_letters_and_depth(tmp_path: Path) -> None:
    """A path with spaces, quotes, letters of any script, and of any depth, holds a bus."""
    folder = tmp_path / "my \"models\" 'x'" / "ünï 训练 🏭" / ("d" * 100) / ("e" * 100)
    server = NatsServer(folder)
    await server.start()
    bus = NatsBus(server.url, server.token, name="test")
    try:
        await bus.provision()
        assert (folder / "store").is_dir()
    finally:
        await bus.aclose()
        await server.stop()


async def test_a_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    """What the server complains of reaches whoever started it."""
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(ServerFailed, match="storage directory"):
        await NatsServer(tmp_path).start()
