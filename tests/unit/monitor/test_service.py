"""The monitor whole, over memory adapters: measurements and facts in, answers and alerts out."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.contracts import records, subjects
from lineshaft.contracts.events import Fact, decode, encode
from lineshaft.contracts.subjects import RunAddress
from lineshaft.contracts.telemetry import Beat, LogLine, Metric, pack, pack_beat, pack_lines
from lineshaft.runtime.rpc import RpcError, decode_reply
from lineshaft.runtime.service import Service
from lineshaft.runtime.wiring import Ports
from services.monitor import handlers
from services.monitor.domain.decider import MonitorDecider
from services.monitor.domain.policy import PolicyError, policy_of
from services.monitor.projector import MonitorProjector
from tests.builders_monitor import JOB
from tests.builders_runtime import eventually, memory_ports, some_settings

ADDRESS = RunAddress(JOB, 1, "n0", "default", "team")
RUN = (JOB, 1, "n0")


class Monitor:
    """A running monitor and its bus."""

    def __init__(self, service: Service, parts: handlers.Parts) -> None:
        self.service = service
        self.parts = parts
        self.bus = service.bus

    @property
    def now(self) -> int:
        return self.service.clock.now()

    async def ask(self, verb: str, **params: Any) -> dict[str, Any]:
        raw = await self.bus.request(subjects.rpc("monitor", verb), json.dumps(params).encode())
        return decode_reply(raw)

    async def tell(self, kind: str, data: dict[str, Any], **values: Any) -> None:
        fact = Fact(
            values.pop("id", f"{kind}/{values.get('attempt', 1)}"),
            kind,
            data,
            self.now,
            values.pop("source", "agent"),
            JOB,
            values.pop("attempt", 1),
            "default",
            "team",
        )
        await self.bus.publish(subjects.of_fact(fact), encode(fact))

    async def block(self, rows: list[dict[str, float]], **more: Any) -> None:
        await self.bus.publish(ADDRESS.subject("telemetry"), pack(RUN, rows, **more))

    async def lines(self, lines: list[LogLine]) -> None:
        await self.bus.publish(ADDRESS.subject("logs"), pack_lines(lines))

    async def start_job(self) -> None:
        ranks = [{"rank": r, "pid": 100 + r, "supervisor_pid": 50 + r} for r in (0, 1)]
        await self.tell("run.started", {"node": "n0", "ranks": ranks}, id="started-1")
        await eventually(lambda: self._knows(JOB))

    def _knows(self, job: str) -> bool:
        return any(job in self.service.host.state(s).jobs for s in self.service.host.lanes)


def a_monitor(folder: Path, ports: Ports | None = None, **policy: Any) -> Monitor:
    chosen = policy_of(policy)
    service = Service(
        "monitor",
        some_settings(folder),
        ports or memory_ports(),
        decider=MonitorDecider(),
        projector=MonitorProjector(),
        policy=chosen,
    )
    return Monitor(service, handlers.register(service, chosen))


@pytest.fixture
async def monitor(tmp_path: Path) -> AsyncIterator[Monitor]:
    made = a_monitor(tmp_path)
    await made.service.start()
    await asyncio.sleep(0.05)  # ephemeral consumers take what comes after they stand
    yield made
    await made.service.stop()


async def _published(monitor: Monitor, family: str) -> list[Fact]:
    bus = monitor.bus
    assert isinstance(bus, MemoryBus)
    return [decode(m.data) for m in bus._streams[family].messages.values()]


async def _facts(monitor: Monitor, kind: str) -> list[Fact]:
    found = await _published(monitor, kind.partition(".")[0])
    return [fact for fact in found if fact.kind == kind]


async def test_a_killed_rank_is_diagnosed_and_told_within_a_second(monitor: Monitor) -> None:
    """The exit's fact comes in; diagnosis and alert are on the bus, with the evidence."""
    await monitor.start_job()
    began = monitor.now
    data = {"node": "n0", "rank": 1, "exit_code": None, "signal": 9, "last_lines": ["step 5"]}
    await monitor.tell("run.rank_exited", data, id=records.rank_exit(JOB, 1, 1))

    async def diagnosed() -> list[Fact]:
        return await _facts(monitor, "run.diagnosed")

    (found,) = await eventually(diagnosed)
    assert monitor.now - began < 1_000
    assert (found.data["class"], found.data["action"]) == ("infrastructure", "restart")
    assert found.data["rank"] == 1

    async def alarmed() -> list[Fact]:
        return await _facts(monitor, "alert.firing")

    (alert,) = await eventually(alarmed)
    assert alert.data["kind"] == "rank_exited"
    told = await monitor.ask("alerts", job=JOB)
    assert [a["alert"] for a in told["alerts"]] == [alert.data["alert"]]
    run = await monitor.ask("run", job=JOB)
    assert run["attempts"][0]["diagnoses"][0]["diagnosis"] == found.data["diagnosis"]


