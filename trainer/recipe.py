"""The recipe: what a launch order asks of training, read once, typed and checked.

``of(order)`` is the only place that knows where in the order a number stands and what it is
when the job does not say. Everything behind it takes a ``Recipe``. Pure; standard library only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.faults import ConfigFault
from trainer.pacing import Intervals

JOB_TYPES = ("pretrain", "full-finetune", "lora", "evaluate")
PRECISIONS = ("fp32", "bf16")
SCHEDULES = ("linear", "cosine", "constant")
FIRST_SAVE_STEP = 20
SAVE_EVERY_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class Optimisation:
    """The optimiser and the course of its learning rate."""

    learning_rate: float = 5e-5
    min_learning_rate: float = 0.0
    schedule: str = "linear"
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0

    def warmup(self, total_steps: int) -> int:
        """Return the number of warm-up steps out of ``total_steps``."""
        return self.warmup_steps or math.ceil(self.warmup_ratio * total_steps)


@dataclass(frozen=True, slots=True)
class Lora:
    """A low-rank adapter's shape; empty ``targets`` mean all linear layers."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """One data set of the job, as the user named it; ``digest`` is what admission saw."""

    name: str
    path: Path
    format: str = "jsonl"
    version: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where this attempt's files lie."""

    run_folder: Path
    checkpoint_root: Path
    cache_folder: Path
    objects_url: str

    def checkpoints(self, job: str, attempt: int) -> Path:
        """Return the folder of one attempt's checkpoints."""
        return self.checkpoint_root / job / str(attempt)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what a run computes, and where it keeps what it makes."""

    job: str
    attempt: int
    node: str
    job_type: str
    model: Mapping[str, Any]
    sources: tuple[Source, ...]
    place: Place
    optimisation: Optimisation
    intervals: Intervals
    epochs: float = 1.0
    max_steps: int | None = None
    micro_batch: int = 1
    accumulation: int = 1
    world_size: int = 1
    sequence_length: int = 1024
    precision: str = "fp32"
    seed: int = 0
    zero_stage: int | None = None
    gradient_checkpointing: bool = False
    tokenizer: Path | None = None
    lora: Lora | None = None
    suites: tuple[str, ...] = ()
    keep_last: int = 2
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    resume: Mapping[str, Any] | None = None

    @property
    def is_pretraining(self) -> bool:
        """Whether the data is a plain corpus."""
        return self.job_type == "pretrain"

    @property
    def is_packed(self) -> bool:
        """Whether samples are cut out of one long row of tokens: a corpus yes, answers never."""
        return self.is_pretraining

    @property
    def global_batch(self) -> int:
        """Samples per optimiser step, over all ranks."""
        return self.micro_batch * self.accumulation * self.world_size

    def total_steps(self, samples: int) -> int:
        """Return how many optimiser steps the run has, for that many samples an epoch."""
        planned = max(1, int(self.epochs * samples) // self.global_batch)
        return planned if self.max_steps is None else self.max_steps


def of(order: Mapping[str, Any]) -> Recipe:
    """Read a launch order. Raises ``ConfigFault`` for what cannot be trained."""
    spec, resolved = order["spec"], order["resolved"]
    hyper = _some(spec.get("hyperparameters"))
    batch = _some(resolved.get("batch"))
    world = int(order.get("world_size") or 1)
    recipe = Recipe(
        job=str(order["job"]),
        attempt=int(order["attempt"]),
        node=str(order.get("node") or "node"),
        job_type=str(spec.get("jobType")),
        model=_some(resolved.get("model")),
        sources=_sources(spec, resolved),
        place=Place(
            run_folder=Path(order["run_folder"]),
            checkpoint_root=Path(order["checkpoint_root"]),
            cache_folder=Path(order["cache_folder"]),
            objects_url=str(order.get("objects_url") or ""),
        ),
        optimisation=_optimisation(hyper),
        intervals=_intervals(spec),
        epochs=float(_or(hyper.get("epochs"), 1.0)),
        max_steps=_whole_or_none(hyper.get("maxSteps")),
        micro_batch=int(_or(batch.get("micro"), hyper.get("batchSize") or 1)),
        accumulation=int(_or(batch.get("accumulation"), hyper.get("gradientAccumulation") or 1)),
        world_size=world,
        sequence_length=int(_or(hyper.get("sequenceLength"), 2048)),
        precision=str(_or(resolved.get("precision"), hyper.get("precision") or "fp32")),
        seed=int(_or(hyper.get("seed"), 0)),
        zero_stage=_whole_or_none(resolved.get("zero_stage")),
        gradient_checkpointing=_checkpoints_activations(hyper, resolved),
        tokenizer=_folder(resolved.get("tokenizer") or spec.get("tokenizer")),
        lora=_lora(hyper) if spec.get("jobType") == "lora" else None,
        suites=_suites(spec),
        keep_last=int(_or(_some(spec.get("checkpoint")).get("keepLast"), 2)),
        deepspeed=_some(hyper.get("deepspeedConfig")),
        resume=order.get("resume"),
    )
    _check(recipe)
    return recipe


def _check(recipe: Recipe) -> None:
    if recipe.job_type not in JOB_TYPES:
        raise ConfigFault(f"jobType {recipe.job_type!r} is none of {', '.join(JOB_TYPES)}")
    if recipe.precision not in PRECISIONS:
        raise ConfigFault(f"precision {recipe.precision!r} is none of {', '.join(PRECISIONS)}")
    if recipe.optimisation.schedule not in SCHEDULES:
        named = recipe.optimisation.schedule
        raise ConfigFault(f"lrScheduler {named!r} is none of {', '.join(SCHEDULES)}")
    if recipe.zero_stage is None and recipe.world_size > 1:
        raise ConfigFault("several ranks need distributedStrategy ddp or deepspeed-zero1, 2 or 3")
    if not recipe.sources and recipe.job_type != "evaluate":
        raise ConfigFault("the job names no data set")


def _some(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


def _optimisation(hyper: Mapping[str, Any]) -> Optimisation:
    """Take what is given; the defaults are those of the dataclass."""
    names = {
        "learning_rate": ("learningRate", float),
        "min_learning_rate": ("minLearningRate", float),
        "schedule": ("lrScheduler", str),
        "warmup_steps": ("warmupSteps", int),
        "warmup_ratio": ("warmupRatio", float),
        "weight_decay": ("weightDecay", float),
        "beta1": ("adamBeta1", float),
        "beta2": ("adamBeta2", float),
        "epsilon": ("adamEpsilon", float),
        "max_grad_norm": ("maxGradNorm", float),
    }
    given = {
        ours: kind(hyper[theirs])
        for ours, (theirs, kind) in names.items()
        if hyper.get(theirs) is not None
    }
    return Optimisation(**given)


def _intervals(spec: Mapping[str, Any]) -> Intervals:
    """Saving by steps, by minutes, or as nobody said: after 20 steps, then every ten minutes."""
    saving = _some(spec.get("checkpoint"))
    steps = _whole_or_none(saving.get("everySteps"))
    minutes = saving.get("everyMinutes")
    is_silent = steps is None and minutes is None
    interval_ms = int(float(_or(minutes, SAVE_EVERY_MINUTES)) * 60_000)
    return Intervals(
        save_every_steps=steps,
        save_every_ms=interval_ms if steps is None else None,
        save_first_step=FIRST_SAVE_STEP if is_silent else None,
        evaluate_every_steps=_whole_or_none(_some(spec.get("evaluation")).get("everySteps")),
    )


def _checkpoints_activations(hyper: Mapping[str, Any], resolved: Mapping[str, Any]) -> bool:
    """What the user said; "auto" is admission's estimate, and no where it made none."""
    wish = hyper.get("gradientCheckpointing")
    return wish if isinstance(wish, bool) else resolved.get("gradient_checkpointing") is True


