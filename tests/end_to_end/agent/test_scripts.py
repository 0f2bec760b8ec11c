"""Plain scripts through launcher and agent: real processes, a real bus, objects in a folder."""

import json
import os
import signal
from pathlib import Path

from lineshaft.contracts import manifest, records
from lineshaft.contracts.failures import StopIntent
from lineshaft.contracts.subjects import reports_of
from lineshaft.contracts.telemetry import unpack, unpack_beat, unpack_lines
from tests.builders_agent import (
    REPORTING,
    WAITING,
    Place,
    a_job,
    a_run,
    a_script,
    python,
    shared_memory,
    until,
)


async def test_two_ranks_succeed(place: Place) -> None:
    """A two-rank script starts, reports, ends; its records stand and its facts are told."""
    job, before = a_job(), shared_memory()
    run = a_run(job, python(a_script(place.root)), slots={"alpha": 2})
    await place.want(run)
    completed = await place.told("run.completed", job)
    assert completed.data["manifest"] is None
    assert completed.data["step"] == 3
    stopped = await place.told("run.stopped", job)
    assert stopped.data["intent"] == "ended"
    ended = await place.record(records.ended(job, 1, "alpha"))
    assert ended["outcome"] == "completed"
    assert ended["exit_codes"] == {"0": 0, "1": 0}
    started = await place.started(job)
    assert {rank["rank"] for rank in started["ranks"]} == {0, 1}
    assert place.output(job, 1).startswith("rank 1 of 2")
    assert place.living(job) == []
    assert shared_memory() == before


async def test_one_rank_sees_no_gang(place: Place) -> None:
    """A single rank without a launcher gets neither RANK nor WORLD_SIZE, and its own variables."""
    job = a_job()
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    script = a_script(place.root, code)
    await place.want(a_run(job, python(script), spec={"env": {"MY_SETTING": "seven"}}))
    await place.told("run.completed", job)
    seen = json.loads(place.output(job))
    assert "RANK" not in seen
    assert "WORLD_SIZE" not in seen
    assert seen["MY_SETTING"] == "seven"
    assert not any("token" in value.lower() for value in seen.values() if "bus" in value.lower())


async def test_a_rank_that_fails_takes_the_others_along(place: Place) -> None:
    """An exit code is recorded with the last lines before the other rank is ended."""
    job = a_job()
    body = REPORTING + "if rank == 1:\n    raise RuntimeError('no luck')\ntime.sleep(600)\n"
    await place.want(a_run(job, python(a_script(place.root, body)), slots={"alpha": 2}))
    fact = await place.told("run.rank_exited", job)
    assert (fact.data["rank"], fact.data["exit_code"], fact.data["signal"]) == (1, 1, None)
    assert fact.data["last_lines"][-1] == "RuntimeError: no luck"
    assert fact.data["class"] == "user_code"
    assert fact.id == records.rank_exit(job, 1, 1)
    ended = await place.told("run.ended", job)
    assert (ended.data["outcome"], ended.data["class"]) == ("failed", "user_code")
    await place.told("run.stopped", job)
    assert place.living(job) == []
    segments = [stat.key async for stat in place.objects.list(records.logs(job, 1))]
    lines = []
    for key in segments:
        raw = b"".join([part async for part in place.objects.open(key)])
        lines += [line.text for line in unpack_lines(raw)]
    assert "RuntimeError: no luck" in lines


async def test_a_killed_rank_is_infrastructure(place: Place) -> None:
    """SIGKILL from outside is seen as a signal, and nothing is left in /dev/shm."""
    job, before = a_job(), shared_memory()
    await place.want(a_run(job, python(a_script(place.root, WAITING)), slots={"alpha": 2}))
    started = await place.started(job)
    victim = next(rank for rank in started["ranks"] if rank["rank"] == 1)
    os.kill(victim["pid"], signal.SIGKILL)
    fact = await place.told("run.rank_exited", job)
    assert (fact.data["rank"], fact.data["signal"]) == (1, signal.SIGKILL)
    assert fact.data["class"] == "infrastructure"
    await place.told("run.stopped", job)
    assert place.living(job) == []
    assert shared_memory() == before


