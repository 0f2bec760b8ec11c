"""The estimator: memory per rank, storage and time of a training run. Pure arithmetic.

Every amount is low, likely and high; ``likely`` plus the policy's headroom is what is compared
with a device. Memory is what DeepSpeed's ZeRO stages and PyTorch keep (sources at each term).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.admission.domain import rehearsal
from services.admission.domain.policy import GIB
from services.admission.domain.rehearsal import Rehearsal
from services.admission.domain.shapes import Shape

# DeepSpeed's defaults for zero_optimization: reduce_bucket_size and allgather_bucket_size 5e8,
# stage3_max_live_parameters 1e9, stage3_prefetch_bucket_size 5e7 elements (configuration docs).
_BUCKET_ELEMENTS = 500_000_000
_LIVE_ELEMENTS = 1_050_000_000
_CONTEXT_BYTES = (1 * GIB, 3 * GIB // 2, 5 * GIB // 2)  # CUDA context, NCCL, workspaces
_PROCESS_BYTES = (GIB // 2, 3 * GIB // 4, GIB)  # interpreter and libraries, on a CPU
_FRAGMENTED = (0.95, 1.0, 1.12)
_BYTES_PER_TOKEN = (6.0, 4.0, 2.5)  # English prose, mixed, Chinese or code, with a BPE vocabulary
_LOG_BYTES = 16 << 20
_START_S = (15, 40, 180)  # imports, process group, loading, first checkpoint


@dataclass(frozen=True, slots=True)
class Load:
    """What an estimate depends on besides the model.

    ``zero_stage`` None is plain PyTorch on one device. ``trained`` is the share of the weights
    that gets gradients (below 1 for adapters). ``data_bytes`` 0 is unknown.
    """

    ranks: int
    micro_batch: int
    global_batch: int
    sequence: int
    zero_stage: int | None
    is_half: bool
    is_gpu: bool
    epochs: float | None = None
    max_steps: int | None = None
    data_bytes: int = 0
    keep_last: int = 2
    trained: float = 1.0
    flops: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of one forward pass on one rank."""
        return self.micro_batch * self.sequence

    @property
    def accumulation(self) -> int:
        """Forward passes per optimiser step."""
        return max(1, self.global_batch // (self.micro_batch * self.ranks))


@dataclass(frozen=True, slots=True)
class Range:
    """Low, likely and high of one amount."""

    low: float
    likely: float
    high: float

    def rounded(self) -> dict[str, int]:
        """Return whole numbers, for an answer."""
        return {"low": round(self.low), "likely": round(self.likely), "high": round(self.high)}


def memory_terms(
    shape: Shape, load: Load, *, is_checkpointing: bool, seen: Rehearsal | None = None
) -> dict[str, float]:
    """Return the likely bytes of each term on one rank.

    States: ZeRO (arXiv 1910.02054, section 3): 2 bytes of weight and of gradient, 12 of fp32
    master copy and two Adam moments per parameter in half precision, sharded by stage. Plain
    PyTorch keeps fp32 weights and casts them as they are used. With a dry run the working terms
    are its own, else they come from closed formulas.
    """
    count = seen.whole(shape.layers) if seen else shape.parameters
    trained = seen.learning(shape.layers) if seen else count * load.trained
    stage = load.zero_stage
    element = 2 if load.is_half and stage is not None else 4
    share = load.ranks if stage else 1
    states = 12 if stage or (stage is not None and load.is_half) else 8
    terms = {
        "weights": count * element / (load.ranks if stage == 3 else 1),
        "gradients": trained * element / (share if stage in (2, 3) else 1),
        "optimizer": trained * states / share,
        "buckets": _buckets(count, load, element),
        "context": float((_CONTEXT_BYTES if load.is_gpu else _PROCESS_BYTES)[1]),
    }
    if seen is not None:
        return terms | _rehearsed(shape, load, terms["gradients"], seen)
    working = {
        "activations": _activations(shape, load, is_checkpointing=is_checkpointing),
        "logits": _logits(shape, load),
    }
    return terms | working


def _rehearsed(shape: Shape, load: Load, gradients: float, seen: Rehearsal) -> dict[str, float]:
    """Return gradients, activations, logits and temporaries at the peak that was rehearsed.

    In plain PyTorch gradients appear while activations go, so their peaks do not add up, and
    the peak may be the optimiser's step: AdamW holds two temporaries of its largest weight on a
    CPU, a copy of all second moments on a GPU (``torch/optim/adam.py``, single and multi tensor).
    """
    is_plain = load.zero_stage is None
    wanted = rehearsal.Wanted(
        shape.layers, load.tokens, is_plain and load.accumulation > 1, is_plain
    )
    found = rehearsal.peak(seen, wanted)
    if not is_plain:
        return {**found, "gradients": gradients}
    step = 4 * seen.learning(shape.layers) if load.is_gpu else 8 * seen.largest
    if sum(found.values()) >= gradients + step:
        return found
    return {"gradients": gradients, "activations": 0.0, "logits": 0.0, "temporary": float(step)}


def _activations(shape: Shape, load: Load, *, is_checkpointing: bool) -> float:
    """Return the bytes that autograd keeps of the layers.

    Counted from the tensors which autograd saves for a Qwen2 layer with fused attention
    (transformers 5.24, torch 2.15): per token two fp32 copies of the stream (the norms upcast),
    five of it in the compute type, q, k and v, four feed-forward rows, and the statistics of
    norms and attention. With checkpointing only each layer's input stays, and one layer is
    computed again while the logits are gone.
    """
    element, tokens = 2 if load.is_half else 4, load.micro_batch * load.sequence
    width = 5 * shape.hidden + shape.heads * shape.head_size + 2 * shape.kv_width
    rows = 4 if shape.is_gated else 2
    layer = 8 * shape.hidden + element * (width + rows * shape.inner) + 8 + 4 * shape.heads
    tail = tokens * shape.hidden * (4 + 2 * element)  # final norm and the head's input
    if not is_checkpointing:
        return float(tokens * layer * shape.layers + tail)
    kept = tokens * shape.hidden * element * shape.layers
    again = max(0.0, tokens * layer - _logits(shape, load))
    return float(kept + tail + again)


def _logits(shape: Shape, load: Load) -> float:
    """Return the bytes of the loss's peak: logits, their fp32 copy, log-softmax, its gradient."""
    element = 2 if load.is_half else 0  # in fp32 the copy is the tensor itself
    return float(load.micro_batch * load.sequence * shape.vocab * (element + 12))


def _buckets(count: int, load: Load, element: int) -> float:
    if load.zero_stage is None or load.ranks == 1:
        return 0.0
    reduce = 2 * min(count, _BUCKET_ELEMENTS) * element  # one is filled while one is reduced
    live = min(count, _LIVE_ELEMENTS) * element if load.zero_stage == 3 else 0
    return float(reduce + live)


def memory(terms: Mapping[str, float], load: Load) -> Range:
    """Return the peak of one rank in bytes.

    Fragmentation and what the terms leave out widen the range: the caching allocator holds up
    to about an eighth more than is in use.
    """
    context = _CONTEXT_BYTES if load.is_gpu else _PROCESS_BYTES
    rest = sum(amount for name, amount in terms.items() if name != "context")
    low, likely, high = (rest * f + c for f, c in zip(_FRAGMENTED, context, strict=True))
    return Range(low, likely, high)


def storage_terms(shape: Shape, load: Load) -> dict[str, float]:
    """Return the likely bytes on disk: data, kept checkpoints, the one being written, result, logs.

    A checkpoint holds weights, fp32 master copy and both moments of what is trained. Tokens are
    packed beside the text they come from. Logs: 16 MiB and, per rank and step, 256 bytes.
    """
    element = 2 if load.is_half else 4
    trained = shape.parameters * load.trained
    saved = (element + 12) * trained
    steps = load.max_steps or 0
    tokens = _tokens(load)
    if not steps and tokens is not None:
        steps = round(tokens[1] / (load.global_batch * load.sequence))
    return {
        "data": 2.0 * load.data_bytes,
        "checkpoints": load.keep_last * saved,
        "checkpoint_in_flight": saved,
        "model": element * trained,
        "logs": float(_LOG_BYTES + 256 * load.ranks * steps),
    }


def storage(terms: Mapping[str, float]) -> Range:
    """Return the bytes on disk at once; high allows for metadata, and as much data again."""
    likely = sum(terms.values())
    high = 1.1 * likely + terms["data"]
    return Range(likely - terms["checkpoint_in_flight"], likely, high)


def seconds(shape: Shape, load: Load, *, is_checkpointing: bool) -> Range | None:
    """Return the duration, or None where the amount of data or the device is not known.

    6 FLOP per parameter and token (arXiv 2001.08361, section 2.1), 8 when activations are
    computed again, over the sustained speed of all ranks.
    """
    tokens = _tokens(load)
    if tokens is None or not load.flops:
        return None
    work = (8 if is_checkpointing else 6) * shape.parameters / (load.flops * load.ranks)
    pace = (0.6, 1.0, 2.0)
    low, likely, high = (
        amount * work * slower + start
        for amount, slower, start in zip(tokens, pace, _START_S, strict=True)
    )
    return Range(low, likely, high)


def _tokens(load: Load) -> tuple[float, float, float] | None:
    most = float("inf")
    if load.max_steps is not None:
        most = float(load.max_steps * load.global_batch * load.sequence)
    if load.epochs is None or not load.data_bytes:
        return None if most == float("inf") else (most / 4, most / 2, most)
    low, likely, high = (load.epochs * load.data_bytes / per for per in _BYTES_PER_TOKEN)
    return min(low, most), min(likely, most), min(high, most)


def describe(
    shape: Shape, load: Load, *, is_checkpointing: bool, seen: Rehearsal | None = None
) -> dict[str, Any]:
    """Return the whole estimate as JSON values; bytes and seconds are whole numbers."""
    terms = memory_terms(shape, load, is_checkpointing=is_checkpointing, seen=seen)
    time = seconds(shape, load, is_checkpointing=is_checkpointing)
    disk = storage_terms(shape, load)
    return {
        "parameters": seen.whole(shape.layers) if seen else shape.parameters,
        "memory_bytes": memory(terms, load).rounded(),
        "terms_bytes": {name: round(amount) for name, amount in terms.items()},
        "dominating": max(terms, key=lambda name: (terms[name], name)),
        "storage_bytes": storage(disk).rounded(),
        "storage_terms_bytes": {name: round(amount) for name, amount in disk.items()},
        "duration_s": None if time is None else time.rounded(),
        "gpu_s": None if time is None else round(time.likely * load.ranks),
        "gradient_checkpointing": is_checkpointing,
        "memory_from": "formula" if seen is None else "dry run",
    }


def adapter_share(shape: Shape, rank: int) -> float:
    """Return the share of the weights that a low-rank adapter on every linear layer trains."""
    width = shape.heads * shape.head_size
    rows = 2 * (shape.hidden + width) + 2 * (shape.hidden + shape.kv_width)
    rows += (3 if shape.is_gated else 2) * (shape.hidden + shape.inner)
    return min(1.0, rank * rows * shape.layers / shape.parameters)