async def test_the_live_log_explains_an_end_too(monitor: Monitor) -> None:
    """An out-of-memory line in the log makes a kill a matter of memory."""
    await monitor.start_job()
    line = "Out of memory: Killed process 101 (python) total-vm:1kB, anon-rss:1kB"
    await monitor.lines([LogLine(monitor.now, 0, "stderr", line)])

    async def opened() -> list[Fact]:
        return await _facts(monitor, "alert.firing")

    await eventually(opened)
    data = {"node": "n0", "rank": 1, "exit_code": None, "signal": 9, "last_lines": []}
    await monitor.tell("run.rank_exited", data, id=records.rank_exit(JOB, 1, 1))

    async def diagnosed() -> list[Fact]:
        return await _facts(monitor, "run.diagnosed")

    (found,) = await eventually(diagnosed)
    assert found.data["class"] == "config"


async def test_a_loss_that_is_no_number_becomes_an_alert(monitor: Monitor) -> None:
    """From a telemetry block to a critical alert, through the journal."""
    await monitor.start_job()
    await monitor.block([{"step": 1, "rank": 0, "loss": float("inf")}])

    async def confirmed() -> list[Fact]:
        found = await _facts(monitor, "alert.firing")
        return [f for f in found if f.data["status"] == "confirmed"]

    (alert,) = await eventually(confirmed)
    assert (alert.data["kind"], alert.data["severity"]) == ("non_finite", "critical")
    assert alert.attempt == 1


async def test_the_run_shows_ranks_beats_and_progress(monitor: Monitor) -> None:
    """Pids from the start record, states and CPU from the beat, steps from telemetry."""
    await monitor.start_job()
    ranks = ({"rank": 0, "pid": 100, "state": "R", "cpu_ms": 5}, {"rank": 1, "state": "S"})
    beat = Beat(JOB, 1, "n0", monitor.now, "training", 3, 40, 0, ranks, "boot")
    await monitor.bus.publish(ADDRESS.subject("beat"), pack_beat(beat))
    rows = [
        {"step": s, "rank": r, "step_ms": 100.0, "samples": 4.0} for s in (1, 2, 3) for r in (0, 1)
    ]
    metrics = [Metric("planned_steps", 10.0, 0)]
    await monitor.block(rows, metrics=metrics, sample={"host_memory_used_bytes": 5.0})

    async def shown() -> dict[str, Any] | None:
        run = await monitor.ask("run", job=JOB)
        attempt = run["attempts"][0]
        is_whole = attempt["progress"]["step"] == 3 and attempt["nodes"][0]["beat"] is not None
        return attempt if is_whole else None

    attempt = await eventually(shown)
    node = attempt["nodes"][0]
    assert [(r["rank"], r["pid"], r["supervisor_pid"], r["state"]) for r in node["ranks"]] == [
        (0, 100, 50, "R"),
        (1, 101, 51, "S"),
    ]
    assert node["beat"]["phase"] == "training"
    assert node["sample"] == {"host_memory_used_bytes": 5.0}
    assert attempt["progress"]["planned_steps"] == 10
    assert attempt["progress"]["samples_per_s"] == 80.0
    assert attempt["progress"]["eta_s"] == 1


