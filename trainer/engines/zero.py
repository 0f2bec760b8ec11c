"""DeepSpeed: ZeRO stages 0 to 3 over gloo on CPU, NCCL on GPU.

Importing this module imports DeepSpeed. Its shared-memory op needs a compiler and leaves files
in /dev/shm, so it is switched off before DeepSpeed could look for it.
"""

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.datasets.loader import Batch
from trainer.engines import schedule
from trainer.engines.port import Sink
from trainer.network import causal_loss, state_of
from trainer.recipe import Recipe

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.pop("LOCAL_SIZE", None)

import deepspeed
from deepspeed.ops import __compatible_ops__
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

__compatible_ops__["deepspeed_shm_comm"] = False
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)

TAG = "engine"
BUCKET_ELEMENTS_MAX = 200_000_000


def join(backend: str, timeout: timedelta) -> None:
    """Form the process group of all ranks by the launcher's variables."""
    deepspeed.init_distributed(
        dist_backend=backend, auto_mpi_discovery=False, verbose=False, timeout=timeout
    )


class _SinkEngine(CheckpointEngine):  # type: ignore[misc]
    """Sends what DeepSpeed saves to our sink, so that every file is hashed as it is written."""

    def __init__(self) -> None:
        self.name = "lineshaft"
        self.sink: Sink | None = None

    def create(self, info: Any) -> None:
        """Nothing to announce."""

    def save(self, state_dict: Any, path: str) -> None:
        """Write one file of the checkpoint."""
        assert self.sink is not None
        self.sink.save(state_dict, Path(path).relative_to(self.sink.folder).as_posix())

    def load(self, path: str, map_location: Any = None) -> Any:
        """Read a file whose hash was checked; it holds more than tensors."""
        return torch.load(path, map_location=map_location, weights_only=False)

    def commit(self, info: Any) -> bool:
        """The commit is the saver's."""
        return True


class ZeroEngine:
    """A DeepSpeed engine with our optimiser, our schedule and our files."""

    def __init__(self, asked: Recipe, module: nn.Module, total_steps: int) -> None:
        self._asked = asked
        self._stage = asked.zero_stage or 0
        self.layout = f"zero{self._stage}"
        self.is_lockstep = self._stage == 3
        learning = [p for p in module.parameters() if p.requires_grad]
        made = schedule.optimiser(learning, asked.optimisation)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=made,
            lr_scheduler=schedule.scheduler(made, asked.optimisation, total_steps),
            config=self._config(sum(p.numel() for p in learning)),
        )
        self._engine: Any = engine
        self._files = _SinkEngine()
        engine.checkpoint_engine = self._files
        engine._copy_recovery_script = lambda _folder: None  # it writes behind the sink's back
        self.device = torch.device(engine.device)
        self.module: nn.Module = engine.module
        engine.train()

    @property
    def _clips_itself(self) -> bool:
        """At stage 0 in fp32 DeepSpeed clips without saying what the norm was."""
        return self._stage == 0 and self._asked.precision == "fp32"

    def _config(self, elements: int) -> dict[str, Any]:
        wish = self._asked
        ours = {
            "train_micro_batch_size_per_gpu": wish.micro_batch,
            "gradient_accumulation_steps": wish.accumulation,
            "train_batch_size": wish.global_batch,
            "gradient_clipping": 0.0 if self._clips_itself else wish.optimisation.max_grad_norm,
            "bf16": {"enabled": wish.precision == "bf16"},
            "steps_per_print": 1 << 60,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": self._stage,
                "overlap_comm": torch.cuda.is_available(),
                "reduce_bucket_size": min(max(elements, 1 << 16), BUCKET_ELEMENTS_MAX),
                "allgather_bucket_size": min(max(elements, 1 << 16), BUCKET_ELEMENTS_MAX),
            },
        }
        return merged(wish.deepspeed, ours)

    def backward(self, batch: Batch) -> float:
        """Accumulate one micro-batch; at the last of a step gradients are reduced."""
        given = batch.to(self.device)
        loss = causal_loss(self._engine(**given.inputs).logits, given.labels)
        self._engine.backward(loss)
        if not self._engine.is_gradient_accumulation_boundary():
            self._engine.step()
        return float(loss.detach())

    def step(self) -> float:
        """Update the weights."""
        if self._clips_itself:
            longest = self._asked.optimisation.max_grad_norm or math.inf
            norm: Any = nn.utils.clip_grad_norm_(self.module.parameters(), longest)
            self._engine.step()
        else:
            self._engine.step()
            norm = self._engine.get_global_grad_norm()
        return math.nan if norm is None else float(norm)

    def learning_rate(self) -> float:
        """Return the rate of the next step."""
        return float(self._engine.lr_scheduler.get_last_lr()[0])

    def save(self, sink: Sink) -> None:
        """Let DeepSpeed write its files into the sink; its ``latest`` is not written."""
        self._files.sink = sink
        try:
            self._engine.save_checkpoint(
                str(sink.folder),
                tag=TAG,
                save_latest=False,
                exclude_frozen_parameters=self._asked.lora is not None,
            )
        finally:
            self._files.sink = None

    def load(self, folder: Path) -> None:
        """Restore from DeepSpeed's files, whose hashes were checked."""
        found, _ = self._engine.load_checkpoint(
            str(folder), tag=TAG, load_module_strict=self._asked.lora is None
        )
        if found is None:
            raise RuntimeError(f"DeepSpeed found nothing to load in {folder}")

    def weights(self) -> dict[str, torch.Tensor] | None:
        """Return the module's tensors on rank 0; at stage 3 they are gathered first."""
        if self._stage != 3:
            return self._state()
        wanted = [p for p in self.module.parameters() if p.requires_grad or not self._asked.lora]
        with deepspeed.zero.GatheredParameters(wanted):
            return self._state()

    def _state(self) -> dict[str, torch.Tensor] | None:
        if torch.distributed.get_rank() != 0:
            return None
        return state_of(self.module, only_learning=self._asked.lora is not None)

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """Give the module in evaluation mode."""
        self.module.eval()
        try:
            with torch.no_grad():
                yield self.module
        finally:
            self.module.train()


def merged(wish: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's DeepSpeed configuration with ours over it, group by group."""
    made = dict(wish)
    for key, value in ours.items():
        mine = made.get(key)
        made[key] = (
            merged(mine, value)
            if isinstance(mine, Mapping) and isinstance(value, Mapping)
            else value
        )
    return made
