"""What training really takes: the peak of the resident memory of small runs on a CPU.

    python benchmarks/memory_peaks.py                 measure all shapes, write them to PEAKS
    python benchmarks/memory_peaks.py NAME [NAME]     measure some, print them

Every shape is trained for two optimiser steps by the plain engine in a forked child. Measured
is the high-water mark of the child's resident memory above what it held before the model was
made, so libraries are left out. The allocator gives freed memory back at once, so that the mark
follows the tensors. The dry run of the same shape is kept beside it.
"""

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PEAKS = Path(__file__).parent.parent / "tests/recordings/memory_peaks.json"
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclasses.dataclass(frozen=True)
class Trial:
    """One small run: the shape of its model and what the estimate depends on."""

    hidden: int
    layers: int
    inner: int
    vocab: int
    sequence: int
    micro_batch: int
    kind: str = "qwen2"
    heads: int = 8
    kv_heads: int = 8
    is_tied: bool = True
    precision: str = "fp32"
    checkpointing: bool = False
    accumulation: int = 1
    lora_rank: int = 0

    def config(self) -> dict[str, Any]:
        """Return the Hugging Face configuration."""
        if self.kind == "gpt2":
            sizes = {"n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads}
            sizes |= {"n_inner": self.inner, "n_positions": self.sequence}
        else:
            sizes = {"hidden_size": self.hidden, "num_hidden_layers": self.layers}
            sizes |= {"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads}
            sizes |= {"intermediate_size": self.inner, "max_position_embeddings": self.sequence}
        shared = {"vocab_size": self.vocab, "tie_word_embeddings": self.is_tied}
        return {"model_type": self.kind, **sizes, **shared}

    def request(self) -> dict[str, Any]:
        """Return what the dry run is asked."""
        return {
            "config": self.config(),
            "micro_batch": self.micro_batch,
            "sequence": self.sequence,
            "engine": "plain",
            "precision": self.precision,
            "checkpointing": self.checkpointing,
            "lora": {"rank": self.lora_rank, "targets": []} if self.lora_rank else None,
        }


TRIALS: Mapping[str, Trial] = {
    "deep": Trial(256, 8, 704, 2048, 256, 4),
    "deep-checkpointed": Trial(256, 8, 704, 2048, 512, 4, checkpointing=True),
    "wide": Trial(768, 2, 2048, 4096, 128, 4, kv_heads=4),
    "wide-llama": Trial(768, 3, 2048, 4096, 128, 4, kind="llama", is_tied=False),
    "vocabulary": Trial(128, 2, 352, 24576, 256, 2),
    "vocabulary-checkpointed": Trial(128, 4, 352, 24576, 256, 2, checkpointing=True),
    "long": Trial(256, 3, 704, 2048, 1024, 1),
    "gpt2": Trial(256, 6, 1024, 4096, 256, 4, kind="gpt2"),
    "gpt2-checkpointed": Trial(384, 6, 1536, 4096, 256, 4, kind="gpt2", checkpointing=True),
    "weights": Trial(768, 6, 2048, 8192, 64, 1),
    "weights-accumulated": Trial(768, 4, 2048, 8192, 64, 1, accumulation=2),
    "accumulated": Trial(256, 6, 704, 4096, 256, 4, accumulation=2),
    "bf16": Trial(256, 4, 704, 4096, 256, 4, precision="bf16"),
    "bf16-checkpointed": Trial(256, 6, 704, 4096, 256, 4, precision="bf16", checkpointing=True),
    "lora": Trial(512, 6, 1408, 4096, 256, 2, lora_rank=8),
    "lora-llama": Trial(384, 8, 1024, 4096, 256, 2, kind="llama", lora_rank=16, is_tied=False),
}


def measured(trial: Trial) -> int:
    """Return the peak of a run in bytes, measured in a forked child."""
    ear, mouth = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(mouth, str(_trained(trial)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(mouth)
    with os.fdopen(ear) as stream:
        told = stream.read()
    os.waitpid(pid, 0)
    return int(told)


def _trained(trial: Trial) -> int:
    import torch

    torch.set_num_threads(1)
    _run(dataclasses.replace(trial, hidden=64, inner=128, vocab=256, layers=1, sequence=32))
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    _run(trial)
    return _resident("VmHWM") - before


def _run(trial: Trial) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainer.datasets.loader import Batch
    from trainer.engines.plain import PlainEngine
    from trainer.network import adapted
    from trainer.recipe import Lora

    given = trial.config()
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if trial.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if trial.lora_rank:
        model = adapted(model, Lora(trial.lora_rank))
    engine = PlainEngine(_recipe(trial), model, 10)
    size = (trial.micro_batch, trial.sequence)
    for _ in range(2):
        for _ in range(trial.accumulation):
            ids = torch.randint(trial.vocab, size)
            engine.backward(Batch(ids, ids.clone(), torch.ones_like(ids), None, ids.numel()))
        engine.step()


def _recipe(trial: Trial) -> Any:
    from trainer.pacing import Intervals
    from trainer.recipe import Lora, Optimisation, Place, Recipe

    here = Path("/nowhere")
    return Recipe(
        job="job",
        attempt=1,
        node="node",
        job_type="lora" if trial.lora_rank else "full-finetune",
        model={},
        sources=(),
        place=Place(here, here, here, ""),
        optimisation=Optimisation(),
        intervals=Intervals(),
        micro_batch=trial.micro_batch,
        accumulation=trial.accumulation,
        sequence_length=trial.sequence,
        precision=trial.precision,
        gradient_checkpointing=trial.checkpointing,
        lora=Lora(trial.lora_rank) if trial.lora_rank else None,
    )


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {name}")


def main(names: list[str]) -> None:
    """Measure the named trials, or all."""
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != "0":
        os.environ.update(_ALLOCATOR)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.path.insert(0, str(PEAKS.parent.parent.parent))
    import torch
    import transformers

    import trainer.engines.plain
    from trainer import dryrun

    rows: dict[str, dict[str, Any]] = {}
    for name in names or TRIALS:  # all of them before the first dry run, which starts threads
        rows[name] = {"trial": dataclasses.asdict(TRIALS[name]), "peak_bytes": 0}
        rows[name]["peak_bytes"] = measured(TRIALS[name])
        print(f"{name}: {rows[name]['peak_bytes'] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    for name, row in rows.items():
        row["dry_run"] = dryrun.run(TRIALS[name].request())
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    assert trainer.engines.plain is not None
    if not names:
        PEAKS.parent.mkdir(exist_ok=True)
        PEAKS.write_text(json.dumps({"versions": versions, "trials": rows}, indent=1) + "\n")
    else:
        print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
