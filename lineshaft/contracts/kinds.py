"""The public kinds of events: who publishes each, and which fields its data must have.

``KINDS`` is the list of record; a kind has exactly one publisher. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kind:
    """One public kind of event.

    ``fields`` maps each required key of ``data`` to its JSON type; other keys are allowed,
    so that a release may add some, and a reader ignores what it does not know.
    """

    publisher: str
    summary: str
    fields: Mapping[str, type | tuple[type, ...]] = field(default_factory=dict)


_STR, _INT, _BOOL, _LIST, _MAP = str, int, bool, list, dict
_TEXT_OR_NONE = (str, type(None))
_INT_OR_NONE = (int, type(None))
_MAP_OR_NONE = (dict, type(None))

_STATE: dict[str, type | tuple[type, ...]] = {
    "state": _STR,
    "substate": _TEXT_OR_NONE,
    "reason": _STR,
    "actor": _STR,
}

KINDS: dict[str, Kind] = {
    # in: commands of users and other systems; admission alone consumes them.
    "in.submit": Kind("anyone", "Hand in a job.", {"job": (str, dict)}),
    "in.cancel": Kind("anyone", "End a job for good.", {"job": _STR}),
    "in.suspend": Kind("anyone", "Save, stop and keep a job.", {"job": _STR}),
    "in.resume": Kind("anyone", "Queue a suspended or held job again.", {"job": _STR}),
    "in.priority": Kind("anyone", "Change a job's priority.", {"job": _STR, "priority": _INT}),
    # job: admission's answers, then the scheduler's life cycle.
    "job.admitted": Kind(
        "admission",
        "A job passed admission and belongs to a pool.",
        {
            "job": _STR,
            "name": _STR,
            "team": _STR,
            "pool": _STR,
            "spec": _MAP,
            "resolved": _MAP,
            "gang": _MAP,
            "priority": _INT,
            "budgets": _MAP,
            "estimate": _MAP,
            "warnings": _LIST,
        },
    ),
    "job.rejected": Kind(
        "admission", "A submission was refused, with every reason.", {"key": _STR, "reasons": _LIST}
    ),
    "job.command_accepted": Kind(
        "admission",
        "A command passed authorisation and is now the scheduler's.",
        {"job": _STR, "verb": _STR, "actor": _STR, "reason": _STR},
    ),
    "job.queued": Kind("scheduler", "The job waits in its pool.", _STATE),
    "job.placed": Kind(
        "scheduler",
        "A gang of nodes or slots was reserved for an attempt.",
        {**_STATE, "attempt": _INT, "nodes": _LIST},
    ),
    "job.running": Kind("scheduler", "An attempt runs.", {**_STATE, "attempt": _INT}),
    "job.suspended": Kind("scheduler", "The job is stopped and keeps its place in life.", _STATE),
    "job.retrying": Kind(
        "scheduler",
        "An attempt failed and another will follow.",
        {**_STATE, "attempt": _INT, "class": _STR, "budget": _STR, "resume_from": _MAP_OR_NONE},
    ),
    "job.succeeded": Kind(
        "scheduler",
        "Rank 0's completion record is durable and every process is gone.",
        {**_STATE, "attempt": _INT, "manifest": _TEXT_OR_NONE, "name": _STR},
    ),
    "job.failed": Kind("scheduler", "No attempt is left.", {**_STATE, "class": _STR}),
    "job.cancelled": Kind("scheduler", "The job was ended by a person or a system.", _STATE),
    # run: orders of the scheduler, facts of launcher, agent and monitor.
    "run.launch_ordered": Kind(
        "scheduler",
        "Start this attempt (a hint; the launcher acts on the desired set).",
        {"epoch": _INT, "not_after": _INT, "nodes": _LIST, "order": _MAP},
    ),
    "run.stop_ordered": Kind(
        "scheduler",
        "Save and stop this attempt.",
        {"epoch": _INT, "intent": _STR, "reason": _STR, "grace_ms": _INT},
    ),
    "run.launched": Kind("launcher", "The run's claim exists and its agents start.", {}),
    "run.launch_failed": Kind(
        "launcher",
        "The run never started.",
        {"class": _STR, "reason": _STR, "evidence": _MAP},
    ),
    "run.stopped": Kind(
        "launcher",
        "Every process of this attempt is confirmed gone.",
        {"intent": _STR, "reason": _STR},
    ),
    "run.node_changed": Kind(
        "launcher", "A node joined, changed or left.", {"node": _STR, "status": _STR, "slots": _INT}
    ),
    "run.started": Kind("agent", "A node's ranks were started.", {"node": _STR, "ranks": _LIST}),
    "run.rank_exited": Kind(
        "agent",
        "A rank ended before its completion record.",
        {
            "node": _STR,
            "rank": _INT,
            "exit_code": _INT_OR_NONE,
            "signal": _INT_OR_NONE,
            "last_lines": _LIST,
        },
    ),
    "run.ended": Kind(
        "agent",
        "A node's ranks and agent are done.",
        {"node": _STR, "outcome": _STR, "class": _TEXT_OR_NONE},
    ),
    "run.completed": Kind(
        "agent",
        "Rank 0's work is whole and its artefacts are durable.",
        {"manifest": _TEXT_OR_NONE, "step": _INT},
    ),
    "run.checkpoint_committed": Kind(
        "agent",
        "A checkpoint is durable and verified.",
        {"step": _INT, "digest": _STR, "bytes": _INT, "path": _STR},
    ),
    "run.diagnosed": Kind(
        "monitor",
        "Evidence about a run: what, who, class, what to do.",
        {
            "diagnosis": _STR,
            "what": _STR,
            "class": _TEXT_OR_NONE,
            "action": _STR,
            "evidence": _MAP,
            "summary": _STR,
        },
    ),
    # alert: the monitor's alone.
    "alert.firing": Kind(
        "monitor",
        "An alert opened or was confirmed.",
        {"alert": _STR, "kind": _STR, "severity": _STR, "summary": _STR},
    ),
    "alert.acknowledged": Kind("monitor", "Someone took an alert.", {"alert": _STR, "actor": _STR}),
    "alert.resolved": Kind("monitor", "An alert ended.", {"alert": _STR, "reason": _STR}),
    # audit: what a service finds wrong with itself.
    "audit.finding": Kind(
        "each service",
        "A service's finding about itself.",
        {"kind": _STR, "subject": _STR, "status": _STR, "summary": _STR},
    ),
    # model: the registry's.
    "model.registered": Kind(
        "registry",
        "A version exists.",
        {"name": _STR, "version": _STR, "manifest": _STR, "lineage": _MAP},
    ),
    "model.refused": Kind(
        "registry", "A candidate was kept but not released.", {"name": _STR, "reason": _STR}
    ),
    "model.alias_moved": Kind(
        "registry",
        "An alias points elsewhere.",
        {"name": _STR, "alias": _STR, "to": _STR, "from": _TEXT_OR_NONE, "actor": _STR},
    ),
    "model.rolled_back": Kind(
        "registry",
        "An alias went back to an earlier version.",
        {"name": _STR, "alias": _STR, "to": _STR, "from": _TEXT_OR_NONE, "actor": _STR},
    ),
    "model.deleted": Kind("registry", "A version was deleted.", {"name": _STR, "version": _STR}),
}
