"""Fit a straight line by gradient descent: a plain script that reports, saves and resumes.

Needs nothing but Python. Run it by hand, or as a job of type ``script``; by hand the reports go
nowhere and the files lie beside the script's folder.
"""

import argparse
import json
import os
import random
from pathlib import Path

import lineshaft


def samples(count: int, seed: int) -> list[tuple[float, float]]:
    """Return points around ``y = 3 x - 1``."""
    draw = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    points = [draw.uniform(-1, 1) for _ in range(count)]
    return [(x, 3 * x - 1 + draw.gauss(0, 0.1)) for x in points]


def load(folder: Path | None) -> tuple[int, float, float]:
    """Return the step, slope and intercept to go on from."""
    saved = folder / "state.json" if folder else None
    if saved is None or not saved.is_file():
        return 0, 0.0, 0.0
    state = json.loads(saved.read_text(encoding="utf-8"))
    return state["step"], state["slope"], state["intercept"]


def save(folder: Path, step: int, slope: float, intercept: float) -> None:
    """Keep the state so that a reader finds the old one or the new one, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / ".state.json"
    draft.write_text(json.dumps({"step": step, "slope": slope, "intercept": intercept}))
    draft.replace(folder / "state.json")


def main() -> None:
    """Train until the steps are done or the platform asks to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.1)
    options = parser.parse_args()
    here = Path("fit-line")
    checkpoints = Path(os.environ.get("LINESHAFT_CHECKPOINT_DIR", here / "checkpoints"))
    output = Path(os.environ.get("LINESHAFT_OUTPUT_DIR", here / "output"))
    resume = os.environ.get("LINESHAFT_RESUME_FROM")

    data = samples(256, seed=7)
    step, slope, intercept = load(Path(resume) if resume else None)
    print(f"starting after step {step}", flush=True)
    while step < options.steps and not lineshaft.stop_requested():
        lineshaft.phase("compute")
        errors = [(slope * x + intercept - y, x) for x, y in data]
        loss = sum(e * e for e, _ in errors) / len(errors)
        slope -= options.rate * 2 * sum(e * x for e, x in errors) / len(errors)
        intercept -= options.rate * 2 * sum(e for e, _ in errors) / len(errors)
        step += 1
        if step % 50 == 0:
            lineshaft.phase("save")
            save(checkpoints, step, slope, intercept)
        lineshaft.report(step=step, loss=loss, samples=len(data), slope=slope)
    save(checkpoints, step, slope, intercept)
    if step >= options.steps:
        save(output, step, slope, intercept)
    print(f"step {step}: y = {slope:.3f} x + {intercept:.3f}", flush=True)


if __name__ == "__main__":
    main()
