"""The launchers of the frameworks: ``deepspeed`` and ``torchrun`` start our entry point."""

import json
import os
import signal

import pytest

from lineshaft.contracts import records
from tests.builders_agent import (
    WAITING,
    Place,
    a_job,
    a_run,
    a_script,
    python,
    shared_memory,
)

pytestmark = pytest.mark.torch
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS")
SHOWING = f"import json, os\nprint(json.dumps([os.environ.get(n) for n in {NAMES!r}]))\n"


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
async def test_a_gang_on_one_node(place: Place, launcher: str) -> None:
    """Two ranks come up under the launcher with the platform's port, and their work completes."""
    job = a_job()
    run = a_run(job, python(a_script(place.root, SHOWING)), slots={"alpha": 2}, launcher=launcher)
    await place.want(run)
    await place.told("run.completed", job)
    order = json.loads((place.folder(job) / "alpha" / "order.json").read_text())
    for rank in (0, 1):
        seen = json.loads(place.output(job, rank))
        assert seen == [str(rank), str(rank), "2", str(order["master_port"]), "1"]
    assert (await place.told("run.stopped", job)).data["intent"] == "ended"
    assert "Traceback" not in complaints(place, job)


def complaints(place: Place, job: str) -> str:
    """Return what the launcher of the first node wrote to its standard error."""
    return (place.folder(job) / "alpha" / "launcher-0.err").read_text()


async def test_a_gang_on_two_nodes(place: Place) -> None:
    """``deepspeed`` on two nodes of this machine: one world, no ssh, a host file of our own."""
    job = a_job()
    command = python(a_script(place.root, SHOWING))
    run = a_run(job, command, slots={"alpha": 1, "beta": 2}, launcher="deepspeed")
    await place.want(run)
    assert (await place.told("run.stopped", job)).data["intent"] == "ended"
    seen = [
        json.loads(place.output(job, r, n)) for r, n in ((0, "alpha"), (1, "beta"), (2, "beta"))
    ]
    assert [one[0] for one in seen] == ["0", "1", "2"]
    assert {one[2] for one in seen} == {"3"}


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
async def test_a_killed_rank_is_named(place: Place, launcher: str) -> None:
    """Which rank went, and by which signal, is known whatever the launcher makes of it."""
    job, before = a_job(), shared_memory()
    command = python(a_script(place.root, WAITING))
    await place.want(a_run(job, command, slots={"alpha": 2}, launcher=launcher))
    started = await place.started(job)
    victim = next(rank for rank in started["ranks"] if rank["rank"] == 1)
    os.kill(victim["pid"], signal.SIGKILL)
    exit_of = await place.record(records.rank_exit(job, 1, 1))
    assert (exit_of["signal"], exit_of["root"]) == (signal.SIGKILL, True)
    ended = await place.told("run.ended", job)
    assert ended.data["class"] == "infrastructure"
    await place.told("run.stopped", job)
    assert place.living(job) == []
    assert shared_memory() == before
    assert "SignalException" not in complaints(place, job)


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
async def test_a_rank_whose_watcher_was_killed_is_named(place: Place, launcher: str) -> None:
    """A watcher takes its rank along without a word: that rank is the cause, not its peers."""
    job = a_job()
    command = python(a_script(place.root, WAITING))
    await place.want(a_run(job, command, slots={"alpha": 2}, launcher=launcher))
    started = await place.started(job)
    victim = next(rank for rank in started["ranks"] if rank["rank"] == 1)
    os.kill(victim["supervisor_pid"], signal.SIGKILL)
    exit_of = await place.record(records.rank_exit(job, 1, 1))
    assert (exit_of["exit_code"], exit_of["signal"], exit_of["root"]) == (None, None, True)
    await place.told("run.stopped", job)
    assert place.living(job) == []