async def test_garbage_is_counted_and_buried_and_stops_nothing(monitor: Monitor) -> None:
    """Bytes that are none of ours never reach a rule; some go to the dead stream with a reason."""
    await monitor.start_job()
    draw = random.Random(7)
    for family in ("telemetry", "beat", "logs"):
        for size in (0, 1, 7, 8, 100, 5_000):
            await monitor.bus.publish(ADDRESS.subject(family), draw.randbytes(size))
        await monitor.bus.publish(ADDRESS.subject(family), b"LST1" + b"\xff" * 40)
        await monitor.bus.publish(ADDRESS.subject(family), b'{"records": 5}')
        await monitor.bus.publish(f"lineshaft.{family}.0.nonsense", b"x")
    stranger = pack(("j-other", 1, "n0"), [{"step": 1, "rank": 0}])
    await monitor.bus.publish(ADDRESS.subject("telemetry"), stranger)
    await monitor.block([{"step": 1, "rank": 0, "loss": float("inf")}])

    async def alarmed() -> list[Fact]:
        return await _facts(monitor, "alert.firing")

    assert await eventually(alarmed)
    bus = monitor.bus
    assert isinstance(bus, MemoryBus)
    buried = [json.loads(m.data) for m in bus._streams["dead"].messages.values()]
    assert any("not of the run" in story["reason"] for story in buried)
    assert len(buried) <= 20


