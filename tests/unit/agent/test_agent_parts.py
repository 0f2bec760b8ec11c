"""The agent's parts on memory stores and a virtual clock: records, relay, logs, staging."""

import asyncio
import json
import math
import sys
from pathlib import Path

import pytest

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.clock import SystemClock, VirtualClock
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.contracts import limits, manifest, records
from lineshaft.contracts.events import decode
from lineshaft.contracts.subjects import reports_of
from lineshaft.contracts.telemetry import Metric, unpack, unpack_beat, unpack_lines
from lineshaft.ports import StoreUnavailable
from tests.builders_agent import an_order
from trainer.agent import devices, procfs, starting
from trainer.agent.keeping import NotRecorded, Records
from trainer.agent.logs import Logs
from trainer.agent.order import OrderError, read
from trainer.agent.progress import Progress, RankEnd
from trainer.agent.relay import Relay
from trainer.agent.staging import BadArtifact, described, fill, loose
from trainer.agent.watching import RankWatch, describe


async def heard(bus: MemoryBus, stream: str) -> list[bytes]:
    """Return what a stream holds."""
    pulling = bus.pull(stream, "test", [f"lineshaft.{stream}.>"])
    async with asyncio.timeout(5):
        return [message.data for message in await anext(pulling)]


async def test_a_record_is_created_before_it_is_told(tmp_path: Path) -> None:
    """The fact restates the record: its key is the id, its body the data."""
    bus, objects = MemoryBus(), MemoryObjects()
    kept = Records(an_order(tmp_path), objects, bus, SystemClock())
    body = {"step": 1, "digest": "sha256:x", "bytes": 1, "path": "/p", "metrics": {}}
    stands = await kept.keep("runs/j/1/checkpoints/1", "run.checkpoint_committed", body)
    await kept.flush(5)
    fact = decode((await heard(bus, "run"))[0])
    raw = b"".join([part async for part in objects.open("runs/j/1/checkpoints/1")])
    assert json.loads(raw) == stands == fact.data
    assert (fact.id, fact.source) == ("runs/j/1/checkpoints/1", "agent")


async def test_a_record_that_stands_is_not_changed(tmp_path: Path) -> None:
    """Keeping again returns what stands, whatever was meant to be kept."""
    kept = Records(an_order(tmp_path), MemoryObjects(), MemoryBus(), SystemClock())
    first = await kept.keep("runs/j/1/complete", "run.completed", {"manifest": None, "step": 1})
    again = await kept.keep("runs/j/1/complete", "run.completed", {"manifest": "x", "step": 2})
    assert again == first


async def test_a_store_that_is_away_is_asked_again(tmp_path: Path) -> None:
    """An outage is waited out up to the patience, then said."""
    objects, clock = MemoryObjects(), VirtualClock(1_000)
    kept = Records(an_order(tmp_path), objects, MemoryBus(), clock)
    objects.fail_next(StoreUnavailable("away"), times=3)
    task = asyncio.create_task(kept.keep("runs/j/1/x", "run.completed", {"manifest": None}))
    await clock.advance(5_000)
    assert (await task)["manifest"] is None
    objects.fail_next(StoreUnavailable("away"), times=1_000)
    hopeless = kept.keep("runs/j/1/y", "run.completed", {}, patience_ms=2_000)
    late = asyncio.create_task(hopeless)
    await clock.advance(5_000)
    with pytest.raises(NotRecorded, match="away"):
        await late


async def test_only_a_higher_fence_fences(tmp_path: Path) -> None:
    """Lower fences and the attempt's own do not; a higher one does."""
    order, objects = an_order(tmp_path, attempt=2), MemoryObjects()
    kept = Records(order, objects, MemoryBus(), SystemClock())
    for attempt in (1, 2):
        await objects.put(records.fence(order.job, attempt), b"{}")
    assert not await kept.is_fenced()
    await objects.put(records.fence(order.job, 10), b"{}")
    assert await kept.is_fenced()


