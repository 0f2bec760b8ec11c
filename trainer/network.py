"""The network of a run: made from a model folder, with an adapter around it where asked.

Knows transformers and peft; knows nothing of engines, data or checkpoints.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from trainer.faults import ConfigFault
from trainer.models import has_weights
from trainer.recipe import Lora, Recipe

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


def build(asked: Recipe, folder: Path) -> nn.Module:
    """Return the model in fp32: weights of the folder, or drawn with the recipe's seed.

    Only pretraining may begin with random weights. Raises ``ConfigFault``.
    """
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    if asked.sequence_length > int(getattr(config, "max_position_embeddings", 1 << 30)):
        longest = config.max_position_embeddings
        raise ConfigFault(f"sequenceLength {asked.sequence_length}: the model has {longest}")
    config.use_cache = False
    if has_weights(folder):
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), config=config, dtype=torch.float32, local_files_only=True
        )
    elif asked.is_pretraining:
        torch.manual_seed(asked.seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        raise ConfigFault(f"{folder}: no safetensors weights; {asked.job_type} needs a base model")
    if asked.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted(model, asked.lora) if asked.lora else model


def adapted(model: Any, shape: Lora) -> nn.Module:
    """Return the model with a low-rank adapter, the only part of it that learns."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - only adapters need peft

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=shape.rank,
        lora_alpha=shape.alpha,
        lora_dropout=shape.dropout,
        target_modules=list(shape.targets) or "all-linear",
    )
    model.enable_input_require_grads()
    try:
        made = get_peft_model(model, config)
    except ValueError as error:
        raise ConfigFault(f"hyperparameters.lora: {error}") from None
    return made


def causal_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of each token from those before it; labels of -100 are out."""
    flat = logits[:, :-1].flatten(0, 1).float()
    return nn.functional.cross_entropy(flat, labels[:, 1:].flatten(), ignore_index=-100)


def parameters(model: nn.Module) -> int:
    """Return the number of parameters, tied ones once; partitioned ones count whole."""
    return sum(int(getattr(p, "ds_numel", p.numel())) for p in model.parameters())


def tensors_digest(state: dict[str, torch.Tensor]) -> str:
    """Return a digest of names, shapes and types: equal for versions that load alike."""
    rows = sorted((name, list(t.shape), str(t.dtype)) for name, t in state.items())
    return "sha256:" + hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def state_of(module: nn.Module, *, only_learning: bool) -> dict[str, torch.Tensor]:
    """Return copies on the CPU of a module's tensors, of an adapter only those that learn.

    Tensors that are one in the module stay one in the copy: tied weights are written once.
    """
    learning = {name for name, p in module.named_parameters() if p.requires_grad}
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    made = {}
    for name, tensor in module.state_dict().items():
        if only_learning and name not in learning:
            continue
        key = (tensor.data_ptr(), tensor.shape)
        if key not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
        made[name] = copies[key]
    return made
