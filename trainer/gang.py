"""The ranks of a run together: who I am, and how all come to the same answer.

Small agreements go over a gloo group of their own, so that they cost the same on every device;
what may take long (a save) goes over the store, which has time-outs that do no harm.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer.recipe import Recipe

COLLECTIVE_TIMEOUT = timedelta(hours=1)  # above every hang limit: the monitor decides, not torch


@dataclass(slots=True)
class Gang:
    """A rank among the others. A gang of one needs no process group."""

    rank: int
    world_size: int
    local_rank: int
    control: Any = None
    store: Any = None

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def gather(self, row: list[float]) -> list[list[float]]:
        """Return every rank's row, in order of ranks: one small collective."""
        if self.world_size == 1:
            return [row]
        mine = torch.tensor(row, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(rows, mine, group=self.control)
        return [each.tolist() for each in rows]

    def share(self, value: Any) -> Any:
        """Return rank 0's ``value`` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            dist.barrier(group=self.control)

    def leave(self) -> None:
        """End the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def form(asked: Recipe, environ: Mapping[str, str] | None = None) -> Gang:
    """Join the other ranks by RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    DeepSpeed needs a process group for one rank, too.
    """
    environ = os.environ if environ is None else environ
    world_size = asked.world_size
    rank, local_rank = int(environ.get("RANK", "0")), int(environ.get("LOCAL_RANK", "0"))
    use_threads(world_size)
    if asked.zero_stage is None:
        return Gang(0, 1, local_rank)
    from trainer.engines.zero import join  # noqa: PLC0415 - seconds to import

    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    join("nccl" if torch.cuda.is_available() else "gloo", COLLECTIVE_TIMEOUT)
    control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    store = dist.distributed_c10d._get_default_store()
    return Gang(rank, world_size, local_rank, control, store)


def use_threads(world_size: int) -> None:
    """Give ranks that share processors one thread each; a rank alone uses them all."""
    if world_size > 1 and not torch.cuda.is_available():
        torch.set_num_threads(1)
