"""The shell: requests, reading one's own writes, background work, findings, a whole life."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts.events import encode
from lineshaft.ports import Document, Entry, NobodyAnswers, StoreUnavailable, Views
from lineshaft.runtime import rpc
from lineshaft.runtime.decider import FactRefused
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from tests.builders_runtime import (
    Ledger,
    a_fact,
    a_message,
    eventually,
    memory_ports,
    some_settings,
)


class Sums:
    """A projector: one document a stream, counting its entries."""

    async def project(self, entry: Entry, views: Views) -> list[Document]:
        await asyncio.sleep(0)
        before = await views.get("sum", entry.stream)
        count = 0 if before is None else before.body["count"]
        body = {"count": count + len(entry.causes)}
        return [Document("sum", entry.stream, entry.seq, body, entry.stream)]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(
        "registry",
        some_settings(tmp_path),
        memory_ports(),
        decider=Ledger(),
        projector=Sums(),
    )
    yield made
    await made.stop()


async def ask(service: Service, verb: str, params: Any = None) -> dict[str, Any]:
    raw = b"" if params is None else json.dumps(params).encode()
    return rpc.decode_reply(await service.bus.request(f"lineshaft.rpc.registry.{verb}", raw))


async def findings(service: Service) -> list[dict[str, Any]]:
    stored = service.bus._streams["audit"].messages  # type: ignore[attr-defined]
    return [json.loads(m.data)["data"] for m in stored.values()]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RpcError("not_found", "no such thing", "look elsewhere"), "not_found"),
        (FactRefused("never"), "refused"),
        (StoreUnavailable("away"), "unavailable"),
        (RuntimeError("secret story"), "unavailable"),
    ],
)
async def test_every_failure_has_its_code_and_no_stack_trace(
    service: Service, raised: Exception, code: str
) -> None:
    """A handler's exception becomes an envelope; what is ours becomes a finding too."""

    async def fail(params: dict[str, Any]) -> dict[str, Any]:
        raise raised

    service.rpc("fail", fail)
    await service.start()
    with pytest.raises(RpcError) as caught:
        await ask(service, "fail")
    assert caught.value.code == code
    if isinstance(raised, RuntimeError):
        assert "secret story" not in caught.value.message
        await eventually(lambda: findings(service))
        assert (await findings(service))[0]["kind"] == "registry.request_failed"


async def test_what_is_no_request_is_a_usage_error(service: Service) -> None:
    """Text, lists and wrong parameters are answered, never left hanging."""
    await service.start()
    for raw in (b"{", b"[]", b'{"at_least": 3}', b'{"at_least": {"stream": "x"}}'):
        reply = await service.bus.request("lineshaft.rpc.registry.health", raw)
        assert json.loads(reply)["error"]["code"] == "usage"


async def test_a_writer_reads_its_own_write_in_the_views(service: Service) -> None:
    """``at_least`` waits for state and views; a place that never comes is said in time."""

    async def count(params: dict[str, Any]) -> dict[str, Any]:
        found = await service.views.get("sum", "model/0")
        return {"count": 0 if found is None else found.body["count"]}

    service.rpc("count", count)
    await service.start()
    for number in range(1, 20):
        outcome = await service.host.submit(a_fact(f"f{number}"))
        place = {"stream": outcome.stream, "seq": outcome.seq}
        assert await ask(service, "count", {"at_least": place}) == {"count": number}
    with pytest.raises(RpcError, match="has not reached"):
        await ask(service, "count", {"at_least": {"stream": "model/0", "seq": 10_000}})


