"""Verdicts: what keeps a job out, what is only said, what it comes down to."""

from typing import Any

import pytest
import yaml

from services.admission.domain import inventory, judging, reading
from services.admission.domain.inventory import InventoryError
from services.admission.domain.judging import Verdict
from services.admission.domain.policy import AdmissionPolicy, PolicyError
from tests.builders_admission import (
    FOUNDING,
    QWEN_7B,
    TINY,
    TWO_NODES,
    a_document,
    a_script,
)


def verdict(job: Any, **observed: Any) -> Verdict:
    return judging.judge(reading.read(job), observed, AdmissionPolicy())


def two_nodes() -> dict[str, Any]:
    return inventory.to_dict(inventory.read(TWO_NODES))


def founding(extra: str = "") -> Verdict:
    text = FOUNDING.read_text().replace("    epochs: 3", f"    epochs: 3{extra}")
    return verdict(text, model={"kind": "registry", "config": QWEN_7B}, inventory=two_nodes())


def test_the_founding_job_fits_with_gradient_checkpointing() -> None:
    """Two nodes with eight 80 GB devices take it; `auto` chooses what makes it fit."""
    for extra in ("", "\n    gradientCheckpointing: true"):
        found = founding(extra)
        assert judging.is_fit(found)
        assert found.resolved["gradient_checkpointing"] is True
        assert found.resolved["zero_stage"] == 2
        assert found.resolved["batch"] == {"micro": 4, "accumulation": 1, "global": 64}
        assert found.resolved["launcher"] == "deepspeed"
        assert found.resolved["precision"] == "bf16"
        assert (found.resolved["ranks"], found.resolved["slots_per_node"]) == (16, 8)


def test_the_example_inventory_plans_the_founding_job() -> None:
    """What the repository shows, says yes."""
    stated = yaml.safe_load((FOUNDING.parent / "two-nodes.yaml").read_text())
    assert stated == {**TWO_NODES, "nodes": [{**TWO_NODES["nodes"][0], "gpuMemoryGiB": 80}]}
    assert inventory.read(stated).memory_bytes("a100-80g") == 80 << 30


def test_the_founding_job_does_not_fit_without() -> None:
    """The plan says by how much, what dominates, and which single change would do."""
    found = founding("\n    gradientCheckpointing: false")
    assert not judging.is_fit(found)
    (reason,) = judging.all_reasons(found)
    assert reason["path"] == "spec.hyperparameters.gradientCheckpointing"
    assert reason["line"] == 19
    assert "86.0 GiB" in reason["message"]
    assert "activations" in reason["message"]
    assert "gradientCheckpointing: true takes 42.5 GiB" in reason["hint"]
    assert found.estimate["dominating"] == "activations"


def test_what_cannot_fit_even_by_the_low_estimate_is_refused_not_warned_of() -> None:
    """A submission is not queued for something that will never run."""
    text = (
        FOUNDING.read_text()
        .replace("deepspeed-zero2", "ddp")
        .replace("batchSize: 4", "batchSize: 64")
    )
    found = verdict(text, model={"kind": "registry", "config": QWEN_7B}, inventory=two_nodes())
    assert [reason["code"] for reason in found.reasons] == ["memory"]


@pytest.mark.parametrize(
    ("resources", "path", "said"),
    [
        (
            {"gpuType": "h100-80g", "gpuCount": 2},
            "gpuType",
            "no node has h100-80g; there is a100-80g",
        ),
        ({"gpuType": "a100-80g", "gpuCount": 16}, "gpuCount", "the largest a100-80g node has 8"),
        ({"gpuType": "a100-80g", "gpuCount": 24, "nodeCount": 3}, "nodeCount", "there are 2"),
    ],
)
def test_a_gang_that_no_nodes_can_hold(resources: dict[str, Any], path: str, said: str) -> None:
    """On a stated inventory it is a reason; on what is alive now it is a warning."""
    document = a_document(resources=resources)
    found = verdict(document, inventory=two_nodes())
    assert [(r["path"], said in r["message"]) for r in found.reasons] == [
        (f"spec.resources.{path}", True)
    ]
    alive = {**two_nodes(), "declared": False}
    found = verdict(document, inventory=alive)
    assert found.reasons == []
    assert not judging.is_fit(found)
    assert any(said in warning for warning in found.warnings)


def test_findings_get_the_line_of_the_job_file() -> None:
    """Preflight knows paths of fields; the verdict knows where they stand."""
    finding = {"path": "spec.datasets[0].path", "message": "/data is outside", "hint": "mounts: /x"}
    (reason,) = verdict(FOUNDING.read_text(), findings=[finding]).reasons
    assert (reason["line"], reason["column"], reason["hint"]) == (11, 7, "mounts: /x")
    assert reason["message"] == "/data is outside"


