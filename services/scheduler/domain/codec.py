"""Snapshots: the state of a pool as JSON values, and back.

What is derived (queue, leases, slots held, timers) is not written; loading makes it again.
"""

from dataclasses import asdict, fields
from typing import Any

from lineshaft.contracts.failures import Budget, FailureClass, StopIntent
from lineshaft.contracts.lifecycle import Place
from services.scheduler.domain.state import (
    Checkpoint,
    Fault,
    Gang,
    Job,
    Node,
    Parked,
    PoolState,
    Run,
    Stop,
)
from services.scheduler.launchers.port import NodeShare


def dump(state: PoolState) -> dict[str, Any]:
    """Return the state as JSON values."""
    return {
        "jobs": [_dump_job(job) for _, job in sorted(state.jobs.items())],
        "nodes": [
            {name: value for name, value in _plain(node).items() if name != "leases"}
            for _, node in sorted(state.nodes.items())
        ],
        "parked": {
            job: [_plain(one) for one in waiting] for job, waiting in sorted(state.parked.items())
        },
        "findings": dict(sorted(state.findings.items())),
        "is_pass_owed": state.is_pass_owed,
        "epoch": state.epoch,
    }


def load(pool: str, dumped: dict[str, Any]) -> PoolState:
    """Return the state that ``dump`` wrote."""
    state = PoolState(
        pool=pool,
        nodes={one["name"]: Node(**one) for one in dumped["nodes"]},
        parked={
            job: tuple(Parked(**one) for one in waiting)
            for job, waiting in dumped["parked"].items()
        },
        findings=dict(dumped["findings"]),
        is_pass_owed=dumped["is_pass_owed"],
        epoch=dumped["epoch"],
    )
    for one in dumped["jobs"]:
        state.put(_load_job(one))
    return state


def _plain(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


def _dump_job(job: Job) -> dict[str, Any]:
    made = _plain(job)
    made["gang"] = _plain(job.gang)
    made["place"] = job.place.value
    for name in ("limits", "used"):
        made[name] = {budget.value: count for budget, count in made[name].items()}
    made["checkpoints"] = [_plain(one) for one in job.checkpoints]
    made["avoid"] = list(job.avoid)
    made["run"] = _dump_run(job.run) if job.run else None
    return made


def _dump_run(run: Run) -> dict[str, Any]:
    made = _plain(run)
    made["nodes"] = [asdict(share) | {"slots": list(share.slots)} for share in run.nodes]
    made["started"] = sorted(run.started)
    made["stop"] = _plain(run.stop) | {"intent": run.stop.intent.value} if run.stop else None
    made["faults"] = [
        _plain(one)
        | {
            "failure": one.failure.value if one.failure else None,
            "budget": one.budget.value if one.budget else None,
        }
        for one in run.faults
    ]
    return made


def _load_job(made: dict[str, Any]) -> Job:
    return Job(
        **{
            **made,
            "gang": Gang(**made["gang"]),
            "place": Place(made["place"]),
            "limits": {Budget(name): count for name, count in made["limits"].items()},
            "used": {Budget(name): count for name, count in made["used"].items()},
            "checkpoints": tuple(Checkpoint(**one) for one in made["checkpoints"]),
            "avoid": tuple(made["avoid"]),
            "run": _load_run(made["run"]) if made["run"] else None,
        }
    )


def _load_run(made: dict[str, Any]) -> Run:
    stop = made["stop"]
    return Run(
        **{
            **made,
            "nodes": tuple(NodeShare(one["node"], tuple(one["slots"])) for one in made["nodes"]),
            "started": frozenset(made["started"]),
            "stop": Stop(**{**stop, "intent": StopIntent(stop["intent"])}) if stop else None,
            "faults": tuple(_load_fault(one) for one in made["faults"]),
        }
    )


def _load_fault(made: dict[str, Any]) -> Fault:
    return Fault(
        **{
            **made,
            "failure": FailureClass(made["failure"]) if made["failure"] else None,
            "budget": Budget(made["budget"]) if made["budget"] else None,
        }
    )
