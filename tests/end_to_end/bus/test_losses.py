"""A service on a real bus that is killed, emptied, and fed with rubbish."""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer
from lineshaft.adapters.bus.provision import ACK_WAIT_S
from lineshaft.ports import BusUnavailable
from lineshaft.runtime import rpc
from lineshaft.runtime.service import Service
from tests.builders_runtime import a_ledger_service, a_message, eventually, seen_in

SUBJECT = "lineshaft.in.priority"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path / "bus")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    made = NatsBus(server.url, server.token)
    await made.provision()
    yield made
    await made.aclose()


@asynccontextmanager
async def running(tmp_path: Path, server: NatsServer) -> AsyncIterator[Service]:
    service = a_ledger_service(tmp_path / "state", server.url, server.token)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def all_seen(service: Service) -> list[str]:
    return [name for stream in service.host.lanes for name in seen_in(service, stream)]


async def send(bus: NatsBus, numbers: range) -> None:
    """Publish facts; whatever the bus refuses is repeated until it takes it."""

    async def one(number: int) -> None:
        for _ in range(200):
            try:
                await bus.publish(SUBJECT, a_message(f"f{number}", 1, number))
                return
            except BusUnavailable:
                await asyncio.sleep(0.1)
        raise AssertionError("the bus never took it")

    await asyncio.gather(*map(one, numbers))


async def events_of(bus: NatsBus) -> list[dict[str, object]]:
    """All that stands in the stream ``model`` now."""
    state = await bus.state("model")
    if state is None or not state.messages:
        return []
    found: list[dict[str, object]] = []
    source = bus.pull("model", f"look-{time.monotonic_ns()}", ["lineshaft.model.>"])
    while len(found) < state.messages:
        found += [json.loads(message.data) for message in await anext(source)]
    await source.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_bus_that_is_killed_and_emptied_costs_nothing(
    tmp_path: Path, server: NatsServer, bus: NatsBus
) -> None:
    """Each fact counts once, and every event of the day stands on the new bus, marked replay."""
    async with running(tmp_path, server) as service:
        await send(bus, range(200))

        async def are_on_the_bus() -> bool:
            return len(await events_of(bus)) == 200

        await eventually(are_on_the_bus)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        shutil.rmtree(server.store)
        # Facts of before are repeated by those who got no answer; new ones come meanwhile.
        await send(bus, range(100, 300))

        async def is_whole() -> bool:
            if len(all_seen(service)) < 300:
                await send(bus, range(100, 300))
                return False
            return len({event["id"] for event in await events_of(bus)}) == 300

        await eventually(is_whole, 60)
        assert sorted(all_seen(service)) == sorted(f"f{n}" for n in range(300))
        replayed = [event["id"] for event in await events_of(bus) if event.get("replay")]
        assert len(set(replayed)) >= 200
        checks = await service.ready()
        assert all(check.is_ok for check in checks), checks


async def test_rubbish_and_repetition_hurt_nobody(
    tmp_path: Path, server: NatsServer, bus: NatsBus
) -> None:
    """Rubbish ends in the dead stream with its reason; a repeated fact counts once."""
    async with running(tmp_path, server) as service:
        for number in range(10):
            await bus.publish(SUBJECT, b"\x00rubbish")
            await bus.publish(SUBJECT, a_message("same", 1, 0))
            await bus.publish(SUBJECT, a_message(f"f{number}", 1, number))
            await bus.publish(SUBJECT, a_message(f"no{number}", -1, number))
        await eventually(lambda: len(all_seen(service)) == 11)

        async def buried() -> bool:
            state = await bus.state("dead")
            queue = await bus.state("in")
            assert state is not None
            assert queue is not None
            return (state.messages, queue.messages) == (20, 0)

        await eventually(buried)
        source = bus.pull("dead", "look", ["lineshaft.dead.registry"])
        reasons = {json.loads(m.data)["reason"] for m in await anext(source)}
        await source.aclose()  # type: ignore[attr-defined]
        assert "no debts" in reasons
        assert any(reason.startswith("cannot be read: not JSON") for reason in reasons)


async def test_a_graceful_stop_orphans_no_message(
    tmp_path: Path, server: NatsServer, bus: NatsBus
) -> None:
    """What a stopping service had fetched is handled by the next one at once."""
    await send(bus, range(1500))
    async with running(tmp_path, server) as service:
        await eventually(lambda: len(all_seen(service)) > 200)
    began = time.monotonic()
    async with running(tmp_path, server) as service:
        await eventually(lambda: len(all_seen(service)) == 1500)
        assert time.monotonic() - began < ACK_WAIT_S / 2
        assert len(set(all_seen(service))) == 1500


async def test_a_killed_service_is_followed_at_once(
    tmp_path: Path, server: NatsServer, bus: NatsBus
) -> None:
    """SIGKILL in the middle: the next process leads within a second, and each fact counts once."""
    child = Path(__file__).with_name("child.py")
    state = tmp_path / "state"
    arguments = [sys.executable, str(child), str(state), server.url, server.token]

    async def count() -> int:
        try:
            raw = await bus.request("lineshaft.rpc.registry.seen", b"", timeout_ms=1000)
            return len(rpc.decode_reply(raw)["seen"])
        except (BusUnavailable, rpc.RpcError):
            return 0

    process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.DEVNULL)
    sending = asyncio.create_task(send(bus, range(2000)))

    async def has_some() -> bool:
        return await count() > 100

    await eventually(has_some)
    process.kill()
    await process.wait()
    await sending
    async with running(tmp_path, server) as service:
        assert len(service.host.led_streams()) == 4
        await eventually(lambda: len(all_seen(service)) == 2000, 3 * ACK_WAIT_S)
        assert len(set(all_seen(service))) == 2000


async def test_a_request_is_answered_after_the_append_and_again_the_same(
    tmp_path: Path, server: NatsServer, bus: NatsBus
) -> None:
    """A key names one decision for ever, also for the next process."""
    body = json.dumps({"key": "k1", "amount": 7}).encode()
    answers = []
    for _ in range(2):
        async with running(tmp_path, server):
            raw = await bus.request("lineshaft.rpc.registry.add", body)
            answers.append(rpc.decode_reply(raw))
    assert answers[0] == answers[1]
    assert answers[0]["told"] == ["7"]
