"""The verdict on a job: may it enter, what will it need, what is wrong with it. Pure.

``judge`` serves submissions and plans alike. A *reason* keeps a job out; a *warning* does not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from services.admission.domain import inventory, resolving, weighing
from services.admission.domain.policy import AdmissionPolicy
from services.admission.domain.reading import Reading, path_of
from services.admission.domain.verdict import Case, Verdict

_RESOURCES = ("spec", "resources")


def judge(reading: Reading, observed: Mapping[str, Any], policy: AdmissionPolicy) -> Verdict:
    """Return the verdict on what was read, given what was observed.

    ``observed``: {findings, paths, model, datasets, inventory, dry_runs}, each optional, as
    ``services.admission.observing`` gathers them.
    """
    verdict = Verdict()
    if reading.job is None:
        verdict.reasons = reading.reasons()
        return verdict
    case = _case(reading, observed, policy)
    _take_findings(verdict, case)
    _weigh_capacity(verdict, case)
    spec = resolving.final_spec(case.job, observed, team=case.job.team or policy.team)
    is_checkpointing = weighing.weigh(verdict, case, spec)
    verdict.resolved = resolving.resolved(case.job, observed, is_checkpointing=is_checkpointing)
    verdict.spec = spec
    verdict.reasons.sort(key=lambda reason: (reason["line"] or 1 << 30, reason["path"]))
    return verdict


def _case(reading: Reading, observed: Mapping[str, Any], policy: AdmissionPolicy) -> Case:
    assert reading.job is not None
    seen = observed.get("inventory")
    stock = inventory.from_dict(seen) if isinstance(seen, Mapping) else None
    return Case(reading, reading.job, observed, policy, stock)


def rehearsals(
    reading: Reading, observed: Mapping[str, Any], policy: AdmissionPolicy
) -> dict[str, dict[str, Any]]:
    """Return the dry runs that this job's estimate needs, by name; none when it needs none."""
    if reading.job is None:
        return {}
    return weighing.rehearsals(_case(reading, observed, policy))


def is_decided_by_memory(
    reading: Reading, observed: Mapping[str, Any], policy: AdmissionPolicy
) -> bool:
    """Tell whether the memory of the job's devices is known, so that the estimate decides."""
    return reading.job is not None and weighing.device_bytes(_case(reading, observed, policy)) > 0


def _take_findings(verdict: Verdict, case: Case) -> None:
    for finding in case.observed.get("findings") or ():
        message = str(finding.get("message"))
        path = path_of(str(finding.get("path") or ""))
        if finding.get("severity") == "warning":
            verdict.warnings.append(f"{finding.get('path')}: {message}")
            continue
        reason = case.reading.reason("preflight", path, message, finding.get("hint"))
        verdict.reasons.append(reason)


def _weigh_capacity(verdict: Verdict, case: Case) -> None:
    """Compare the gang with the nodes: enough nodes of the type with enough slots each."""
    if case.inventory is None:
        verdict.warnings.append("the pool's nodes are not known now; capacity was not checked")
        return
    job, stock = case.job, case.inventory
    groups = stock.of_type(job.gpu_type)
    wide = [group for group in groups if group.slots >= job.slots_per_node]
    verdict.nodes = [
        {"gpu_type": g.gpu_type, "slots": g.slots, "count": g.count, "names": list(g.names)}
        for g in wide
    ]
    if sum(group.count for group in wide) >= job.nodes:
        return
    hint = None
    if not groups:
        there = ", ".join(stock.gpu_types()) or "nothing"
        path, message = (*_RESOURCES, "gpuType"), f"no node has {job.gpu_type}; there is {there}"
        hint = f"choose one of: {there}"
    elif not wide:
        most = max(group.slots for group in groups)
        path = (*_RESOURCES, "gpuCount")
        message = (
            f"{job.slots_per_node} devices per node; the largest {job.gpu_type} node has {most}"
        )
        hint = "use more nodes with fewer devices each, or fewer devices"
    else:
        there = str(sum(group.count for group in wide))
        path = (*_RESOURCES, "nodeCount")
        message = f"{job.nodes} nodes with {job.slots_per_node} devices each; there are {there}"
        hint = "use fewer nodes"
    reason = case.reading.reason("capacity", path, message, hint)
    if stock.is_declared:
        verdict.reasons.append(reason)
    else:
        verdict.misfits.append(reason)
        verdict.warnings.append(f"{message}; the job would wait")


def is_fit(verdict: Verdict) -> bool:
    """Tell whether the job may enter and fits comfortably into what is there."""
    return not verdict.reasons and not verdict.misfits


def all_reasons(verdict: Verdict) -> Sequence[dict[str, Any]]:
    """Return everything that speaks against the job running, for a plan."""
    return [*verdict.reasons, *verdict.misfits]
