"""The estimator against what was measured, and against arithmetic that can be done by hand."""

import dataclasses

import pytest

from services.admission.domain import estimate, shapes
from services.admission.domain.estimate import Load
from services.admission.domain.policy import GIB
from services.admission.domain.shapes import Shape
from tests.builders_admission import QWEN_7B, TINY

BASE = Load(
    ranks=16,
    micro_batch=4,
    global_batch=64,
    sequence=2048,
    zero_stage=2,
    is_half=True,
    is_gpu=True,
    epochs=3,
    data_bytes=400_000_000,
    flops=125e12,
)


def terms(checkpointing: bool, **changes: object) -> dict[str, float]:
    load = dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]
    return estimate.memory_terms(shapes.read(QWEN_7B), load, is_checkpointing=checkpointing)


@pytest.mark.parametrize(
    ("sequence", "checkpointing", "measured_gib"),
    [(2048, False, 63.0), (2048, True, 18.5), (1024, False, 31.2)],
)
def test_activations_and_logits_are_what_was_measured(
    sequence: int, checkpointing: bool, measured_gib: float
) -> None:
    """Within 3 % of the peak of a real model of this shape, batch 4, bf16, fused attention."""
    found = terms(checkpointing, sequence=sequence)
    assert (found["activations"] + found["logits"]) / GIB == pytest.approx(measured_gib, rel=0.03)


@pytest.mark.parametrize(
    ("hidden", "inner", "heads", "kv", "half", "bytes_per_token"),
    [
        (4096, 11008, 32, 32, True, 186_504),
        (3584, 18944, 28, 4, True, 225_400),
        (4096, 11008, 32, 32, False, 340_104),
        (3584, 18944, 28, 4, False, 422_008),
    ],
)
def test_a_layer_keeps_the_bytes_that_autograd_saves(
    hidden: int, inner: int, heads: int, kv: int, half: bool, bytes_per_token: int
) -> None:
    """To the byte, as counted with saved-tensor hooks on one and two layers."""
    config = QWEN_7B | {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
    }
    one, two = (
        estimate.memory_terms(
            shapes.read(config | {"num_hidden_layers": layers}),
            dataclasses.replace(BASE, is_half=half, micro_batch=1, sequence=8),
            is_checkpointing=False,
        )["activations"]
        for layers in (1, 2)
    )
    assert (two - one) / 8 == bytes_per_token


def test_states_follow_the_zero_stage() -> None:
    """Stage 1 shards the optimiser, 2 the gradients too, 3 the weights too."""
    weights = 2.0 * shapes.read(QWEN_7B).parameters
    for stage, wanted in {0: (1, 1, 6), 1: (1, 1, 6 / 16), 2: (1, 1 / 16, 6 / 16)}.items():
        found = terms(True, zero_stage=stage)
        shares = tuple(found[n] / weights for n in ("weights", "gradients", "optimizer"))
        assert shares == pytest.approx(wanted)
    found = terms(True, zero_stage=3)
    assert found["weights"] == pytest.approx(weights / 16)


def test_the_number_of_weights_is_the_models() -> None:
    """7.72 billion for the Qwen-7B shape; the first Qwen's doubled inner size is halved."""
    assert shapes.read(QWEN_7B).parameters / 1e9 == pytest.approx(7.72, abs=0.01)
    first = QWEN_7B | {"model_type": "qwen", "intermediate_size": 22016}
    assert shapes.read(first).parameters == shapes.read(QWEN_7B).parameters


def test_the_weights_of_a_small_model_count_by_hand() -> None:
    """Tied embeddings, grouped keys, biases of the Qwen2 attention."""
    layer = 64 * 64 * 4 + 64 * 3 + 3 * 64 * 128 + 2 * 64
    assert shapes.read(TINY).parameters == 512 * 64 + 2 * layer + 64


@pytest.mark.parametrize("config", [{}, {"hidden_size": "64"}, {**TINY, "vocab_size": -1}])
def test_a_configuration_without_sizes_is_named(config: dict[str, object]) -> None:
    """The message says which size is missing or wrong."""
    with pytest.raises(shapes.ShapeError, match="configuration"):
        shapes.read(config)


def test_more_of_anything_never_takes_less() -> None:
    """Memory grows with batch, length and depth, and shrinks with the stage."""
    small, large = shapes.read(TINY), shapes.read(QWEN_7B)

    def total(shape: Shape, **more: int) -> float:
        load = dataclasses.replace(BASE, **more)  # type: ignore[arg-type]
        found = estimate.memory_terms(shape, load, is_checkpointing=False)
        return estimate.memory(found, load).likely

    assert total(small) < total(large)
    for more in ({"micro_batch": 8}, {"sequence": 4096}, {"zero_stage": 1}):
        assert total(large) < total(large, **more)


def test_time_is_six_flop_per_weight_and_token() -> None:
    """Eight when activations are computed again; unknown data gives no time."""
    shape = shapes.read(QWEN_7B)
    plain = estimate.seconds(shape, BASE, is_checkpointing=False)
    again = estimate.seconds(shape, BASE, is_checkpointing=True)
    assert plain is not None
    assert again is not None
    tokens = 3 * 400e6 / 4
    assert plain.likely == pytest.approx(6 * shape.parameters * tokens / (125e12 * 16) + 40)
    assert (again.likely - 40) / (plain.likely - 40) == pytest.approx(8 / 6)
    assert plain.low < plain.likely < plain.high
    unknown = dataclasses.replace(BASE, data_bytes=0)
    assert estimate.seconds(shape, unknown, is_checkpointing=False) is None
    bounded = dataclasses.replace(unknown, max_steps=10)
    assert estimate.seconds(shape, bounded, is_checkpointing=False) is not None


def test_storage_holds_the_kept_checkpoints_one_in_flight_and_the_result() -> None:
    """14 bytes a weight per checkpoint in half precision."""
    shape = shapes.read(QWEN_7B)
    load = dataclasses.replace(BASE, data_bytes=0, keep_last=2, epochs=None, max_steps=100)
    parts = estimate.storage_terms(shape, load)
    assert parts["logs"] == 2**24 + 256 * 16 * 100
    found = estimate.storage(parts)
    assert found.likely - parts["logs"] == pytest.approx(shape.parameters * (3 * 14 + 2))
    assert found.low < found.likely < found.high


def test_an_adapter_trains_a_small_share() -> None:
    """Rank 8 on every linear layer of a 7B model is about 20 million weights."""
    share = estimate.adapter_share(shapes.read(QWEN_7B), 8)
    assert share * 7.72e9 == pytest.approx(20e6, rel=0.05)