async def test_a_fault_in_one_runs_rules_spares_the_others(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours is a finding, and the next sample is judged again."""
    await monitor.start_job()
    run = monitor.parts.watching.runs.get(JOB, 1)
    assert run is not None

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(type(run), "take", broken)
    await monitor.block([{"step": 1, "rank": 0, "loss": 1.0}])
    await eventually(lambda: monitor.parts.watching.ignored.get("failed"))
    monkeypatch.undo()
    await monitor.block([{"step": 2, "rank": 0, "loss": float("inf")}])

    async def kinds() -> bool:
        found = {f.data["kind"] for f in await _facts(monitor, "alert.firing")}
        return {"non_finite", "platform_finding"} <= found

    assert await eventually(kinds)


async def test_curves_are_kept_in_objects_and_joined_over_attempts(tmp_path: Path) -> None:
    """Parts in Objects outlive the process; re-run steps keep their attempt's number."""
    ports = memory_ports()
    first = a_monitor(tmp_path, ports)
    await first.service.start()
    await asyncio.sleep(0.05)
    await first.start_job()
    rows = [{"step": s, "rank": 0, "loss": 3.0 - s / 100} for s in range(1, 41)]
    await first.block(rows, metrics=[Metric("accuracy", 0.5, 40, "eval", "kind")])

    async def whole() -> bool:
        curves = await first.ask("curves", job=JOB)
        return len(curves["series"].get("loss", [])) == 40

    await eventually(whole)
    await first.service.stop()
    keys = [stat.key async for stat in ports.objects.list(records.curves(JOB))]
    assert keys == [records.curve(JOB, 1, 0)]

    second = a_monitor(
        tmp_path, Ports(ports.clock, MemoryBus(), ports.journal, ports.views, ports.objects)
    )
    await second.service.start()
    await asyncio.sleep(0.05)
    await second.tell("run.started", {"node": "n0", "ranks": []}, attempt=2, id="started-2")
    block = pack((JOB, 2, "n0"), [{"step": 30, "rank": 0, "loss": 9.0}])
    address = RunAddress(JOB, 2, "n0", "default", "team")
    await second.bus.publish(address.subject("telemetry"), block)

    async def joined() -> dict[str, Any] | None:
        curves = await second.ask("curves", job=JOB)
        return curves if len(curves["series"].get("loss", [])) == 41 else None

    curves = await eventually(joined)
    assert curves["series"]["loss"][0] == [1, 2.99, 1]
    assert curves["series"]["loss"][-1] == [30, 9.0, 2]
    assert curves["metrics"] == [
        {
            "name": "accuracy",
            "value": 0.5,
            "step": 40,
            "split": "eval",
            "subtask": "kind",
            "attempt": 1,
        }
    ]
    thin = await second.ask("curves", job=JOB, points=10)
    assert len(thin["series"]["loss"]) == 11
    await second.service.stop()


async def test_logs_come_page_by_page_each_line_once(monitor: Monitor) -> None:
    """Segments and what is not in one yet, in order, while both grow; also from one rank only."""
    await monitor.start_job()
    at = monitor.now

    def line(number: int) -> LogLine:
        return LogLine(at + number // 3, number % 2, "stdout", f"line {number}")

    everything = [line(n) for n in range(100)]
    key = records.log_segment(JOB, 1, "n0", 0)
    await monitor.service.objects.put(key, pack_lines(everything[:60]))
    await monitor.lines(everything[:80])  # the ring repeats what the segment holds

    async def page(after: str | None, limit: int = 7, **more: Any) -> dict[str, Any]:
        return await monitor.ask("logs", job=JOB, after=after, limit=limit, **more)

    async def arrived() -> bool:
        return len((await page(None, limit=500))["lines"]) == 80

    await eventually(arrived)
    seen: list[str] = []
    after: str | None = None
    while True:
        got = await page(after)
        after = got["next"]
        if not got["lines"]:
            break
        seen += [row["text"] for row in got["lines"]]
    assert seen == [f"line {n}" for n in range(80)]

    await monitor.service.objects.put(
        records.log_segment(JOB, 1, "n0", 1), pack_lines(everything[60:90])
    )
    await monitor.lines(everything[80:])

    async def rest() -> list[str] | None:
        rows = (await page(after, limit=500))["lines"]
        return [row["text"] for row in rows] if len(rows) == 20 else None

    assert await eventually(rest) == [f"line {n}" for n in range(80, 100)]
    odd = await page(None, limit=500, rank=1)
    assert [row["text"] for row in odd["lines"]] == [f"line {n}" for n in range(1, 100, 2)]
    with pytest.raises(RpcError, match="not a page's"):
        await page("nonsense")


async def test_commands_leave_entries_and_answers(monitor: Monitor) -> None:
    """Acknowledge, then resolve; a repeated key answers alike; unknown alerts are not found."""
    await monitor.start_job()
    await monitor.block([{"step": 1, "rank": 0, "loss": float("inf")}])

    async def open_alerts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await monitor.ask("alerts"))["alerts"]
        return found

    (alert,) = await eventually(open_alerts)
    told = {"alert": alert["alert"], "actor": "ada", "reason": "mine"}
    first = await monitor.ask("acknowledge", key="k1", **told)
    assert await monitor.ask("acknowledge", key="k1", **told) == first
    assert (await open_alerts())[0]["acknowledged_by"] == "ada"
    await monitor.ask("silence", key="k2", for_ms=1_000, **told)
    await monitor.ask("resolve", key="k3", **told)
    assert not await open_alerts()

    async def kept() -> list[dict[str, Any]]:
        rows = (await monitor.ask("alerts", job=JOB, open=False))["alerts"]
        return [row for row in rows if not row["is_open"]]

    assert (await eventually(kept))[0]["reason"] == "mine"
    with pytest.raises(RpcError) as refused:
        await monitor.ask("resolve", key="k4", **told)
    assert refused.value.code == "not_found"
    with pytest.raises(RpcError):
        await monitor.ask("resolve", key="k5", alert="x", actor="ada")


async def test_the_own_path_is_proved_by_the_canary(monitor: Monitor) -> None:
    """The canary's beat comes back through the very consumer that judges silence."""
    assert await eventually(lambda: monitor.parts.watching.canary_at)


def test_a_policy_value_that_is_none_is_refused_by_name() -> None:
    """A typing error in the settings stops the start."""
    with pytest.raises(PolicyError, match="hang_flor_ms"):
        policy_of({"hang_flor_ms": 1})
    with pytest.raises(PolicyError, match="whole"):
        policy_of({"spike_window": 1.5})
    assert policy_of({"hang_floor_ms": 10_000}).hang_floor_ms == 10_000
