"""The numeric rules on recorded loss curves: no alarm on healthy runs, the known spike in time."""

import csv
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineshaft.contracts.telemetry import Metric, reported
from services.monitor.domain.observations import Observation, StepRows
from services.monitor.domain.policy import Policy
from services.monitor.domain.watch import observe
from tests.builders_monitor import NOW, a_watch, recordings, rows

CURVES = recordings("loss_curves")
COLUMNS = {"loss": "train_loss", "grad_norm": "grad_norm", "step_ms": "step_ms"}
JUDGED = ("loss_spike", "grad_norm", "loss_not_falling", "job_slow")


def _of_csv(path: Path) -> Iterator[dict[str, float]]:
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            made = {"step": float(row["step"]), "rank": 0.0}
            for name, column in COLUMNS.items():
                if row[column]:
                    made[name] = float(row[column])
            yield made


def _of_text(path: Path) -> Iterator[dict[str, float]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        step, loss = line.split()
        yield {"step": float(step), "rank": 0.0, "loss": float(loss)}


def _watched(records: Iterator[dict[str, float]], planned: int = 0) -> list[Observation]:
    watch, policy = a_watch(), Policy()
    plan = Metric("planned_steps", float(planned), 0)
    observe(watch, StepRows("n0", rows([]), (plan,)), NOW, policy)
    made: list[Observation] = []
    block: list[dict[str, float]] = []
    for record in records:
        block.append(record)
        if len(block) == 8:
            made += observe(watch, StepRows("n0", rows(block)), NOW, policy)
            block = []
    return made + observe(watch, StepRows("n0", rows(block)), NOW, policy)


HEALTHY = sorted(
    p
    for p in [*CURVES.glob("modded_nanogpt/*.csv"), *CURVES.glob("torchtitan/*.txt")]
    if p.name != "INDEX.csv"
)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.stem)
def test_a_healthy_run_raises_no_alarm(path: Path) -> None:
    """Single bad batches, stalls without a loss, and quiet runs: none of them is a spike."""
    known = list(_of_csv(path) if path.suffix == ".csv" else _of_text(path))
    seen = _watched(iter(known), planned=len(known))
    judged = [o for o in seen if o.kind in JUDGED and o.subject != "blips"]
    # A run that stands still for a while is noticed, never warned of.
    wrong = [o for o in judged if o.kind != "loss_not_falling" or o.phase == "confirmed"]
    assert not wrong, wrong[:2]
    assert not [o for o in seen if o.kind == "non_finite" and o.subject != "frozen-norm"]


def _bloom() -> list[dict[str, float]]:
    """Return the recorded rows around the spike, behind a healthy history of the same level.

    Only the rows around the spike were published; the history before it is made from the level
    and spread of the two rows next to it.
    """
    draw = random.Random(31_219)
    made = [
        {
            "step": float(step),
            "rank": 0.0,
            "loss": draw.gauss(2.21, 0.015),
            "grad_norm": draw.gauss(0.22, 0.02),
        }
        for step in range(31_014, 31_214)
    ]
    path = CURVES / "bloom" / "iterations_extracted.csv"
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if 31_214 <= int(row["iteration"]) <= 31_251:
                made.append(
                    {
                        "step": float(row["iteration"]),
                        "rank": 0.0,
                        "loss": float(row["lm loss"]),
                        "grad_norm": float(row["grad norm"]),
                    }
                )
    return made


def test_the_spike_of_bloom_is_found_one_step_after_its_peak() -> None:
    """The third bad value (of the last five) is enough; the norm speaks before the loss does."""
    confirmed = [o for o in _watched(iter(_bloom())) if o.phase == "confirmed"]
    first = {o.kind: o.evidence["step"] for o in reversed(confirmed)}
    assert first["loss_spike"] == 31_220
    assert first["grad_norm"] <= 31_218


def test_a_norm_that_becomes_infinite_is_told_at_once() -> None:
    """A recorded fine-tuning whose gradient norm ended as no number."""
    path = recordings("hang") / "samples" / "issue_series.csv"
    with path.open(encoding="utf-8") as file:
        series = [r for r in csv.DictReader(file) if r["series"] == "vg_llm_45"]
    records = [
        {
            "step": float(r["order"]),
            "rank": 0.0,
            "loss": float(r["loss"]),
            "grad_norm": reported(float(r["grad_norm"])),
        }
        for r in series
    ]
    seen = [o for o in _watched(iter(records)) if o.kind == "non_finite"]
    assert seen[-1].phase == "confirmed"
    assert seen[-1].evidence["step"] == 2