async def test_the_relay_sends_rows_metrics_and_losses_of_rows(tmp_path: Path) -> None:
    """Blocks carry what came; while the bus is away the oldest rows give way, with a count."""
    order, bus = an_order(tmp_path), MemoryBus()
    relay = Relay(order, Progress.of(order.ranks), bus, SystemClock())
    for step in range(limits.TELEMETRY_ROWS_HELD_MAX + 5):
        relay.row({"step": step, "rank": 0, "loss": 1.0})
    relay.metric(Metric("accuracy", 0.5, 1))
    await relay.flush()
    blocks = [unpack(raw) for raw in await heard(bus, "telemetry")]
    steps = [int(row["step"]) for block in blocks for row in block.rows()]
    assert steps == list(range(5, limits.TELEMETRY_ROWS_HELD_MAX + 5))
    assert blocks[-1].dropped == 5
    assert [m.name for block in blocks for m in block.metrics] == ["accuracy"]
    assert "host_memory_total_bytes" in blocks[0].sample
    assert all(math.isnan(row["tokens"]) for row in blocks[0].rows())


async def test_a_beat_tells_phase_step_and_ranks(tmp_path: Path) -> None:
    """A beat holds what the agent knows now, under its run's subject."""
    order, bus, clock = an_order(tmp_path), MemoryBus(), VirtualClock(10_000)
    progress = Progress.of(order.ranks)
    progress.phase = "running"
    progress.ranks[0].phase = "evaluating"
    progress.step(0, 7, 4_000)
    await Relay(order, progress, bus, clock).beat()
    beat = unpack_beat((await heard(bus, "beat"))[0])
    assert (beat.phase, beat.last_step, beat.last_step_age_ms) == ("evaluating", 7, 6_000)
    assert beat.ranks[0]["state"] == "X"
    assert reports_of("beat", job=order.job)


async def test_lines_are_whole_bounded_and_kept(tmp_path: Path) -> None:
    """Half a line waits for its end, a huge one is cut with a word, all go into a segment."""
    order, objects, bus = an_order(tmp_path), MemoryObjects(), MemoryBus()
    logs = Logs(order, objects, bus, SystemClock())
    path = order.ranks_folder / "rank-0.out"
    logs.follow(path, 0, "out")
    path.write_bytes(b"first\nhalf")
    logs.look()
    assert logs.last_lines(0) == ["first"]
    with path.open("ab") as file:
        file.write(b" done\n10%\r20%\r\n\xff\n" + b"x" * 20_000 + b"\nrest")
    await logs.close()
    key = records.log_segment(order.job, 1, "alpha", 0)
    raw = b"".join([part async for part in objects.open(key)])
    texts = [line.text for line in unpack_lines(raw)]
    assert texts[:4] == ["first", "half done", "20%", "\ufffd"]
    assert texts[4].endswith("bytes more]")
    assert texts[5] == "rest"
    live = [line.text for data in await heard(bus, "logs") for line in unpack_lines(data)]
    assert live == texts
    assert "[rank 0 out] half done" in logs.whole.read_text()


class SlowBus(MemoryBus):
    """Takes its time to confirm."""

    async def publish(self, subject: str, data: bytes, *, message_id: str | None = None) -> int:
        """Publish after a few turns of the loop."""
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().publish(subject, data, message_id=message_id)


async def test_a_line_on_its_way_is_not_sent_again(tmp_path: Path) -> None:
    """The end sends what is left while the follower still sends: each line goes out once."""
    bus = SlowBus()
    logs = Logs(an_order(tmp_path), MemoryObjects(), bus, SystemClock())
    logs.say("last words")
    follower = asyncio.create_task(logs.run_live())
    await asyncio.sleep(0)
    await logs.close()
    follower.cancel()
    lines = [line.text for data in await heard(bus, "logs") for line in unpack_lines(data)]
    assert lines == ["last words"]


