"""The final folder of a run: what becomes a version, with everything needed to trust it.

Hugging Face layout (safetensors, config, tokenizer) beside the reports, and ``artifact.json``,
which tells the agent what each file is. Rank 0 writes; nothing here trains or measures.
"""

import hashlib
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.datasets import tokens
from trainer.datasets.store import Prepared
from trainer.evaluation.examiner import Report, values
from trainer.network import parameters, tensors_digest
from trainer.prepare import Found, write_json
from trainer.recipe import Recipe

PACKAGES = ("torch", "transformers", "deepspeed", "peft", "safetensors", "tokenizers", "numpy")
ROLES = {
    "training_config.json": "training",
    "environment.json": "environment",
    "data.json": "data",
    "evaluation.json": "evaluation",
}
_TOKENIZER_FILES = frozenset(tokens.FILES)
LONGEST_SHARD = "4GB"


@dataclass(frozen=True, slots=True)
class Ending:
    """What training came to: the last step, the reports, and numbers of the run."""

    step: int
    before: Report | None
    after: Report | None
    identity: Mapping[str, Any]
    numbers: Mapping[str, float]
    resumed_from: Mapping[str, Any] | None


@dataclass(slots=True)
class Final:
    """Writes one run's final folder."""

    asked: Recipe
    spec: Mapping[str, Any]
    resolved: Mapping[str, Any]
    found: Found
    data: Prepared | None

    def write(self, module: nn.Module, state: Mapping[str, torch.Tensor], ending: Ending) -> Path:
        """Write everything and return the folder; an older one of this attempt is replaced."""
        making = self.asked.place.run_folder / ".final"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        is_model = self.asked.job_type != "evaluate"
        if is_model:
            self._model(making, module, dict(state))
        environment = environment_of()
        write_json(making / "training_config.json", self._training(ending))
        write_json(making / "environment.json", environment)
        if self.data is not None:
            write_json(making / "data.json", self.data.meta)
        write_json(making / "evaluation.json", report_of(ending))
        body = {
            "schema": 1,
            "kind": self._kind(),
            "model": self._described(making, module, state) if is_model else {},
            "metrics": metrics_of(ending),
            "environment": environment,
            "lineage": self._lineage(ending),
            "roles": {path: role_of(path) for path in _paths(making)},
        }
        write_json(making / "artifact.json", body)
        folder = self.asked.place.run_folder / "final"
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
        return folder

    def _kind(self) -> str:
        return {"lora": "adapter", "evaluate": "files"}.get(self.asked.job_type, "model")

    def _model(self, folder: Path, module: Any, state: dict[str, torch.Tensor]) -> None:
        module.save_pretrained(
            str(folder), state_dict=state, safe_serialization=True, max_shard_size=LONGEST_SHARD
        )
        for leftover in ("README.md",):  # peft's model card names a machine's path
            (folder / leftover).unlink(missing_ok=True)
        tokens.copy_folder(self.found.tokenizer, folder)

    def _described(
        self, folder: Path, module: Any, state: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        config = module.config if not self.asked.lora else module.get_base_model().config
        vocabulary = tokens.load(folder)
        template = vocabulary.chat_template
        return {
            "architecture": (config.architectures or [type(module).__name__])[0],
            "parameters": parameters(module),
            "vocabSize": config.vocab_size,
            "context": int(getattr(config, "max_position_embeddings", 0)),
            "dtype": str(next(iter(state.values())).dtype).removeprefix("torch."),
            "quantization": None,
            "tensors": tensors_digest(dict(state)),
            "tokenizer": vocabulary.digest,
            "chatTemplate": None if template is None else _digest(template),
        }

    def _lineage(self, ending: Ending) -> dict[str, Any]:
        described = self.data.meta["datasets"] if self.data else []
        return {
            "base": self.found.base,
            "job": self.asked.job,
            "attempt": self.asked.attempt,
            "step": ending.step,
            "datasets": [
                {name: each[name] for name in ("name", "version", "digest")} for each in described
            ],
        }

    def _training(self, ending: Ending) -> dict[str, Any]:
        return {
            "job": self.asked.job,
            "attempt": self.asked.attempt,
            "steps": ending.step,
            "resumedFrom": None if ending.resumed_from is None else dict(ending.resumed_from),
            "spec": dict(self.spec),
            "resolved": dict(self.resolved),
            "numbers": dict(ending.numbers),
        }


def report_of(ending: Ending) -> dict[str, Any]:
    """Return the evaluation report: {suite, digest, before: {task: ...}, after: {task: ...}}."""
    return {
        "schema": 1,
        **ending.identity,
        "before": ending.before or {},
        "after": ending.after or {},
    }


def metrics_of(ending: Ending) -> dict[str, float]:
    """Return the flat metrics of a version: task.metric after training, and the run's numbers."""
    measured = {f"{task}.{metric}": value for task, metric, value in values(ending.after or {})}
    return {**measured, **ending.numbers}


def environment_of() -> dict[str, Any]:
    """Return what the run ran on: versions and kind of device; no names of machines."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "device": device,
        "packages": versions,
    }


def role_of(path: str) -> str:
    """Return what a file of the final folder is, in the manifest's words."""
    if path in ROLES:
        return ROLES[path]
    if path in _TOKENIZER_FILES:
        return "tokenizer"
    return "weights" if path.endswith((".safetensors", ".safetensors.index.json")) else "config"


def _paths(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
