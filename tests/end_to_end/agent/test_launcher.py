"""The subprocess launcher with real agents: claims, adoption, tombstones, fences, the lost."""

import asyncio
import os
import signal
from dataclasses import replace

from lineshaft.contracts import records
from lineshaft.contracts.failures import StopIntent
from lineshaft.ports import ObjectExists
from services.scheduler.launchers.claims import RunFolder
from services.scheduler.launchers.port import Desired
from tests.builders_agent import (
    POOL,
    WAITING,
    Place,
    a_job,
    a_run,
    a_script,
    python,
    until,
)


async def test_an_agent_that_vanishes_is_lost(place: Place) -> None:
    """An agent killed with SIGKILL takes no rank into the future: all are ended, then told."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING)), slots={"alpha": 2}))
    started = await place.started(job)
    os.kill(started["agent_pid"], signal.SIGKILL)
    fact = await place.told("run.stopped", job)
    assert fact.data["intent"] == "lost"
    assert "alpha" in fact.data["reason"]
    assert place.living(job) == []
    assert all(fact.kind != "run.ended" for fact in place.facts)


async def test_a_lost_node_brings_the_gang_down(place: Place) -> None:
    """When one node's agent vanishes, the other node's ranks are ended too: one word, lost."""
    job = a_job()
    command = python(a_script(place.root, WAITING))
    await place.want(a_run(job, command, slots={"alpha": 1, "beta": 1}, grace_ms=3_000))
    alpha = await place.started(job, node="alpha")
    await place.started(job, node="beta")
    os.kill(alpha["agent_pid"], signal.SIGKILL)
    fact = await place.told("run.stopped", job)
    assert fact.data["intent"] == "lost"
    assert place.living(job) == []


async def test_two_nodes_share_one_gang(place: Place) -> None:
    """Ranks of two nodes see one world, each its own place in it, and end as one run."""
    job = a_job()
    body = (
        "import os\nnames = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'NODE_RANK', 'MASTER_ADDR')\n"
        "print(*(os.environ[name] for name in names))\n"
    )
    run = a_run(job, python(a_script(place.root, body)), slots={"alpha": 2, "beta": 1})
    await place.want(run)
    assert (await place.told("run.stopped", job)).data["intent"] == "ended"
    assert place.output(job, 1, "alpha").split() == ["1", "1", "3", "0", "127.0.0.1"]
    assert place.output(job, 2, "beta").split() == ["2", "0", "3", "1", "127.0.0.1"]
    ended = [fact.data["node"] for fact in place.facts if fact.kind == "run.ended"]
    assert sorted(set(ended)) == ["alpha", "beta"]


async def test_a_restarted_launcher_adopts_what_lives(place: Place) -> None:
    """The ranks live through a restart of the platform; the new launcher tells all, starts none."""
    job = a_job()
    run = a_run(job, python(a_script(place.root, WAITING)))
    await place.want(run)
    started = await place.started(job)
    await place.restart_launcher()
    place.facts.clear()
    await place.want(run, epoch=2)
    again = await place.told("run.started", job)
    assert again.id == records.started(job, 1, "alpha")
    assert again.data["agent_pid"] == started["agent_pid"]
    await place.told("run.launched", job)
    assert started["ranks"][0]["pid"] in place.living(job)
    stop = a_run(job, run.order["spec"]["command"], intent=StopIntent.CANCEL)
    await place.want(stop, epoch=2)
    assert (await place.told("run.stopped", job)).data["intent"] == "cancel"
    assert place.living(job) == []


async def test_what_ended_meanwhile_is_told_at_the_next_start(place: Place) -> None:
    """A run that ends while no launcher lives is reported, with its records, by the next one."""
    job = a_job()
    gate = place.root / "gate"
    body = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)\n"
    run = a_run(job, python(a_script(place.root, body)))
    await place.want(run)
    await place.started(job)
    await place.restart_launcher()
    gate.touch()
    await place.record(records.ended(job, 1, "alpha"))
    await until(lambda: not place.living(job), "the end of every process")
    place.facts.clear()
    await place.want(run, epoch=2)
    assert (await place.told("run.stopped", job)).data["intent"] == "ended"
    kinds = [fact.kind for fact in place.facts]
    assert kinds.index("run.completed") < kinds.index("run.ended") < kinds.index("run.stopped")


async def test_a_second_launcher_claims_nothing_twice(place: Place) -> None:
    """Two launchers with the same desired set start one agent per node between them."""
    job = a_job()
    run = a_run(job, python(a_script(place.root, WAITING)))
    other = place.a_launcher()
    await asyncio.gather(place.want(run), other.reconcile(Desired(POOL, 1, (run,))))
    await place.started(job)
    await until(lambda: "rank 0" in place.output(job), "the rank's first line")
    assert place.output(job).count("rank 0") == 1
    await other.aclose(leave_running=True)
    await until(lambda: len(place.living(job)) == 3, "agent, watcher and rank alone")


async def test_a_run_that_is_not_wanted_is_reaped(place: Place) -> None:
    """An attempt found alive that the scheduler does not list is stopped and reported."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING))))
    await place.started(job)
    await place.want()
    assert (await place.told("run.stopped", job)).data["intent"] == "fault"
    assert place.living(job) == []


