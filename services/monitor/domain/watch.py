"""One attempt under watch: the ordered rules, their memory, and what a sample makes of them.

``observe`` is the only door. The memory here is rebuilt after a restart and never the truth.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lineshaft.contracts.alerts import Severity
from lineshaft.contracts.telemetry import Metric
from services.monitor.domain.capacity import OutOfMemorySoon, StorageFilling
from services.monitor.domain.drift import Drift
from services.monitor.domain.hang import Hang
from services.monitor.domain.numeric import GradNorm, LossSpike, NonFinite
from services.monitor.domain.observations import (
    BeatSeen,
    Episodes,
    LinesSeen,
    Observation,
    Phase,
    RunFact,
    Sample,
    StepRows,
    Tick,
    Verdict,
)
from services.monitor.domain.pace import CheckpointFailing, CheckpointOverdue, DataStarvation
from services.monitor.domain.policy import Policy
from services.monitor.domain.presence import NodeLost, NotJoined
from services.monitor.domain.resume import Course, ResumeCheck
from services.monitor.domain.signatures import HITS_KEPT_MAX, Hit, Role, Signatures
from services.monitor.domain.straggler import Straggler
from services.monitor.domain.table import ClosedStep, StepTable
from services.monitor.domain.trend import JobSlow, LossTrend
from services.monitor.domain.utilisation import (
    BelowPlan,
    Devices,
    LowUtilisation,
    StepSplit,
    ZeroUtilisation,
)

STEP_MAX = 1 << 31
OWN_JOB_TYPES = ("pretrain", "full-finetune", "lora")
_STOPS = frozenset(
    {
        "run.stop_ordered",
        "run.rank_exited",
        "run.stopped",
        "run.launch_failed",
        "run.completed",
    }
)


@dataclass(slots=True)
class Watch:
    """The memory of one attempt. ``signatures`` is shared by all."""

    job: str
    attempt: int
    signatures: Signatures
    table: StepTable
    non_finite: NonFinite
    loss_spike: LossSpike
    grad_norm: GradNorm
    straggler: Straggler
    starvation: DataStarvation
    overdue: CheckpointOverdue
    hang: Hang
    not_joined: NotJoined
    node_lost: NodeLost
    drift: Drift = field(default_factory=Drift)
    trend: LossTrend = field(default_factory=LossTrend)
    job_slow: JobSlow = field(default_factory=JobSlow)
    failing: CheckpointFailing = field(default_factory=CheckpointFailing)
    resume: ResumeCheck = field(default_factory=ResumeCheck)
    memory: OutOfMemorySoon = field(default_factory=OutOfMemorySoon)
    storage: StorageFilling = field(default_factory=StorageFilling)
    devices: Devices = field(default_factory=Devices)
    split: StepSplit = field(default_factory=StepSplit)
    zero_use: ZeroUtilisation = field(default_factory=ZeroUtilisation)
    low_use: LowUtilisation = field(default_factory=LowUtilisation)
    below_plan: BelowPlan = field(default_factory=BelowPlan)
    now: int = 0  # of the sample that is judged
    episodes: Episodes = field(default_factory=Episodes)
    hits: deque[Hit] = field(default_factory=lambda: deque(maxlen=HITS_KEPT_MAX))
    last_hit: dict[str, int] = field(default_factory=dict)  # signature -> the agent's clock
    hit_received: dict[str, int] = field(default_factory=dict)  # signature -> the monitor's clock
    closed: list[ClosedStep] = field(default_factory=list)  # what the last sample closed
    steps_seen: int = 0
    skip_to: int = -1  # steps up to this one follow a checkpoint or an evaluation
    stage_of: dict[int, int] = field(default_factory=dict)
    is_stopping: bool = False
    samples: dict[str, Mapping[str, float]] = field(default_factory=dict)


def new_watch(job: str, attempt: int, signatures: Signatures, policy: Policy) -> Watch:
    """Return an empty memory for one attempt."""
    return Watch(
        job,
        attempt,
        signatures,
        StepTable(),
        NonFinite(),
        LossSpike.by(policy),
        GradNorm.by(policy),
        Straggler(),
        DataStarvation(),
        CheckpointOverdue(),
        Hang(),
        NotJoined(),
        NodeLost(),
    )


def observe(watch: Watch, sample: Sample, now: int, policy: Policy) -> list[Observation]:
    """Take one sample in and return the changes of episodes it brings about, in order.

    ``now`` is milliseconds since the epoch, the monitor's clock. Nothing is judged after a stop
    was ordered or the work is complete.
    """
    watch.closed, watch.now = [], now
    made: list[Observation] = []
    for verdict in _verdicts(watch, sample, now, policy):
        if not watch.is_stopping:
            made += watch.episodes.apply(verdict, now, policy.cool_down_ms)
    return made


def _verdicts(watch: Watch, sample: Sample, now: int, policy: Policy) -> Iterator[Verdict]:
    match sample:
        case StepRows():
            yield from _of_rows(watch, sample, policy)
        case BeatSeen():
            yield from _of_beat(watch, sample, now, policy)
        case LinesSeen():
            yield from _of_lines(watch, sample, now, policy)
        case RunFact():
            yield from _of_fact(watch, sample, now, policy)
        case Tick():
            yield from _of_tick(watch, sample, now, policy)


# ---------------------------------------------------------------------------------------------
# Telemetry


def _of_rows(watch: Watch, sample: StepRows, policy: Policy) -> Iterator[Verdict]:
    # What a block says beside its rows comes first: a plan is of use to its first step.
    for metric in sample.metrics:
        yield from _of_metric(watch, metric, policy)
    rows = sample.rows[sample.rows["step"] < STEP_MAX]
    if len(rows):
        yield from watch.non_finite.judge_rows(sample.node, rows)
        for closed in watch.table.add(sample.node, rows[np.argsort(rows["step"], kind="stable")]):
            yield from judge_step(watch, closed, policy)
    if sample.sample:
        yield from _of_sample(watch, sample.node, sample.sample, policy)


def _of_metric(watch: Watch, metric: Metric, policy: Policy) -> Iterator[Verdict]:
    if not 0 <= metric.step < STEP_MAX or not math.isfinite(metric.value):
        return
    if metric.split is not None:
        watch.skip_to = max(watch.skip_to, metric.step + 1)
    elif metric.name == "planned_steps" and 0 < metric.value < STEP_MAX:
        watch.trend.planned_steps = watch.resume.planned_steps = int(metric.value)
    elif metric.name == "non_finite_sample":
        watch.non_finite.suspect(metric.step, int(metric.value))
    elif metric.name == "checkpoint_failed":
        yield from watch.failing.failed(metric.step, policy)
    else:
        watch.below_plan.plan(metric.name, metric.value)


def _of_sample(
    watch: Watch, node: str, sample: Mapping[str, float], policy: Policy
) -> Iterator[Verdict]:
    watch.samples[node] = sample
    if "gpu_utilisation" in sample:
        watch.hang.utilisation[node] = sample["gpu_utilisation"]
    yield from watch.memory.judge(node, sample, watch.now, policy)
    yield from watch.storage.judge(node, sample, watch.now, policy)
    if not watch.devices.take(node, sample):
        return
    is_stepping = watch.hang.is_stepping
    yield from watch.zero_use.judge(
        watch.devices, watch.now, policy, steps=watch.steps_seen, is_stepping=is_stepping
    )
    counted = watch.steps_seen - policy.warm_up_steps
    yield from watch.low_use.judge(
        watch.devices, watch.now, policy, steps=counted, split=watch.split
    )


def judge_step(watch: Watch, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
    """Run the rules on one whole step.

    The first 16 steps of an attempt, and the step of and after a checkpoint or an evaluation,
    are left out of the rules on pace and on the range of loss and norm.
    """
    watch.closed.append(closed)
    watch.steps_seen += 1
    if closed.most("checkpoint_ms") > 0:
        watch.skip_to = max(watch.skip_to, closed.step + 1)
    at = closed.mean("at")
    watch.hang.step_made(closed.step, 0.0 if np.isnan(at) else at, policy)
    yield from watch.non_finite.judge(closed, policy)
    yield from watch.overdue.judge(closed, watch.now, policy)
    yield from watch.resume.judge(closed, policy)
    yield from watch.trend.judge(closed, policy)
    if watch.steps_seen > policy.warm_up_steps and closed.step > watch.skip_to:
        yield from _judge_ordinary(watch, closed, policy)


def _judge_ordinary(watch: Watch, closed: ClosedStep, policy: Policy) -> Iterator[Verdict]:
    """Run the rules that only look at ordinary steps."""
    yield from watch.loss_spike.judge(closed, policy)
    yield from watch.grad_norm.judge(closed, policy)
    nodes, stages = watch.table.node_of, watch.stage_of
    yield from watch.straggler.judge(closed, policy, node_of=nodes, stage_of=stages)
    yield from watch.drift.judge(
        closed, policy, node_of=nodes, stage_of=stages, told=watch.straggler.opened
    )
    yield from watch.starvation.judge(closed, policy)
    yield from watch.job_slow.judge(closed, policy)
    watch.split.add(closed)
    yield from watch.below_plan.judge(watch.split, watch.now, policy, step=closed.step)


# ---------------------------------------------------------------------------------------------
# Beats and time


def _of_beat(watch: Watch, sample: BeatSeen, now: int, policy: Policy) -> Iterator[Verdict]:
    beat = sample.beat
    watch.node_lost.heard[beat.node] = now
    if beat.ranks:
        watch.not_joined.joined.add(beat.node)
    yield from watch.hang.judge(beat, now, policy, last_steps=watch.table.last_steps)


def _of_tick(watch: Watch, sample: Tick, now: int, policy: Policy) -> Iterator[Verdict]:
    yield from watch.not_joined.judge(now, policy)
    stalled = is_stalled(watch, now, policy)
    yield from watch.node_lost.judge(now, policy, path_proved=sample.path_proved, stalled=stalled)
    if watch.hang.is_stepping:
        yield from watch.overdue.judge_time(now, policy)
    for subject in watch.episodes.open_subjects("log_signature"):
        if now - watch.hit_received.get(subject, now) > policy.signature_quiet_ms:
            yield Verdict("log_signature", subject, Phase.CLEARED, summary="It did not come again.")


def is_stalled(watch: Watch, now: int, policy: Policy) -> bool:
    """Tell whether the nodes that beat now say that no step was made for half the lost time."""
    ages = [
        node.beat.last_step_age_ms
        for node in watch.hang.nodes.values()
        if now - node.received <= policy.beat_fresh_ms
    ]
    return bool(ages) and min(ages) > policy.lost_ms // 2


# ---------------------------------------------------------------------------------------------
# Logs


def _of_lines(watch: Watch, sample: LinesSeen, now: int, policy: Policy) -> Iterator[Verdict]:
    for hit in watch.signatures.hits(sample.node, sample.lines):
        watch.hits.append(hit)
        signature = hit.signature
        before = watch.last_hit.get(signature.id)
        watch.last_hit[signature.id] = max(hit.at, before or 0)
        watch.hit_received[signature.id] = now
        if signature.role is Role.CASCADE:
            watch.node_lost.peers_failed_at = now
            continue
        if before is not None and hit.at - before <= policy.same_signature_ms:
            continue
        is_again = watch.episodes.is_open("log_signature", signature.id)
        yield Verdict(
            "log_signature",
            signature.id,
            Phase.CONFIRMED if is_again else Phase.OPENED,
            Severity.WARNING,
            f"{_speaker(hit.rank)} on node {hit.node}: {signature.cause}.",
            hit.told(),
            hit.node,
            hit.rank,
        )


# ---------------------------------------------------------------------------------------------
# Facts


def _of_fact(watch: Watch, fact: RunFact, now: int, policy: Policy) -> Iterator[Verdict]:
    if fact.kind in _STOPS:
        watch.is_stopping = True
    elif fact.kind == "run.launch_ordered":
        _of_order(watch, fact.data, policy)
    elif fact.kind == "run.launched":
        watch.not_joined.launched_at = fact.at
    elif fact.kind == "run.started":
        watch.not_joined.joined.add(str(fact.data["node"]))
    elif fact.kind == "run.ended":
        node = str(fact.data["node"])
        watch.node_lost.heard.pop(node, None)
        watch.hang.node_gone(node)
        watch.devices.forget(node)
    elif fact.kind == "run.checkpoint_committed":
        watch.overdue.commit(int(fact.data["step"]), now)
        watch.storage.checkpoint_bytes = float(_whole(fact.data.get("bytes")))
        yield from watch.failing.commit()


def _of_order(watch: Watch, data: Mapping[str, Any], policy: Policy) -> None:
    order = _mapping(data.get("order"))
    watch.hang.floor_ms = _whole(order.get("hang_limit_ms"))
    watch.hang.first_step_ms = _whole(order.get("first_step_limit_ms"))
    for node in data.get("nodes", []):
        if isinstance(node, Mapping) and isinstance(node.get("node"), str):
            slots = node.get("slots")
            ranks = len(slots) if isinstance(slots, list) else _whole(slots)
            watch.not_joined.expected[node["node"]] = ranks or 1
    spec = _mapping(order.get("spec"))
    body = _mapping(spec.get("spec", spec))
    watch.overdue.every_steps, watch.overdue.every_ms = checkpoint_plan(body, policy)
    watch.resume.course = Course.of(_mapping(body.get("hyperparameters")))
    step = _mapping(order.get("resume")).get("step")
    watch.resume.from_step = step if isinstance(step, int) and not isinstance(step, bool) else -1


def checkpoint_plan(body: Mapping[str, Any], policy: Policy) -> tuple[int, int]:
    """Return how often a job plans to save, in steps and in milliseconds; 0: not by this measure.

    A job of our own engines that says nothing saves by time; a script saves as it likes.
    """
    section = _mapping(body.get("checkpoint"))
    minutes = section.get("everyMinutes")
    if _whole(section.get("everySteps")):
        return _whole(section.get("everySteps")), 0
    if isinstance(minutes, int | float) and not isinstance(minutes, bool) and minutes > 0:
        return 0, int(minutes * 60_000)
    is_ours = body.get("jobType") in OWN_JOB_TYPES
    return 0, policy.overdue_default_ms if is_ours else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _speaker(rank: int) -> str:
    """Return whose line it was; the agent's lines, and its launchers', have no rank."""
    return f"Rank {rank}" if rank >= 0 else "The agent"


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
