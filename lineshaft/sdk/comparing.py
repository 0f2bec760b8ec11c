"""Comparing two jobs or versions: what differs, and what hangs together.

``side`` gathers what is known of one; ``compare`` is pure. Nothing is judged and nothing changed:
the numbers stand beside each other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError

Json = dict[str, Any]
_SPEC_PARTS = ("jobType", "model", "tokenizer", "command", "args", "resources", "hyperparameters")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of a job or of a version; empty where nothing is."""

    label: str
    job: str | None = None
    version: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] = field(default_factory=dict)
    datasets: Mapping[str, str | None] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    base: str | None = None


async def side(client: Client, ref: str) -> Side:
    """Gather one side: a version (``name:1.0.0``, ``name@alias``), a job, or a model's newest.

    Raises ``PlatformError`` when ``ref`` names neither.
    """
    if ":" in ref or "@" in ref:
        return await _of_version(client, ref)
    try:
        state = await client.job(ref)
    except PlatformError as error:
        if error.code != "not_found":
            raise
        try:
            return await _of_version(client, f"{ref}@latest")
        except PlatformError:
            raise error from None
    found = await client.version_of(state)
    resolved = await client.resolve(f"{found['name']}:{found['version']}") if found else None
    return await _side(client, f"{state['name']} ({state['job']})", state, resolved)


async def _of_version(client: Client, ref: str) -> Side:
    resolved = await client.resolve(ref)
    job = resolved["lineage"].get("job")
    state = None
    try:
        state = await client.job(str(job)) if job else None
    except PlatformError as error:
        if error.code != "not_found":  # the version outlives what is known of its job
            raise
    return await _side(client, f"{resolved['name']}:{resolved['version']}", state, resolved)


async def _side(client: Client, label: str, state: Json | None, resolved: Json | None) -> Side:
    spec, worked_out = (state or {}).get("spec") or {}, (state or {}).get("resolved") or {}
    lineage = (resolved or {}).get("lineage") or {}
    datasets = lineage.get("datasets") or worked_out.get("datasets") or []
    metrics = (resolved or {}).get("metrics") or {}
    if not metrics and state:
        metrics = await _measured(client, state["job"])
    base = lineage.get("base")
    return Side(
        label=label,
        job=state["job"] if state else lineage.get("job"),
        version=f"{resolved['name']}:{resolved['version']}" if resolved else None,
        spec={name: spec.get(name) for name in _SPEC_PARTS if name in spec},
        batch=worked_out.get("batch") or {},
        datasets={str(one.get("name")): one.get("digest") for one in datasets},
        metrics={k: v for k, v in metrics.items() if _is_number(v)},
        base=f"{base['name']}:{base['version']}" if base else None,
    )


async def _measured(client: Client, job: str) -> dict[str, float]:
    """Return the last value of each metric and of the loss that a run reported."""
    try:
        curves = await client.curves(job, points=2)
    except PlatformError as error:
        if error.code != "not_found":
            raise
        return {}
    found = {}
    for row in curves.get("metrics", []):
        split = f"{row['split']}." if row.get("split") else ""
        found[f"{split}{row['name']}"] = row["value"]
    loss = (curves.get("series") or {}).get("loss")
    return found | ({"train.loss": loss[-1][1]} if loss else {})


def compare(a: Side, b: Side) -> Json:
    """Return what differs between two sides, and how learning rate and batch stand."""
    left, right = dict(_flat(a.spec)), dict(_flat(b.spec))
    settings = [
        {"field": name, "a": left.get(name), "b": right.get(name)}
        for name in sorted(left.keys() | right.keys())
        if left.get(name, _MISSING) != right.get(name, _MISSING)
    ]
    return {
        "a": _named(a),
        "b": _named(b),
        "metrics": _metrics(a, b),
        "datasets": _datasets(a, b),
        "settings": settings,
        "batch": _coupling(a, b),
    }


def _named(one: Side) -> Json:
    return {"label": one.label, "job": one.job, "version": one.version, "base": one.base}


def _metrics(a: Side, b: Side) -> list[Json]:
    rows = []
    for name in sorted(a.metrics.keys() | b.metrics.keys()):
        left, right = a.metrics.get(name), b.metrics.get(name)
        apart = None if left is None or right is None else right - left
        rows.append({"metric": name, "a": left, "b": right, "difference": apart})
    return rows


def _datasets(a: Side, b: Side) -> list[Json]:
    return [
        {
            "name": name,
            "a": a.datasets.get(name),
            "b": b.datasets.get(name),
            "is_same": name in a.datasets
            and name in b.datasets
            and a.datasets[name] is not None
            and a.datasets[name] == b.datasets[name],
        }
        for name in sorted(a.datasets.keys() | b.datasets.keys())
    ]


def _coupling(a: Side, b: Side) -> Json | None:
    """Return learning rates and global batches; a suggestion where the batches differ.

    Linear scaling, rate x k for a batch x k (Goyal et al. 2017, arXiv 1706.02677), is a starting
    point for SGD; for Adam the square root of k is often closer (Malladi et al. 2022, arXiv
    2205.10011), so both are given.
    """
    numbers: list[Any] = [
        value
        for one in (a, b)
        for value in (
            (one.spec.get("hyperparameters") or {}).get("learningRate"),
            one.batch.get("global"),
        )
    ]
    if not all(_is_number(value) and value > 0 for value in numbers):
        return None
    left, before, right, after = numbers
    factor = after / before
    made: Json = {
        "global_a": before,
        "global_b": after,
        "learning_rate_a": left,
        "learning_rate_b": right,
        "suggestion": None,
    }
    if before != after:
        made["suggestion"] = {
            "factor": factor,
            "linear": left * factor,
            "square_root": left * math.sqrt(factor),
        }
    return made


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        found = []
        for key, each in value.items():
            found += _flat(each, f"{path}.{key}" if path else str(key))
        return found
    return [(path, value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
