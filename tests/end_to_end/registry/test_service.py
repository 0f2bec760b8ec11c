"""The whole service on memory ports: facts from the bus, requests, the download API."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts import events, manifest, subjects
from lineshaft.ports import Request
from lineshaft.runtime import rpc
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Secret, SettingsError
from lineshaft.sdk.download import pull, verify
from services.registry import reconciling
from services.registry.app import build
from services.registry.reconciling import Reconciler
from tests.builders_registry import NAME, a_job, a_manifest, stage, succeeded
from tests.builders_runtime import eventually, memory_ports, some_settings

CONTENTS = {"model.safetensors": b"w" * 70_000, "sub/config.json": b"{}"}
TOKEN = "a-token"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A registry that serves."""
    settings = some_settings(tmp_path, bus_url="memory://", bus_token=Secret(TOKEN))
    made = build(settings, memory_ports())
    await made.start()
    yield made
    await made.stop()


async def _ask(service: Service, verb: str, **params: Any) -> dict[str, Any]:
    raw = json.dumps(params).encode()
    return rpc.decode_reply(await service.bus.request(subjects.rpc("registry", verb), raw))


async def _register(service: Service, number: int, contents: dict[str, bytes]) -> dict[str, Any]:
    """Let a job succeed and wait for its version."""
    made = a_manifest(contents, job=a_job(str(number)))
    candidate = await stage(service.objects, made, contents)
    await service.publish(succeeded(candidate, f"pool/default:{number}:0"))

    async def is_there() -> bool:
        try:
            await _ask(service, "resolve", ref=f"{NAME}@{candidate.manifest}")
        except RpcError:
            return False
        return True

    await eventually(is_there)
    return made


async def test_from_a_fact_on_the_bus_to_a_verified_folder(
    service: Service, tmp_path: Path
) -> None:
    """The whole way: published fact, version, address, pull."""
    made = await _register(service, 1, CONTENTS)
    address = (await _ask(service, "address"))["url"]
    assert address == service.addresses["http"]
    report = await pull(address, TOKEN, NAME, tmp_path / "pulled")
    assert report.version == "1.0.0"
    assert verify(tmp_path / "pulled").manifest == manifest.digest(made)
    [listed] = (await _ask(service, "models"))["models"]
    assert (listed["name"], listed["latest"], listed["versions_count"]) == (NAME, "1.0.0", 1)


async def test_what_is_decided_is_published(service: Service) -> None:
    """``model.registered`` and ``model.alias_moved`` reach the bus with their fields."""
    await _register(service, 1, CONTENTS)
    await _ask(service, "promote", name=NAME, version="1.0.0", alias="production", key="k1")
    seen: list[str] = []
    async for batch in service.bus.pull("model", "a-reader", ["lineshaft.model.>"]):
        for message in batch:
            fact = events.decode(message.data, message.headers)
            seen.append(fact.kind)
            assert message.subject == subjects.of_fact(fact)
            await message.ack()
        if len(seen) >= 2:
            break
    assert seen == ["model.registered", "model.alias_moved"]


async def test_promote_and_roll_back_over_requests(service: Service) -> None:
    """Read your own write by ``at_least``; the same key gives the same answer, or a conflict."""
    await _register(service, 1, CONTENTS)
    await _register(service, 2, {**CONTENTS, "model.safetensors": b"v"})
    for number, version in enumerate(("1.0.0", "1.1.0")):
        done = await _ask(
            *(service, "promote"),
            **{"name": NAME, "version": version, "alias": "production", "key": f"k{number}"},
            **{"actor": "ada", "reason": "better", "expected_current": None},
        )
    place = {"stream": done["stream"], "seq": done["seq"]}
    assert (await _ask(service, "resolve", ref=f"{NAME}@production", at_least=place))[
        "version"
    ] == "1.1.0"
    back = {"name": NAME, "alias": "production", "key": "back", "reason": ""}
    first = await _ask(service, "rollback", **back)
    assert (first["to"], first["from"], first["changed"]) == ("1.0.0", "1.1.0", True)
    assert await _ask(service, "rollback", **back) == first
    with pytest.raises(RpcError) as caught:
        await _ask(service, "rollback", **{**back, "alias": "canary"})
    assert caught.value.code == "conflict"
    shown = await _ask(
        service, "model", name=NAME, at_least={"stream": first["stream"], "seq": first["seq"]}
    )
    assert [move["to"] for move in shown["alias_history"]] == ["1.0.0", "1.1.0", "1.0.0"]
    assert shown["alias_history"][1]["reason"] == "better"
    then = await _ask(
        *(service, "model"),
        **{"name": NAME, "alias": "production", "at": shown["alias_history"][1]["at"]},
    )
    assert then["version"] in ("1.1.0", "1.0.0")