async def test_lines_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    """With full storage training goes on; the gap is named in the next segment."""
    order, objects = an_order(tmp_path), MemoryObjects()
    logs = Logs(order, objects, MemoryBus(), SystemClock())
    logs.say("one")
    objects.fail_next(StoreUnavailable("full"))
    await logs.keep_now()
    logs.say("two")
    await logs.keep_now()
    key = records.log_segment(order.job, 1, "alpha", 0)
    raw = b"".join([part async for part in objects.open(key)])
    assert [line.text for line in unpack_lines(raw)] == [
        "[1 lines before this one could not be stored]",
        "two",
    ]


async def test_last_lines_fit_a_record(tmp_path: Path) -> None:
    """However long and whatever their script, the last lines have room in a record."""
    logs = Logs(an_order(tmp_path), MemoryObjects(), MemoryBus(), SystemClock())
    for number in range(100):
        logs.say(f"{number}" + "\u6f22" * 2_000)
    last = logs.last_lines(-1)
    assert last[-1].startswith("99")
    assert len(json.dumps(last, ensure_ascii=False).encode()) < limits.RECORD_BYTES_MAX / 2


def test_an_artifact_needs_what_it_names(tmp_path: Path) -> None:
    """A named file that is absent makes no version; unnamed ones are kept as training files."""
    with pytest.raises(BadArtifact):
        described(tmp_path)
    facts = {"kind": "model", "roles": {"w": "weights"}}
    (tmp_path / "artifact.json").write_text(json.dumps(facts))
    with pytest.raises(BadArtifact, match="w was named"):
        described(tmp_path)
    (tmp_path / "w").write_bytes(b"1")
    (tmp_path / "notes").write_bytes(b"2")
    (tmp_path / "link").symlink_to(tmp_path / "w")
    assert described(tmp_path).files == {"w": "weights", "notes": "training"}
    assert loose(tmp_path / "nothing") is None


def test_a_save_path_of_the_same_job_is_replaced(tmp_path: Path) -> None:
    """A later attempt takes its job's place; nothing half-made is ever at the path."""
    made = {}
    for attempt, content in ((1, b"old"), (2, b"new")):
        folder = tmp_path / f"out-{attempt}"
        folder.mkdir()
        (folder / "w").write_bytes(content)
        resolved = {"output": {"model_name": "demo", "save_path": str(tmp_path / "saved")}}
        order = an_order(tmp_path, attempt=attempt, resolved=resolved)
        artifact = loose(folder)
        assert artifact is not None
        file = {"path": "w", "size": 3, "digest": "sha256:" + "0" * 64, "role": "training"}
        lineage = {"job": order.job}
        made = manifest.make(
            kind="files", name="demo", team="research", files=[file], lineage=lineage
        )
        assert fill(order, artifact, made) is None
    assert (tmp_path / "saved" / "w").read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.glob("*saved*")) == ["saved"]
    assert made["name"] == "demo"


def test_the_first_bad_end_is_the_earliest(tmp_path: Path) -> None:
    """Ends are ordered by their own time, not by the order in which they were noticed."""
    progress = Progress.of((0, 1, 2))
    progress.ranks[0].end = RankEnd(0, 1, None, at=30)
    progress.ranks[2].end = RankEnd(2, None, 9, at=20)
    progress.ranks[1].end = RankEnd(1, 0, None, at=10)
    first = progress.first_bad_end
    assert first is not None
    assert first.rank == 2
    assert describe(first, ["a", " "]) == "rank 2 ended with signal 9: a"


@pytest.mark.parametrize("silent", [(None, 9), (None, None)])
@pytest.mark.parametrize("loud", [(1, None), (None, 15), (None, 6)])
def test_what_a_killed_rank_took_along_is_not_the_cause(
    silent: tuple[int | None, int | None], loud: tuple[int | None, int | None]
) -> None:
    """A peer's error, or the launcher's signal to it, may be seen before the end that caused it."""
    progress = Progress.of((0, 1))
    progress.ranks[0].end = RankEnd(0, *loud, at=20)
    progress.ranks[1].end = RankEnd(1, *silent, at=350)
    assert [end.rank for end in progress.bad_ends] == [1, 0]
    assert progress.first_bad_end is progress.ranks[1].end


