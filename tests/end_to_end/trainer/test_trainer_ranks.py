"""Real ranks: killed and resumed bit by bit, on unequal clocks, stopped through one of them."""

import json
import random
from pathlib import Path

import pytest

from tests.builders_trainer import (
    Ranks,
    a_corpus,
    a_file,
    a_suite,
    an_order,
    fingerprint,
    pairs,
)
from trainer import prepare

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

STEPS = 10
SAVE_EVERY = 3
ENGINES = {"plain": {"zero": None, "world": 1}, "zero2": {"zero": 2, "world": 2}}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, engine: str) -> None:
    """Model, optimiser, schedule and every rank's generators equal those of an unbroken run."""
    corpus = a_corpus(tmp_path)
    shape = {
        **ENGINES[engine],
        "hyper": {"maxSteps": STEPS},
        "saving": {"everySteps": SAVE_EVERY},
        "accumulation": 2,
        "data": corpus,
    }
    dice = random.Random(engine)
    kill = {"rank": dice.randrange(shape["world"]), "step": dice.randrange(SAVE_EVERY + 1, STEPS)}
    whole = an_order(tmp_path, job="j-whole", **shape)
    broken = an_order(tmp_path, job="j-broken", **shape)
    for order in (whole, broken):
        prepare.prepare(order)

    unbroken = Ranks(tmp_path / "whole", whole)
    killed = Ranks(tmp_path / "killed", broken, kill=kill)
    assert set(unbroken.wait()) == {0}, unbroken.log()
    assert -9 in killed.wait(), killed.log()
    last = killed.commits()[-1]
    assert last["step"] <= kill["step"]
    resumed_order = an_order(
        tmp_path, job="j-broken", attempt=2, resume={**last, "attempt": 1}, **shape
    )
    prepare.prepare(resumed_order)
    resumed = Ranks(tmp_path / "resumed", resumed_order)
    assert set(resumed.wait()) == {0}, resumed.log()

    first = next(each for each in resumed.told() if each["op"] == "step")
    assert first["step"] == last["step"] + 1
    ends = [Path(run.commits()[-1]["path"]) for run in (unbroken, resumed)]
    prints = [fingerprint(end) for end in ends]
    assert prints[0] == prints[1]
    assert len([name for name in prints[0] if name.endswith(":torch")]) == shape["world"]
    losses = [
        {each["step"]: each["loss"] for each in run.told() if each["op"] == "step"}
        for run in (unbroken, resumed)
    ]
    assert losses[1].items() <= losses[0].items()
    for each in unbroken.told():
        if each["op"] == "step" and shape["world"] > 1:
            assert 0 < each["collective_ms"] < each["step_ms"]
    assert not list(Path("/dev/shm").glob("*deepspeed*")), "also after kill -9"


def test_ranks_on_other_clocks_save_together_and_one_ranks_stop_stops_all(tmp_path: Path) -> None:
    """Rank 1's clock is an hour ahead, and rank 1 alone hears of the stop: nobody hangs."""
    order = an_order(
        tmp_path,
        data=a_corpus(tmp_path),
        world=2,
        zero=0,
        hyper={"maxSteps": 100_000},
        saving={"everyMinutes": 0.002},
    )
    prepare.prepare(order)
    ranks = Ranks(
        tmp_path / "ranks", order, clock_ms={"1": 3_600_000}, stop={"rank": 1, "step": 40}
    )
    assert ranks.wait() == [0, 0], ranks.log()

    steps = [[each["step"] for each in ranks.told(rank) if each["op"] == "step"] for rank in (0, 1)]
    assert steps[0] == steps[1] == list(range(1, 42))
    saved = [each["step"] for each in ranks.commits()]
    assert saved[-1] == 41, "a stop saves first"
    assert len(saved) >= 2, "rank 0's clock made saves on the way"
    assert not [each for each in ranks.told() if each["op"] == "finished"]


def test_a_sharded_model_is_evaluated_and_written_whole(tmp_path: Path) -> None:
    """ZeRO-3 with an adapter: every rank takes part, the final folder holds the adapter."""
    from tests.builders_trainer import RecordingLink
    from trainer.loop import run

    base = an_order(tmp_path, job="j-base", data=a_corpus(tmp_path), hyper={"maxSteps": 4})
    run(base, RecordingLink())
    data = a_file(tmp_path / "train.jsonl", pairs(40))
    order = an_order(
        tmp_path,
        job="j-tuned",
        data=data,
        job_type="lora",
        model={"kind": "folder", "path": f"{base['run_folder']}/final"},
        world=2,
        zero=3,
        hyper={"maxSteps": 4, "lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}},
        suites=[a_suite(tmp_path / "suite")],
    )
    prepare.prepare(order)
    ranks = Ranks(tmp_path / "ranks", order)
    assert ranks.wait() == [0, 0], ranks.log()

    folder = Path(next(each["folder"] for each in ranks.told() if each["op"] == "finished"))
    body = json.loads((folder / "artifact.json").read_text())
    assert body["kind"] == "adapter"
    assert body["roles"]["adapter_model.safetensors"] == "weights"
    report = json.loads((folder / "evaluation.json").read_text())
    assert set(report["before"]) == set(report["after"]) == {"colour", "pick", "words"}
    assert body["model"]["parameters"] > 0
