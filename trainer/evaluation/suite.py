"""Evaluation suites: versioned files that say what is measured on which samples.

A suite is JSON: {schema: 1, name, version, tasks: [{name, metric, data, choices?, slice?}]};
``data`` is a JSON-lines file beside the suite. Reading and checking only; no torch.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.datasets.reading import Exchange, exchanges
from trainer.faults import ConfigFault

METRICS = ("exactMatch", "choice", "perplexity", "tokenAccuracy")
TASKS_MAX = 64


@dataclass(frozen=True, slots=True)
class Task:
    """One sub-task: what is measured, on which samples."""

    name: str
    metrics: tuple[str, ...]
    samples: tuple[Exchange, ...]
    choices: tuple[str, ...] = ()
    slice: str | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite with its samples; ``digest`` covers the file and everything it names."""

    name: str
    version: str
    digest: str
    tasks: tuple[Task, ...]


def load(file: Path) -> Suite:
    """Read a suite. Raises ``ConfigFault`` for a bad suite, ``DataFault`` for bad samples."""
    try:
        raw = file.read_bytes()
        body = json.loads(raw)
    except (OSError, ValueError) as error:
        raise ConfigFault(f"{file}: not a suite: {error}") from None
    tasks = body.get("tasks") if isinstance(body, dict) else None
    if body.get("schema") != 1 or not isinstance(tasks, list) or not 0 < len(tasks) <= TASKS_MAX:
        raise ConfigFault(f"{file}: a suite has schema 1 and 1 to {TASKS_MAX} tasks")
    whole = hashlib.sha256(raw)
    made = [_task(file, task, whole) for task in tasks]
    if len({task.name for task in made}) != len(made):
        raise ConfigFault(f"{file}: two tasks have the same name")
    return Suite(
        name=str(body.get("name") or file.stem),
        version=str(body.get("version") or "0"),
        digest="sha256:" + whole.hexdigest(),
        tasks=tuple(made),
    )


def _task(file: Path, body: Any, whole: "hashlib._Hash") -> Task:
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise ConfigFault(f"{file}: every task needs a name")
    named = body.get("metric")
    metrics = tuple(named) if isinstance(named, list) else (named,)
    unknown = [str(metric) for metric in metrics if metric not in METRICS]
    if unknown or not metrics:
        known = ", ".join(METRICS)
        raise ConfigFault(f"{file}: task {body['name']}: {unknown} is none of {known}")
    data = file.parent / str(body.get("data"))
    if not data.is_file():
        raise ConfigFault(f"{file}: task {body['name']}: {data} does not exist")
    whole.update(data.read_bytes())
    samples = tuple(exchanges(data))
    if not samples:
        raise ConfigFault(f"{data}: a task needs at least one sample")
    choices = tuple(str(each) for each in body.get("choices") or ())
    if "choice" in metrics and not choices:
        raise ConfigFault(f"{file}: task {body['name']}: the metric choice needs 'choices'")
    return Task(str(body["name"]), metrics, samples, choices, body.get("slice"))
