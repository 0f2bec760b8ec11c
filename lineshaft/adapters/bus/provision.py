"""Making the streams and consumers of JetStream: nobody else declares any.

A stream is made as ``subjects.STREAMS`` says; one that exists is changed only where that loses
nothing: limits grow, subjects are added. Standard library and nats-py only.
"""

import dataclasses
from collections.abc import Sequence

from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError

from lineshaft.contracts import limits, subjects
from lineshaft.contracts.subjects import StreamPlan

ACK_WAIT_S = 10
ACK_PENDING_MAX = 20_000
EPHEMERAL_IDLE_S = 120


class ProvisionRefused(Exception):
    """A stream exists and cannot become what the plan says without losing what it holds."""


def stream_name(name: str) -> str:
    """Return the name on the server of a stream of ours."""
    return f"{subjects.ROOT}-{name}"


async def ensure_streams(
    context: JetStreamContext, plans: Sequence[StreamPlan] = subjects.STREAMS
) -> None:
    """Make what is missing, grow what is smaller. Raises ``ProvisionRefused`` or NATS' errors."""
    for plan in plans:
        wanted = _stream_config(plan)
        try:
            info = await context.stream_info(wanted.name or "")
        except NotFoundError:
            await context.add_stream(wanted)
            continue
        grown = _grown(info.config, wanted)
        if grown is not None:
            await context.update_stream(grown)


def _stream_config(plan: StreamPlan) -> api.StreamConfig:
    is_queue = plan.retention == "workqueue"
    age = plan.age_max_s or 0
    return api.StreamConfig(
        name=stream_name(plan.name),
        subjects=list(plan.subjects),
        retention=api.RetentionPolicy.WORK_QUEUE if is_queue else api.RetentionPolicy.LIMITS,
        storage=api.StorageType(plan.storage),
        # A command must be refused aloud when there is no room; everything else drops the oldest.
        discard=api.DiscardPolicy.NEW if is_queue else api.DiscardPolicy.OLD,
        max_age=age,
        max_msgs=plan.messages_max or -1,
        max_msgs_per_subject=plan.messages_max_per_subject or -1,
        max_bytes=plan.bytes_max or -1,
        duplicate_window=limits.DEDUP_WINDOW_S,
    )


def _grown(has: api.StreamConfig, wanted: api.StreamConfig) -> api.StreamConfig | None:
    """Return ``has`` grown to hold what ``wanted`` holds, or None when it does already."""
    if (has.retention, has.storage) != (wanted.retention, wanted.storage):
        raise ProvisionRefused(
            f"the stream {has.name} is {has.retention}/{has.storage}, not "
            f"{wanted.retention}/{wanted.storage}: move it away, or choose another server"
        )
    changed = dataclasses.replace(
        has,
        subjects=sorted({*(has.subjects or []), *(wanted.subjects or [])}),
        max_age=_larger(has.max_age, wanted.max_age),
        max_msgs=int(_larger(has.max_msgs, wanted.max_msgs)),
        max_bytes=int(_larger(has.max_bytes, wanted.max_bytes)),
        duplicate_window=max(has.duplicate_window or 0, wanted.duplicate_window or 0),
    )
    before = dataclasses.replace(has, subjects=sorted(has.subjects or []))
    return None if changed == before else changed


def _larger(one: float | None, other: float | None) -> float:
    """Return the larger limit, where nothing, zero and below mean "without"."""
    if not one or one < 0 or not other or other < 0:
        return -1 if (one or 0) < 0 or (other or 0) < 0 else 0
    return max(one, other)


def durable_config(durable: str, filters: Sequence[str]) -> api.ConsumerConfig:
    """Return a durable pull consumer: redelivers for ever, never stalls on unacknowledged ones."""
    return api.ConsumerConfig(
        durable_name=durable,
        filter_subjects=list(filters),
        deliver_policy=api.DeliverPolicy.ALL,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,
        max_ack_pending=ACK_PENDING_MAX,
    )


async def ensure_durable(
    context: JetStreamContext, stream: str, durable: str, filters: Sequence[str]
) -> None:
    """Make a durable consumer, or bring its filters up to date.

    One whose position is beyond the stream's end (an unclean stop shortened the stream) would
    receive nothing: it is made again from the start. Raises NATS' errors.
    """
    name = stream_name(stream)
    wanted = durable_config(durable, filters)
    try:
        info = await context.consumer_info(name, durable)
    except NotFoundError:
        await context.add_consumer(name, wanted)
        return
    state = (await context.stream_info(name)).state
    position = info.delivered.stream_seq if info.delivered is not None else 0
    if position > state.last_seq:
        await context.delete_consumer(name, durable)
        await context.add_consumer(name, wanted)
    elif sorted(info.config.filter_subjects or []) != sorted(filters):
        await context.add_consumer(name, wanted)


async def drop_durables(context: JetStreamContext, stream: str) -> None:
    """Delete a stream's durable consumers; those who pull make them again."""
    for info in await context.consumers_info(stream_name(stream)):
        if info.config.durable_name:
            await context.delete_consumer(stream_name(stream), info.name)


async def make_ephemeral(
    context: JetStreamContext, stream: str, filters: Sequence[str], after: int | None
) -> tuple[str, int]:
    """Make a consumer behind ``after`` (None: from now); return its name and where it begins."""
    name = stream_name(stream)
    last = (await context.stream_info(name)).state.last_seq
    begin = last if after is None or after > last else after
    config = api.ConsumerConfig(
        filter_subjects=list(filters),
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=begin + 1,
        ack_policy=api.AckPolicy.NONE,
        inactive_threshold=EPHEMERAL_IDLE_S,
        mem_storage=True,
    )
    made = await context.add_consumer(name, config)
    return made.name, begin
