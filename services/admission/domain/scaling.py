"""The same job on 1, 2, 4, ... nodes: computation, communication, hours, cost. Pure.

Batch per device and accumulation stay, so the global batch grows with the nodes. Communication
is not assumed to hide behind computation: the efficiency is the worst that the stated
bandwidths allow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from services.admission.domain.estimate import Load, Range, seconds
from services.admission.domain.shapes import Shape

ROWS_MAX: Final = 8
# Volumes of a step per rank, in copies of what is exchanged (arXiv 1910.02054, section 7): the
# gradients are reduced (2 by a ring, halved where they stay sharded, plus the weights gathered
# again); stage 3 gathers the weights in forward and in backward too.
_COPIES: Final = {0: 2.0, 1: 2.0, 2: 2.0, 3: 3.0}
_CHANGES: Final = {
    "weights": "distributedStrategy: deepspeed-zero3 shards the weights",
    "gradients": "distributedStrategy: deepspeed-zero2 shards the gradients",
    "optimizer": "distributedStrategy: deepspeed-zero1 shards the optimizer's states",
    "logits": "a smaller batchSize with more gradientAccumulation, or a shorter sequenceLength",
    "temporary": "a smaller batchSize with more gradientAccumulation",
    "buckets": "deepspeedConfig.zero_optimization.reduce_bucket_size",
    "context": "nothing: it is what libraries and device take in any case",
}


@dataclass(frozen=True, slots=True)
class Speeds:
    """Declared bandwidths (Gbit/s) of a node and of one device, and the price of a device hour."""

    node_gbit_s: float
    slot_gbit_s: float
    price: float | None


def change(term: str, *, is_on: bool) -> str:
    """Return what makes the dominating term smaller."""
    if term == "activations":
        shorter = "a smaller batchSize or a shorter sequenceLength"
        return shorter if is_on else "gradientCheckpointing: true"
    return _CHANGES[term]


def loads(load: Load, slots: int, nodes_max: int) -> Iterator[tuple[int, Load]]:
    """Yield the load on 1, 2, 4, ... nodes, up to ``nodes_max`` and ``ROWS_MAX`` rows."""
    per_rank = load.global_batch // load.ranks
    nodes = 1
    for _ in range(ROWS_MAX):
        if nodes > nodes_max:
            return
        ranks = nodes * slots
        is_possible = load.zero_stage is not None or ranks == 1
        if is_possible:
            yield nodes, replace(load, ranks=ranks, global_batch=per_rank * ranks)
        nodes *= 2


def communication_s(shape: Shape, load: Load, *, nodes: int, speeds: Speeds) -> float:
    """Return the seconds that one rank's exchanges of one optimiser step take.

    A ring over n members moves (n - 1) / n of each copy through every link.
    """
    if load.ranks == 1 or load.zero_stage is None:
        return 0.0
    element = 2 if load.is_half else 4
    copies = _COPIES[load.zero_stage]
    if load.zero_stage == 3:  # the weights are gathered again for every forward pass
        copies += 2.0 * (load.accumulation - 1)
    bits = 8.0 * shape.parameters * load.trained * element * copies
    within = bits * (load.ranks - 1) / load.ranks / (speeds.slot_gbit_s * 1e9)
    between = bits * (nodes - 1) / nodes / (speeds.node_gbit_s * 1e9)
    return max(within, between)


def row(
    shape: Shape, load: Load, *, nodes: int, need: Range, speeds: Speeds, is_checkpointing: bool
) -> dict[str, Any]:
    """Return one row of the table; times in seconds, None where they are not known."""
    made: dict[str, Any] = {
        "nodes": nodes,
        "ranks": load.ranks,
        "global_batch": load.global_batch,
        "memory_bytes": round(need.likely),
        "compute_s": None,
        "communication_s": None,
        "efficiency": None,
        "hours": None,
        "cost": None,
    }
    if not load.flops:
        return made
    tokens = load.global_batch * load.sequence
    work = (8 if is_checkpointing else 6) * shape.parameters * tokens
    compute = work / (load.flops * load.ranks)
    exchange = communication_s(shape, load, nodes=nodes, speeds=speeds)
    efficiency = compute / (compute + exchange)
    made |= {"compute_s": round(compute, 4), "communication_s": round(exchange, 4)}
    made["efficiency"] = round(efficiency, 3)
    whole = seconds(shape, load, is_checkpointing=is_checkpointing)
    if whole is None:
        return made
    hours = whole.likely / efficiency / 3600
    made["hours"] = round(hours, 3)
    if speeds.price is not None:
        made["cost"] = round(hours * load.ranks * speeds.price, 2)
    return made
