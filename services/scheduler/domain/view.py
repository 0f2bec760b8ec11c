"""The document that queries show of a job, folded from the pool's events, one at a time.

Its fields are tabled in ``ARCHITECTURE.md``, "State of a job". Pure; who stores it is elsewhere.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lineshaft.contracts.events import Event
from lineshaft.contracts.failures import Budget
from services.scheduler.domain.evolve import RENEWED

Document = dict[str, Any]
TIMELINE_MAX = 1_000
_REASON_CHARS_MAX = 2_000


def fold(document: Document | None, event: Event, *, at: int) -> Document | None:
    """Return the document after ``event``, written at ``at``; the same one if nothing changes.

    None as long as the job was not admitted. The given document is not changed.
    """
    if event.kind == "pool.admitted":
        return _admitted(event, at)
    if document is None:
        return None
    change = _CHANGES.get(event.kind)
    if change is not None:
        return change(document, event.data, at)
    return _moved(document, event.data, at) if event.kind.startswith("job.") else document


def _admitted(event: Event, at: int) -> Document:
    data = event.data
    model = data["resolved"].get("output", {}).get("model_name")
    return {
        "job": event.subject,
        "name": data["name"],
        "team": data["team"],
        "pool": event.pool,
        "state": "Pending",
        "substate": None,
        "reason": "admitted",
        "actor": "admission",
        "since": at,
        "attempt": 0,
        "attempts": {budget.value: 0 for budget in Budget},
        "limits": data["limits"],
        "priority": data["priority"],
        "job_type": data["spec"].get("jobType"),
        "submitted_at": data["submitted_at"],
        "nodes": [],
        "resume_from": None,
        "checkpoints": [],
        "timeline": [],
        "diagnosis": None,
        "manifest": None,
        "model": {"name": model, "version": None} if model else None,
        "spec": data["spec"],
        "resolved": data["resolved"],
        "estimate": data["estimate"],
        "warnings": data["warnings"],
        "version": 0,
    }


def _moved(document: Document, data: Mapping[str, Any], at: int) -> Document:
    place = (data["state"], data["substate"])
    is_new = place != (document["state"], document["substate"])
    attempt = data.get("attempt", document["attempt"])
    line = {
        "at": at,
        "state": data["state"],
        "substate": data["substate"],
        "reason": data["reason"][:_REASON_CHARS_MAX],
        "actor": data["actor"],
        "attempt": attempt,
    }
    moved = {
        **document,
        "state": data["state"],
        "substate": data["substate"],
        "reason": line["reason"],
        "actor": data["actor"],
        "since": at if is_new else document["since"],
        "attempt": attempt,
        "timeline": [*document["timeline"], line][-TIMELINE_MAX:],
        "version": data["job_version"],
    }
    kept = ("nodes", "resume_from", "manifest")
    return moved | {name: data[name] for name in kept if name in data}


def _checkpoint(document: Document, data: Mapping[str, Any], at: int) -> Document:
    names = ("attempt", "step", "digest", "bytes", "path", "at")
    made = {name: data[name] for name in names}
    rows = sorted([*document["checkpoints"], made], key=lambda one: (one["attempt"], one["step"]))
    changed = {**document, "checkpoints": rows}
    if data["is_progress"]:
        renewed = dict.fromkeys((budget.value for budget in RENEWED), 0)
        changed["attempts"] = document["attempts"] | renewed
    return changed


def _charged(document: Document, data: Mapping[str, Any], at: int) -> Document:
    return {**document, "attempts": {**document["attempts"], data["budget"]: data["used"]}}


def _diagnosis(document: Document, data: Mapping[str, Any], at: int) -> Document:
    return {**document, "diagnosis": dict(data)}


def _command(document: Document, data: Mapping[str, Any], at: int) -> Document:
    changed = {**document, "version": data["job_version"]}
    if "priority" in data:
        changed["priority"] = data["priority"]
    if data.get("is_renewed"):
        changed["attempts"] = {budget.value: 0 for budget in Budget}
    return changed


def _run_gone(document: Document, data: Mapping[str, Any], at: int) -> Document:
    return {**document, "nodes": []}


_CHANGES: dict[str, Callable[[Document, Mapping[str, Any], int], Document]] = {
    "pool.checkpoint": _checkpoint,
    "pool.charged": _charged,
    "pool.diagnosis": _diagnosis,
    "pool.command": _command,
    "pool.run_gone": _run_gone,
}
