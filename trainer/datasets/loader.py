"""Batches for one rank: which samples a step takes, and how they become tensors.

The position is one number, the global sample index: step s takes the samples from s x global
batch on, whatever ranks there are. Nothing is drawn from torch's generators.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from trainer.datasets import permutation
from trainer.datasets.store import Row, Subset

IGNORED = -100


@dataclass(slots=True)
class Batch:
    """Tensors of one forward pass, shaped [samples, tokens].

    ``labels`` are the ids where a token counts in the loss, else -100. A packed batch has
    ``positions`` and no ``attention``; a padded one has ``attention``.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    attention: torch.Tensor | None
    positions: torch.Tensor | None
    tokens: int

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What the model is called with."""
        given = {"input_ids": self.ids}
        if self.attention is not None:
            given["attention_mask"] = self.attention
        if self.positions is not None:
            given["position_ids"] = self.positions
        return given

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        if device.type == "cpu":
            return self
        return Batch(
            self.ids.to(device),
            self.labels.to(device),
            None if self.attention is None else self.attention.to(device),
            None if self.positions is None else self.positions.to(device),
            self.tokens,
        )


@dataclass(frozen=True, slots=True)
class Share:
    """The batch's shape, and which part of every global batch this rank computes."""

    micro: int
    accumulation: int
    rank: int
    world_size: int

    @property
    def total(self) -> int:
        """Samples per optimiser step over all ranks."""
        return self.micro * self.accumulation * self.world_size

    def of(self, position: int) -> np.ndarray:
        """Return the global sample indices of this rank, shaped [accumulation, micro]."""
        whole = np.arange(position, position + self.total, dtype=np.uint64)
        return whole.reshape(self.accumulation, self.world_size, self.micro)[:, self.rank]


class Loader:
    """Gives the micro-batches of the step that begins at a global sample index."""

    def __init__(self, subset: Subset, share: Share, *, seed: int, pad_id: int) -> None:
        self._subset = subset
        self._share = share
        self._seed = seed
        self._pad_id = pad_id

    def at(self, position: int) -> Iterator[Batch]:
        """Yield the micro-batches of the optimiser step at ``position``."""
        for indices in self._share.of(position):
            chosen = permutation.rows(indices, len(self._subset), self._seed)
            yield collate([self._subset.row(int(number)) for number in chosen], self._pad_id)

    def rows_of(self, position: int, rank: int) -> list[int]:
        """Return which rows of the prepared data ``rank`` computes of the step at ``position``."""
        indices = replace(self._share, rank=rank).of(position)
        return [int(row) for row in permutation.rows(indices, len(self._subset), self._seed).flat]


def collate(rows: list[Row], pad_id: int) -> Batch:
    """Make one batch of rows, padded on the right to the longest of them."""
    longest = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    labels = np.full_like(ids, IGNORED)
    attention = np.zeros_like(ids)
    for number, row in enumerate(rows):
        length = len(row.ids)
        ids[number, :length] = row.ids
        labels[number, :length] = np.where(row.mask, row.ids, IGNORED)
        attention[number, :length] = 1
    positions = None
    if all(row.positions is not None for row in rows):
        positions = torch.from_numpy(np.stack([row.positions for row in rows]))  # type: ignore[misc]
        labels[positions.numpy() == 0] = IGNORED  # nothing before it in its document
    return Batch(
        ids=torch.from_numpy(ids),
        labels=torch.from_numpy(labels),
        attention=None if positions is not None else torch.from_numpy(attention),
        positions=positions,
        tokens=int(attention.sum()),
    )
