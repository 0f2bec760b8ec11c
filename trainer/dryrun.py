"""A dry run: what one and two layers of a model take, on tensors that hold no memory.

Reads a list of requests (JSON) from standard input and writes the list of their answers to
standard output; runs in a process of its own, because who plans a job imports no torch. Nothing
is computed: shapes alone pass through the model, its loss and its backward pass
(FakeTensorMode), and every storage is counted while it lives (MemTracker). How the answer is
carried on to all layers is the estimator's business.

    {"config": {...}, "micro_batch": 4, "sequence": 2048, "engine": "plain" | "zero",
     "precision": "fp32" | "bf16", "checkpointing": false,
     "lora": null | {"rank": 8, "targets": []}}
    {"schema": 1, "torch": "2.15.0", "transformers": "5.24.0",
     "layers": {"1": [phase, ...], "2": [phase, ...]}, "parameters": {"1": n, "2": n},
     "trained": {"1": n, "2": n}, "largest": n}

A phase is {"activations", "gradients", "temporary"} in bytes at its own peak. The first ends
where the loss's gradient reaches the last layer's output; then follows one per layer, the last
layer first; the embeddings' backward belongs to the last phase.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.network import adapted, causal_loss
from trainer.recipe import Lora

SCHEMA = 1
_LAYER_NAMES = ("num_hidden_layers", "n_layer", "num_layers")
_KINDS = {"Activation": "activations", "Gradient": "gradients", "Temp": "temporary"}


class _NoHook:
    """The handle of no hook."""

    def remove(self) -> None:
        """Remove nothing."""


class _Phases(MemTracker):  # type: ignore[misc]
    """A tracker that can be told where one phase ends and the next begins."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[dict[str, int]] = []

    def leave_out(self, frozen: nn.Parameter) -> None:
        """Take a weight that never gets a gradient as one that is hooked already."""
        self._param_to_grad_hook_handles[frozen] = (_NoHook(), _NoHook())

    def next(self) -> None:
        """Keep the peak since the last call and begin anew."""
        peaks = self.get_tracker_snapshot("peak").values()
        rows = [{str(getattr(k, "value", k)): v for k, v in peak.items()} for peak in peaks]
        self.done.append({ours: sum(r.get(k, 0) for r in rows) for k, ours in _KINDS.items()})
        self._peak_mem.clear()
        self._peak_mem_snap.clear()


def run(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request. Raises what transformers and torch raise for a model they cannot make."""
    layers, parameters, trained = {}, {}, {}
    largest = 0
    for count in (1, 2):
        model = _model(asked, count)
        with FakeTensorMode():
            _fake(model)
            shapes = [p.numel() for p in model.parameters()]
            parameters[str(count)] = sum(shapes)
            trained[str(count)] = sum(p.numel() for p in model.parameters() if p.requires_grad)
            largest = max(largest, *shapes)
            layers[str(count)] = _phases(model, asked, count)
    return {
        "schema": SCHEMA,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "layers": layers,
        "parameters": parameters,
        "trained": trained,
        "largest": largest,
    }


def _model(asked: Mapping[str, Any], count: int) -> nn.Module:
    given = {**asked["config"], **{n: count for n in _LAYER_NAMES if n in asked["config"]}}
    given.pop("layer_types", None)  # it lists all layers; one and two are alike
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    config.use_cache = False
    is_cast = asked["engine"] == "zero" and asked["precision"] == "bf16"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if is_cast else torch.float32
        )
    if asked["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if asked.get("lora"):
        shape = Lora(int(asked["lora"]["rank"]), targets=tuple(asked["lora"].get("targets", ())))
        model = adapted(model, shape)
    model.train()
    made: nn.Module = model
    return made


def _fake(model: nn.Module) -> None:
    """Put fake tensors in the place of the shapes; what is tied stays tied."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                if id(weight) not in made:
                    fake = torch.empty(weight.shape, dtype=weight.dtype)
                    made[id(weight)] = nn.Parameter(fake, requires_grad=weight.requires_grad)
                module._parameters[name] = made[id(weight)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _phases(model: nn.Module, asked: Mapping[str, Any], count: int) -> list[dict[str, int]]:
    tracker = _Phases()
    for weight in model.parameters():
        if not weight.requires_grad:
            tracker.leave_out(weight)
    tracker.track_external(model)
    for layer in _layers(model, count):
        layer.register_forward_hook(lambda _m, _a, out: _tell(out, tracker))
    size = (int(asked["micro_batch"]), int(asked["sequence"]))
    with tracker:
        tokens = torch.zeros(size, dtype=torch.int64)
        mask, labels = torch.ones_like(tokens), torch.zeros_like(tokens)
        with _precision(asked):
            logits = model(input_ids=tokens, attention_mask=mask).logits
        loss = causal_loss(logits, labels)
        loss.backward()
        tracker.next()
    return tracker.done


def _layers(model: nn.Module, count: int) -> nn.ModuleList:
    """Return the list of decoder layers: the outermost list of that length."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"the model holds no list of {count} layers")


def _tell(output: Any, tracker: _Phases) -> None:
    """End a phase when the gradient of a layer's output is there."""
    tensor = output[0] if isinstance(output, tuple) else output
    if tensor.requires_grad:
        tensor.register_hook(lambda _gradient: tracker.next())


def _precision(asked: Mapping[str, Any]) -> AbstractContextManager[object]:
    if asked["engine"] == "plain" and asked["precision"] == "bf16":
        cast: AbstractContextManager[object] = torch.autocast("cpu", dtype=torch.bfloat16)
        return cast
    return nullcontext()


if __name__ == "__main__":
    json.dump([run(request) for request in json.load(sys.stdin)], sys.stdout)
