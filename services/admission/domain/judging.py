"""The verdict on a job: may it enter, what will it need, what is wrong with it. Pure.

``judge`` serves submissions and plans alike. A *reason* keeps a job out; a *warning* does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lineshaft.contracts.job import TrainingJob
from services.admission.domain import estimate, inventory, resolving, shapes
from services.admission.domain.estimate import Load
from services.admission.domain.inventory import Inventory
from services.admission.domain.policy import GIB, AdmissionPolicy
from services.admission.domain.reading import Reading, path_of, some
from services.admission.domain.shapes import Shape

_RESOURCES = ("spec", "resources")
_CHECKPOINTING = ("spec", "hyperparameters", "gradientCheckpointing")


@dataclass(slots=True)
class Verdict:
    """What admission makes of one job file."""

    reasons: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    estimate: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    # What does not fit now, or not comfortably: a plan says no, a submission waits.
    misfits: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a verdict depends on."""

    reading: Reading
    job: TrainingJob
    observed: Mapping[str, Any]
    policy: AdmissionPolicy
    inventory: Inventory | None


def judge(reading: Reading, observed: Mapping[str, Any], policy: AdmissionPolicy) -> Verdict:
    """Return the verdict on what was read, given what was observed.

    ``observed``: {findings, paths, model, datasets, inventory}, each optional, as
    ``services.admission.observing`` gathers them.
    """
    verdict = Verdict()
    if reading.job is None:
        verdict.reasons = reading.reasons()
        return verdict
    seen = observed.get("inventory")
    stock = inventory.from_dict(seen) if isinstance(seen, Mapping) else None
    case = Case(reading, reading.job, observed, policy, stock)
    _take_findings(verdict, case)
    _weigh_capacity(verdict, case)
    spec = resolving.final_spec(case.job, observed, team=case.job.team or policy.team)
    is_checkpointing = _weigh_memory(verdict, case, spec)
    verdict.resolved = resolving.resolved(case.job, observed, is_checkpointing=is_checkpointing)
    verdict.spec = spec
    verdict.reasons.sort(key=lambda reason: (reason["line"] or 1 << 30, reason["path"]))
    return verdict


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


# ---------------------------------------------------------------------------------------------
# Memory


def _weigh_memory(verdict: Verdict, case: Case, spec: dict[str, Any]) -> bool | None:
    """Estimate, choose gradient checkpointing, and compare with the device."""
    if case.job.job_type == "script":
        return None
    wish = case.job.spec["hyperparameters"]["gradientCheckpointing"]
    shape = _shape(verdict, case)
    if shape is None:
        return wish if isinstance(wish, bool) else False
    load = _load(case, shape, _clip(verdict, case, shape, spec))
    room = _device_bytes(case)
    chosen = wish if isinstance(wish, bool) else not _fits(shape, load, case, checkpointing=False)
    verdict.estimate = estimate.describe(shape, load, is_checkpointing=chosen)
    verdict.estimate["device_bytes"] = room or None
    verdict.estimate["headroom"] = case.policy.headroom
    verdict.estimate["fits"] = fits = _fits(shape, load, case, checkpointing=chosen)
    if not fits:
        _too_large(verdict, case, (shape, load))
    return chosen


def _shape(verdict: Verdict, case: Case) -> Shape | None:
    config = some(some(case.observed.get("model")).get("config"))
    if not config and isinstance(case.job.spec["model"], dict):
        config = case.job.spec["model"]
    if not config:
        verdict.warnings.append("the model's configuration is not known; memory was not estimated")
        return None
    try:
        return shapes.read(config)
    except shapes.ShapeError as error:
        if case.job.job_type == "pretrain":
            verdict.reasons.append(case.reading.reason("model", ("spec", "model"), str(error)))
        else:
            verdict.warnings.append(f"{error}; memory was not estimated")
        return None


def _clip(verdict: Verdict, case: Case, shape: Shape, spec: dict[str, Any]) -> int:
    """Return the sequence length: the default gives way to a smaller context of the model."""
    wanted = int(spec["hyperparameters"]["sequenceLength"])
    if shape.context is None or wanted <= shape.context:
        return wanted
    path = ("spec", "hyperparameters", "sequenceLength")
    if path in case.job.given:
        message = f"{wanted} is more than the model's context of {shape.context}"
        verdict.reasons.append(case.reading.reason("model", path, message))
    spec["hyperparameters"]["sequenceLength"] = shape.context
    return shape.context


