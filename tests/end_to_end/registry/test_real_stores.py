"""The registry as people run it: NATS, SQLite and a folder; restarted, its views lost."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.adapters.bus.nats_server import NatsServer
from lineshaft.contracts import subjects
from lineshaft.runtime import rpc
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings
from lineshaft.sdk.download import pull, verify
from services.registry.app import build
from tests.builders_registry import NAME, a_manifest, stage, succeeded
from tests.builders_runtime import eventually, some_settings

CONTENTS = {"model.safetensors": b"w" * 3_000_000, "sub/config.json": b"{}"}


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    """A bus of the test's own, stores in its folder."""
    server = NatsServer(tmp_path / "bus")
    await server.start()
    token_file = str(server.token_file)
    yield some_settings(tmp_path / "state", bus_url=server.url, bus_token_file=token_file)
    await server.stop()


async def _ask(service: Service, verb: str, **params: Any) -> dict[str, Any]:
    raw = json.dumps(params).encode()
    return rpc.decode_reply(await service.bus.request(subjects.rpc("registry", verb), raw))


async def _resolved(service: Service) -> dict[str, Any] | None:
    try:
        return await _ask(service, "resolve", ref=f"{NAME}@production")
    except RpcError:
        return None


async def test_a_version_outlives_its_registry_and_its_views(
    settings: Settings, tmp_path: Path
) -> None:
    """Registered and promoted; the process ends, its views are deleted; all is there again."""
    service = build(settings)
    await service.start()
    try:
        candidate = await stage(service.objects, a_manifest(CONTENTS), CONTENTS)
        await service.publish(succeeded(candidate))
        command = {"name": NAME, "version": "1.0.0", "alias": "production", "key": "k"}

        async def is_promoted() -> bool:
            try:
                await _ask(service, "promote", **command, actor="ada")
            except RpcError as error:
                command["key"] += "k"  # a refusal is settled under its key
                return error.code != "not_found"
            return True

        await eventually(is_promoted)
        first = await eventually(lambda: _resolved(service))
    finally:
        await service.stop()
    shutil.rmtree(settings.state_dir / "views")
    service = build(settings)
    await service.start()
    try:
        await service.publish(succeeded(candidate, "pool/default:9:0"))
        assert await eventually(lambda: _resolved(service)) == first
        address = (await _ask(service, "address"))["url"]
        report = await pull(address, settings.token(), f"{NAME}@production", tmp_path / "pulled")
        assert (report.version, report.moved) == ("1.0.0", 3_000_002)
        assert verify(tmp_path / "pulled").files == 2
        assert len((await _ask(service, "model", name=NAME))["versions"]) == 1
    finally:
        await service.stop()
