"""Builders of the trainer's tests: orders, tiny data, a line to an agent that only records."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TINY_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "attention_dropout": 0.1,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
WORDS = ("red", "green", "blue", "black", "white", "grey", "brown", "pink")


def a_corpus(folder: Path, documents: int = 120) -> Path:
    """Write a corpus of short texts, all different."""
    rows = [
        {"text": f"Number {n} is {WORDS[n % 8]} and {WORDS[n // 8 % 8]}, then {WORDS[n % 5]}."}
        for n in range(documents)
    ]
    return a_file(folder / "corpus.jsonl", rows)


def pairs(count: int, *, first: int = 0) -> list[dict[str, str]]:
    """Return questions with one-word answers."""
    return [
        {"prompt": f"Colour of {n}:", "response": f" {WORDS[n % 2]}"}
        for n in range(first, first + count)
    ]


def a_file(file: Path, rows: Sequence[Any]) -> Path:
    """Write JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def a_suite(folder: Path, *, samples: int = 20) -> Path:
    """Write a suite with one task of each kind."""
    a_file(folder / "held-out.jsonl", pairs(samples, first=10_000))
    tasks = [
        {"name": "colour", "metric": "exactMatch", "data": "held-out.jsonl"},
        {"name": "pick", "metric": "choice", "data": "held-out.jsonl", "choices": ["red", "green"]},
        {"name": "words", "metric": ["perplexity", "tokenAccuracy"], "data": "held-out.jsonl"},
    ]
    file = folder / "suite.json"
    file.write_text(json.dumps({"schema": 1, "name": "colours", "version": "1", "tasks": tasks}))
    return file


def an_order(folder: Path, *, data: Path, **wish: Any) -> dict[str, Any]:
    """Return a launch order. ``wish``: hyper, saving, suites, model, zero, world, job_type, ...

    Everything lies under ``folder``; attempts of one job share its checkpoints.
    """
    world = wish.get("world", 1)
    job, attempt = wish.get("job", "j-test"), wish.get("attempt", 1)
    hyper = {
        "maxSteps": 8,
        "batchSize": 2,
        "learningRate": 1e-3,
        "sequenceLength": 32,
        "seed": 7,
        **wish.get("hyper", {}),
    }
    named = {"name": "colours", "path": str(data), "format": wish.get("format", "jsonl")}
    return {
        "schema": 1,
        "job": job,
        "attempt": attempt,
        "node": "n0",
        "world_size": world,
        "resume": wish.get("resume"),
        "spec": {
            "name": "test",
            "jobType": wish.get("job_type", "pretrain"),
            "datasets": [named],
            "hyperparameters": hyper,
            "checkpoint": {"keepLast": 2, **wish.get("saving", {})},
            "evaluation": {"suites": [str(each) for each in wish.get("suites", [])]},
        },
        "resolved": {
            "model": wish.get("model", {"kind": "config", "config": TINY_MODEL}),
            "datasets": [{**named, "digest": wish.get("digest")}],
            "batch": {"micro": hyper["batchSize"], "accumulation": wish.get("accumulation", 1)},
            "zero_stage": wish.get("zero"),
            "precision": wish.get("precision", "fp32"),
        },
        "run_folder": str(folder / f"run-{job}-{attempt}"),
        "checkpoint_root": str(folder / "checkpoints"),
        "cache_folder": str(folder / "cache"),
        "objects_url": (folder / "objects").as_uri(),
    }


@dataclass
class RecordingLink:
    """Stands where the agent's line stands: records what it is told, answers as it is set."""

    may: bool = True
    stop_at: int | None = None
    refuse: Exception | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[tuple[Any, ...]] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    ended: list[tuple[str, int]] = field(default_factory=list)

    def step(self, step: int, **numbers: float) -> None:
        self.steps.append({"step": step, **numbers})

    def metric(self, *told: Any, **more: Any) -> None:
        self.metrics.append((*told, *more.values()))

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def plan(self, **numbers: float) -> None:
        self.metrics.append(("plan", numbers))

    def stop_requested(self) -> str | None:
        last = self.steps[-1]["step"] if self.steps else 0
        return "stop" if self.stop_at is not None and last >= self.stop_at else None

    def may_commit(self) -> bool:
        return self.may

    def committed(
        self, step: int, digest: str, size: int, path: str, metrics: Mapping[str, float]
    ) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.commits.append({"step": step, "digest": digest, "bytes": size, "path": path})

    def finished(self, folder: str, step: int) -> None:
        self.ended.append((folder, step))


def fingerprint(folder: Path) -> dict[str, str]:
    """Return a SHA-256 of every part of a checkpoint: model, optimiser, schedule, generators.

    Tensors are hashed by type, shape and bytes; the containers around them by their order.
    """
    import torch

    made = {}
    for file in sorted(folder.rglob("*.pt")):
        state = torch.load(file, map_location="cpu", weights_only=False)
        parts = state if isinstance(state, dict) else {"all": state}
        for name, part in parts.items():
            if name not in ("ds_config", "ds_version"):
                digest = hashlib.sha256()
                _feed(digest, part)
                made[f"{file.relative_to(folder)}:{name}"] = digest.hexdigest()
    return made


def _feed(digest: Any, value: Any) -> None:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            digest.update(repr(key).encode())
            _feed(digest, each)
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(digest, each)
    elif isinstance(value, str | int | float | bool | type(None)):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())
        for name, each in sorted(getattr(value, "__dict__", {}).items()):
            digest.update(name.encode())
            _feed(digest, each)


class Ranks:
    """Real ranks of one order, started by hand as processes; ended by their own pids."""

    def __init__(self, folder: Path, order: Mapping[str, Any], **switches: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "order.json").write_text(json.dumps(order))
        self.world = int(order["world_size"])
        port = _free_port()
        self._processes = [self._start(rank, port, switches) for rank in range(self.world)]

    def _start(self, rank: int, port: int, switches: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TRAINER_TEST": json.dumps(switches),
        }
        script = ROOT / "tests" / "end_to_end" / "trainer" / "rank_by_hand.py"
        with (self.folder / f"rank-{rank}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(script), str(self.folder)],
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def wait(self, *, seconds: float = 150) -> list[int]:
        """Return the exit codes; once a rank was killed the others are ended, too."""
        deadline = time.monotonic() + seconds
        try:
            while any(each.poll() is None for each in self._processes):
                assert time.monotonic() < deadline, self.log()
                if any(each.poll() == -signal.SIGKILL for each in self._processes):
                    break
                time.sleep(0.05)
        finally:
            self.end()
        return [each.returncode for each in self._processes]

    def end(self) -> None:
        """Kill what still runs and reap it."""
        for each in self._processes:
            if each.poll() is None:
                each.kill()
            each.wait()

    def told(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return what a rank told its line, in order."""
        file = self.folder / f"told-{rank}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def commits(self) -> list[dict[str, Any]]:
        """Return the commits that rank 0 told."""
        return [each for each in self.told() if each["op"] == "committed"]

    def log(self) -> str:
        """Return the ends of the ranks' output."""
        files = sorted(self.folder.glob("rank-*.log"))
        return "\n".join(f"{f.name}:\n{f.read_text()[-3000:]}" for f in files)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
