"""Dry runs: asked once, kept, never waited for long, and read with suspicion."""

import asyncio
import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts.job_sources import compose
from services.admission import dry_runs, handlers
from services.admission.domain import estimate, judging, reading, rehearsal, scaling, shapes
from services.admission.domain.policy import GIB, AdmissionPolicy, PolicyError
from services.admission.dry_runs import DryRuns
from tests.builders_admission import FOUNDING, QWEN_7B, TINY, TWO_NODES, a_document
from tests.unit.admission.test_estimate import BASE

ECHO = "import json, sys; print(json.dumps([{'asked': r} for r in json.load(sys.stdin)]))"
COUNTED = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + 'x');"


def python(code: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *more)


def an_answer(**changes: Any) -> dict[str, Any]:
    """Return what two layers took: 10 bytes a layer kept, 100 at the loss, gradients of 4."""
    phase = {"activations": 110, "gradients": 0, "temporary": 20}
    one = [phase, {"activations": 60, "gradients": 8, "temporary": 10}]
    two = [
        {**phase, "activations": 120},
        {"activations": 70, "gradients": 4, "temporary": 10},
        {"activations": 60, "gradients": 12, "temporary": 10},
    ]
    counts = {"1": 3, "2": 4}
    whole = {"schema": 1, "layers": {"1": one, "2": two}, "parameters": counts}
    return {**whole, "trained": counts, "largest": 2, **changes}


async def test_an_answer_is_asked_for_once_and_kept(tmp_path: Path) -> None:
    """The same request finds its answer on disk, also in another process's life."""
    count = tmp_path / "count"
    count.write_text("")
    command = python(COUNTED + ECHO, str(count))
    requests = {"plain": {"a": 1}, "checkpointed": {"a": 2}}
    for _ in range(2):
        answers, why = await DryRuns(tmp_path / "kept", command).of(requests)
        assert (answers["checkpointed"], why) == ({"asked": {"a": 2}}, "")
    assert count.read_text() == "x"
    (tmp_path / "kept" / "odd.json").write_text("{")
    for file in (tmp_path / "kept").iterdir():
        file.write_text("{")  # a torn file is no answer
    assert DryRuns(tmp_path / "kept", command).kept(requests) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('no torch here')", "it ended with code 1: no torch here"),
        ("print('[]')", "no list of that many"),
        ("print('{')", "Expecting"),
    ],
)
async def test_a_dry_run_that_fails_says_why(tmp_path: Path, code: str, said: str) -> None:
    """And the estimate falls back to formulas, with a warning."""
    found = await DryRuns(tmp_path, python(code)).observed(
        {"plain": {"micro_batch": 1, "sequence": 8}}, is_waiting=True
    )
    assert said in found["reason"]
    read = reading.read(a_document(resources={"gpuType": "a100-80g"}))
    observed = {"model": {"kind": "config", "config": TINY}, "dry_runs": found}
    verdict = judging.judge(read, observed, AdmissionPolicy())
    assert verdict.estimate["memory_from"] == "formula"
    assert any("memory comes from formulas" in warning for warning in verdict.warnings)