async def test_another_services_place_is_waited_for_but_not_for_ever(service: Service) -> None:
    """What another service decided is awaited until it was handled here."""

    async def total(params: dict[str, Any]) -> dict[str, Any]:
        return {"total": service.host.state("model/0")["total"]}

    service.consume("in", ["lineshaft.in.>"])
    service.rpc("total", total)
    await service.start()
    fact = a_fact("submission/1:9:0", 5, stream="submission/1", seq=9, index=0)
    asking = asyncio.create_task(
        ask(service, "total", {"at_least": {"stream": "submission/1", "seq": 9}})
    )
    await asyncio.sleep(0.05)
    await service.bus.publish("lineshaft.in.priority", encode(fact))
    assert await asking == {"total": 5}


async def test_work_that_crashes_is_told_of_and_starts_again(service: Service) -> None:
    """A crash costs a delay and a finding, never the service."""
    runs = []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("boom")
        await asyncio.Event().wait()

    service.background("doer", work)
    await service.start()
    await eventually(lambda: len(runs) == 2)
    found = await eventually(lambda: findings(service))
    assert (found[0]["kind"], found[0]["subject"]) == ("registry.work_crashed", "doer")
    assert "boom" in found[0]["summary"]


async def test_a_finding_is_published_once_per_change(service: Service) -> None:
    """Open, open, closed, closed, open: three facts, whatever the bus does meanwhile."""
    await service.start()
    service.bus.is_away = True  # type: ignore[attr-defined]
    service.audit("edge", "j-1", "open", "not queued")
    service.audit("edge", "j-1", "open", "still not queued")
    service.bus.is_away = False  # type: ignore[attr-defined]

    async def has(count: int) -> bool:
        return len(await findings(service)) == count

    await eventually(lambda: has(1))
    service.audit("edge", "j-1", "closed", "queued")
    service.audit("edge", "j-1", "closed", "queued")
    await eventually(lambda: has(2))
    service.audit("edge", "j-1", "open", "again")
    await eventually(lambda: has(3))
    assert [f["status"] for f in await findings(service)] == ["open", "closed", "open"]
    with pytest.raises(ValueError, match="open or closed"):
        service.audit("edge", "j-1", "maybe", "")


async def test_health_names_what_is_missing(service: Service) -> None:
    """Ready means that a real request to each store and the bus worked."""
    service.consume("in", ["lineshaft.in.>"])
    await service.start()
    answer = await ask(service, "health")
    assert answer["ready"], answer
    await service.journal.aclose()  # type: ignore[attr-defined]
    answer = await ask(service, "health")
    assert [c["name"] for c in answer["checks"] if not c["ok"]] == ["journal"]


async def test_a_life_from_start_to_stop(service: Service) -> None:
    """Hooks, consumption, requests; after the stop nobody answers and nothing is in hand."""
    order: list[str] = []

    async def up() -> None:
        assert service.host.is_leader("model/0")
        order.append("up")

    async def down() -> None:
        order.append("down")

    service.on_start(up)
    service.on_stop(down)
    service.consume("in", ["lineshaft.in.>"])
    await service.start()
    for number in range(50):
        await service.bus.publish("lineshaft.in.priority", a_message(f"f{number}"))
    await eventually(lambda: service.host.state("model/0")["count"] == 50)
    await service.stop()
    assert order == ["up", "down"]
    with pytest.raises(NobodyAnswers):
        await ask(service, "health")
    state = await service.bus.state("model")
    assert state is not None
    assert state.messages == 50


async def test_lost_views_are_made_again(tmp_path: Path) -> None:
    """The position is lost with them, so the projection begins at the first entry."""
    ports = memory_ports()
    sums = []
    for fresh in (ports, memory_ports()):
        own = type(ports)(ports.clock, ports.bus, ports.journal, fresh.views, ports.objects)
        service = Service(
            "registry", some_settings(tmp_path), own, decider=Ledger(), projector=Sums()
        )
        await service.start()
        await service.host.submit(a_fact("f1"))
        assert await service.wait_for("model/0", service.host.position("model/0"), 2000)
        found = await own.views.get("sum", "model/0")
        assert found is not None
        sums.append(found.body["count"])
        await service.stop()
    assert sums == [1, 1]