def _load(case: Case, shape: Shape, sequence: int) -> Load:
    hyper, job = case.job.spec["hyperparameters"], case.job
    device = case.policy.device(job.gpu_type)
    micro = hyper["batchSize"] or 1
    trained = {"lora": estimate.adapter_share(shape, hyper["lora"]["rank"]), "evaluate": 0.0}
    datasets = some(case.observed.get("datasets"))
    return Load(
        ranks=job.ranks,
        micro_batch=micro,
        global_batch=micro * (hyper["gradientAccumulation"] or 1) * job.ranks,
        sequence=sequence,
        zero_stage=resolving.zero_stage(job),
        is_half=resolving.precision(job) == "bf16",
        is_gpu=job.gpu_type != resolving.CPU,
        epochs=hyper["epochs"],
        max_steps=hyper["maxSteps"],
        data_bytes=sum(int(some(row).get("bytes") or 0) for row in datasets.values()),
        keep_last=job.spec["checkpoint"]["keepLast"],
        trained=trained.get(job.job_type, 1.0),
        flops=device.flops if device else 0.0,
    )


def _device_bytes(case: Case) -> int:
    stated = case.inventory.memory_bytes(case.job.gpu_type) if case.inventory else 0
    device = case.policy.device(case.job.gpu_type)
    return stated or (device.memory_bytes if device else 0)


def _fits(shape: Shape, load: Load, case: Case, *, checkpointing: bool) -> bool:
    room = _device_bytes(case)
    need = _need(shape, load, checkpointing=checkpointing).likely
    return not room or need * (1 + case.policy.headroom) <= room


def _need(shape: Shape, load: Load, *, checkpointing: bool) -> estimate.Range:
    terms = estimate.memory_terms(shape, load, is_checkpointing=checkpointing)
    return estimate.memory(terms, load)


def _too_large(verdict: Verdict, case: Case, what: tuple[Shape, Load]) -> None:
    need, room = verdict.estimate["memory_bytes"], _device_bytes(case)
    term = verdict.estimate["dominating"]
    size = verdict.estimate["terms_bytes"][term] / GIB
    message = (
        f"a rank needs about {need['likely'] / GIB:.1f} GiB plus {case.policy.headroom:.0%}, "
        f"{case.job.gpu_type} has {room / GIB:.0f} GiB; most of it is {term} ({size:.1f} GiB)"
    )
    advice = _advice(case, what, is_on=verdict.estimate["gradient_checkpointing"])
    verdict.estimate["advice"] = advice
    hint = "; ".join(advice) or "use devices with more memory, or a smaller model"
    path = _RESOURCES if verdict.estimate["gradient_checkpointing"] else _CHECKPOINTING
    reason = case.reading.reason("memory", path, message, hint)
    if need["low"] > room and case.policy.refuse_too_large:
        verdict.reasons.append(reason)
    else:
        verdict.misfits.append(reason)
        verdict.warnings.append(message)


def _advice(case: Case, what: tuple[Shape, Load], *, is_on: bool) -> list[str]:
    """Return the single changes, mildest first, after which the job fits."""
    shape, load = what
    tries: list[tuple[str, Load, bool]] = [("gradientCheckpointing: true", load, True)]
    if load.micro_batch > 1:
        words = f"batchSize: 1, gradientAccumulation: {load.global_batch // load.ranks}"
        tries.append((words, replace(load, micro_batch=1), is_on))
    if load.zero_stage is not None and load.zero_stage < 3 and load.ranks > 1:
        better = replace(load, zero_stage=3)
        tries.append(("distributedStrategy: deepspeed-zero3", better, is_on))
    shorter = load.sequence // 2
    tries.append((f"sequenceLength: {shorter}", replace(load, sequence=shorter), is_on))
    return [
        f"{words} takes {_need(shape, other, checkpointing=flag).likely / GIB:.1f} GiB"
        for words, other, flag in tries
        if _fits(shape, other, case, checkpointing=flag)
    ]


def is_fit(verdict: Verdict) -> bool:
    """Tell whether the job may enter and fits comfortably into what is there."""
    return not verdict.reasons and not verdict.misfits


def all_reasons(verdict: Verdict) -> Sequence[dict[str, Any]]:
    """Return everything that speaks against the job running, for a plan."""
    return [*verdict.reasons, *verdict.misfits]