def _folder(path: Any) -> Path | None:
    """A tokenizer is named by its folder or by its file."""
    if not path:
        return None
    named = Path(str(path))
    return named.parent if named.is_file() else named


def _lora(hyper: Mapping[str, Any]) -> Lora:
    given = _some(hyper.get("lora"))
    return Lora(
        rank=int(_or(given.get("rank"), 8)),
        alpha=float(_or(given.get("alpha"), 16.0)),
        dropout=float(_or(given.get("dropout"), 0.0)),
        targets=tuple(given.get("targets") or ()),
    )


def _suites(spec: Mapping[str, Any]) -> tuple[str, ...]:
    named = _some(spec.get("evaluation")).get("suites") or ()
    return tuple(str(each["path"] if isinstance(each, Mapping) else each) for each in named)


def _sources(spec: Mapping[str, Any], resolved: Mapping[str, Any]) -> tuple[Source, ...]:
    wished = {str(each.get("name")): each for each in spec.get("datasets") or ()}
    made = []
    for each in resolved.get("datasets") or ():
        wish = _some(wished.get(str(each["name"])))
        made.append(
            Source(
                name=str(each["name"]),
                path=Path(each["path"]),
                format=str(each.get("format") or wish.get("format") or "jsonl"),
                version=each.get("version") or wish.get("version"),
                digest=each.get("digest"),
            )
        )
    return tuple(made)