async def test_a_killed_watcher_takes_its_rank_along(place: Place) -> None:
    """When a rank's watcher is killed, the rank dies with it and its end is noticed."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING))))
    started = await place.started(job)
    os.kill(started["ranks"][0]["supervisor_pid"], signal.SIGKILL)
    fact = await place.told("run.rank_exited", job)
    assert fact.data["exit_code"] is None
    assert fact.data["class"] == "infrastructure"
    await place.told("run.stopped", job)
    assert place.living(job) == []


async def test_a_stopped_process_shows_in_the_beat(place: Place) -> None:
    """A rank in state T is named by the next beat; the run is not ended for it."""
    job, bus = a_job(), place.a_bus()
    beats = bus.pull("beat", None, [reports_of("beat", job=job)])
    await anext(beats)  # it stands
    await place.want(a_run(job, python(a_script(place.root, WAITING)), slots={"alpha": 2}))
    started = await place.started(job)
    pid = started["ranks"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    states: list[str] = []
    while "T" not in states:
        for message in await anext(beats):
            beat = unpack_beat(message.data)
            states = [str(rank["state"]) for rank in beat.ranks if rank["pid"] == pid]
            await message.ack()
    os.kill(pid, signal.SIGCONT)
    await beats.aclose()
    await bus.aclose()
    assert all(fact.kind != "run.ended" for fact in place.facts)


async def test_steps_metrics_and_lines_reach_the_bus(place: Place) -> None:
    """What a script reports and prints is on the bus under its run's subjects."""
    job, bus = a_job(), place.a_bus()
    blocks = bus.pull("telemetry", None, [reports_of("telemetry", job=job)])
    logs = bus.pull("logs", None, [reports_of("logs", job=job)])
    await anext(blocks)
    await anext(logs)
    await place.want(a_run(job, python(a_script(place.root)), slots={"alpha": 2}))
    seen, names = set(), set()
    while len(seen) < 6:
        for message in await anext(blocks):
            block = unpack(message.data)
            seen |= {(int(row["step"]), int(row["rank"])) for row in block.rows()}
            names |= {metric.name for metric in block.metrics}
    assert seen == {(step, rank) for step in (1, 2, 3) for rank in (0, 1)}
    assert names == {"accuracy"}
    texts: set[tuple[int, str]] = set()
    while len(texts) < 2:
        for message in await anext(logs):
            lines = unpack_lines(message.data)
            texts |= {(line.rank, line.text) for line in lines if line.stream == "out"}
    assert texts == {(0, "rank 0 of 2"), (1, "rank 1 of 2")}
    await blocks.aclose()
    await logs.aclose()
    await bus.aclose()


async def test_a_script_keeps_its_files(place: Place) -> None:
    """What a script leaves in LINESHAFT_OUTPUT_DIR is staged, named by a manifest, and saved."""
    job = a_job()
    body = (
        "import os, pathlib\nprint('kept')\n"
        "out = pathlib.Path(os.environ['LINESHAFT_OUTPUT_DIR'])\n"
        "(out / 'sub').mkdir()\n(out / 'sub' / 'w.bin').write_bytes(b'1234')\n"
    )
    target = place.root / "saved"
    output = {"output": {"model_name": "toy", "save_path": str(target)}}
    await place.want(a_run(job, python(a_script(place.root, body)), resolved=output))
    fact = await place.told("run.completed", job)
    key = records.staging(f"{job}-1", "manifest.json")
    raw = b"".join([part async for part in place.objects.open(key)])
    made = manifest.decode(raw)
    assert manifest.digest(made) == fact.data["manifest"]
    assert (made["kind"], made["name"]) == ("files", "toy")
    assert {file["path"]: file["role"] for file in made["files"]} == {
        "sub/w.bin": "training",
        "training.log": "log",
    }
    for file in made["files"]:
        staged = records.staging(f"{job}-1", records.staged_name(file["path"]))
        stat = await place.objects.stat(staged)
        assert stat is not None
        assert stat.size == file["size"]
    assert (target / "sub" / "w.bin").read_bytes() == b"1234"


async def test_a_stop_lets_a_script_save(place: Place) -> None:
    """SIGTERM reaches the script; what it does until the grace ends counts as stopped."""
    job = a_job()
    mark = place.root / "saved"
    body = WAITING.replace(
        "while True",
        f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: (open({str(mark)!r}, 'w')"
        ".close(), sys.exit(0)))\nprint('ready', flush=True)\nwhile True",
    )
    run = a_run(job, python(a_script(place.root, body)))
    await place.want(run)
    await until(lambda: "ready" in place.output(job), "the script's handler")
    stop = a_run(job, run.order["spec"]["command"], intent=StopIntent.SUSPEND)
    await place.want(stop)
    fact = await place.told("run.stopped", job)
    assert fact.data["intent"] == "suspend"
    ended = await place.record(records.ended(job, 1, "alpha"))
    assert ended["outcome"] == "stopped"
    assert mark.exists()
    assert place.living(job) == []


async def test_a_stop_that_is_ignored_ends_by_force(place: Place) -> None:
    """A script that does not listen is killed when its grace has passed."""
    job = a_job()
    body = WAITING.replace(
        "while True",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\nwhile True",
    )
    command = python(a_script(place.root, body))
    await place.want(a_run(job, command))
    await until(lambda: "deaf" in place.output(job), "the deaf script")
    await place.want(a_run(job, command, intent=StopIntent.CANCEL, grace_ms=2_500))
    fact = await place.told("run.stopped", job)
    assert fact.data["intent"] == "cancel"
    assert place.living(job) == []


async def test_a_command_that_is_absent_is_configuration(place: Place, tmp_path: Path) -> None:
    """A command that cannot be started fails as configuration, with its name."""
    job = a_job()
    await place.want(a_run(job, [str(tmp_path / "no-such-program")]))
    fact = await place.told("run.rank_exited", job)
    assert fact.data["class"] == "config"
    assert "no-such-program" in " ".join(fact.data["last_lines"])
