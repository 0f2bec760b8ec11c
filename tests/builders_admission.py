"""Builders for tests of job files and admission: documents, facts, folders with data."""

import copy
import json
from pathlib import Path
from typing import Any

from lineshaft.contracts.events import Fact
from services.admission.domain.decider import SUBMIT

QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
}
TINY: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
TWO_NODES: dict[str, Any] = {
    "nodes": [{"count": 2, "gpuType": "a100-80g", "gpus": 8}],
    "mounts": ["/data", "/models"],
    "models": {"qwen-7b-base": QWEN_7B},
}
FOUNDING = Path(__file__).parent.parent / "examples" / "founding.yaml"


def a_document(**spec: Any) -> dict[str, Any]:
    """Return a document of a small full-finetune job; ``spec`` replaces fields, None removes."""
    made: dict[str, Any] = {
        "jobType": "full-finetune",
        "model": "tiny@latest",
        "datasets": [{"name": "pairs", "path": "/data/pairs.jsonl"}],
        "resources": {"gpuType": "cpu", "gpuCount": 2},
        "output": {"modelName": "tiny-chat"},
    }
    made = {k: v for k, v in {**made, **spec}.items() if v is not None}
    return {
        "apiVersion": "lineshaft.io/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny-job"},
        "spec": copy.deepcopy(made),
    }


def a_script(**spec: Any) -> dict[str, Any]:
    """Return a document of a script job."""
    given = {"jobType": "script", "model": None, "datasets": None, "output": None, **spec}
    given.setdefault("command", ["python", "train.py"])
    return a_document(**given)


def with_value(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with one field of ``spec`` set: ``hyperparameters.lora.rank``."""
    made = copy.deepcopy(document)
    there = made["spec"]
    *folders, last = path.split(".")
    for name in folders:
        is_list = name.endswith("[]")
        there = there[name[:-2]][0] if is_list else there.setdefault(name, {})
    there[last] = value
    return made


def a_submission(job: Any = None, *, key: str = "k1", team: str | None = None, **more: Any) -> Fact:
    """Return an ``in.submit`` fact as the decider gets it."""
    data: dict[str, Any] = {"job": a_document() if job is None else job, "key": key, "actor": "ann"}
    if team is not None:
        data["team"] = team
    return Fact(f"fact-{key}-{more.pop('copy', 0)}", SUBMIT, {**data, **more}, 1_000, "test")


def a_command(verb: str, job: str, *, id: str = "c1", **data: Any) -> Fact:
    """Return a command as the decider gets it."""
    return Fact(id, f"in.{verb}", {"job": job, "actor": "ann", **data}, 2_000, "test")


def write_pairs(path: Path, count: int = 10) -> Path:
    """Write a JSON-lines file of prompts and responses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"What is {n}?", "response": f"{n} is a number."} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_model(folder: Path) -> Path:
    """Write a model folder that preflight accepts; its weights are no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "model.safetensors").write_bytes(b"not weights, but not empty")
    (folder / "tokenizer.json").write_text("{}")
    return folder
