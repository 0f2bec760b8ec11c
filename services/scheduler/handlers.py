"""What the scheduler answers and does: the facts it takes, its requests, its background work."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from lineshaft.contracts.events import Fact
from lineshaft.ports import Document
from lineshaft.runtime import rpc
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.scheduler.doer import LaunchDoer
from services.scheduler.domain import placement
from services.scheduler.domain.decider import CONFIRM_GONE, RELEASE_NODE, STREAM_PREFIX
from services.scheduler.domain.explain import explain
from services.scheduler.domain.policy import Policy
from services.scheduler.domain.state import PoolState
from services.scheduler.projection import KIND

JOBS_PER_PAGE_MAX = 1_000
_FACTS_OF_RUNS = (
    "launched",
    "launch_failed",
    "stopped",
    "node_changed",
    "started",
    "rank_exited",
    "ended",
    "completed",
    "checkpoint_committed",
    "diagnosed",
)
_NOT_IN_LISTS = ("spec", "resolved", "estimate", "timeline", "checkpoints", "warnings")


def register(service: Service, doer: LaunchDoer, policy: Policy, pool: str) -> None:
    """Register consumption, requests and background work of one pool's scheduler."""
    service.consume("job", ["lineshaft.job.admitted.>", "lineshaft.job.command_accepted.>"])
    service.consume("run", [f"lineshaft.run.{kind}.>" for kind in _FACTS_OF_RUNS])
    service.background("launch", doer.run)
    service.background("launcher-facts", doer.report)
    service.background("nodes", doer.watch_nodes)
    service.background("recount", doer.recount)
    service.rpc("jobs", partial(_jobs, service), needs_leader=False)
    service.rpc("job", partial(_job, service), needs_leader=False)
    stream = STREAM_PREFIX + pool
    service.rpc("explain", partial(_explain, service, policy))
    service.rpc("nodes", partial(_nodes, service, stream))
    service.rpc("queue", partial(_queue, service, stream, policy))
    service.rpc("confirm_gone", partial(_confirm_gone, service, pool))
    service.rpc("release_node", partial(_release_node, service, pool))


