"""What admission answers and takes: submissions, plans, commands; from requests and the bus.

Observations are gathered here, before the decider; what the answer is, the decider says.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from lineshaft.contracts import ids
from lineshaft.contracts.events import Event, Fact
from lineshaft.runtime import rpc
from lineshaft.runtime.decider import FactRefused, Outcome, OutcomeKind
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.admission.asking import Neighbours
from services.admission.domain import commanding, inventory, judging, reading, resolving
from services.admission.domain.decider import (
    ADMITTED,
    REJECTED,
    REPEATED,
    SUBMIT,
    job_of,
    key_of,
    team_of,
)
from services.admission.domain.policy import AdmissionPolicy
from services.admission.domain.reading import Reading
from services.admission.dry_runs import DryRuns
from services.admission.observing import Preflight, is_reference
from services.admission.projector import KIND

_SUBJECTS: Final = ("lineshaft.in.>",)


class Desk:
    """What the handlers need: the service, the policy, preflight and the neighbours."""

    def __init__(
        self,
        service: Service,
        policy: AdmissionPolicy,
        *,
        look: Preflight,
        ask: Neighbours,
        rehearse: DryRuns | None = None,
    ) -> None:
        self.service = service
        self.policy = policy
        self.look = look
        self.ask = ask
        self.rehearse = rehearse

    async def rehearsed(
        self, read: Reading, observed: dict[str, Any], *, is_waiting: bool
    ) -> dict[str, Any]:
        """Return the observations with the dry runs that the estimate needs.

        Whoever plans waits for them. A submission waits only where they decide: where the memory
        of its devices is known.
        """
        if self.rehearse is None or not self.policy.dry_runs:
            return observed
        requests = judging.rehearsals(read, observed, self.policy)
        is_needed = is_waiting or judging.is_decided_by_memory(read, observed, self.policy)
        found = await self.rehearse.observed(requests, is_waiting=is_needed)
        return {**observed, "dry_runs": found} if found else observed


def register(desk: Desk) -> None:
    """Register consumption and requests."""
    service = desk.service
    service.consume("in", _SUBJECTS, observe=partial(observe, desk))
    service.rpc("submit", partial(submit, desk))
    service.rpc("command", partial(command, desk))
    service.rpc("plan", partial(plan, desk), needs_leader=False)
    service.rpc("submission", partial(submission, desk), needs_leader=False)


async def observe(desk: Desk, fact: Fact) -> Fact:
    """Return a fact of ``in`` with a collision-free id and, for a submission, observations.

    The id of a submission is made from team, key and content, so that the same one by another
    way is the same; that of a command from its source and id, as CloudEvents are identified.
    """
    if fact.kind != SUBMIT:
        name = f"{fact.source}/{fact.id}"
        told = fact.correlation or fact.id
        return replace(fact, id=ids.digest_of(name.encode())[7:39], correlation=told)
    team, key = team_of(fact), key_of(fact)
    read = reading.read(fact.data.get("job"))
    observed = {}
    if read.job is not None:
        observed = await desk.look.observe(read.job, team=read.job.team or team)
        observed = await desk.rehearsed(read, observed, is_waiting=False)
    whole = f"{team}\n{key}\n{read.digest}"
    return replace(
        fact,
        id=ids.digest_of(whole.encode())[7:39],
        data={**fact.data, "team": team, "key": key, "observed": observed},
        correlation=fact.correlation or fact.id,
    )


# ---------------------------------------------------------------------------------------------
# Submit


async def submit(desk: Desk, params: dict[str, Any]) -> dict[str, Any]:
    """``{job, key, team, actor}`` -> ``{job, admitted, reasons, warnings, estimate, stream, seq}``.

    A rejected job is an answer. Without ``key`` the submission gets one of its own, and sending
    it again makes another job. A key that was used for other content is a ``conflict``.
    """
    content = params.get("job")
    if not isinstance(content, str | Mapping):
        raise RpcError("usage", "the parameter 'job' must be a job file's text or an object")
    key = rpc.text(params, "key", f"once-{uuid.uuid4().hex}")
    data: dict[str, Any] = {"job": content, "key": key, "actor": rpc.text(params, "actor", "user")}
    if params.get("team") is not None:
        data["team"] = rpc.text(params, "team")
    fact = Fact(id=key, kind=SUBMIT, data=data, at=desk.service.clock.now(), source="lineshaft/rpc")
    fact = await observe(desk, fact)
    outcome = await desk.service.host.submit(fact)
    event = _first(outcome, (ADMITTED, REJECTED, REPEATED))
    if event.data.get("conflict"):
        message = str(event.data["reasons"][0]["message"])
        raise RpcError("conflict", message, "use a new key", {"job": job_of(fact), "key": key})
    return {**_receipt(event), "key": key, "stream": outcome.stream, "seq": outcome.seq}


def _receipt(event: Event) -> dict[str, Any]:
    data = event.data
    return {
        "job": data["job"],
        "admitted": event.kind == ADMITTED or data.get("admitted") is True,
        "name": data.get("name"),
        "team": event.team,
        "pool": event.pool,
        "reasons": data.get("reasons", []),
        "warnings": data.get("warnings", []),
        "estimate": data.get("estimate", {}),
    }


def _first(outcome: Outcome, kinds: Sequence[str]) -> Event:
    if outcome.kind is OutcomeKind.REFUSED:
        raise RpcError("usage", outcome.reason)
    for event in outcome.events:
        if event.kind in kinds:
            return event
    raise RpcError("unavailable", "the answer is not known yet", "ask again with the same key")


# ---------------------------------------------------------------------------------------------
# Plan


async def plan(desk: Desk, params: dict[str, Any]) -> dict[str, Any]:
    """``{job, inventory}`` -> ``{fits, reasons, warnings, estimate, nodes, gang, resolved}``.

    With an inventory nothing is looked up on this machine: it plans for a cluster that is not
    here. Writes nothing.
    """
    content = params.get("job")
    if not isinstance(content, str | Mapping):
        raise RpcError("usage", "the parameter 'job' must be a job file's text or an object")
    read = reading.read(content)
    given = params.get("inventory")
    if read.job is None:
        observed: dict[str, Any] = {}
    elif given is not None:
        observed = _elsewhere(read, given)
    else:
        observed = await desk.look.observe(read.job, team=read.job.team or desk.policy.team)
    observed = await desk.rehearsed(read, observed, is_waiting=True)
    verdict = judging.judge(read, observed, desk.policy)
    return {
        "fits": judging.is_fit(verdict),
        "reasons": list(judging.all_reasons(verdict)),
        "warnings": verdict.warnings,
        "estimate": verdict.estimate,
        "nodes": verdict.nodes,
        "gang": resolving.gang(read.job) if read.job else None,
        "resolved": verdict.resolved,
    }


def _elsewhere(read: Reading, given: Any) -> dict[str, Any]:
    """Return what an inventory says about a job, in the place of observations."""
    try:
        stock = inventory.read(given)
    except inventory.InventoryError as error:
        raise RpcError("usage", f"inventory: {error}") from None
    assert read.job is not None
    model, findings = read.job.spec["model"], inventory.outside(stock, read.job.spec)
    seen: dict[str, Any] | None = None
    if isinstance(model, dict):
        seen = {"kind": "config", "config": model}
    elif isinstance(model, str) and model in stock.models:
        kind = "registry" if is_reference(model) else "folder"
        seen = {"kind": kind, "ref": model, "config": dict(stock.models[model])}
    return {"findings": findings, "model": seen, "inventory": inventory.to_dict(stock)}


# ---------------------------------------------------------------------------------------------
# Command


async def command(desk: Desk, params: dict[str, Any]) -> dict[str, Any]:
    """``{verb, job, actor, reason, value, based_on, key}`` -> ``{job, verb, state, stream, seq}``.

    ``state`` is ``accepted``, or ``parked`` for a job that is not known yet. An outdated command
    is a ``conflict``; one for a rejected submission or another team's job is ``refused``.
    """
    verb = rpc.text(params, "verb")
    if verb not in commanding.VERBS:
        raise RpcError("usage", f"'{verb}' is no command", f"one of {', '.join(commanding.VERBS)}")
    job = rpc.text(params, "job")
    if not ids.is_job_id(job):
        job = await desk.ask.job_id(job)
    key = rpc.text(params, "key", f"once-{uuid.uuid4().hex}")
    data: dict[str, Any] = {
        "job": job,
        "actor": rpc.text(params, "actor", "user"),
        "reason": str(params.get("reason") or ""),
        "based_on": params.get("based_on"),
    }
    if params.get("team") is not None:
        data["team"] = rpc.text(params, "team")
    if verb == "priority":
        data["priority"] = _priority(params.get("value", params.get("priority")))
    fact = Fact(
        id=ids.digest_of(f"{job}/{verb}/{key}".encode())[7:39],
        kind=f"in.{verb}",
        data=data,
        at=desk.service.clock.now(),
        source="lineshaft/rpc",
        correlation=key,
    )
    outcome = await desk.service.host.submit(fact)
    kinds = (commanding.ACCEPTED, commanding.PARKED, commanding.IGNORED, commanding.REFUSED)
    event = _first(outcome, kinds)
    where = {"stream": outcome.stream, "seq": outcome.seq}
    if event.kind == commanding.IGNORED:
        hint = "look at the job again, then repeat the command"
        raise RpcError("conflict", event.data["why"], hint, {"job": job, **where})
    if event.kind == commanding.REFUSED:
        raise RpcError("refused", event.data["why"], None, {"job": job, **where})
    state = "accepted" if event.kind == commanding.ACCEPTED else "parked"
    return {"job": job, "verb": verb, "state": state, **where}


def _priority(value: Any) -> int:
    try:
        return commanding.priority(value)
    except FactRefused as error:
        raise RpcError("usage", str(error)) from None


async def submission(desk: Desk, params: dict[str, Any]) -> dict[str, Any]:
    """``{job}`` -> the submission's answer and the commands that followed."""
    job = rpc.text(params, "job")
    stored = await desk.service.views.get(KIND, job)
    if stored is None:
        raise RpcError("not_found", f"no submission has the id '{job[:80]}'")
    return dict(stored.body)
