"""What the fields of a job need from one another: ordered rules over the canonical job.

Each rule sees the canonical spec (defaults filled in, None where a field is unset or faulty)
and which fields the file gives; it records faults and may fill in what follows from others.
Standard library only.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lineshaft.contracts import ids
from lineshaft.contracts.job_faults import FaultList, Path, nearest
from lineshaft.contracts.job_fields import PRIORITIES, PRIORITY_MAX

TRAININGS: Final = ("pretrain", "full-finetune", "lora")
CPU: Final = "cpu"

PLATFORM_ENV: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "CUDA_VISIBLE_DEVICES",
    "DS_ACCELERATOR",
)
PLATFORM_ENV_PREFIX: Final = "LINESHAFT_"
PLATFORM_FLAGS: Final = (
    "master-addr",
    "master-port",
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "num-nodes",
    "num-gpus",
    "hostfile",
    "local-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "standalone",
    "no-ssh",
)
LAUNCHERS: Final = ("deepspeed", "torchrun", "accelerate", "mpirun", "mpiexec", "srun")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)"
    r"(?:$|_)"
)
_FLAG = re.compile(r"^--?([A-Za-z][A-Za-z0-9_-]*)(?:=.*)?$", re.DOTALL)
_NOT_FOR_SCRIPT: Final = ("hyperparameters", "checkpoint", "evaluation", "model", "tokenizer")


@dataclass(slots=True)
class Draft:
    """A canonical spec in the making, with what the rules need to judge it."""

    spec: dict[str, Any]
    faults: FaultList

    def given(self, path: str) -> bool:
        """Tell whether the file gives ``spec.<path>`` a value."""
        return ("spec", *path.split(".")) in self.faults.given

    def fault(self, path: Path, message: str, meant: str | None = None) -> None:
        """Record a fault at ``spec.<path>``."""
        self.faults.add(("spec", *path), message, meant)

    def part(self, name: str) -> dict[str, Any]:
        """Return a record of the spec; empty when it is faulty or absent."""
        return self.spec.get(name) or {}


def apply(draft: Draft) -> None:
    """Apply every rule, in order."""
    for rule in RULES:
        rule(draft)


def _priority(draft: Draft) -> None:
    value = draft.spec["priority"]
    if not isinstance(value, str):
        return
    if value.isascii() and value.isdigit() and int(value[:9]) <= PRIORITY_MAX:
        draft.spec["priority"] = int(value)
        return
    if value not in PRIORITIES:
        meant = nearest(value, PRIORITIES)
        hint = f"; did you mean '{meant}'?" if meant else ""
        draft.fault(("priority",), f"must be low, normal, high or 0 to {PRIORITY_MAX}{hint}", meant)
    draft.spec["priority"] = PRIORITIES.get(value)


def _gang(draft: Draft) -> None:
    resources = draft.part("resources")
    count, nodes = resources.get("gpuCount"), resources.get("nodeCount")
    if count is None or nodes is None:
        return
    if count % nodes:
        below, above = count - count % nodes, count + nodes - count % nodes
        near = f"{below} or {above}" if below else str(above)
        message = f"{count} does not divide over {nodes} nodes; {near} would"
        draft.fault(("resources", "gpuCount"), message)
        return
    per_node = resources["processesPerNode"]
    if per_node not in (None, count // nodes):
        message = f"must be gpuCount / nodeCount = {count // nodes}: one rank per device"
        draft.fault(("resources", "processesPerNode"), message)
    for bound in ("minNodes", "maxNodes"):
        if resources[bound] not in (None, nodes):
            message = f"is not honoured by this platform yet unless it equals nodeCount ({nodes})"
            draft.fault(("resources", bound), message)


def _strategy(draft: Draft) -> None:
    hyper, ranks = draft.part("hyperparameters"), _ranks(draft)
    if ranks is not None and ranks > 1 and draft.spec["launcher"] == "none":
        draft.fault(("launcher",), f"'none' starts one rank, gpuCount is {ranks}; use auto")
    if not hyper or ranks is None or draft.spec["jobType"] == "script":
        return
    if hyper["distributedStrategy"] is None and not draft.given(
        "hyperparameters.distributedStrategy"
    ):
        hyper["distributedStrategy"] = "none" if ranks == 1 else "ddp"
    if hyper["distributedStrategy"] == "none" and ranks > 1:
        message = (
            f"'none' trains on one device, gpuCount is {ranks}; use ddp or deepspeed-zero1/2/3"
        )
        draft.fault(("hyperparameters", "distributedStrategy"), message)


def _batch(draft: Draft) -> None:
    hyper, ranks = draft.part("hyperparameters"), _ranks(draft)
    if not hyper or ranks is None or draft.spec["jobType"] not in TRAININGS:
        return
    micro, steps = hyper["batchSize"], hyper["gradientAccumulation"]
    whole = hyper["globalBatchSize"]
    if whole is None:
        micro, steps = micro or 1, steps or 1
    elif micro is None and steps is None:
        steps = 1
    if whole is not None and (micro is None or steps is None):
        known, name = (steps, "batchSize") if micro is None else (micro, "gradientAccumulation")
        share, rest = divmod(whole, known * ranks)
        if rest or not share:
            message = f"{whole} is no multiple of {known * ranks} ({known} x {ranks} ranks), so no "
            draft.fault(("hyperparameters", "globalBatchSize"), f"{message}{name} gives it")
            return
        micro, steps = (share, steps) if micro is None else (micro, share)
    product = micro * steps * ranks
    if whole not in (None, product):
        message = f"{whole} is not batchSize x gradientAccumulation x ranks = {product}"
        draft.fault(("hyperparameters", "globalBatchSize"), f"{message}; leave one of them out")
    hyper.update(batchSize=micro, gradientAccumulation=steps, globalBatchSize=product)


def _length(draft: Draft) -> None:
    hyper = draft.part("hyperparameters")
    if not hyper:
        return
    if draft.spec["jobType"] in TRAININGS and hyper["epochs"] is None and hyper["maxSteps"] is None:
        hyper["epochs"] = 1.0
    if hyper["warmupSteps"] is not None and hyper["warmupRatio"] is not None:
        message = "give warmupSteps or warmupRatio, not both"
        draft.fault(("hyperparameters", "warmupRatio"), message)
    low, high = hyper["minLearningRate"], hyper["learningRate"]
    if low is not None and high is not None and low > high:
        message = f"{low:g} is above learningRate {high:g}"
        draft.fault(("hyperparameters", "minLearningRate"), message)
    checkpoint = draft.part("checkpoint")
    if checkpoint and None not in (checkpoint["everySteps"], checkpoint["everyMinutes"]):
        draft.fault(("checkpoint", "everyMinutes"), "give everySteps or everyMinutes, not both")


def _kind(draft: Draft) -> None:
    kind = draft.spec["jobType"]
    if kind in TRAININGS or kind == "evaluate":
        _model_job(draft, kind)
    elif kind == "script":
        _script_job(draft)
    if kind != "lora" and draft.given("hyperparameters.lora"):
        draft.fault(("hyperparameters", "lora"), "is for jobType lora")


def _model_job(draft: Draft, kind: str) -> None:
    is_unset = draft.spec["model"] is None and not draft.given("model")
    if is_unset:
        what = "a configuration" if kind == "pretrain" else "a registry reference or a folder"
        draft.fault(("model",), f"is missing: jobType {kind} needs {what}")
    if isinstance(draft.spec["model"], dict) and kind != "pretrain":
        draft.fault(("model",), f"a configuration is for jobType pretrain; {kind} names a model")
    if kind in TRAININGS and draft.spec["datasets"] == []:
        draft.fault(("datasets",), "is missing: at least one dataset is needed")
    evaluation = draft.part("evaluation")
    if kind == "evaluate" and evaluation and not evaluation["suites"]:
        draft.fault(("evaluation", "suites"), "is missing: jobType evaluate needs a suite")
    for name in ("command", "args", "workingDir"):
        if draft.given(name):
            draft.fault((name,), "is for jobType script")
    if kind == "pretrain" and draft.spec["tokenizer"] is None and not draft.given("tokenizer"):
        draft.fault(("tokenizer",), "is missing: pretraining needs a tokenizer's folder or file")


def _script_job(draft: Draft) -> None:
    if draft.spec["command"] is None and not draft.given("command"):
        draft.fault(("command",), "is missing: jobType script runs a command")
    for name in _NOT_FOR_SCRIPT:
        if draft.given(name):
            message = "is not used by jobType script; hand it to the script in args or env"
            draft.fault((name,), message)
    for name in ("hyperparameters", "checkpoint", "evaluation"):
        draft.spec[name] = None


def _output(draft: Draft) -> None:
    output = draft.part("output")
    if not output or draft.given("output.modelName"):
        return
    path = output["modelSavePath"]
    if path is not None:
        made = ids.slug(path.rstrip("/").rpartition("/")[2][:256])
        output["modelName"] = made if ids.is_name(made) else None
    is_unclear = path is None and draft.given("output.modelSavePath")
    if output["modelName"] is None and draft.spec["jobType"] in TRAININGS and not is_unclear:
        draft.fault(("output", "modelName"), "is missing: what the model will be called")


def _environment(draft: Draft) -> None:
    for name in draft.spec["env"] or {}:
        if name in PLATFORM_ENV or name.startswith(PLATFORM_ENV_PREFIX):
            draft.fault(("env", name), "is set by the platform; remove it")
        elif _SECRET_NAME.search(name.upper()):
            message = "looks like a secret; a job file never holds one"
            draft.fault(("env", name), message)


def _arguments(draft: Draft) -> None:
    command: Sequence[str | None] = draft.spec["command"] or []
    first = (command[0] or "").rpartition("/")[2] if command else ""
    if first in LAUNCHERS:
        message = f"'{first}' is started by the platform; name the script, and 'launcher' if needed"
        draft.fault(("command", 0), message)
    for field in ("command", "args"):
        for index, word in enumerate(draft.spec[field] or []):
            match = _FLAG.match(word or "")
            name = match[1].replace("_", "-").lower() if match else ""
            if name in PLATFORM_FLAGS:
                draft.fault((field, index), f"--{name} is set by the platform; remove it")


def _deepspeed(draft: Draft) -> None:
    hyper = draft.part("hyperparameters")
    config = hyper.get("deepspeedConfig")
    if not config:
        return
    strategy = hyper["distributedStrategy"]
    if strategy == "none":
        message = "distributedStrategy none uses no DeepSpeed; choose deepspeed-zero1/2/3"
        draft.fault(("hyperparameters", "deepspeedConfig"), message)
    for path, wanted in _owned(hyper, strategy).items():
        found = _dig(config, path)
        if found is None or found == "auto" or _agrees(found, wanted[0]):
            continue
        is_named = wanted[0] is not None
        says = f"disagrees with {wanted[1]}: {wanted[0]}" if is_named else f"is set by {wanted[1]}"
        draft.fault(("hyperparameters", "deepspeedConfig", *path), f"{says}; remove it")


def _owned(hyper: dict[str, Any], strategy: str | None) -> dict[tuple[str, ...], tuple[Any, str]]:
    """Return what the platform sets in a DeepSpeed configuration: the value and its field."""
    stages = {"ddp": 0, "deepspeed-zero1": 1, "deepspeed-zero2": 2, "deepspeed-zero3": 3}
    precision = hyper["precision"]
    owned: dict[tuple[str, ...], tuple[Any, str]] = {
        ("train_batch_size",): (hyper["globalBatchSize"], "globalBatchSize"),
        ("train_micro_batch_size_per_gpu",): (hyper["batchSize"], "batchSize"),
        ("gradient_accumulation_steps",): (hyper["gradientAccumulation"], "gradientAccumulation"),
        ("gradient_clipping",): (hyper["maxGradNorm"], "maxGradNorm"),
        ("zero_optimization", "stage"): (stages.get(strategy or ""), "distributedStrategy"),
        ("fp16", "enabled"): (False, "precision"),
        ("optimizer",): (None, "optimizer"),
        ("scheduler",): (None, "lrScheduler"),
        ("seed",): (hyper["seed"], "seed"),
    }
    if precision is not None:
        owned["bf16", "enabled"] = (precision == "bf16", "precision")
    return owned


def _dig(config: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _agrees(found: Any, wanted: Any) -> bool:
    is_flag = isinstance(wanted, bool)
    return wanted is not None and isinstance(found, bool) == is_flag and bool(found == wanted)


def _ranks(draft: Draft) -> int | None:
    count = draft.part("resources").get("gpuCount")
    return count if isinstance(count, int) else None


def _twins(draft: Draft) -> None:
    seen: dict[str, int] = {}
    for index, dataset in enumerate(draft.spec["datasets"] or []):
        name = (dataset or {}).get("name")
        if name is not None and name in seen:
            message = f"'{name}' is the name of datasets[{seen[name]}] already"
            draft.fault(("datasets", index, "name"), message)
        if name is not None:
            seen.setdefault(name, index)


RULES: Final[tuple[Callable[[Draft], None], ...]] = (
    _priority,
    _gang,
    _strategy,
    _batch,
    _length,
    _kind,
    _output,
    _environment,
    _arguments,
    _deepspeed,
    _twins,
)