async def test_a_deposed_leader_is_not_obeyed(place: Place) -> None:
    """A desired set of a lower epoch changes nothing."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING))), epoch=5)
    await place.started(job)
    await place.want(epoch=4)
    await place.launcher.reconcile(Desired(POOL, 4))
    assert place.living(job) != []
    assert RunFolder(place.folder(job)).is_over is False


async def test_a_leader_that_lost_its_lease_is_not_obeyed_any_more(place: Place) -> None:
    """What it wanted goes on being carried out while it leads, and not a moment longer."""
    job = a_job()
    leads = False
    former = place.a_launcher()
    await former.reconcile(Desired(POOL, 1, (), is_current=lambda: leads))
    await place.want(a_run(job, python(a_script(place.root, WAITING))), epoch=2)
    await place.started(job)
    await former._pass_once()
    assert RunFolder(place.folder(job)).node("alpha").stop() is None
    await former.aclose(leave_running=True)
    standby = place.a_launcher()
    await standby.aclose(leave_running=False)
    assert place.living(job) != []
    assert RunFolder(place.folder(job)).is_over is False


async def test_a_stopped_absent_run_never_starts(place: Place) -> None:
    """Stopping what does not exist leaves a tombstone; a late wish to run it starts nothing."""
    job = a_job()
    command = python(a_script(place.root, WAITING))
    await place.want(a_run(job, command, intent=StopIntent.CANCEL))
    fact = await place.told("run.stopped", job)
    assert fact.data["intent"] == "cancel"
    await place.want(a_run(job, command))
    await place.launcher.reconcile(Desired(POOL, 1, (a_run(job, command),)))
    assert place.living(job) == []
    assert await place.objects.stat(records.started(job, 1, "alpha")) is None


async def test_a_run_that_comes_too_late_is_buried(place: Place) -> None:
    """After ``not_after`` a run without claim becomes a tombstone, the platform's fault."""
    job = a_job()
    late = replace(a_run(job, python(a_script(place.root, WAITING))), not_after=1)
    await place.want(late)
    fact = await place.told("run.launch_failed", job)
    assert fact.data["class"] == "infrastructure"
    assert place.living(job) == []


async def test_preflight_speaks_of_configuration(place: Place) -> None:
    """A dataset that is not there is the job's fault, named by its path."""
    job = a_job()
    datasets = [{"name": "chat", "path": str(place.root / "nowhere"), "format": "jsonl"}]
    run = a_run(job, None, resolved={"datasets": datasets})
    await place.want(run)
    fact = await place.told("run.launch_failed", job)
    assert fact.data["class"] == "config"
    assert str(place.root / "nowhere") in fact.data["reason"]


async def test_a_fenced_attempt_does_not_start(place: Place) -> None:
    """Once attempt 2 has its fence, attempt 1 is refused."""
    job = a_job()
    await place.objects.put(records.fence(job, 2), b"{}")
    await place.want(a_run(job, python(a_script(place.root, WAITING))))
    fact = await place.told("run.launch_failed", job)
    assert "newer attempt" in fact.data["reason"]
    assert place.living(job) == []


async def test_the_fence_stands_before_the_launch(place: Place) -> None:
    """A launched attempt has its fence, and a second one finds it there."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING))))
    await place.started(job)
    try:
        await place.objects.put(records.fence(job, 1), b"{}")
    except ObjectExists:
        return
    raise AssertionError("there was no fence")


async def test_an_agent_that_cannot_begin_fails_the_launch(place: Place) -> None:
    """An order that no agent can follow is reported with the agent's own words."""
    job = a_job()
    run = a_run(job, python(a_script(place.root, WAITING)), launcher="unheard-of")
    await place.want(run)
    fact = await place.told("run.launch_failed", job)
    assert fact.data["evidence"]["node"] == "alpha"
    assert "unheard-of" in " ".join(fact.data["evidence"]["last_lines"])


async def test_going_down_ends_what_runs(place: Place) -> None:
    """A platform that goes down without leaving runs asks them, waits, and leaves nothing."""
    job = a_job()
    await place.want(a_run(job, python(a_script(place.root, WAITING)), slots={"alpha": 2}))
    await place.started(job)
    await place.launcher.aclose(leave_running=False)
    assert place.living(job) == []
    assert (await place.record(records.ended(job, 1, "alpha")))["outcome"] == "stopped"
