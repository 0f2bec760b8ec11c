"""The loop on one process: from an order to a folder that transformers loads."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from lineshaft.contracts import ids, manifest  # noqa: E402
from tests.builders_trainer import (  # noqa: E402
    RecordingLink,
    a_corpus,
    a_file,
    a_suite,
    an_order,
    fingerprint,
    pairs,
)
from trainer import loop, recipe  # noqa: E402
from trainer.checkpoint import layout  # noqa: E402
from trainer.datasets import tokens  # noqa: E402
from trainer.engines import schedule  # noqa: E402
from trainer.evaluation import statistics  # noqa: E402
from trainer.faults import ConfigFault, NonFinite  # noqa: E402
from trainer.recipe import Optimisation  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained tiny model's final folder."""
    folder = tmp_path_factory.mktemp("base")
    order = an_order(folder, job="j-base", data=a_corpus(folder), hyper={"maxSteps": 30})
    loop.run(order, RecordingLink())
    return folder / "run-j-base-1" / "final"


def a_tuning(folder: Path, base: Path, **wish: Any) -> dict[str, Any]:
    data = a_file(folder / "train.jsonl", pairs(60))
    return an_order(
        folder,
        data=data,
        job_type=wish.pop("job_type", "full-finetune"),
        model={"kind": "folder", "path": str(base)},
        suites=[a_suite(folder / "suite")],
        **wish,
    )


