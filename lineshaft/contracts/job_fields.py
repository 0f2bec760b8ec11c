"""The table of all fields of a job file: honoured, or known and refused by name.

The canonical job (the ``spec`` of events and launch orders) is flat: ``name``, ``labels``, then
every honoured field of ``spec`` with its default filled in; None is "not set". What a field
needs besides its own type (pairs that must agree) stands in ``lineshaft.contracts.job_rules``.
Standard library only.
"""

from collections.abc import Iterator
from typing import Any, Final

from lineshaft.contracts import failures, limits
from lineshaft.contracts.job_records import (
    MISSING,
    Exactly,
    Field,
    Free,
    ListOf,
    MapOf,
    Record,
    TextOr,
)
from lineshaft.contracts.job_types import (
    AutoFlag,
    Choice,
    Duration,
    Flag,
    Name,
    Number,
    Text,
    Type,
    Whole,
)

API_VERSIONS: Final = ("lineshaft.io/v1", "trainer.example.io/v1")
KIND: Final = "TrainingJob"
TEAM_DEFAULT: Final = "default"
PRIORITIES: Final = {"low": 250, "normal": 500, "high": 750}
PRIORITY_MAX: Final = 1000
FORMATS: Final = ("jsonl", "text")

_TEXT = Text()
_PATH = Text(pattern=r"[^\x00]+", form="a path")
_GPU_TYPE = Text(63, r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", "'cpu' or a device type such as a100-80g")
_STEPS = Whole(1, 10_000_000)
_BUDGET = Whole(0, limits.ATTEMPTS_MAX)


def _later(name: str, children: str = "") -> Field:
    return Field(name, Free(), later=True, names=tuple(children.split()))


def _record(*fields: Field) -> Record:
    return Record(fields)


def _group(name: str, record: Record, summary: str = "") -> Field:
    return Field(name, record, {}, summary)


def _limit(budget: failures.Budget) -> Field:
    return Field(
        budget.value,
        _BUDGET,
        failures.DEFAULT_LIMITS[budget],
        f"attempts that the budget '{budget.value}' pays for",
    )


DATASET: Final = _record(
    Field("name", Name(), MISSING, "the dataset's name in lineage and reports"),
    Field("path", _PATH, MISSING, "a file or folder inside a configured mount"),
    Field("format", Choice(FORMATS, ("packed", "parquet", "arrow", "csv")), "jsonl"),
    Field("version", Text(128), None, "recorded in the lineage"),
    Field("readOnly", Exactly(Flag(), True), True, "data is mounted read-only"),
    _later("split"),
    _later("columns"),
    _later("template"),
    _later("trainOn"),
    _later("weight"),
    _later("maxSamples"),
)

RESOURCES: Final = _record(
    Field("gpuType", _GPU_TYPE, MISSING, "'cpu' counts slots; else a device type"),
    Field("gpuCount", Whole(1, 65_536), 1, "devices of all nodes together; one rank each"),
    Field("nodeCount", Whole(1, 8192), 1, "nodes; divides gpuCount"),
    Field("processesPerNode", Whole(1, 1024), None, "equals gpuCount / nodeCount"),
    Field("minNodes", Whole(1, 8192), None, "equals nodeCount: jobs are not resized yet"),
    Field("maxNodes", Whole(1, 8192), None, "equals nodeCount: jobs are not resized yet"),
    *(_later(name) for name in ("cpu", "memory", "shm", "topology", "gpuTypes", "gpuFraction")),
    *(_later(name) for name in ("migProfile", "nodeSelector", "tolerations", "excludeNodes")),
    *(_later(name) for name in ("exclusive", "rdma", "hostNetwork")),
)

LORA: Final = _record(
    Field("rank", Whole(1, 4096), 8, "inner dimension of the adapter"),
    Field("alpha", Number(above=0.0), 16.0, "the adapter is scaled by alpha / rank"),
    Field("dropout", Number(low=0.0, below=1.0), 0.0),
    Field("targets", ListOf(Text(256)), [], "modules; empty: every linear layer"),
    _later("modulesToSave"),
    _later("useRslora"),
)

HYPERPARAMETERS: Final = _record(
    Field("epochs", Number(above=0.0, high=10_000.0), None, "passes over the data; or maxSteps"),
    Field("maxSteps", _STEPS, None, "optimiser steps at most"),
    Field("batchSize", Whole(1, 65_536), None, "samples per rank and forward pass"),
    Field("gradientAccumulation", Whole(1, 65_536), None, "forward passes per optimiser step"),
    Field("globalBatchSize", Whole(1, 1 << 30), None, "samples per optimiser step, all ranks"),
    Field("sequenceLength", Whole(8, 1 << 20), 2048, "tokens per sample at most"),
    Field("learningRate", Number(above=0.0, high=10.0), 2e-5),
    Field("minLearningRate", Number(low=0.0, high=10.0), 0.0, "where the schedule ends"),
    Field("lrScheduler", Choice(("linear", "cosine", "constant")), "linear"),
    Field("warmupSteps", Whole(0, 10_000_000), None, "or warmupRatio"),
    Field("warmupRatio", Number(low=0.0, below=1.0), None, "share of all steps"),
    Field("optimizer", Choice(("adamw",), ("adam", "sgd", "adafactor", "lion")), "adamw"),
    Field("weightDecay", Number(low=0.0, high=10.0), 0.0),
    Field("adamBeta1", Number(low=0.0, below=1.0), 0.9),
    Field("adamBeta2", Number(low=0.0, below=1.0), 0.999),
    Field("adamEpsilon", Number(above=0.0, high=1.0), 1e-8),
    Field("maxGradNorm", Number(low=0.0), 1.0, "gradients are clipped to this norm; 0: never"),
    Field("precision", Choice(("fp32", "bf16"), ("fp16", "fp8")), None, "bf16, on cpu fp32"),
    Field("gradientCheckpointing", AutoFlag(), "auto"),
    Field("seed", Whole(0, (1 << 32) - 1), 42),
    Field(
        "distributedStrategy",
        Choice(
            ("none", "ddp", "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3"),
            ("fsdp", "megatron"),
        ),
        None,
        "default: none for one rank, else ddp",
    ),
    Field("deepspeedConfig", Free(), None, "merged into the platform's own"),
    _group("lora", LORA, "for jobType lora"),
    _later("attentionImplementation"),
    _later("packing"),
    _later("saveDtype"),
    _later("torchCompile"),
    _later("quantization", "type doubleQuant computeDtype"),
    _later("freeze"),
    _later("parallelism", "tensor pipeline context expert"),
    _later("mergeTarget"),
)

CHECKPOINT: Final = _record(
    Field("everySteps", _STEPS, None, "or everyMinutes; neither: the platform chooses"),
    Field("everyMinutes", Number(above=0.0, high=1440.0), None, "or everySteps"),
    Field("keepLast", Whole(1, 100), 2, "committed checkpoints kept per attempt"),
    *(_later(name) for name in ("keepBest", "quota", "asyncSave", "verifyReload")),
)

EVALUATION: Final = _record(
    Field("suites", ListOf(_PATH, 0, 32), [], "paths of suite files inside a mount"),
    Field("everySteps", _STEPS, None, "also evaluate while training"),
    *(_later(name) for name in ("metric", "mode", "earlyStopping", "gate")),
)

SPEC: Final = _record(
    Field(
        "jobType",
        Choice(
            ("pretrain", "full-finetune", "lora", "evaluate", "script"), ("qlora", "incremental")
        ),
        MISSING,
        "pretrain, full-finetune, lora, evaluate or script",
    ),
    Field("team", Name(), None, "who pays; default: the submission's, else 'default'"),
    Field("priority", TextOr(Whole(0, PRIORITY_MAX)), "normal", "low, normal, high or 0 to 1000"),
    Field("labels", MapOf(Text(256)), {}, "free marks for people; merged with metadata.labels"),
    Field("model", TextOr(Free()), None, "a registry reference, a folder, or a configuration"),
    Field("tokenizer", _PATH, None, "a tokenizer's folder or file; default: the model's"),
    Field("trustRemoteCode", Exactly(Flag(), False), False),
    Field("datasets", ListOf(DATASET, 0, 64), []),
    Field("resources", RESOURCES, MISSING, "what the job runs on: gpuType, gpuCount, nodeCount"),
    _group("hyperparameters", HYPERPARAMETERS),
    _group("checkpoint", CHECKPOINT),
    _group("evaluation", EVALUATION),
    _group("retry", _record(_group("limits", _record(*(_limit(b) for b in failures.Budget))))),
    _group(
        "output",
        _record(
            Field("modelSavePath", _PATH, None, "a folder inside a writable mount"),
            Field("modelName", Name(), None, "default: the last part of modelSavePath"),
        ),
    ),
    Field("command", ListOf(Text(is_long=True), 1), None, "for jobType script"),
    Field("args", ListOf(Text(is_long=True)), [], "appended to command"),
    Field("workingDir", _PATH, None, "for jobType script; default: the run's own folder"),
    Field("env", MapOf(Text(is_long=True), r"[A-Za-z_][A-Za-z0-9_]{0,127}"), {}),
    Field(
        "launcher",
        Choice(("auto", "deepspeed", "torchrun", "none"), ("accelerate", "mpi")),
        "auto",
        "what starts the ranks of a node",
    ),
    Field("gracePeriod", Duration(1, 3600), None, "between a stop order and the kill"),
    Field(
        "startTimeout", Duration(10, 7 * 86_400), None, "between the launch and all ranks' start"
    ),
    _group(
        "schedule",
        _record(
            Field(
                "maxRunTime", Duration(), None, "all attempts together; then the job is cancelled"
            ),
            _later("windows"),
            _later("deadline"),
        ),
    ),
    Field(
        "resume",
        Choice(("auto", "never", "require")),
        "auto",
        "of the next attempt; never: from zero, require: held without a checkpoint",
    ),
    Field("preemptible", Exactly(Flag(), False), False),
    Field("determinism", Exactly(Choice(("none", "strict")), "none"), "none"),
    _later("secrets"),
    _later("code", "repository ref subPath uploadPath"),
    _later("image"),
    _later("imagePullSecret"),
    _later("framework", "name version args"),
    _later("dataLoader", "workers prefetch"),
    _later("initFrom", "version job checkpoint load"),
    _later("incremental", "baseDatasets replayRatio"),
    _later("volumes", "name path source readOnly"),
    _later("scratch", "size path"),
    _later("monitoring", "sampleEvery rules"),
    _later("logging", "level linesPerSecondMax retention"),
    *(_later(n) for n in ("setup", "dependsOn", "idleTimeout", "serviceAccount")),
    *(_later(n) for n in ("modelRevision", "notify", "trackers", "profiling")),
)

METADATA: Final = _record(
    Field("name", Name(), MISSING, "a name for people; the platform makes the job's id"),
    Field("labels", MapOf(Text(256)), {}),
    _later("annotations"),
    _later("namespace"),
)

FILE: Final = _record(
    Field("apiVersion", Choice(API_VERSIONS), MISSING, "lineshaft.io/v1"),
    Field("kind", Choice((KIND,)), MISSING, KIND),
    Field("metadata", METADATA, MISSING, "holds the job's name"),
    Field("spec", SPEC, MISSING, "what to train, on what, with which resources"),
    Field("variables", Free(), None, "names and values for ${NAME} in texts; null: --var gives it"),
)


def statuses() -> dict[str, str]:
    """Return every field's path (``spec.datasets[].path``) as ``honoured`` or ``refused``."""
    return dict(_walk(FILE, ""))


def _walk(of: Type, before: str) -> Iterator[tuple[str, str]]:
    if isinstance(of, ListOf):
        yield from _walk(of.item, f"{before}[]")
    if not isinstance(of, Record):
        return
    for field in of.fields:
        path = f"{before}.{field.name}" if before else field.name
        yield path, "refused" if field.later else "honoured"
        yield from ((f"{path}.{name}", "refused") for name in field.names)
        yield from _walk(field.type, path)


def refused_words() -> dict[str, tuple[str, ...]]:
    """Return, per path, the words of an honoured field that are refused by name."""
    found: dict[str, tuple[str, ...]] = {}
    _words_of(FILE, "", found)
    return found


def _words_of(of: Any, before: str, found: dict[str, tuple[str, ...]]) -> None:
    if isinstance(of, ListOf):
        _words_of(of.item, f"{before}[]", found)
    elif isinstance(of, Choice) and of.later:
        found[before] = of.later
    elif isinstance(of, Record):
        for field in of.fields:
            _words_of(field.type, f"{before}.{field.name}" if before else field.name, found)
