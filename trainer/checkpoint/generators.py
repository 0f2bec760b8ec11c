"""The state of every random generator of a rank: taken for a checkpoint, put back after all else.

Restore after everything that may draw (building, loading, evaluation of the base) is done.
"""

import random
from typing import Any

import numpy as np
import torch


def seed(value: int, rank: int) -> None:
    """Seed this rank's generators; ranks differ, so that their dropout does."""
    mixed = (value * 1_000_003 + rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def take() -> dict[str, Any]:
    """Return the state of torch's, CUDA's, numpy's and Python's generators as plain values."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    words = np.asarray(keys).astype(np.int64)
    version, numbers, following = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(kind), torch.from_numpy(words), position, has_gauss, gauss],
        "python": [version, list(numbers), following],
    }


def restore(state: dict[str, Any]) -> None:
    """Put back what ``take`` returned."""
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    numbers = keys.cpu().numpy().astype(np.uint32)
    np.random.set_state((kind, numbers, position, has_gauss, gauss))
    version, drawn, following = state["python"]
    random.setstate((version, tuple(drawn), following))