async def test_nobody_waits_long_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow dry run is answered for later; closing ends it."""
    monkeypatch.setattr(dry_runs, "WAIT_S", 0.05)
    slow = DryRuns(tmp_path, python("import time; time.sleep(60)"))
    requests = {"plain": {"micro_batch": 1, "sequence": 8}}
    found = await slow.observed(requests, is_waiting=True)
    assert "still runs" in found["reason"]
    assert await slow.observed(requests, is_waiting=False) == {}
    await asyncio.wait_for(slow.close(), 10)


def test_the_peak_is_the_largest_of_three_moments() -> None:
    """At the loss, in the last layer's backward pass, or in the first's, carried on by layers."""
    seen = rehearsal.read(an_answer(), tokens=8)
    at_loss = rehearsal.peak(seen, rehearsal.Wanted(10, 8, False, True))
    assert sum(at_loss.values()) == 120 + 8 * 10 + 20
    assert at_loss["logits"] == 100
    heavy = an_answer()
    heavy["layers"]["1"][1]["gradients"], heavy["layers"]["2"][2]["gradients"] = 500, 1000
    at_first = rehearsal.peak(rehearsal.read(heavy, 8), rehearsal.Wanted(10, 8, False, True))
    assert at_first["gradients"] == 1000 + 8 * 500
    twice = rehearsal.peak(seen, rehearsal.Wanted(10, 16, False, False))
    assert sum(twice.values()) == 2 * sum(at_loss.values())


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"schema": 2}, an_answer(layers={"1": [], "2": []})]
)
def test_what_is_no_answer_is_not_believed(answer: Any) -> None:
    """A file of another version, or anything else, is a reason to use the formulas."""
    with pytest.raises(rehearsal.RehearsalError):
        rehearsal.read(answer, 8)


def test_what_is_asked_depends_on_engine_precision_and_wish() -> None:
    """``auto`` rehearses both; a script, or an unknown model, nothing."""
    observed = {"model": {"kind": "config", "config": QWEN_7B}}
    read = reading.read(FOUNDING.read_text())
    asked = judging.rehearsals(read, observed, AdmissionPolicy())
    assert set(asked) == {"plain", "checkpointed"}
    assert (asked["plain"]["engine"], asked["plain"]["precision"]) == ("zero", "bf16")
    assert judging.rehearsals(read, {}, AdmissionPolicy()) == {}


def test_the_table_of_nodes_shows_what_more_nodes_bring() -> None:
    """Same work per device, more exchange: efficiency falls, hours fall, cost rises."""
    shape, speeds = shapes.read(QWEN_7B), scaling.Speeds(100.0, 200.0, 2.0)
    need = estimate.Range(1, 2, 3)
    rows = [
        scaling.row(shape, load, nodes=nodes, need=need, speeds=speeds, is_checkpointing=True)
        for nodes, load in scaling.loads(dataclasses.replace(BASE, ranks=8, global_batch=32), 8, 8)
    ]
    assert [row["nodes"] for row in rows] == [1, 2, 4, 8]
    for few, many in itertools.pairwise(rows):
        assert many["efficiency"] < few["efficiency"] < 1
        assert many["hours"] < few["hours"]
        assert many["cost"] > few["cost"]
    assert [row["global_batch"] for row in rows] == [32, 64, 128, 256]
    ring = 2 * 7 / 8 * 8 * 2 * shape.parameters / 200e9
    assert rows[0]["communication_s"] == pytest.approx(ring, rel=1e-3)


def test_plain_training_is_on_one_device_in_the_table_too() -> None:
    """Without a strategy that spreads it, more nodes are no choice."""
    load = dataclasses.replace(BASE, ranks=1, global_batch=4, zero_stage=None)
    assert [nodes for nodes, _ in scaling.loads(load, 1, 8)] == [1]


@pytest.mark.parametrize(
    "values", [{"node_gbit_s": 0}, {"slot_gbit_s": "fast"}, {"prices": {"cpu": -1}}]
)
def test_speeds_and_prices_are_numbers(values: dict[str, Any]) -> None:
    """A setting that cannot be used is named at the start."""
    with pytest.raises(PolicyError, match="must be a number above 0"):
        AdmissionPolicy.read(values)


@pytest.mark.torch
def test_the_real_dry_run_counts_the_models_weights() -> None:
    """One and two layers, with an adapter and without; tied weights once."""
    from trainer import dryrun

    asked = {"config": TINY, "micro_batch": 2, "sequence": 16, "precision": "bf16", "lora": None}
    plain = dryrun.run({**asked, "engine": "plain", "checkpointing": False})
    shape = shapes.read(TINY)
    assert rehearsal.read(json.loads(json.dumps(plain)), 32).whole(2) == shape.parameters
    adapter = {"rank": 4, "targets": []}
    lora = dryrun.run({**asked, "engine": "zero", "checkpointing": True, "lora": adapter})
    assert 0 < rehearsal.read(lora, 32).learning(2) < shape.parameters / 2


@pytest.mark.torch
@pytest.mark.timeout(300)
async def test_the_founding_job_fits_with_checkpointing_and_not_without(tmp_path: Path) -> None:
    """A rehearsed 7.7 billion parameter model on two nodes with eight a100-80g, and its numbers."""
    told: dict[Any, judging.Verdict] = {}
    rehearse = DryRuns(tmp_path)
    for wish in ("auto", "false"):
        setting = f"hyperparameters.gradientCheckpointing={wish}"
        read = reading.read(compose([("job.yaml", FOUNDING.read_text())], [setting])[0])
        observed = handlers._elsewhere(read, TWO_NODES)
        asked = judging.rehearsals(read, observed, AdmissionPolicy())
        answers, why = await rehearse.of(asked)
        assert why == ""
        observed["dry_runs"] = {"answers": answers, "tokens": 4 * 2048, "reason": ""}
        told[wish] = judging.judge(read, observed, AdmissionPolicy())
    assert judging.is_fit(told["auto"])
    assert told["auto"].estimate["gradient_checkpointing"] is True
    assert told["auto"].estimate["memory_bytes"]["likely"] / GIB == pytest.approx(42.5, rel=0.05)
    assert not judging.is_fit(told["false"])
    reason = judging.all_reasons(told["false"])[0]
    assert "most of it is activations" in reason["message"]
    assert "gradientCheckpointing: true takes" in reason["hint"]