def test_paths_become_those_that_were_found() -> None:
    """In the spec that runs, every path is absolute and without links."""
    paths = {"spec.datasets[0].path": "/mnt/pairs.jsonl", "spec.output.modelSavePath": "/mnt/out"}
    document = a_document(output={"modelSavePath": "out", "modelName": "m"})
    seen = {"0": {"bytes": 10, "digest": "sha256:00"}}
    found = verdict(document, paths=paths, datasets=seen)
    assert found.spec["datasets"][0]["path"] == "/mnt/pairs.jsonl"
    assert found.spec["output"]["modelSavePath"] == "/mnt/out"
    assert found.resolved["output"] == {"model_name": "m", "save_path": "/mnt/out"}
    assert found.resolved["datasets"][0]["digest"] == "sha256:00"


def test_a_default_length_gives_way_to_the_models_context() -> None:
    """A stated one that is too long is a reason."""
    model = {"kind": "registry", "config": TINY}
    assert verdict(a_document(), model=model).spec["hyperparameters"]["sequenceLength"] == 256
    document = a_document(hyperparameters={"sequenceLength": 300})
    (reason,) = verdict(document, model=model).reasons
    assert "context of 256" in reason["message"]


@pytest.mark.parametrize(
    ("spec", "launcher", "stage"),
    [
        ({"resources": {"gpuType": "cpu"}}, "none", None),
        ({}, "deepspeed", 0),
        ({"hyperparameters": {"distributedStrategy": "deepspeed-zero3"}}, "deepspeed", 3),
        ({"launcher": "torchrun"}, "torchrun", 0),
    ],
)
def test_launcher_and_stage_follow_from_the_strategy(
    spec: dict[str, Any], launcher: str, stage: int | None
) -> None:
    """One rank trains plainly; ddp is DeepSpeed's stage 0; what the job names wins."""
    found = verdict(a_document(**spec)).resolved
    assert (found["launcher"], found["zero_stage"]) == (launcher, stage)
    assert found["precision"] == "fp32"


def test_scripts_start_plainly_alone_and_by_torchrun_together() -> None:
    """And need no estimate."""
    one = verdict(a_script(resources={"gpuType": "cpu"}))
    two = verdict(a_script())
    assert (one.resolved["launcher"], two.resolved["launcher"]) == ("none", "torchrun")
    assert one.estimate == {}
    assert one.resolved["batch"] is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"nodes": []},
        {"nodes": [1]},
        {"nodes": [{"gpus": 0}]},
        {"nodes": [{"gpus": True}]},
        {"nodes": [{"gpus": 1, "colour": "red"}]},
        {"nodes": [{"gpus": 1}], "mounts": "x"},
        {"nodes": [{"gpus": 1}], "models": {"a": 1}},
        {"nodes": [{"gpus": 1}], "more": 1},
        {"nodes": [{"gpus": 1, "gpuMemoryGiB": -1}]},
    ],
)
def test_a_wrong_inventory_is_refused_in_words(value: Any) -> None:
    """The message names the place."""
    with pytest.raises(InventoryError):
        inventory.read(value)


def test_an_inventory_knows_only_the_spelling_of_paths() -> None:
    """The disks of another cluster are not here."""
    spec = reading.read(FOUNDING.read_text()).job
    assert spec is not None
    stock = inventory.read({**TWO_NODES, "mounts": ["/data"]})
    (finding,) = inventory.outside(stock, spec.canonical())
    assert finding["path"] == "spec.output.modelSavePath"


def test_equal_nodes_of_the_scheduler_become_one_group() -> None:
    """Ten thousand nodes are an observation of a few rows."""
    rows = [{"node": f"n{i}", "gpu_type": "cpu", "slots": 4} for i in range(500)]
    found = inventory.from_scheduler({"nodes": [*rows, {"slots": "odd"}, None]})
    assert [(g.gpu_type, g.slots, g.count, len(g.names)) for g in found.groups] == [
        ("cpu", 4, 500, 16)
    ]
    assert inventory.from_dict(inventory.to_dict(found)) == found


@pytest.mark.parametrize(
    "values",
    [{"colour": 1}, {"pool": "No Name"}, {"headroom": 9}, {"devices": {"x": {"memory": 1}}}],
)
def test_a_wrong_policy_is_refused_in_words(values: dict[str, Any]) -> None:
    """A misspelt value is not ignored."""
    with pytest.raises(PolicyError, match=r"policy\.admission"):
        AdmissionPolicy.read(values)


def test_a_policy_may_add_devices() -> None:
    """An operator's own device types are estimated like the known ones."""
    policy = AdmissionPolicy.read({"devices": {"npu": {"memory_gib": 64, "tflops": 100}}})
    found = policy.device("npu")
    assert found is not None
    assert found.memory_bytes == 64 << 30
    assert policy.device("a100-80g") is not None
