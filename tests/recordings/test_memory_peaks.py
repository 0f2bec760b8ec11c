"""The estimate against the resident memory of real training runs on a CPU.

``memory_peaks.json`` beside this file holds what ``benchmarks/memory_peaks.py`` measured, with
the dry run of each shape and the versions of the libraries.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.admission.domain import estimate, rehearsal, shapes
from services.admission.domain.estimate import Load

ROOT = Path(__file__).parent.parent.parent
MEASURED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "memory_peaks.json").read_text()
)["trials"]


def a_config(trial: dict[str, Any]) -> dict[str, Any]:
    is_gpt2 = trial["kind"] == "gpt2"
    names = ("n_embd", "n_layer", "n_head", "n_inner")
    if not is_gpt2:
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = {
        n: trial[of] for n, of in zip(names, ("hidden", "layers", "heads", "inner"), strict=True)
    }
    more = {} if is_gpt2 else {"num_key_value_heads": trial["kv_heads"]}
    more |= {"vocab_size": trial["vocab"], "tie_word_embeddings": trial["is_tied"]}
    return {"model_type": trial["kind"], **sizes, **more}


def estimated(row: dict[str, Any]) -> estimate.Range:
    """Return the memory of the run besides what libraries hold, which was not measured."""
    trial = row["trial"]
    shape = shapes.read(a_config(trial))
    load = Load(
        ranks=1,
        micro_batch=trial["micro_batch"],
        global_batch=trial["micro_batch"] * trial["accumulation"],
        sequence=trial["sequence"],
        zero_stage=None,
        is_half=trial["precision"] == "bf16",
        is_gpu=False,
    )
    seen = rehearsal.read(row["dry_run"], load.tokens)
    terms = estimate.memory_terms(shape, load, is_checkpointing=trial["checkpointing"], seen=seen)
    held = estimate.memory({"context": 0.0}, load)
    whole = estimate.memory(terms, load)
    low, likely, high = (getattr(whole, n) - getattr(held, n) for n in ("low", "likely", "high"))
    return estimate.Range(low, likely, high)


def check(row: dict[str, Any]) -> None:
    peak, found = row["peak_bytes"], estimated(row)
    assert found.likely == pytest.approx(peak, rel=0.15)
    assert peak <= found.high


def test_at_least_twelve_shapes_were_measured() -> None:
    """Deep, wide, long, large vocabularies, checkpointing, bf16, accumulation, adapters."""
    assert len(MEASURED) >= 12
    assert {row["trial"]["kind"] for row in MEASURED.values()} == {"qwen2", "llama", "gpt2"}


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_the_likely_estimate_is_near_the_peak_and_the_high_one_above(name: str) -> None:
    """Within 15 % of the run's own memory; the high estimate is never exceeded."""
    check(MEASURED[name])


def test_errors_go_to_both_sides() -> None:
    """No factor is tuned in: the mean error is small, to both sides."""
    errors = [estimated(row).likely / row["peak_bytes"] - 1 for row in MEASURED.values()]
    assert abs(sum(errors) / len(errors)) < 0.03
    assert min(errors) < 0 < max(errors)


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_three_shapes_measured_now_agree_too() -> None:
    """With the libraries that are installed, not those of the recording."""
    names = ["long", "vocabulary-checkpointed", "bf16-checkpointed"]
    script = ROOT / "benchmarks" / "memory_peaks.py"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *names],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = json.loads(ran.stdout)
    assert sorted(rows) == sorted(names)
    for row in rows.values():
        check(row)
