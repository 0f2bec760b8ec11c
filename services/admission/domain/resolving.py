"""What a job comes down to: ``resolved`` and ``gang`` of ``job.admitted``, and the final spec.

Pure: what the disk and the registry said comes in as observations.
"""

from collections.abc import Mapping
from typing import Any, Final

from lineshaft.contracts.job import TrainingJob
from services.admission.domain.reading import some

ZERO_STAGES: Final[Mapping[str, int | None]] = {
    "none": None,
    "ddp": 0,
    "deepspeed-zero1": 1,
    "deepspeed-zero2": 2,
    "deepspeed-zero3": 3,
}
CPU: Final = "cpu"


def launcher(job: TrainingJob) -> str:
    """Return what starts the ranks: ``deepspeed``, ``torchrun`` or ``none``."""
    named = job.spec["launcher"]
    if named != "auto":
        return str(named)
    if job.job_type == "script":
        return "none" if job.ranks == 1 else "torchrun"
    strategy = some(job.spec["hyperparameters"]).get("distributedStrategy")
    return "none" if strategy == "none" else "deepspeed"


def precision(job: TrainingJob) -> str:
    """Return the compute type: what the job says, else bf16, or fp32 on CPUs."""
    named = some(job.spec["hyperparameters"]).get("precision")
    return str(named) if named else ("fp32" if job.gpu_type == CPU else "bf16")


def zero_stage(job: TrainingJob) -> int | None:
    """Return DeepSpeed's stage; None is plain PyTorch."""
    return ZERO_STAGES.get(str(some(job.spec["hyperparameters"]).get("distributedStrategy")))


def gang(job: TrainingJob) -> dict[str, Any]:
    """Return what the scheduler places."""
    return {"nodes": job.nodes, "slots_per_node": job.slots_per_node, "gpu_type": job.gpu_type}


def budgets(job: TrainingJob) -> dict[str, int]:
    """Return how often each budget pays for another attempt."""
    return dict(job.spec["retry"]["limits"])


def resolved(
    job: TrainingJob, observed: Mapping[str, Any], *, is_checkpointing: bool | None
) -> dict[str, Any]:
    """Return ``resolved``; paths are those that preflight found, else as the job gives them."""
    spec, hyper = job.spec, some(job.spec["hyperparameters"])
    paths = some(observed.get("paths"))
    batch = None
    if hyper:
        names = {"micro": "batchSize", "accumulation": "gradientAccumulation"}
        batch = {ours: hyper[theirs] or 1 for ours, theirs in names.items()}
        batch["global"] = batch["micro"] * batch["accumulation"] * job.ranks
    return {
        "model": _model(job, observed),
        "datasets": [_dataset(row, index, observed) for index, row in enumerate(spec["datasets"])],
        "output": {
            "model_name": spec["output"]["modelName"],
            "save_path": _found(
                paths, "spec.output.modelSavePath", spec["output"]["modelSavePath"]
            ),
        },
        "batch": batch,
        "launcher": launcher(job),
        "zero_stage": zero_stage(job),
        "ranks": job.ranks,
        "nodes": job.nodes,
        "slots_per_node": job.slots_per_node,
        "precision": precision(job),
        "tokenizer": _found(paths, "spec.tokenizer", spec["tokenizer"]),
        "gradient_checkpointing": is_checkpointing,
    }


def final_spec(job: TrainingJob, observed: Mapping[str, Any], *, team: str) -> dict[str, Any]:
    """Return the canonical spec with the team named and every path absolute."""
    spec, paths = job.canonical(), some(observed.get("paths"))
    spec["team"] = team
    for index, row in enumerate(spec["datasets"]):
        row["path"] = _found(paths, f"spec.datasets[{index}].path", row["path"])
    output = spec["output"]
    output["modelSavePath"] = _found(paths, "spec.output.modelSavePath", output["modelSavePath"])
    for name in ("tokenizer", "workingDir"):
        spec[name] = _found(paths, f"spec.{name}", spec[name])
    if spec["evaluation"]:
        spec["evaluation"]["suites"] = _suites(job, paths)
    for index, word in enumerate(spec["command"] or []):
        spec["command"][index] = _found(paths, f"spec.command[{index}]", word)
    if isinstance(spec["model"], str):
        spec["model"] = _found(paths, "spec.model", spec["model"])
    return spec


def _found(paths: Mapping[str, Any], where: str, otherwise: Any) -> Any:
    return paths.get(where, otherwise)


def _model(job: TrainingJob, observed: Mapping[str, Any]) -> dict[str, Any] | None:
    seen = observed.get("model")
    if isinstance(seen, Mapping):
        kept = {key: value for key, value in seen.items() if key != "config"}
        return {**kept, "config": seen["config"]} if seen.get("kind") == "config" else kept
    given = job.spec["model"]
    if given is None:
        return None
    return {"kind": "config", "config": given} if isinstance(given, dict) else {"ref": given}


def _dataset(row: Mapping[str, Any], index: int, observed: Mapping[str, Any]) -> dict[str, Any]:
    seen = some(some(observed.get("datasets")).get(str(index)))
    path = _found(some(observed.get("paths")), f"spec.datasets[{index}].path", row["path"])
    made = {"name": row["name"], "path": path, "format": row["format"]}
    made |= {"version": row["version"], "digest": seen.get("digest"), "bytes": seen.get("bytes")}
    return made


def _suites(job: TrainingJob, paths: Mapping[str, Any]) -> list[Any]:
    suites = some(job.spec["evaluation"]).get("suites") or []
    return [
        _found(paths, f"spec.evaluation.suites[{index}]", path) for index, path in enumerate(suites)
    ]
