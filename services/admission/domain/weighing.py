"""What a job takes against what its devices have: the estimate, checkpointing, advice. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.admission.domain import estimate, rehearsal, resolving, scaling, shapes
from services.admission.domain.estimate import Load
from services.admission.domain.policy import GIB
from services.admission.domain.reading import some
from services.admission.domain.rehearsal import Rehearsal
from services.admission.domain.shapes import Shape
from services.admission.domain.verdict import Case, Verdict

_RESOURCES = ("spec", "resources")
_CHECKPOINTING = ("spec", "hyperparameters", "gradientCheckpointing")
_TRAININGS = ("pretrain", "full-finetune", "lora")
_NAMES = {False: "plain", True: "checkpointed"}


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale that a job is weighed on: its model, its load, its dry runs, its devices."""

    shape: Shape
    load: Load
    seen: Mapping[str, Rehearsal]
    room: int
    headroom: float

    def need(self, *, is_on: bool, load: Load | None = None) -> estimate.Range:
        """Return the memory of a rank, with gradient checkpointing or without."""
        load = load or self.load
        terms = estimate.memory_terms(
            self.shape, load, is_checkpointing=is_on, seen=self.seen.get(_NAMES[is_on])
        )
        return estimate.memory(terms, load)

    def fits(self, *, is_on: bool, load: Load | None = None) -> bool:
        """Tell whether the likely need and the headroom fit; what is not known fits."""
        need = self.need(is_on=is_on, load=load).likely
        return not self.room or need * (1 + self.headroom) <= self.room


def weigh(verdict: Verdict, case: Case, spec: dict[str, Any]) -> bool | None:
    """Estimate, choose gradient checkpointing, and compare with the device.

    Changes the verdict; returns the choice, None for a script.
    """
    if case.job.job_type == "script":
        return None
    wish = case.job.spec["hyperparameters"]["gradientCheckpointing"]
    shape = _shape(verdict, case)
    if shape is None:
        return wish if isinstance(wish, bool) else False
    sequence = _clip(verdict, case, shape, spec)
    scale = Scale(
        shape,
        _load(case, shape, sequence),
        _dry_runs(verdict, case),
        device_bytes(case),
        case.policy.headroom,
    )
    chosen = wish if isinstance(wish, bool) else not scale.fits(is_on=False)
    _describe(verdict, case, scale, is_on=chosen)
    if not verdict.estimate["fits"]:
        _too_large(verdict, case, scale)
    return chosen


def _describe(verdict: Verdict, case: Case, scale: Scale, *, is_on: bool) -> None:
    seen = scale.seen.get(_NAMES[is_on])
    made = estimate.describe(scale.shape, scale.load, is_checkpointing=is_on, seen=seen)
    made |= {"device_bytes": scale.room or None, "headroom": scale.headroom}
    made["fits"] = scale.fits(is_on=is_on)
    price = case.policy.prices.get(case.job.gpu_type)
    made["cost"] = None if made["gpu_s"] is None or price is None else made["gpu_s"] / 3600 * price
    made["pace"] = (
        f"{scale.load.flops / 1e12:g} TFLOP/s per device: policy.admission.devices"
        if scale.load.flops
        else f"the speed of {case.job.gpu_type} is not known: policy.admission.devices"
    )
    made["what_to_change"] = scaling.change(made["dominating"], is_on=is_on)
    speeds = scaling.Speeds(case.policy.node_gbit_s, case.policy.slot_gbit_s, price)
    most = _nodes_max(case)
    made["by_nodes"] = [
        scaling.row(
            scale.shape,
            load,
            nodes=nodes,
            need=scale.need(is_on=is_on, load=load),
            speeds=speeds,
            is_checkpointing=is_on,
        )
        | {"fits": scale.fits(is_on=is_on, load=load)}
        for nodes, load in scaling.loads(scale.load, case.job.slots_per_node, most)
    ]
    verdict.estimate = made
    _forecast(verdict, case)


def _forecast(verdict: Verdict, case: Case) -> None:
    """Compare the bytes of checkpoints and model with the free ones of their disks."""
    terms, disks = verdict.estimate["storage_terms_bytes"], some(case.observed.get("disks"))
    needed = {
        "checkpoints": terms["checkpoints"] + terms["checkpoint_in_flight"] + terms["logs"],
        "output": terms["model"],
    }
    by_device: dict[Any, list[str]] = {}
    for name in needed:
        if name in disks:
            by_device.setdefault(disks[name]["device"], []).append(name)
    for names in by_device.values():
        need, disk = sum(needed[name] for name in names), disks[names[0]]
        if need > disk["free_bytes"]:
            message = (
                f"{' and '.join(names)} need about {need / GIB:.1f} GiB, "
                f"{disk['path']} has {disk['free_bytes'] / GIB:.1f} GiB free"
            )
            path = ("spec", "checkpoint", "keepLast")
            hint = "free space, or keep fewer checkpoints"
            verdict.misfits.append(case.reading.reason("disk", path, message, hint))
            verdict.warnings.append(f"{message}; {hint}")
    speed = some(disks.get("checkpoints")).get("bytes_per_s")
    verdict.estimate["disks"] = {name: dict(disks[name]) for name in needed if name in disks}
    verdict.estimate["checkpoint_write_s"] = (
        round(terms["checkpoint_in_flight"] / speed, 1) if speed else None
    )


