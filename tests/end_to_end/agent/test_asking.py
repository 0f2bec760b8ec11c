"""What ranks ask of the agent over the line: commits, fences, results; and what goes wrong."""

import json
import os
import signal
import socket
from pathlib import Path

from lineshaft.contracts import manifest, records
from lineshaft.contracts.failures import EXIT_STOPPED, StopIntent
from tests.builders_agent import (
    WAITING,
    Place,
    a_job,
    a_run,
    a_script,
    python,
    until,
)

COMMITTING = """\
import os, sys, time
from trainer.faults import Fenced
from trainer.link import Link

link = Link.connect()
gate = sys.argv[1]
assert link.may_commit()
link.step(1, loss=0.5)
link.committed(1, "sha256:" + "a" * 64, 10, "/somewhere", {"loss": 0.5})
print("first", flush=True)
while not os.path.exists(gate):
    time.sleep(0.02)
assert not link.may_commit()
try:
    link.committed(2, "sha256:" + "b" * 64, 10, "/somewhere", {})
except Fenced as fenced:
    print("fenced", flush=True)
    time.sleep(600)
"""

FINISHING = """\
import json, os, pathlib
from trainer.link import Link

link = Link.connect()
if link.rank == 0:
    folder = pathlib.Path(os.environ["LINESHAFT_CHECKPOINT_DIR"], "final")
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    facts = {"kind": "model", "model": {"architecture": "toy"}, "metrics": {"loss": 0.1},
             "environment": {}, "lineage": {"base": None},
             "roles": {"model.safetensors": "weights", "config.json": "config"}}
    (folder / "artifact.json").write_text(json.dumps(facts))
    print("saved", flush=True)
    link.finished(str(folder), 7)
link.close()
"""


async def test_a_commit_is_recorded_until_a_newer_attempt_stands(place: Place) -> None:
    """A commit is durable when it is answered; with a higher fence the attempt keeps nothing."""
    job, gate = a_job(), place.root / "gate"
    script = a_script(place.root, COMMITTING)
    await place.want(a_run(job, python(script, str(gate))))
    record = await place.record(records.checkpoint(job, 1, 1))
    assert (record["step"], record["bytes"], record["metrics"]) == (1, 10, {"loss": 0.5})
    await until(lambda: "first" in place.output(job), "the first commit's answer")
    await place.objects.put(records.fence(job, 2), b"{}")
    gate.touch()
    ended = await place.record(records.ended(job, 1, "alpha"))
    assert ended["outcome"] == "fenced"
    assert await place.objects.stat(records.checkpoint(job, 1, 2)) is None
    await place.told("run.stopped", job)
    assert place.living(job) == []


async def test_a_model_is_staged_with_its_log(place: Place) -> None:
    """What rank 0 calls finished is staged once all ranks have ended: files, log, lineage."""
    job = a_job()
    run = a_run(job, python(a_script(place.root, FINISHING)), slots={"alpha": 2})
    await place.want(run)
    fact = await place.told("run.completed", job)
    assert fact.data["step"] == 7
    raw = [p async for p in place.objects.open(records.staging(f"{job}-1", "manifest.json"))]
    made = manifest.decode(b"".join(raw))
    assert {file["path"]: file["role"] for file in made["files"]} == {
        "config.json": "config",
        "model.safetensors": "weights",
        "training.log": "log",
    }
    assert (made["lineage"]["job"], made["lineage"]["attempt"]) == (job, 1)
    assert made["metrics"] == {"loss": 0.1}
    again = await place.record(records.complete(job, 1))
    assert again["manifest"] == fact.data["manifest"] == manifest.digest(made)


async def test_another_jobs_result_is_not_overwritten(place: Place) -> None:
    """A save path that holds something else keeps it; the result lies beside it, with a word."""
    job, target = a_job(), place.root / "models" / "mine"
    target.mkdir(parents=True)
    (target / "precious").write_text("mine")
    output = {"output": {"model_name": "toy", "save_path": str(target)}}
    await place.want(a_run(job, python(a_script(place.root, FINISHING)), resolved=output))
    ended = await place.record(records.ended(job, 1, "alpha"))
    kept = Path(f"{target}.{job}-1")
    assert [path.name for path in target.iterdir()] == ["precious"]
    assert (kept / "model.safetensors").read_bytes() == b"weights"
    assert str(kept) in ended["warnings"][0]