def test_pretraining_ends_in_a_model_that_transformers_loads_and_the_manifest_takes(
    base: Path,
) -> None:
    """Every file has a role; a manifest can be made of what the folder says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    assert tokenizer("red").input_ids == tokens.load(base).encode(["red"])[0]
    body = json.loads((base / "artifact.json").read_text())
    assert body["model"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert body["lineage"]["base"] is None
    on_disk = {p.name for p in base.iterdir()} - {"artifact.json"}
    assert set(body["roles"]) == on_disk
    made = manifest.make(
        kind=body["kind"],
        name="tiny",
        team="default",
        files=[
            {"path": path, "size": 1, "digest": ids.digest_of(b"x"), "role": role}
            for path, role in body["roles"].items()
        ],
        **{part: body[part] for part in ("lineage", "model", "metrics", "environment")},
    )
    assert made["kind"] == "model"


def test_pretraining_lowers_the_loss_on_what_it_never_saw(base: Path) -> None:
    """The held-out side of the corpus is measured before and after."""
    report = json.loads((base / "evaluation.json").read_text())
    before, after = (report[side]["heldOut"]["perplexity"]["value"] for side in ("before", "after"))
    assert after < 0.7 * before


def test_fine_tuning_answers_what_the_base_cannot(tmp_path: Path, base: Path) -> None:
    """Measured by the suite before and after; every value reaches the agent."""
    link = RecordingLink()
    order = a_tuning(tmp_path, base, hyper={"maxSteps": 60, "batchSize": 8, "learningRate": 5e-3})
    loop.run(order, link)
    ((folder, step),) = link.ended
    assert step == 60
    report = json.loads((Path(folder) / "evaluation.json").read_text())
    before, after = report["before"]["colour"], report["after"]["colour"]
    assert (before["samples"], before["majority"]) == (20, 0.5)
    assert before["exactMatch"]["right"] == 0
    assert after["exactMatch"]["right"] >= 8
    assert after["exactMatch"]["low"] < after["exactMatch"]["value"] < after["exactMatch"]["high"]
    assert report["digest"].startswith("sha256:")
    told = {(each[0], *each[3:]) for each in link.metrics}
    assert ("exactMatch", "before", "colour") in told
    assert ("perplexity", "after", "words") in told
    assert ("choice", "after", "pick") in told


def test_every_step_is_told_with_where_its_time_went(tmp_path: Path, base: Path) -> None:
    """The parts never exceed the whole; a save shows in the step that follows it."""
    link = RecordingLink()
    loop.run(a_tuning(tmp_path, base, saving={"everySteps": 3}), link)
    assert [each["step"] for each in link.steps] == list(range(1, 9))
    for each in link.steps:
        parts = ("compute_ms", "collective_ms", "data_ms", "checkpoint_ms")
        assert sum(each[part] for part in parts) <= each["step_ms"] + 0.01
        assert each["samples"] == 2
        assert each["tokens"] > 0
        assert math.isfinite(each["grad_norm"])
    saved = [each["step"] for each in link.steps if each["checkpoint_ms"] > 0]
    assert saved == [4, 7]
    assert [each["step"] for each in link.commits] == [3, 6, 8]


def test_a_resumed_attempt_compares_with_the_first_beginning(tmp_path: Path, base: Path) -> None:
    """The report of the untrained model is made once and read by later attempts."""
    first, second = RecordingLink(stop_at=4), RecordingLink()
    order = a_tuning(tmp_path, base, saving={"everySteps": 2})
    loop.run(order, first)
    assert first.ended == []
    wish = {**first.commits[-1], "attempt": 1}
    assert wish["step"] == 5, "the step at whose end the stop was seen"
    loop.run(a_tuning(tmp_path, base, attempt=2, resume=wish), second)
    assert second.steps[0]["step"] == 6
    assert not [each for each in second.metrics if "before" in each]
    report = json.loads((Path(second.ended[0][0]) / "evaluation.json").read_text())
    assert set(report["before"]) == {"colour", "pick", "words"}


def test_a_stop_before_the_first_step_saves_nothing(tmp_path: Path, base: Path) -> None:
    """There is nothing new to keep."""
    link = RecordingLink(stop_at=0)
    loop.run(a_tuning(tmp_path, base), link)
    assert (link.steps, link.commits, link.ended) == ([], [], [])


def test_a_run_resumed_at_its_last_step_only_finishes(tmp_path: Path, base: Path) -> None:
    """A death between the last save and the end costs no step."""
    first, second = RecordingLink(), RecordingLink()
    loop.run(a_tuning(tmp_path, base), first)
    wish = {**first.commits[-1], "attempt": 1}
    loop.run(a_tuning(tmp_path, base, attempt=2, resume=wish), second)
    assert second.steps == []
    assert [step for _, step in second.ended] == [8]


def test_numbers_that_are_none_end_the_run_without_a_save(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is told, so that the monitor sees it; nothing of it is kept."""
    from trainer.engines import plain

    real, calls = plain.causal_loss, []

    def broken(logits: Any, labels: Any) -> Any:
        calls.append(1)
        return real(logits, labels) * (float("nan") if len(calls) == 5 else 1.0)

    monkeypatch.setattr(plain, "causal_loss", broken)
    link = RecordingLink()
    with pytest.raises(NonFinite, match=r"step 5: .* rank 0"):
        loop.run(a_tuning(tmp_path, base, saving={"everySteps": 1}), link)
    assert [each["step"] for each in link.steps] == [1, 2, 3, 4, 5]
    assert [each["step"] for each in link.commits] == [1, 2, 3, 4]