def _nodes_max(case: Case) -> int:
    """Return how many nodes the table goes up to: those that exist, or twice the job's."""
    groups = case.inventory.of_type(case.job.gpu_type) if case.inventory else []
    there = sum(group.count for group in groups if group.slots >= case.job.slots_per_node)
    return max(there, 2 * case.job.nodes)


def _dry_runs(verdict: Verdict, case: Case) -> dict[str, Rehearsal]:
    told = some(case.observed.get("dry_runs"))
    if told.get("reason"):
        message = f"memory comes from formulas; the dry run: {told['reason']}"
        verdict.warnings.append(message)
    made = {}
    for name, answer in some(told.get("answers")).items():
        try:
            made[name] = rehearsal.read(answer, int(told["tokens"]))
        except rehearsal.RehearsalError as error:
            verdict.warnings.append(f"memory comes from formulas: {error}")
    return made


def rehearsals(case: Case) -> dict[str, dict[str, Any]]:
    """Return the dry runs that the estimate needs, by name: with checkpointing, without."""
    config = _config(case)
    if case.job.job_type not in _TRAININGS or not config.get("model_type"):
        return {}
    try:
        shape = shapes.read(config)
    except shapes.ShapeError:
        return {}
    hyper = case.job.spec["hyperparameters"]
    sequence = min(int(hyper["sequenceLength"]), shape.context or 1 << 30)
    lora = hyper["lora"] if case.job.job_type == "lora" else None
    asked = {
        "config": dict(config),
        "micro_batch": hyper["batchSize"] or 1,
        "sequence": sequence,
        "engine": "plain" if resolving.zero_stage(case.job) is None else "zero",
        "precision": resolving.precision(case.job),
        "lora": {"rank": lora["rank"], "targets": lora["targets"]} if lora else None,
    }
    wish = hyper["gradientCheckpointing"]
    wishes = (wish,) if isinstance(wish, bool) else (False, True)
    return {_NAMES[is_on]: {**asked, "checkpointing": is_on} for is_on in wishes}


def _config(case: Case) -> Mapping[str, Any]:
    config = some(some(case.observed.get("model")).get("config"))
    if not config and isinstance(case.job.spec["model"], dict):
        config = case.job.spec["model"]
    return config


def _shape(verdict: Verdict, case: Case) -> Shape | None:
    config = _config(case)
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


def device_bytes(case: Case) -> int:
    """Return the memory of one device of the job's type; 0 is not known."""
    stated = case.inventory.memory_bytes(case.job.gpu_type) if case.inventory else 0
    device = case.policy.device(case.job.gpu_type)
    return stated or (device.memory_bytes if device else 0)


def _too_large(verdict: Verdict, case: Case, scale: Scale) -> None:
    need, room = verdict.estimate["memory_bytes"], scale.room
    term = verdict.estimate["dominating"]
    size = verdict.estimate["terms_bytes"][term] / GIB
    message = (
        f"a rank needs about {need['likely'] / GIB:.1f} GiB plus {case.policy.headroom:.0%}, "
        f"{case.job.gpu_type} has {room / GIB:.0f} GiB; most of it is {term} ({size:.1f} GiB)"
    )
    advice = _advice(scale, is_on=verdict.estimate["gradient_checkpointing"])
    verdict.estimate["advice"] = advice
    hint = "; ".join(advice) or "use devices with more memory, or a smaller model"
    path = _RESOURCES if verdict.estimate["gradient_checkpointing"] else _CHECKPOINTING
    reason = case.reading.reason("memory", path, message, hint)
    if need["low"] > room and case.policy.refuse_too_large:
        verdict.reasons.append(reason)
    else:
        verdict.misfits.append(reason)
        verdict.warnings.append(message)


def _advice(scale: Scale, *, is_on: bool) -> list[str]:
    """Return the single changes, mildest first, after which the job fits."""
    load = scale.load
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
        f"{words} takes {scale.need(is_on=flag, load=other).likely / GIB:.1f} GiB"
        for words, other, flag in tries
        if scale.fits(is_on=flag, load=other)
    ]
