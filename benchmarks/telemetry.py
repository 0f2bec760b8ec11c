"""How many rank-samples a second one core takes in, from a block's rows to alerts and curves.

Run with ``python -m benchmarks.telemetry [blocks]``. A rank-sample is one row: one rank, one
optimiser step. Blocks of eight steps over all ranks, healthy values with noise, every rule on;
decoding a block costs next to nothing and is left out, and so is the bus. CPU time is counted, so
a busy machine changes the result little.
"""

import sys
import time

import numpy as np

from lineshaft.contracts.telemetry import DTYPE
from services.monitor import signature_file
from services.monitor.domain.observations import Rows, StepRows
from services.monitor.domain.policy import Policy
from services.monitor.runs import Runs

GOAL = 2_000_000
RANKS = (8, 64, 1_024)
STEPS_PER_BLOCK = 8
NOW = 1_700_000_000_000


def a_block(ranks: int, first: int, draw: np.random.Generator) -> Rows:
    """Rows of one block, ordered by step."""
    count = ranks * STEPS_PER_BLOCK
    rows = np.zeros(count, dtype=np.dtype(DTYPE))
    rows["step"] = np.repeat(np.arange(first, first + STEPS_PER_BLOCK), ranks)
    rows["rank"] = np.tile(np.arange(ranks), STEPS_PER_BLOCK)
    for name, level, spread in (
        ("loss", 3.0, 0.02),
        ("grad_norm", 1.0, 0.05),
        ("step_ms", 100.0, 1.0),
        ("compute_ms", 70.0, 1.0),
        ("collective_ms", 20.0, 1.0),
        ("data_ms", 5.0, 0.5),
    ):
        rows[name] = level + draw.normal(0.0, spread, count)
    rows["learning_rate"], rows["samples"], rows["tokens"] = 1e-4, 8, 8_192
    rows["at"] = NOW + 100.0 * rows["step"]
    return rows


def samples_per_s(ranks: int, blocks: int) -> float:
    """Return the rank-samples that one core took in a second of its time."""
    draw, policy = np.random.default_rng(1), Policy()
    run = Runs(signature_file.load(), policy).open("j-benchmark", 1, ("pool", "team"), None)
    assert run is not None
    made = [a_block(ranks, 1 + STEPS_PER_BLOCK * n, draw) for n in range(blocks)]
    begun = time.process_time()
    for number, rows in enumerate(made):
        run.take(StepRows("n0", rows), NOW + 800 * number, policy)
    return ranks * STEPS_PER_BLOCK * blocks / (time.process_time() - begun)


def main() -> None:
    """Measure and say how the goal stands."""
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rates = {ranks: samples_per_s(ranks, blocks) for ranks in RANKS}
    for ranks, rate in rates.items():
        sys.stdout.write(f"{ranks:6} ranks: {rate:12,.0f} rank-samples/s per core\n")
    verdict = "reached" if rates[64] >= GOAL else f"{rates[64] / GOAL:.0%} of it"
    sys.stdout.write(f"goal of {GOAL:,} at 64 ranks: {verdict}\n")


if __name__ == "__main__":
    main()