async def _jobs(service: Service, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{team, state, limit, after}`` -> ``{jobs, next}``; ``next`` is the ``after`` to go on with.

    A row is the job's state without what is long: spec, resolved, timeline, checkpoints.
    """
    where = {name: rpc.text(params, name) for name in ("team", "state") if params.get(name)}
    limit = min(max(rpc.whole(params, "limit", 200), 1), JOBS_PER_PAGE_MAX)
    after = rpc.text(params, "after") if params.get("after") else ""
    found = await service.views.find(KIND, where, limit=limit, after=after)
    return {
        "jobs": [_row(document) for document in found],
        "next": found[-1].id if len(found) == limit else None,
    }


def _row(document: Document) -> dict[str, Any]:
    body = document.body
    row = {name: value for name, value in body.items() if name not in _NOT_IN_LISTS}
    row["labels"] = body["spec"].get("labels") or {}
    row["checkpoint"] = body["checkpoints"][-1] if body["checkpoints"] else None
    return row


async def _job(service: Service, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{job}``, an id, a unique beginning of one, or a name (its newest job) -> its state."""
    return (await find_job(service, rpc.text(params, "job"))).body


async def find_job(service: Service, ref: str) -> Document:
    """Return the job that ``ref`` means. Raises ``RpcError``: not_found, or usage if ambiguous."""
    exact = await service.views.get(KIND, ref)
    if exact is not None:
        return exact
    found = await _by_beginning(service, ref)
    if len(found) > 1:
        ids = ", ".join(document.id for document in found[:5])
        raise RpcError("usage", f"{ref!r} is the beginning of several jobs: {ids}")
    if not found:
        named = await service.views.find(KIND, {"name": ref})
        found = sorted(named, key=lambda one: (one.body["submitted_at"], one.id))[-1:]
    if not found:
        hint = "lineshaft jobs lists what there is"
        raise RpcError("not_found", f"no job has the id or name {ref!r}", hint)
    return found[0]


async def _by_beginning(service: Service, ref: str) -> list[Document]:
    if len(ref) < 3 or not ref.startswith("j-"):
        return []
    # Everything that begins so comes behind the text just before it in the order of ids.
    before = ref[:-1] + chr(ord(ref[-1]) - 1) + "~"
    near = await service.views.find(KIND, limit=10, after=before)
    return [document for document in near if document.id.startswith(ref)]


async def _explain(service: Service, policy: Policy, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{job}`` -> why it does not run, its place in the order, what it needs, what is free."""
    document = await find_job(service, rpc.text(params, "job"))
    state: PoolState = service.host.state(STREAM_PREFIX + document.body["pool"])
    job = state.jobs.get(document.id)
    if job is None:
        raise RpcError("unavailable", f"{document.id} is not loaded yet", "try again in a moment")
    answer = explain(state, job, now=service.clock.now(), policy=policy)
    return {"job": job.id, "state": job.place.state.value, **answer.to_json()}


async def _nodes(service: Service, stream: str, _: Mapping[str, Any]) -> dict[str, Any]:
    """``{}`` -> ``{nodes: [{node, gpu_type, slots, free, status, labels, leases}]}``."""
    state: PoolState = service.host.state(stream)
    return {
        "nodes": [
            {
                "node": node.name,
                "gpu_type": node.gpu_type,
                "slots": node.slots,
                "free": len(node.free()),
                "status": node.status,
                "labels": dict(node.labels),
                "leases": [
                    {"slot": slot, "job": who, "attempt": state.jobs[who].attempt}
                    for slot, who in sorted(node.leases.items())
                ],
            }
            for _, node in sorted(state.nodes.items())
        ]
    }


async def _queue(
    service: Service, stream: str, policy: Policy, params: Mapping[str, Any]
) -> dict[str, Any]:
    """``{limit}`` -> ``{jobs: [...], waiting}``: who waits, in order, and why."""
    state: PoolState = service.host.state(stream)
    limit = min(max(rpc.whole(params, "limit", 200), 1), JOBS_PER_PAGE_MAX)
    rows: list[dict[str, Any]] = []
    for found in placement.walk(state, policy, is_whole=True):
        job = found.job
        rows.append(
            {
                "position": len(rows) + 1,
                "job": job.id,
                "name": job.name,
                "team": job.team,
                "priority": job.priority,
                "submitted_at": job.submitted_at,
                "slots": job.gang.slots,
                "gpu_type": job.gang.gpu_type,
                "why": found.why,
            }
        )
        if len(rows) >= limit:
            break
    return {"jobs": rows, "waiting": len(state.queue)}


async def _confirm_gone(service: Service, pool: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{job, attempt, actor, key}``: a person's word that no process of a run lives any more."""
    document = await find_job(service, rpc.text(params, "job"))
    data = {
        "job": document.id,
        "attempt": rpc.whole(params, "attempt"),
        "actor": rpc.text(params, "actor"),
    }
    return await _word(service, CONFIRM_GONE, data, pool=pool, key=rpc.text(params, "key"))


async def _release_node(service: Service, pool: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{node, actor, key}``: a person's word that nothing of ours lives on a lost node."""
    data = {"node": rpc.text(params, "node"), "actor": rpc.text(params, "actor")}
    return await _word(service, RELEASE_NODE, data, pool=pool, key=rpc.text(params, "key"))


async def _word(
    service: Service, kind: str, data: dict[str, Any], *, pool: str, key: str
) -> dict[str, Any]:
    fact = Fact(
        id=f"{kind}/{key}",
        kind=kind,
        data=data,
        at=service.clock.now(),
        source="rpc",
        pool=pool,
    )
    outcome = await service.host.submit(fact)
    if outcome.kind is OutcomeKind.REFUSED:
        raise RpcError("refused", outcome.reason)
    return {"stream": outcome.stream, "seq": outcome.seq}
