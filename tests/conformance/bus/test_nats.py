"""What only a real server can show: provisioning, secrets, restarts."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import nats
import pytest

from lineshaft.adapters.bus import provision
from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer
from lineshaft.contracts import subjects
from lineshaft.ports import BusUnavailable, Request
from tests.builders_runtime import eventually


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path / "bus")
    await made.start()
    yield made
    await made.stop()


async def test_provisioning_grows_and_never_shrinks(server: NatsServer) -> None:
    """A limit that a person raised stays; one that is too small is raised; no message is lost."""
    client = await nats.connect(server.url, token=server.token)
    context = client.jetstream()
    (plan,) = (p for p in subjects.STREAMS if p.name == "telemetry")
    await provision.ensure_streams(context, [replace(plan, bytes_max=1 << 30, age_max_s=200)])
    for _ in range(3):
        await context.publish("lineshaft.telemetry.0.p.t.j.1.n", b"x")
    await provision.ensure_streams(context, [plan])
    info = await context.stream_info("lineshaft-telemetry")
    assert (info.config.max_bytes, info.config.max_age) == (1 << 30, plan.age_max_s)
    assert info.state.messages == 3
    await client.close()


async def test_a_stream_of_another_nature_is_refused(server: NatsServer) -> None:
    """What cannot become ours without loss is an error that names it."""
    client = await nats.connect(server.url, token=server.token)
    (plan,) = (p for p in subjects.STREAMS if p.name == "in")
    await provision.ensure_streams(client.jetstream(), [replace(plan, retention="limits")])
    with pytest.raises(provision.ProvisionRefused, match="lineshaft-in"):
        await provision.ensure_streams(client.jetstream(), [plan])
    await client.close()


async def test_the_token_is_private_and_needed(server: NatsServer) -> None:
    """No command line shows it, files that hold it are the owner's, strangers are refused."""
    assert server.pid is not None
    line = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert server.token.encode() not in line
    holding = [f for f in server.folder.iterdir() if f.is_file() and _holds(f, server.token)]
    assert holding
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in holding)
    stranger = NatsBus(server.url, "wrong")
    with pytest.raises(BusUnavailable):
        await stranger.request("lineshaft.rpc.x.y", b"", timeout_ms=500)
    await stranger.aclose()


def _holds(path: Path, token: str) -> bool:
    return token in path.read_text(encoding="utf-8", errors="replace")


async def test_a_killed_server_comes_back_at_its_place(server: NatsServer) -> None:
    """Port and token stay, so that clients reconnect; files keep what was stored."""
    bus = NatsBus(server.url, server.token)
    await bus.provision()

    async def answer(request: Request) -> bytes:
        return b"yes"

    await bus.serve("lineshaft.rpc.svc.x", "svc", answer)
    url, former = server.url, server.pid
    assert former is not None
    os.kill(former, signal.SIGKILL)
    await eventually(lambda: server.pid not in (None, former))
    assert server.url == url

    async def is_answered() -> bool:
        try:
            return await bus.request("lineshaft.rpc.svc.x", b"", timeout_ms=500) == b"yes"
        except BusUnavailable:
            return False

    await eventually(is_answered)
    assert await bus.state("job") is not None
    await bus.aclose()


async def test_a_server_whose_whole_folder_is_deleted_comes_back(server: NatsServer) -> None:
    """Configuration, port and token are written again; clients of before come in."""
    bus = NatsBus(server.url, server.token)
    await bus.provision()
    former = server.pid
    assert former is not None
    shutil.rmtree(server.folder)
    os.kill(former, signal.SIGKILL)

    async def is_there() -> bool:
        try:
            await bus.provision()
        except BusUnavailable:
            return False
        return server.pid not in (None, former)

    await eventually(is_there)
    assert server.token_file.read_text().strip() == server.token
    await bus.aclose()


async def test_the_next_server_on_a_folder_takes_its_port_and_token(tmp_path: Path) -> None:
    """Agents that outlive a platform find the next one where the last was."""
    seen = []
    for _ in range(2):
        server = NatsServer(tmp_path / "bus")
        await server.start()
        seen.append((server.url, server.token))
        await server.stop()
    assert seen[0] == seen[1]


async def test_a_bus_that_is_not_there_is_said_so_in_time(tmp_path: Path) -> None:
    """A publication without a bus fails within seconds and leaves nothing behind to be sent."""
    bus = NatsBus("nats://127.0.0.1:9", None)
    began = asyncio.get_running_loop().time()
    with pytest.raises(BusUnavailable):
        await bus.publish("lineshaft.job.queued.a.b.c", b"x")
    assert asyncio.get_running_loop().time() - began < 5
    await bus.aclose()


async def test_redelivery_goes_on_without_limit(server: NatsServer) -> None:
    """No count of deliveries ever drops a message; thousands may be unacknowledged at once."""
    client = await nats.connect(server.url, token=server.token)
    context = client.jetstream()
    await provision.ensure_streams(context)
    await provision.ensure_durable(context, "job", "svc-job", ["lineshaft.job.>"])
    info = await context.consumer_info("lineshaft-job", "svc-job")
    assert info.config.max_deliver == -1
    assert (info.config.max_ack_pending or 0) >= 10_000
    await client.close()