def test_a_rank_is_gone_when_nobody_is_left_to_start_it(tmp_path: Path) -> None:
    """A launcher that ends without naming its ranks ends them; one look is not enough."""
    order = an_order(tmp_path)
    progress = Progress.of(order.ranks)
    watch = RankWatch(order, progress, VirtualClock(5))
    watch.look(are_starters_gone=False)
    watch.look(are_starters_gone=True)
    watch.look(are_starters_gone=True)
    assert not progress.have_all_ended
    watch.look(are_starters_gone=True)
    assert progress.ranks[0].end == RankEnd(0, None, None, 5)


def test_environments_of_launchers(tmp_path: Path) -> None:
    """One plain rank sees no gang; several do; the platform's values win over the user's."""
    env = {"MASTER_PORT": "1", "MINE": "x", "LINESHAFT_JOB": "forged"}
    alone = starting.environment(an_order(tmp_path, env={"MINE": "x"}), tmp_path / "s")
    assert "MASTER_PORT" not in alone
    assert (alone["CUDA_VISIBLE_DEVICES"], alone["DS_ACCELERATOR"]) == ("", "cpu")
    order = an_order(tmp_path, env=env, world_size=2, ranks=[0, 1], slots=[0, 1])
    made = starting.environment(order, tmp_path / "s")
    assert (made["MASTER_PORT"], made["WORLD_SIZE"], made["MINE"]) == ("29511", "2", "x")
    assert made["LINESHAFT_JOB"] == order.job
    assert made["PATH"].startswith(str(Path(sys.executable).parent))
    chosen = starting.environment(an_order(tmp_path, env={"PATH": "/mine"}), tmp_path / "s")
    assert chosen["PATH"] == "/mine"
    ranks = [each[1]["RANK"] for each in starting.commands(order, made)]
    assert ranks == ["0", "1"]


def test_an_order_that_no_agent_can_follow_is_named(tmp_path: Path) -> None:
    """Whatever is wrong with an order, one error says it."""
    path = tmp_path / "order.json"
    for text in ("", "[]", "{}", '{"schema": 2}', "\x00"):
        path.write_text(text)
        with pytest.raises(OrderError, match=r"order\.json"):
            read(path)


def test_devices_are_summed_up() -> None:
    """One line per device; what a device does not tell counts as 0."""
    assert devices.summary("50, 300.5, 1024, 60, 4096\n70, [N/A], 1024, 71, 4096\n") == {
        "gpu_utilisation": 60.0,
        "gpu_power_w": 150.25,
        "gpu_utilisation_0": 50.0,
        "gpu_utilisation_1": 70.0,
        "gpu_memory_total_bytes": 8192 * 1024 * 1024,
        "gpu_memory_bytes": 2048.0 * 1024 * 1024,
        "gpu_temperature_c": 71.0,
    }
    with pytest.raises(ValueError, match="could not convert"):
        devices.summary("No devices were found, a, b, c, d")


def test_a_process_is_named_by_its_start(tmp_path: Path) -> None:
    """A process lives under its own start time; another start time is another process."""
    import os

    me = procfs.look(os.getpid())
    assert me is not None
    assert procfs.is_alive(me.pid, me.start_time)
    assert not procfs.is_alive(me.pid, me.start_time + 1)
    assert procfs.look(1 << 22) is None


def test_a_script_begins_again_only_when_the_job_says_never(tmp_path: Path) -> None:
    """``resume: never`` hides what an earlier attempt left; else its folder is named."""
    order = an_order(tmp_path, attempt=2)
    left = order.checkpoint_root / order.job / "1" / "checkpoints"
    left.mkdir(parents=True)
    (left / "state").write_text("1")
    made = starting.environment(order, tmp_path / "s")
    assert made["LINESHAFT_RESUME_FROM"] == str(left)
    never = an_order(tmp_path, attempt=2, spec={"resources": {"gpuType": "cpu"}, "resume": "never"})
    assert "LINESHAFT_RESUME_FROM" not in starting.environment(never, tmp_path / "s")
