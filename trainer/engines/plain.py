"""Plain torch on one device: no process group, no sharding."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn

from trainer.datasets.loader import Batch
from trainer.engines import schedule
from trainer.engines.port import Sink
from trainer.network import causal_loss, state_of
from trainer.recipe import Recipe

STATE = "engine/state.pt"


class PlainEngine:
    """One process, one device; bf16 runs under autocast over fp32 weights."""

    layout = "plain"
    is_lockstep = False

    def __init__(self, asked: Recipe, module: nn.Module, total_steps: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module = module.to(self.device)
        self._asked = asked
        self._learning = [p for p in module.parameters() if p.requires_grad]
        self._optimiser = schedule.optimiser(self._learning, asked.optimisation)
        self._scheduler = schedule.scheduler(self._optimiser, asked.optimisation, total_steps)
        self.module.train()

    def backward(self, batch: Batch) -> float:
        """Accumulate one micro-batch."""
        given = batch.to(self.device)
        with self._precision():
            logits = self.module(**given.inputs).logits
        loss = causal_loss(logits, given.labels)
        (loss / self._asked.accumulation).backward()
        return float(loss.detach())

    def step(self) -> float:
        """Update the weights; a gradient that is no number leaves them as they are."""
        longest = self._asked.optimisation.max_grad_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self._learning, longest)
        if torch.isfinite(norm):
            self._optimiser.step()
        self._scheduler.step()
        self._optimiser.zero_grad(set_to_none=True)
        return float(norm)

    def learning_rate(self) -> float:
        """Return the rate of the next step."""
        return float(self._scheduler.get_last_lr()[0])

    def save(self, sink: Sink) -> None:
        """Write everything as one file."""
        state = {
            "model": state_of(self.module, only_learning=self._asked.lora is not None),
            "optimiser": self._optimiser.state_dict(),
            "scheduler": self._scheduler.state_dict(),
        }
        sink.save(state, STATE)

    def load(self, folder: Path) -> None:
        """Restore from that file, whose hash was checked."""
        state = torch.load(folder / STATE, map_location=self.device, weights_only=True)
        self.module.load_state_dict(state["model"], strict=self._asked.lora is None)
        self._optimiser.load_state_dict(state["optimiser"])
        self._scheduler.load_state_dict(state["scheduler"])

    def weights(self) -> dict[str, torch.Tensor] | None:
        """Return the module's tensors, of an adapter those that learn."""
        return state_of(self.module, only_learning=self._asked.lora is not None)

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """Give the module in evaluation mode."""
        self.module.eval()
        try:
            with torch.no_grad(), self._precision():
                yield self.module
        finally:
            self.module.train()

    def _precision(self) -> AbstractContextManager[object]:
        if self._asked.precision == "bf16":
            cast: AbstractContextManager[object] = torch.autocast(
                self.device.type, dtype=torch.bfloat16
            )
            return cast
        return nullcontext()
