"""The launcher's parts: claims, locks, processes, orders, preflight, telling."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineshaft.adapters.clock import VirtualClock
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.contracts import limits, records
from lineshaft.contracts.failures import StopIntent
from lineshaft.ports import StoreUnavailable
from services.scheduler.launchers import orders, processes
from services.scheduler.launchers.claims import STOPPED, Claim, Claims, Stop
from services.scheduler.launchers.port import Desired
from services.scheduler.launchers.processes import Identity
from services.scheduler.launchers.subprocess import SubprocessLauncher
from services.scheduler.launchers.telling import Telling
from tests.builders_agent import POOL, Place, a_run


def a_claim(job: str = "j-a", attempt: int = 1) -> Claim:
    return Claim(
        job=job,
        attempt=attempt,
        pool=POOL,
        team="research",
        nodes=("alpha", "beta"),
        not_after=10_000,
        made_at=5_000,
        grace_ms=1_000,
        master_port=29_500,
    )


def test_a_claim_is_made_once_and_whole(tmp_path: Path) -> None:
    """The second claim is refused and changes nothing; a claim's folder is never empty."""
    claims = Claims(tmp_path / "runs")
    folder = claims.make(a_claim())
    assert folder is not None
    assert claims.make(a_claim(), [(STOPPED, {"intent": "cancel", "reason": "x"})]) is None
    assert not folder.is_over
    assert folder.claim() == a_claim()
    assert [claim.name for _, claim in claims.all()] == ["j-a-1"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["j-a-1"]


def test_a_tombstone_is_over_from_its_first_moment(tmp_path: Path) -> None:
    """Burying an absent run leaves a folder that no launcher starts."""
    folder = Claims(tmp_path).make(a_claim(), [(STOPPED, {"intent": "cancel", "reason": "x"})])
    assert folder is not None
    assert folder.is_over
    assert folder.marked(STOPPED) == (5_000, {"intent": "cancel", "reason": "x"})
    folder.mark(STOPPED, {"intent": "fault", "reason": "later"}, 6_000)
    assert folder.marked(STOPPED) == (5_000, {"intent": "cancel", "reason": "x"})


def test_an_intent_is_only_raised(tmp_path: Path) -> None:
    """The agent finds the highest intent it was ever told."""
    node = Claims(tmp_path).path("j-a", 1)
    node.mkdir()
    at = Claims(tmp_path).find("j-a", 1)
    assert at is not None
    alpha = at.node("alpha")
    assert alpha.tell(Stop(StopIntent.SUSPEND, "window", 1))
    assert not alpha.tell(Stop(StopIntent.PREEMPT, "no", 2))
    assert not alpha.tell(Stop(StopIntent.SUSPEND, "again", 3))
    assert alpha.tell(Stop(StopIntent.CANCEL, "enough", 4))
    assert alpha.stop() == Stop(StopIntent.CANCEL, "enough", 4)


def test_orders_are_private(tmp_path: Path) -> None:
    """An order may hold what a user's environment holds: only its owner reads it."""
    folder = Claims(tmp_path).make(a_claim())
    assert folder is not None
    alpha = folder.node("alpha")
    alpha.write_order({"a": 1})
    alpha.write_order({"a": 2})
    path = alpha.path / "order.json"
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_is_seen_while_it_is_held(tmp_path: Path) -> None:
    """Probing tells held from free and takes nothing away."""
    path = tmp_path / "lock"
    assert not processes.is_locked(path)
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    assert not processes.is_locked(path)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert processes.is_locked(path)
    os.close(holder)
    assert not processes.is_locked(path)


def test_a_reused_pid_is_another_process() -> None:
    """A process is killed only while pid and start time are those that were recorded."""
    child = subprocess.Popen(["sleep", "600"])
    real = processes.look(child.pid)
    assert real is not None
    processes.kill([Identity(real.pid, real.start_time + 1)])
    assert real.is_alive
    processes.kill([real])
    assert child.wait(10) == -9
    assert not real.is_alive


def test_marked_processes_are_found_with_their_children(tmp_path: Path) -> None:
    """Whatever a run started carries its mark; another run's does not count."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    env = {**os.environ, processes.MARK: str(mine)}
    code = "import subprocess; subprocess.run(['sleep', '600'])"
    child = subprocess.Popen([sys.executable, "-c", code], env=env)
    deadline = time.monotonic() + 20
    while len(found := processes.marked([mine, other])[mine]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert processes.marked([mine, other])[other] == []
    processes.kill(found)
    child.wait(10)
    while processes.marked([mine])[mine]:
        assert time.monotonic() < deadline


def test_an_agent_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's settings, tokens and keys do not reach agents and ranks."""
    monkeypatch.setenv("LINESHAFT_BUS_TOKEN", "s3cret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    made = processes.environment({"X": "1"})
    assert "s3cret" not in made.values()
    assert (made["LC_ALL"], made["X"]) == ("C.UTF-8", "1")
    assert made["PATH"] == os.environ["PATH"]


def test_ranks_are_numbered_over_the_nodes(tmp_path: Path) -> None:
    """Node by node, in the order of the gang; every node knows the whole world."""
    place = Place(tmp_path)
    spec = {"args": ["--fast"], "env": {"A": "b"}}
    run = a_run("j-a", ["prog"], slots={"alpha": 2, "beta": 1}, spec=spec)
    made = orders.per_node(run, a_claim(), epoch=3, settings=place.settings, token_file=None)
    assert [made[n]["ranks"] for n in ("alpha", "beta")] == [[0, 1], [2]]
    assert [made[n]["node_rank"] for n in ("alpha", "beta")] == [0, 1]
    beta = made["beta"]
    assert (beta["world_size"], beta["epoch"], beta["master_port"]) == (3, 3, 29_500)
    assert beta["nodes"] == [{"node": "alpha", "slots": [0, 1]}, {"node": "beta", "slots": [0]}]
    assert (beta["command"], beta["env"]) == (["prog", "--fast"], {"A": "b"})
    assert beta["bus_token_file"] is None


def test_preflight_names_everything_at_once(tmp_path: Path) -> None:
    """All faults of one order are told together, each with its path."""
    place = Place(tmp_path)
    locked = tmp_path / "file"
    locked.touch()
    run = a_run(
        "j-a",
        None,
        spec={"workingDir": str(tmp_path / "w"), "evaluation": {"suites": [str(tmp_path / "s")]}},
        resolved={
            "model": {"kind": "folder", "path": str(tmp_path / "m")},
            "datasets": [{"name": "d", "path": str(tmp_path / "d")}],
            "output": {"save_path": str(locked / "x")},
        },
    )
    faults = orders.preflight(run.order, place.settings)
    assert len(faults) == 5
    for name in "wsmd":
        assert any(f"{tmp_path}/{name} " in f"{fault} " for fault in faults)


async def test_facts_are_told_again_each_minute_with_their_ids(tmp_path: Path) -> None:
    """Records become the agents' facts in the order of a life; rubbish is passed over."""
    objects, clock, claim = MemoryObjects(), VirtualClock(1_000_000), a_claim()
    await objects.put(records.ended("j-a", 1, "alpha"), b'{"node": "alpha", "at": 9}')
    await objects.put(records.started("j-a", 1, "alpha"), b'{"node": "alpha", "at": 5}')
    await objects.put(records.complete("j-a", 1), b"not json")
    await objects.put(records.stacks("j-a", 1, "alpha", 0), b"{}")
    await objects.put(records.started("j-a", 2, "alpha"), b"{}")
    telling = Telling(objects, clock)
    facts = telling.facts()
    await telling.restate(claim)
    await telling.restate(claim)
    told = [await anext(facts), await anext(facts)]
    assert [(f.kind, f.id, f.at, f.source) for f in told] == [
        ("run.started", "runs/j-a/1/started-alpha", 5, "agent"),
        ("run.ended", "runs/j-a/1/ended-alpha", 9, "agent"),
    ]
    telling.tell_own(claim, "launched", "run.launched", (7, {}))
    telling.tell_own(claim, "launched", "run.launched", (7, {}))
    own = await anext(facts)
    assert (own.id, own.source, own.subject) == ("runs/j-a/1/launched", "launcher", "j-a")
    await clock.advance(60_000)
    telling.tell_own(claim, "launched", "run.launched", (7, {}))
    await telling.restate(claim)
    again = [await anext(facts) for _ in range(3)]
    assert [f.id for f in again] == [own.id, told[0].id, told[1].id]


async def test_a_store_that_is_away_puts_a_claim_off(tmp_path: Path) -> None:
    """Nothing is claimed or buried while the fence cannot be made; the next pass tries again."""
    place = Place(tmp_path)
    objects, clock = MemoryObjects(), VirtualClock(place.clock.now())
    launcher = SubprocessLauncher(place.settings, objects, clock)
    run = a_run("j-a", ["true"])
    objects.fail_next(StoreUnavailable("away"))
    await launcher.reconcile(Desired(POOL, 1, (run,)))
    assert not place.folder("j-a").exists()
    await launcher.aclose(leave_running=True)


async def test_old_tombstones_are_forgotten(tmp_path: Path) -> None:
    """A tombstone outlives every order for its run by a day, then its folder goes."""
    place = Place(tmp_path)
    clock = VirtualClock(place.clock.now())
    launcher = SubprocessLauncher(place.settings, MemoryObjects(), clock)
    run = a_run("j-a", ["true"], intent=StopIntent.CANCEL)
    await launcher.reconcile(Desired(POOL, 1, (run,)))
    folder = place.folder("j-a")
    await launcher.reconcile(Desired(POOL, 1, ()))
    assert folder.exists()
    await clock.advance(limits.CLAIM_TTL_S * 1000 + 120_000)
    await launcher.reconcile(Desired(POOL, 1, ()))
    assert not folder.exists()
    await launcher.aclose(leave_running=True)
