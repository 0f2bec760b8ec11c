"""What the loop needs from an engine, and no more. Nothing here does anything."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from trainer.datasets.loader import Batch


class Sink(Protocol):
    """Takes the files of a checkpoint; what this rank writes is hashed, synced and recorded."""

    folder: Path

    def save(self, state: Any, path: str) -> None:
        """Write ``state`` with ``torch.save`` at ``path`` inside the checkpoint.

        A failure is remembered and raised by the saver later: no rank may leave a collective.
        """
        ...


class Engine(Protocol):
    """A model with its optimiser and schedule, on this rank.

    ``layout`` names the form of its checkpoints. ``is_lockstep``: every rank must take part in
    every forward pass, for no rank holds the whole model.
    """

    layout: str
    device: torch.device
    module: nn.Module
    is_lockstep: bool

    def backward(self, batch: Batch) -> float:
        """Accumulate the gradients of one micro-batch; return its loss."""
        ...

    def step(self) -> float:
        """Clip, update, advance the schedule, forget the gradients; return the gradient norm."""
        ...

    def learning_rate(self) -> float:
        """Return the rate of the next step."""
        ...

    def save(self, sink: Sink) -> None:
        """Hand this rank's share of model, optimiser and schedule to ``sink`` (a collective)."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote into ``folder`` (a collective)."""
        ...

    def weights(self) -> dict[str, torch.Tensor] | None:
        """Return the whole model's tensors on rank 0, None elsewhere (a collective)."""
        ...

    def evaluating(self) -> AbstractContextManager[nn.Module]:
        """Give the module in evaluation mode, without gradients."""
        ...