def test_an_adapter_learns_alone_and_keeps_its_base_in_the_lineage(
    tmp_path: Path, base: Path
) -> None:
    """The final folder is the adapter; peft loads it onto the base."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    link = RecordingLink()
    hyper = {"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}, "maxSteps": 4}
    loop.run(a_tuning(tmp_path, base, job_type="lora", hyper=hyper), link)
    folder = Path(link.ended[0][0])
    assert json.loads((folder / "artifact.json").read_text())["kind"] == "adapter"
    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
    assert PeftModel.from_pretrained(model, str(folder)).num_parameters() > 0
    names = fingerprint(Path(link.commits[-1]["path"]))
    state = torch.load(Path(link.commits[-1]["path"]) / "engine/state.pt", weights_only=True)
    assert names
    assert all("lora_" in name for name in state["model"])


def test_evaluation_alone_trains_nothing(tmp_path: Path, base: Path) -> None:
    """The result is the report."""
    order = a_tuning(tmp_path, base, job_type="evaluate")
    link = RecordingLink()
    loop.run(order, link)
    folder = Path(link.ended[0][0])
    body = json.loads((folder / "artifact.json").read_text())
    assert (body["kind"], link.steps, link.commits) == ("files", [], [])
    assert set(json.loads((folder / "evaluation.json").read_text())["after"]) == {
        "colour",
        "pick",
        "words",
    }


def test_bf16_trains_over_fp32_weights(tmp_path: Path, base: Path) -> None:
    """The checkpoint keeps full precision."""
    link = RecordingLink()
    loop.run(a_tuning(tmp_path, base, precision="bf16", hyper={"maxSteps": 2}), link)
    state = torch.load(Path(link.commits[-1]["path"]) / "engine/state.pt", weights_only=True)
    assert {str(t.dtype) for t in state["model"].values()} == {"torch.float32"}


def test_the_manifest_of_a_checkpoint_holds_the_position_and_the_shape(
    tmp_path: Path, base: Path
) -> None:
    """Position is the global index of the next sample."""
    link = RecordingLink()
    loop.run(a_tuning(tmp_path, base, accumulation=2, hyper={"maxSteps": 3}), link)
    made = layout.decode((Path(link.commits[-1]["path"]) / layout.MANIFEST).read_bytes())
    assert (made.step, made.position) == (3, 12)
    assert (made.shape.world_size, made.shape.micro_batch, made.shape.accumulation) == (1, 2, 2)


def test_a_base_without_weights_is_no_base(tmp_path: Path, base: Path) -> None:
    """Only pretraining may begin with random weights."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((base / name).read_bytes())
    with pytest.raises(ConfigFault, match="needs a base model"):
        loop.run(a_tuning(tmp_path, bare), RecordingLink())


# Courses and statistics.


def rates(total: int, **wish: Any) -> list[float]:
    course = schedule.course(Optimisation(learning_rate=1.0, **wish), total)
    return [course(done) for done in range(total)]


@pytest.mark.parametrize("kind", recipe.SCHEDULES)
def test_the_rate_of_the_first_step_is_above_zero(kind: str) -> None:
    """Also with warm-up, and the warm-up reaches the full rate."""
    made = rates(100, schedule=kind, warmup_steps=10)
    assert made[0] == pytest.approx(0.1)
    assert made[9] == made[10] == 1.0
    assert all(rate > 0 for rate in made)
    assert made == rates(100, schedule=kind, warmup_ratio=0.1)


def test_the_rate_falls_to_its_floor() -> None:
    """Linear and cosine end near the smallest rate; a constant one stays."""
    assert rates(1000, schedule="cosine", min_learning_rate=0.1)[-1] == pytest.approx(0.1, abs=1e-3)
    assert rates(1000, schedule="linear")[-1] == pytest.approx(0.001)
    assert set(rates(10, schedule="constant")) == {1.0}


def test_wilsons_interval_has_its_known_values() -> None:
    """Checked against tables; a rate of 0 or 1 still has an interval."""
    assert statistics.wilson(121, 200) == pytest.approx((0.5359, 0.6701), abs=1e-3)
    assert statistics.wilson(0, 200) == pytest.approx((0.0, 0.0188), abs=1e-3)
    assert statistics.wilson(0, 0) == (0.0, 1.0)


def test_steps_follow_from_epochs_and_the_global_batch(tmp_path: Path) -> None:
    """1,400 samples, three epochs, two ranks with four each: 525."""
    hyper = {"maxSteps": None, "epochs": 3, "batchSize": 4}
    order = an_order(tmp_path, data=tmp_path, world=2, zero=2, hyper=hyper)
    assert recipe.of(order).total_steps(1400) == 525


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job_type": "script"}, "jobType"),
        ({"precision": "fp8"}, "precision"),
        ({"world": 2}, "several ranks need"),
        ({"hyper": {"lrScheduler": "step"}}, "lrScheduler"),
    ],
)
def test_an_order_that_cannot_be_trained_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """By the name of the field."""
    with pytest.raises(ConfigFault, match=words):
        recipe.of(an_order(tmp_path, data=tmp_path, **change))
