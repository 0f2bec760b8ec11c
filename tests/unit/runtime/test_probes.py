"""Probes over HTTP, and the checks behind them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.ports import NobodyAnswers
from lineshaft.runtime import readiness
from lineshaft.runtime.service import Service
from lineshaft.runtime.wiring import Ports
from tests.builders_runtime import Ledger, eventually, memory_ports, some_settings


def a_service(state: Path, ports: Ports, replica: str = "one") -> Service:
    """A service with a verb of the leader's, a consumption, and probes on some port."""
    values: dict[str, Any] = {"replica": replica, "health_ports": {"registry": 0}}
    settings = some_settings(state, **values)
    made = Service("registry", settings, ports, decider=Ledger())
    made.consume("in", ["lineshaft.in.>"])

    async def who(params: dict[str, Any]) -> dict[str, Any]:
        return {"replica": replica}

    made.rpc("who", who)
    return made


@pytest.fixture
async def ports() -> Ports:
    return memory_ports()


@pytest.fixture
async def service(tmp_path: Path, ports: Ports) -> AsyncIterator[Service]:
    made = a_service(tmp_path, ports)
    await made.start()
    yield made
    await made.stop()


async def ask(service: Service, raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer to raw bytes."""
    host, _, port = service.addresses["probes"].removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def get(service: Service, path: str) -> tuple[int, dict[str, Any]]:
    return await ask(service, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_ready_is_asked_for_real(service: Service) -> None:
    """200 while all holds; 503 with the check that fails once the bus is away."""

    async def is_ready() -> bool:
        return (await get(service, "/readyz"))[0] == 200

    await eventually(is_ready)
    assert await get(service, "/livez?verbose=1") == (
        200,
        {"ok": True, "checks": [{"name": "loops", "ok": True, "detail": ""}]},
    )
    service.bus.is_away = True  # type: ignore[attr-defined]
    status, answer = await get(service, "/readyz")
    assert status == 503
    assert [c["name"] for c in answer["checks"] if not c["ok"]] == ["bus"]
    assert (await get(service, "/livez"))[0] == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", 404),
        (b"POST /livez HTTP/1.1\r\n\r\n", 405),
        (b"\xff\x00 nonsense\r\n\r\n", 404),
        (b"GET /livez" + b"x" * 100_000 + b"\r\n\r\n", 400),
    ],
)
async def test_what_is_no_probe_gets_a_plain_answer(
    service: Service, raw: bytes, status: int
) -> None:
    """Rubbish, other methods, other paths and endless heads hurt nobody."""
    assert (await ask(service, raw))[0] == status
    assert (await get(service, "/livez"))[0] == 200


async def test_a_service_whose_loops_ended_is_not_alive(service: Service) -> None:
    """Only a new process can mend that, so liveness says it."""
    service.host._tasks[0].cancel()
    await asyncio.gather(service.host._tasks[0], return_exceptions=True)
    assert (await get(service, "/livez"))[0] == 503


async def test_a_fetch_long_ago_is_not_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that is silent, or was never heard, is named."""
    silence: list[int | None] = [readiness.FETCH_SILENCE_MS_MAX + 1, None, 5]
    monkeypatch.setattr(service.bus, "heard_ms", lambda durable: silence[0])
    for told in ("registry-in was last heard 15 s ago", "registry-in was never heard", None):
        checks = {check.name: check for check in await service.ready()}
        assert checks["consumers"].is_ok == (told is None)
        assert told is None or told == checks["consumers"].detail
        silence.pop(0)


async def test_a_standby_is_ready_and_answers_no_leaders_verb(
    tmp_path: Path, ports: Ports, service: Service
) -> None:
    """All requests that need a leader reach the leader; after its stop they reach the other."""
    other = a_service(tmp_path, ports, "two")
    await other.start()
    try:
        checks = {check.name: check for check in await other.ready()}
        assert all(check.is_ok for check in checks.values()), checks
        assert checks["leader"].detail == "stands by: led by one"
        for _ in range(6):
            answer = await ports.bus.request("lineshaft.rpc.registry.who", b"")
            assert json.loads(answer)["result"] == {"replica": "one"}
        await service.stop()

        async def answers() -> Any:
            try:
                return json.loads(await ports.bus.request("lineshaft.rpc.registry.who", b""))
            except NobodyAnswers:
                return None

        assert (await eventually(answers))["result"] == {"replica": "two"}
    finally:
        await other.stop()


async def test_two_of_one_name_are_told(tmp_path: Path, ports: Ports, service: Service) -> None:
    """A second replica under the same name renews nothing and says so."""
    other = a_service(tmp_path, ports)
    await other.start()
    try:
        [check] = [check for check in await other.ready() if check.name == "leader"]
        assert not check.is_ok
        assert "name" in check.detail
    finally:
        await other.stop()


async def test_no_port_no_probes(tmp_path: Path) -> None:
    """Nothing listens that was not asked for."""
    made = Service("registry", some_settings(tmp_path), memory_ports(), decider=Ledger())
    await made.start()
    assert made.addresses == {}
    await made.stop()
