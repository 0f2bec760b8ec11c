"""Admission as a whole service: over memory ports, and over the real bus and SQLite."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import nats
import pytest

from lineshaft.adapters.bus.nats_server import NatsServer
from lineshaft.contracts import events, ids, records, subjects
from lineshaft.contracts.events import Fact
from lineshaft.ports import Request
from lineshaft.runtime import rpc
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Secret
from lineshaft.runtime.wiring import Ports, open_ports
from services.admission import reconciling
from services.admission.app import build
from services.admission.asking import Neighbours as Asking
from services.admission.reconciling import Reconciler
from tests.builders_admission import FOUNDING, TINY, a_document, a_script, write_pairs
from tests.builders_runtime import eventually, memory_ports, some_settings

CONFIG = json.dumps(TINY).encode()


class Neighbours:
    """A registry with one model and a scheduler with one node, as far as admission asks them."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.asked: list[str] = []
        self.jobs: set[str] = set()

    async def start(self) -> None:
        """Serve, and keep the model's configuration in Objects."""
        digest = ids.digest_of(CONFIG)
        await self._ports.objects.put(records.blob(digest), CONFIG)
        file = {"path": "config.json", "size": len(CONFIG), "digest": digest, "role": "config"}
        found = {"name": "tiny", "version": "1.0.0", "manifest": "sha256:ab", "files": [file]}
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "registry.resolve": lambda params: found,
            "registry.models": lambda params: {"models": [{"name": "tiny"}]},
            "scheduler.job": lambda params: {"job": params["job"]},
            "scheduler.nodes": lambda params: {
                "nodes": [{"node": "local", "gpu_type": "cpu", "slots": 2}]
            },
        }
        for name, answer in answers.items():
            service, _, verb = name.partition(".")
            handler = self._handler(name, answer)
            await self._ports.bus.serve(subjects.rpc(service, verb), service, handler)

    def _handler(self, name: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        async def handle(request: Request) -> bytes:
            params = rpc.decode_request(request.data)
            self.asked.append(name)
            if name == "scheduler.job" and params["job"] not in self.jobs:
                return rpc.encode_error(RpcError("not_found", "no such job"))
            if name == "registry.resolve" and params["ref"] != "tiny@latest":
                return rpc.encode_error(RpcError("not_found", f"there is no {params['ref']}"))
            return rpc.encode_result(answer(params), 1)

        return handle


class Bench:
    """One running admission and what a client does with it."""

    def __init__(self, service: Service, root: Path, neighbours: Neighbours) -> None:
        self.service = service
        self.root = root
        self.neighbours = neighbours

    async def ask(self, verb: str, /, **params: Any) -> dict[str, Any]:
        """Send one request."""
        raw = json.dumps(params).encode()
        reply = await self.service.bus.request(subjects.rpc("admission", verb), raw)
        return rpc.decode_reply(reply)

    async def facts(self, kind: str, count: int = 1) -> list[Fact]:
        """Return the first ``count`` published facts of a kind of the family ``job``."""
        found: list[Fact] = []
        durable = f"test-{kind.partition('.')[2]}"
        batches = self.service.bus.pull("job", durable, [f"lineshaft.{kind}.>"])
        async with asyncio.timeout(20):
            async for batch in batches:
                for message in batch:
                    found.append(events.decode(message.data, message.headers))
                    await message.ack()
                if len(found) >= count:
                    return found
        raise AssertionError("the bus ended")

    def look_up(self) -> Asking:
        """Return what asks the neighbours, without memory."""
        return Asking(self.service.bus, self.service.objects, self.service.clock)

    def a_tuning(self, **spec: Any) -> dict[str, Any]:
        """Return a job that this platform can run."""
        path = str(self.root / "pairs.jsonl")
        return a_document(datasets=[{"name": "pairs", "path": path}], **spec)


@pytest.fixture(params=["memory", "real"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """Admission on memory ports, and on nats-server with SQLite."""
    root = tmp_path / "data"
    write_pairs(root / "pairs.jsonl")
    (root / "train.py").write_text("print()")
    async with AsyncExitStack() as stack:
        values: dict[str, Any] = {"mounts": [str(root)], "bus_url": "memory://admission"}
        if request.param == "real":
            server = NatsServer(tmp_path / "bus")
            await server.start()
            stack.push_async_callback(server.stop)
            values |= {"bus_url": server.url, "bus_token": Secret(server.token)}
        settings = some_settings(tmp_path / "state", **values)
        ports = memory_ports() if request.param == "memory" else open_ports(settings, "admission")
        await ports.bus.provision()
        neighbours = Neighbours(ports)
        await neighbours.start()
        service = build(settings, ports)
        await service.start()
        stack.push_async_callback(service.stop)
        yield Bench(service, root, neighbours)


async def test_a_submission_is_answered_after_it_is_journaled(bench: Bench) -> None:
    """The receipt names the place in the journal; the event reaches the bus."""
    receipt = await bench.ask("submit", job=bench.a_tuning(), key="k1", actor="ann")
    assert receipt["admitted"], receipt
    assert receipt["stream"] == f"submission/{ids.shard(receipt['job'])}"
    assert receipt["seq"] > 0
    (fact,) = await bench.facts("job.admitted")
    assert fact.subject == receipt["job"] == ids.job_id("default", "k1")
    assert fact.correlation == "k1"
    resolved = fact.data["resolved"]
    assert resolved["model"] == {
        "kind": "registry",
        "ref": "tiny@latest",
        "name": "tiny",
        "version": "1.0.0",
        "manifest": "sha256:ab",
    }
    assert resolved["datasets"][0]["digest"].startswith("sha256:")
    assert fact.data["spec"]["hyperparameters"]["sequenceLength"] == 256
    assert fact.data["estimate"]["memory_bytes"]["likely"] > 0
    assert fact.data["warnings"] == []


async def test_submitting_twice_makes_one_job(bench: Bench) -> None:
    """The same key and content give the same answer; other content is a conflict."""
    job = bench.a_tuning()
    first = await bench.ask("submit", job=job, key="k1")
    assert await bench.ask("submit", job=job, key="k1") == first
    with pytest.raises(RpcError) as caught:
        await bench.ask("submit", job=bench.a_tuning(priority=1), key="k1")
    assert caught.value.code == "conflict"
    assert caught.value.details["job"] == first["job"]
    again = await bench.ask("submit", job=job, key="k2")
    assert again["job"] != first["job"]
    keyless = [await bench.ask("submit", job=job) for _ in range(2)]
    assert keyless[0]["job"] != keyless[1]["job"]


async def test_the_founding_file_is_refused_with_exactly_the_reasons_why(bench: Bench) -> None:
    """On a machine without its data, model and devices: one answer with lines and hints."""
    receipt = await bench.ask("submit", job=FOUNDING.read_text(), key="k1")
    assert not receipt["admitted"]
    found = {(r["path"], r["line"]): r["message"] for r in receipt["reasons"]}
    assert set(found) == {
        ("spec.model", 8),
        ("spec.datasets[0].path", 11),
        ("spec.output.modelSavePath", 23),
    }
    assert "there is no qwen-7b-base@latest" in found["spec.model", 8]
    hints = [r["hint"] for r in receipt["reasons"]]
    assert "the registry holds tiny" in str(hints[0])
    assert any("no node has a100-80g" in warning for warning in receipt["warnings"])
    (fact,) = await bench.facts("job.rejected")
    assert fact.data["reasons"] == receipt["reasons"]


async def test_a_foreign_system_submits_by_publishing(bench: Bench) -> None:
    """Its event's id is the key; it may repeat it until it sees the receipt."""
    job = a_script()
    envelope = {
        "specversion": "1.0",
        "type": "io.lineshaft.in.submit",
        "source": "ci/nightly",
        "id": "run-17",
        "data": {"job": json.dumps(job), "team": "nlp"},
    }
    for _ in range(2):
        await bench.service.bus.publish(subjects.command("submit"), json.dumps(envelope).encode())
    (fact,) = await bench.facts("job.admitted")
    assert (fact.correlation, fact.team) == ("run-17", "nlp")
    assert fact.data["spec"]["command"] == ["python", str(bench.root / "train.py")]
    receipt = await bench.ask("submit", job=job, key="run-17", team="nlp")
    assert receipt["job"] == fact.subject
    assert receipt["seq"] == fact.seq


async def test_garbage_on_the_bus_stops_nobody(bench: Bench) -> None:
    """What is no event goes to the dead stream; what is no job is rejected, with its id."""
    bus, subject = bench.service.bus, subjects.command("submit")
    await bus.publish(subject, b"\xff\x00 not an event")
    for number, job in enumerate(["spec: [", "", {"spec": {"jobType": 3}}, "a: &a [*a]"]):
        fact = Fact(f"bad-{number}", "in.submit", {"job": job}, 0, "ci")
        await bus.publish(subject, events.encode(fact))
    await bus.publish(subject, events.encode(Fact("odd", "in.cancel", {"job": "x"}, 0, "ci")))
    found = await bench.facts("job.rejected", 4)
    assert {fact.correlation for fact in found} == {f"bad-{number}" for number in range(4)}
    assert all(fact.data["reasons"] for fact in found)

    async def are_dead() -> bool:
        state = await bus.state("dead")
        return state is not None and state.messages == 2

    await eventually(are_dead)
    assert (await bench.ask("submit", job=a_script(), key="k9"))["admitted"]


async def test_a_command_before_its_job_waits_for_it(bench: Bench) -> None:
    """It is applied with the admission; one after it passes on at once; a repetition is known."""
    job = ids.job_id("default", "k1")
    parked = await bench.ask("command", verb="suspend", job=job, actor="ann", key="c1")
    assert parked["state"] == "parked"
    await bench.ask("submit", job=bench.a_tuning(), key="k1")
    passed = await bench.ask("command", verb="priority", job=job, value="high", key="c2")
    assert passed["state"] == "accepted"
    assert await bench.ask("command", verb="priority", job=job, value="high", key="c2") == passed
    found = await bench.facts("job.command_accepted", 2)
    assert [(f.data["verb"], f.subject) for f in found] == [("suspend", job), ("priority", job)]
    assert found[1].data["priority"] == 750
    shown = await bench.ask(
        "submission", job=job, at_least={"stream": passed["stream"], "seq": passed["seq"]}
    )
    assert shown["admitted"] is True
    assert [row["verb"] for row in shown["commands"]] == ["suspend", "priority"]


async def test_wrong_requests_are_told_what_is_wrong(bench: Bench) -> None:
    """With a code, a sentence, and no stack trace."""
    job = ids.job_id("default", "none")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("submit", {}, "usage"),
        ("submit", {"job": 3}, "usage"),
        ("submit", {"job": "x", "key": 3}, "usage"),
        ("command", {"verb": "explode", "job": job}, "usage"),
        ("command", {"verb": "priority", "job": job, "value": 1e9}, "usage"),
        ("command", {"verb": "cancel", "job": job, "based_on": "x"}, "usage"),
        ("plan", {"job": bench.a_tuning(), "inventory": {"nodes": []}}, "usage"),
        ("submission", {"job": job}, "not_found"),
    ]
    for verb, params, code in wrong:
        with pytest.raises(RpcError) as caught:
            await bench.ask(verb, **params)
        assert caught.value.code == code, (verb, params, caught.value.message)
        assert "Traceback" not in caught.value.message


async def test_a_plan_writes_nothing_and_says_yes_or_why_not(bench: Bench) -> None:
    """For this platform, and for a cluster that is not here."""
    fits = await bench.ask("plan", job=bench.a_tuning())
    assert fits["fits"], fits["reasons"]
    assert fits["nodes"] == [{"gpu_type": "cpu", "slots": 2, "count": 1, "names": ["local"]}]
    wide = bench.a_tuning(resources={"gpuType": "cpu", "gpuCount": 8})
    refused = await bench.ask("plan", job=wide)
    assert not refused["fits"]
    assert refused["reasons"][0]["code"] == "capacity"
    elsewhere = {"nodes": [{"gpuType": "cpu", "slots": 8}], "models": {"tiny@latest": TINY}}
    assert (await bench.ask("plan", job=wide, inventory=elsewhere))["fits"]
    broken = await bench.ask("plan", job="spec: [")
    assert not broken["fits"]
    assert broken["reasons"][0]["line"] == 1
    assert (await bench.service.bus.state("job")).messages == 0  # type: ignore[union-attr]


async def test_an_admitted_job_that_no_pool_knows_is_told_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the journal, under its own id, until the pool knows it; also after a restart."""
    receipt = await bench.ask("submit", job=a_script(), key="k1")
    (first,) = await bench.facts("job.admitted")
    monkeypatch.setattr(reconciling, "SETTLED_MS", -1)
    for _ in range(2):
        compare = Reconciler(bench.service, bench.look_up())
        await bench.service.wait_for(receipt["stream"], receipt["seq"], 5_000)
        assert await compare.compare() == 1
        (again,) = await bench.facts("job.admitted")
        assert (again.id, again.data, again.replay) == (first.id, first.data, True)
    bench.neighbours.jobs.add(receipt["job"])
    assert await compare.compare() == 0
    bench.neighbours.jobs.clear()
    assert await compare.compare() == 0


async def test_answers_and_waiting_commands_survive_a_restart(tmp_path: Path) -> None:
    """From the journal on disk: the same key gets the same answer, a parked command applies."""
    (tmp_path / "train.py").write_text("print()")
    settings = some_settings(
        tmp_path / "state", mounts=[str(tmp_path)], bus_url="memory://restarted"
    )
    late = ids.job_id("default", "late")
    receipts = []
    for _ in range(2):
        ports = open_ports(settings, "admission")
        await ports.bus.provision()
        service = build(settings, ports)
        await service.start()
        bench = Bench(service, tmp_path, Neighbours(ports))
        receipts.append(await bench.ask("submit", job=a_script(), key="k1"))
        if len(receipts) == 1:
            assert (await bench.ask("command", verb="cancel", job=late))["state"] == "parked"
        else:
            receipt = await bench.ask("submit", job=a_script(), key="late")
            shown = await bench.ask("submission", job=late, at_least=_place(receipt))
            assert [row["outcome"] for row in shown["commands"]] == ["accepted"]
        await service.stop()
    assert receipts[0] == receipts[1]


def _place(receipt: dict[str, Any]) -> dict[str, Any]:
    return {"stream": receipt["stream"], "seq": receipt["seq"]}


async def test_bare_clients_need_no_library_of_ours(tmp_path: Path) -> None:
    """A program with nats-py alone publishes a job and reads its receipt."""
    server = NatsServer(tmp_path / "bus")
    await server.start()
    settings = some_settings(
        tmp_path / "state",
        mounts=[str(tmp_path)],
        bus_url=server.url,
        bus_token=Secret(server.token),
    )
    (tmp_path / "train.py").write_text("print()")
    ports = open_ports(settings, "admission")
    await ports.bus.provision()
    service = build(settings, ports)
    await service.start()
    client = await nats.connect(server.url, token=server.token)
    try:
        receipts = await client.jetstream().subscribe(
            "lineshaft.job.*.*.*.*", ordered_consumer=True
        )
        body = {"job": json.dumps(a_script())}
        headers = {"CE-SpecVersion": "1.0", "CE-Type": "io.lineshaft.in.submit"}
        headers |= {"CE-Source": "ci", "CE-Id": "n-1"}
        await client.jetstream().publish(
            "lineshaft.in.submit", json.dumps(body).encode(), headers=headers
        )
        message = await receipts.next_msg(timeout=20)
        receipt = json.loads(message.data)
        assert receipt["type"] == "io.lineshaft.job.admitted"
        assert receipt["correlationid"] == "n-1"
        assert "the pool's nodes are not known now" in receipt["data"]["warnings"][0]
    finally:
        await client.close()
        await service.stop()
        await ports.aclose()
        with suppress(ProcessLookupError):
            await server.stop()