async def test_rubbish_at_the_socket_is_survived(place: Place) -> None:
    """No line, however wrong, ends the agent or reaches the telemetry of a rank."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING))))
    started = await place.started(job)
    environ = Path(f"/proc/{started['ranks'][0]['pid']}/environ").read_bytes().split(b"\0")
    path = next(e.partition(b"=")[2] for e in environ if e.startswith(b"LINESHAFT_AGENT_SOCKET="))
    lines = [
        b"not json\n",
        b"[1, 2]\n",
        b'{"op": 7}\n',
        b'{"op": "hello", "rank": "x"}\n',
        b'{"op": "step", "step": -1}\n',
        b'{"op": "committed", "id": 1}\n',
        b'{"op": "committed", "id": 1, "step": "x"}\n',
        b'{"op": "finished", "id": 2}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ]
    for raw in (*lines, b"x" * 3_000_000):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            try:
                line.sendall(raw)
            except OSError:
                continue  # it hung up on a line without end
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.settimeout(10)
        line.sendall(b'{"op": "hello", "rank": 0}\n{"op": "may_commit", "id": 3}\n')
        assert json.loads(line.makefile().readline()) == {"op": "answer", "id": 3, "ok": True}
    assert started["agent_pid"] in place.living(job)


async def test_a_hang_leaves_stacks(place: Place) -> None:
    """A run without steps for longer than its limit has its stacks taken, and goes on."""
    job = a_job()
    body = (
        "import faulthandler, os, signal, time, lineshaft\n"
        "file = open(os.environ['LINESHAFT_STACKS_FILE'], 'a')\n"
        "faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)\n"
        "lineshaft.report(step=1, loss=1.0)\n"
        "def waits_for_ever():\n    time.sleep(600)\nwaits_for_ever()\n"
    )
    run = a_run(job, python(a_script(place.root, body)), slots={"alpha": 1})
    order = {**run.order, "hang_limit_ms": 700, "first_step_limit_ms": 60_000}
    await place.want(a_run(job, run.order["spec"]["command"], **_limits(order)))
    taken = await place.record(records.stacks(job, 1, "alpha", 0))
    assert "waits_for_ever" in taken["ranks"][0]["stack"]
    assert taken["ranks"][0]["state"] in "SR"
    assert (await place.started(job))["ranks"][0]["pid"] in place.living(job)


def _limits(order: dict[str, object]) -> dict[str, int]:
    return {name: int(str(order[name])) for name in ("hang_limit_ms", "first_step_limit_ms")}


async def test_a_rank_without_a_handler_is_not_signalled(place: Place) -> None:
    """Stacks of a program that does not catch the signal are what /proc says; it lives on."""
    job = a_job()
    limits = {"hang_limit_ms": 500, "first_step_limit_ms": 500}
    await place.want(a_run(job, ["sleep", "600"], **limits))
    taken = await place.record(records.stacks(job, 1, "alpha", 0))
    rank = taken["ranks"][0]
    assert (rank["stack"], rank["state"]) == ("", "S")
    assert rank["pid"] in place.living(job)


async def test_two_signals_are_one_stop(place: Place) -> None:
    """SIGTERM twice in a row is harmless: one stop, one record, the agent's exit code."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING))))
    started = await place.started(job)
    for _ in range(2):
        os.kill(started["agent_pid"], signal.SIGTERM)
    ended = await place.record(records.ended(job, 1, "alpha"))
    assert ended["outcome"] == "stopped"
    fact = await place.told("run.stopped", job)
    assert fact.data["intent"] == "ended"
    assert EXIT_STOPPED not in (0, 1)


async def test_a_stop_reaches_a_rank_over_the_line(place: Place) -> None:
    """``lineshaft.stop_requested`` turns true, so that a script may save in its own time."""
    job = a_job()
    body = (
        "import signal, time, lineshaft\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "lineshaft.report(step=1)\nprint('ready', flush=True)\n"
        "while not lineshaft.stop_requested():\n    time.sleep(0.02)\nprint('heard', flush=True)\n"
    )
    command = python(a_script(place.root, body))
    await place.want(a_run(job, command))
    await until(lambda: "ready" in place.output(job), "the script")
    await place.want(a_run(job, command, intent=StopIntent.PREEMPT))
    assert (await place.told("run.stopped", job)).data["intent"] == "preempt"
    assert "heard" in place.output(job)


async def test_the_example_script_resumes(place: Place) -> None:
    """The example is stopped, runs again as the next attempt, and goes on where it was."""
    job = a_job()
    example = Path(__file__).parents[3] / "examples" / "scripts" / "fit_line.py"
    command = python(example, "--steps", "100000")
    await place.want(a_run(job, command))
    await place.started(job)
    folder = place.settings.checkpoint_root / job / "1" / "checkpoints"
    await until((folder / "state.json").exists, "the first checkpoint")
    await place.want(a_run(job, command, intent=StopIntent.SUSPEND))
    await place.told("run.stopped", job)
    step = json.loads((folder / "state.json").read_text())["step"]
    await place.want(a_run(job, python(example, "--steps", str(step + 5)), attempt=2))
    done = await place.record(records.complete(job, 2))
    assert done["step"] == step + 5
    output = place.settings.checkpoint_root / job / "2" / "output" / "state.json"
    assert json.loads(output.read_text())["step"] == step + 5