@pytest.mark.parametrize(
    ("verb", "params", "code"),
    [
        ("model", {}, "usage"),
        ("model", {"name": "../x"}, "not_found"),
        ("resolve", {"ref": "x y"}, "usage"),
        ("resolve", {"ref": "nobody"}, "not_found"),
        ("models", {"limit": "many"}, "usage"),
        ("promote", {"name": NAME, "version": "1.0.0", "alias": "production"}, "usage"),
        ("promote", {"name": "A", "version": "1.0.0", "alias": "p", "key": "k"}, "usage"),
        ("promote", {"name": "nobody", "version": "1.0.0", "alias": "p", "key": "k"}, "not_found"),
        ("rollback", {"name": "nobody", "alias": "p", "key": "a\nb"}, "usage"),
        ("delete", {"name": "nobody", "version": "1.0.0", "key": "k2"}, "not_found"),
    ],
)
async def test_wrong_requests_are_told_why(
    service: Service, verb: str, params: dict[str, Any], code: str
) -> None:
    """By one of the codes, never by silence."""
    with pytest.raises(RpcError) as caught:
        await _ask(service, verb, **params)
    assert caught.value.code == code


async def test_delete_pin_and_the_hold_of_a_child(service: Service) -> None:
    """A base cannot go while its adapter is there; deleting the adapter frees it."""
    base = await _register(service, 1, CONTENTS)
    link = {"name": NAME, "version": "1.0.0", "manifest": manifest.digest(base)}
    child = a_manifest(
        {"a.safetensors": b"a"}, name="lora", kind="adapter", base=link, job=a_job("2")
    )
    candidate = await stage(service.objects, child, {"a.safetensors": b"a"})
    await service.publish(succeeded(candidate, "pool/default:2:0"))

    async def is_there() -> bool:
        try:
            return bool(await _ask(service, "resolve", ref="lora:1.0.0"))
        except RpcError:
            return False

    await eventually(is_there)
    with pytest.raises(RpcError, match="were made from"):
        await _ask(service, "delete", name=NAME, version="1.0.0", key="d1")
    await _ask(service, "delete", name="lora", version="1.0.0", key="d2")
    done = await _ask(service, "delete", name=NAME, version="1.0.0", key="d3")
    assert done["changed"] is True
    place = {"stream": done["stream"], "seq": done["seq"]}
    with pytest.raises(RpcError) as caught:
        await _ask(service, "resolve", ref=NAME, at_least=place)
    assert caught.value.code == "not_found"


async def test_a_fact_that_the_bus_lost_is_found_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler says Succeeded, staging holds the session, nobody told us: registered."""
    monkeypatch.setattr(reconciling, "_SETTLED_MS", -1)
    made = a_manifest(CONTENTS)
    candidate = await stage(service.objects, made, CONTENTS)
    state: dict[str, Any] = {"state": "Running", "attempt": 1, "name": "a-job", "team": "default"}

    async def job(_: Request) -> bytes:
        return rpc.encode_result(state, 1)

    await service.bus.serve(subjects.rpc("scheduler", "job"), "scheduler", job)
    assert await Reconciler(service).compare() == 0
    state |= {"state": "Succeeded", "manifest": candidate.manifest}
    assert await Reconciler(service).compare() == 1
    assert await Reconciler(service).compare() == 0

    async def is_there() -> bool:
        return bool((await _ask(service, "models"))["models"])

    await eventually(is_there)


def test_an_open_api_without_a_token_stays_on_this_machine(tmp_path: Path) -> None:
    """Listening elsewhere needs a token."""
    settings = some_settings(tmp_path, http_host="0.0.0.0", bus_token=None)
    with pytest.raises(SettingsError, match="needs a bus_token"):
        build(settings, memory_ports())
