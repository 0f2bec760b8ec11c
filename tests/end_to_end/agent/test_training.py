"""Our own loop under launcher, agent and ``deepspeed``: commits, a killed rank, a staged model."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts import manifest, records
from lineshaft.contracts.failures import StopIntent
from services.scheduler.launchers.port import DesiredRun
from tests.builders_agent import Place, a_job, a_run, shared_memory, until
from tests.builders_trainer import a_corpus, an_order

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


def a_training(
    place: Place, job: str, corpus: Path, *, steps: int, world: int = 2, **more: Any
) -> DesiredRun:
    """Return a run that saves every three steps: two ranks with ZeRO-2, or one of plain torch."""
    shape = {"hyper": {"maxSteps": steps}, "saving": {"everySteps": 3}, "world": world}
    shape["zero"] = 2 if world > 1 else None
    order = an_order(place.root, job=job, data=corpus, **shape)
    return a_run(
        job,
        None,
        slots={"alpha": world},
        launcher="deepspeed" if world > 1 else "none",
        spec=order["spec"],
        resolved=order["resolved"],
        **more,
    )


async def newest_commit(place: Place, job: str) -> dict[str, Any] | None:
    """Return the last commit of the first attempt, if there is any."""
    keys = [stat.key async for stat in place.objects.list(records.checkpoints(job, 1))]
    return await place.record(keys[-1]) if keys else None


async def test_a_killed_rank_and_the_next_attempt(place: Place) -> None:
    """The first attempt commits and loses a rank; the second goes on and stages a whole model."""
    job, before = a_job(), shared_memory()
    corpus = a_corpus(place.root)
    first = a_training(place, job, corpus, steps=100_000)
    await place.want(first)
    first_commit = await until(lambda: newest_commit(place, job), "a commit", within_s=150)
    ranks = (await place.started(job))["ranks"]
    victim = next(rank for rank in ranks if rank["rank"] == 1)
    os.kill(victim["pid"], signal.SIGKILL)
    exit_of = await place.record(records.rank_exit(job, 1, 1))
    assert (exit_of["signal"], exit_of["root"]) == (signal.SIGKILL, True)
    ended = await place.told("run.ended", job)
    assert (ended.data["outcome"], ended.data["class"]) == ("failed", "infrastructure")
    await place.told("run.stopped", job)
    assert place.living(job) == []
    assert shared_memory() == before

    last = await newest_commit(place, job)
    assert last is not None
    assert last["step"] >= first_commit["step"]
    resume = {"attempt": 1, **{name: last[name] for name in ("step", "digest", "path")}}
    steps = last["step"] + 4
    second = a_training(place, job, corpus, steps=steps, attempt=2, resume=resume)
    await place.want(second)
    done = await until(lambda: place.objects.stat(records.complete(job, 2)), "done", within_s=200)
    assert done
    complete = await place.record(records.complete(job, 2))
    assert complete["step"] == steps
    raw = [p async for p in place.objects.open(records.staging(f"{job}-2", "manifest.json"))]
    made = manifest.decode(b"".join(raw))
    assert manifest.digest(made) == complete["manifest"]
    assert made["lineage"]["attempt"] == 2
    assert {"weights", "config", "tokenizer", "log"} <= {file["role"] for file in made["files"]}
    await until(lambda: not place.living(job, 2), "the end of every process")
    assert shared_memory() == before


async def test_a_stop_ends_with_an_agreed_checkpoint(place: Place) -> None:
    """A suspended run saves where it stands before it ends; the node's end names that step."""
    job = a_job()
    corpus = a_corpus(place.root)
    run = a_training(place, job, corpus, steps=100_000, world=1)
    await place.want(run)
    first = await until(lambda: newest_commit(place, job), "a commit", within_s=150)
    stop = replace(run, intent=StopIntent.SUSPEND, stop_at=place.clock.now(), grace_ms=30_000)
    await place.want(stop)
    assert (await place.told("run.stopped", job)).data["intent"] == "suspend"
    ended = await place.record(records.ended(job, 1, "alpha"))
    assert (ended["outcome"], ended["exit_codes"]) == ("stopped", {"0": 0})
    last = await newest_commit(place, job)
    assert last is not None
    assert last["step"] == ended["last_checkpoint"] >= first["step"]
    assert ended["last_step"] == last["step"]
    assert await place.objects.stat(records.complete(job, 1)) is None
