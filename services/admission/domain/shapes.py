"""The shape of a causal language model, read from its Hugging Face configuration.

Only what an estimate needs: sizes, counts, context. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocab": ("vocab_size",),
    "inner": ("intermediate_size", "n_inner", "ffn_dim"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim", "kv_channels"),
    "context": ("max_position_embeddings", "n_positions", "seq_length"),
}
_UNGATED = frozenset(("gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "phi"))


class ShapeError(ValueError):
    """A configuration that lacks a size; its message names it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder-only transformer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocab: int
    context: int | None
    is_gated: bool = True
    is_tied: bool = False
    has_qkv_bias: bool = False

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one token."""
        return self.kv_heads * self.head_size

    @property
    def parameters(self) -> int:
        """Number of weights: embeddings, layers, final norm, output head.

        Counted from the modules of a Llama-like block: q, k, v, o projections, two or three
        feed-forward matrices, two norms.
        """
        width = self.heads * self.head_size
        attention = self.hidden * (2 * width + 2 * self.kv_width)
        bias = width + 2 * self.kv_width if self.has_qkv_bias else 0
        feed_forward = (3 if self.is_gated else 2) * self.hidden * self.inner
        layer = attention + bias + feed_forward + 2 * self.hidden
        embeddings = (1 if self.is_tied else 2) * self.vocab * self.hidden
        return embeddings + self.layers * layer + self.hidden


def read(config: Mapping[str, Any]) -> Shape:
    """Read a configuration. Raises ``ShapeError`` that names what is missing or wrong."""
    kind = str(config.get("model_type", ""))
    sizes = {name: _size(config, name) for name in _NAMES}
    needed = ("hidden", "layers", "heads", "vocab")
    missing = [_NAMES[name][0] for name in needed if not sizes[name]]
    if missing:
        raise ShapeError(f"the model's configuration lacks {', '.join(missing)}")
    hidden, heads = sizes["hidden"] or 1, sizes["heads"] or 1
    inner = sizes["inner"] or 4 * hidden
    if kind == "qwen":  # the first Qwen states both halves of its gated feed-forward together
        inner //= 2
    return Shape(
        hidden=hidden,
        layers=sizes["layers"] or 1,
        heads=heads,
        kv_heads=sizes["kv_heads"] or heads,
        head_size=sizes["head_size"] or max(1, hidden // heads),
        inner=inner,
        vocab=sizes["vocab"] or 1,
        context=sizes["context"],
        is_gated=kind not in _UNGATED,
        is_tied=config.get("tie_word_embeddings") is True,
        has_qkv_bias=kind in ("qwen", "qwen2", "qwen2_moe") or bool(config.get("attention_bias")),
    )


def _size(config: Mapping[str, Any], name: str) -> int | None:
    for spelling in _NAMES[name]:
        value = config.get(spelling)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
            raise ShapeError(f"{spelling} of the model's configuration must be a whole number")
        return value
    return None
