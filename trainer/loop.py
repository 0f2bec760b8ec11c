"""A run's whole story: build, load, step, report, save, evaluate, finish.

``run(order, link)`` is what every rank of our own engines does. What each word means stands in
its own module; here is only their order. ``python -m trainer.loop --order FILE`` runs it by hand.
"""

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer import assembly, pacing
from trainer.artifacts import Ending
from trainer.assembly import Run
from trainer.checkpoint import generators, resuming
from trainer.evaluation import examiner
from trainer.evaluation.examiner import Report
from trainer.faults import NonFinite
from trainer.link import Link
from trainer.meter import Done
from trainer.pacing import Ballot, Decision, Pace

SUSPECTS_MAX = 32
logger = logging.getLogger("trainer.loop")


@dataclass(slots=True)
class Progress:
    """How far the run is: optimiser steps done, and the mean loss of the last."""

    step: int = 0
    loss: float = math.nan
    is_stopped: bool = False
    resumed_from: Mapping[str, Any] | None = None


def run(order: Mapping[str, Any], link: Link) -> None:
    """Train what ``order`` says on this rank, from its resume source if it names one.

    Returns when the work is done, or when a stop was obeyed. Raises ``TrainingFault``.
    """
    link.phase("building")
    parts = assembly.build(order, link)
    before = measure_before(parts)
    progress = load(parts)
    train(parts, progress)
    if not progress.is_stopped:
        after = measure(parts, progress.step, "after")
        finish(parts, progress, before, after)
    parts.gang.wait()
    parts.gang.leave()


def measure_before(parts: Run) -> Report | None:
    """Measure the model as it was given, once per job: later attempts read the kept report."""
    if not parts.examiner.has_work or parts.loader is None:
        return None
    identity = parts.examiner.identity
    kept = examiner.kept(parts.before_file, identity) if parts.gang.is_leader else None
    kept = parts.gang.share(kept)
    if kept is not None:
        return kept  # type: ignore[no-any-return]
    report = measure(parts, 0, "before")
    if parts.gang.is_leader and report is not None:
        examiner.keep(parts.before_file, identity, report)
    return report


def load(parts: Run) -> Progress:
    """Seed the generators, or restore everything from the checkpoint that the order names."""
    parts.link.phase("loading")
    wish = parts.asked.resume
    if wish is None:
        generators.seed(parts.asked.seed, parts.gang.rank)
        return Progress()
    root = parts.asked.place.checkpoint_root / parts.asked.job
    found = resuming.find(wish, root, parts.gang)
    resuming.check_fit(found.manifest, parts.shape, parts.data_digest)
    parts.engine.load(found.folder)
    resuming.restore_generators(found, parts.gang)
    manifest = found.manifest
    logger.warning("resumed from step %d of attempt %d", manifest.step, manifest.attempt)
    parts.link.metric("resumed_step", float(manifest.step), manifest.step)
    source = {"attempt": manifest.attempt, "step": manifest.step, "digest": manifest.digest}
    return Progress(
        step=manifest.step, loss=manifest.metrics.get("loss", math.nan), resumed_from=source
    )


def train(parts: Run, progress: Progress) -> None:
    """Take optimiser steps until the last, or until a stop; save and evaluate as agreed."""
    parts.link.plan(total_steps=parts.total_steps, global_batch=float(parts.asked.global_batch))
    parts.link.phase("training")
    pace = pacing.begin(
        parts.asked.intervals, total_steps=parts.total_steps, step=progress.step, now_ms=_now_ms()
    )
    if _is_stopped_early(parts):
        progress.is_stopped = True
        return
    parts.meter.restart()
    while progress.step < parts.total_steps:
        done = take_step(parts, progress.step)
        progress.step += 1
        decision = agree(parts, pace, done, progress.step)
        suspects = suspected(parts, decision, progress.step)
        parts.meter.report(progress.step, done)
        if decision.broken_ranks:
            raise _non_finite(decision, progress.step, suspects)
        progress.loss = decision.loss
        if decision.save:
            save(parts, progress, done)
            pace = pacing.saved(pace, step=progress.step, now_ms=_now_ms())
        if decision.evaluate:
            measure(parts, progress.step, "during")
            parts.link.phase("training")
            parts.meter.restart()
        if decision.stop:
            logger.warning("stopped after step %d by ranks %s", progress.step, decision.stopped_by)
            progress.is_stopped = True
            return


def take_step(parts: Run, step: int) -> Done:
    """Compute one optimiser step of this rank's share of the global batch."""
    assert parts.loader is not None
    losses, tokens = [], 0
    for batch in parts.meter.fetched(parts.loader.at(step * parts.asked.global_batch)):
        losses.append(parts.engine.backward(batch))
        tokens += batch.tokens
    rate = parts.engine.learning_rate()
    return Done(
        loss=sum(losses) / len(losses),
        grad_norm=parts.engine.step(),
        learning_rate=rate,
        samples=parts.asked.micro_batch * parts.asked.accumulation,
        tokens=tokens,
    )


def agree(parts: Run, pace: Pace, done: Done, step: int) -> Decision:
    """Come to the one decision of all ranks after ``step``: the only place where any is made."""
    ballot = Ballot(
        stop=parts.link.stop_requested() is not None,
        is_finite=math.isfinite(done.loss) and math.isfinite(done.grad_norm),
        loss=done.loss,
    )
    if parts.gang.is_leader:
        ballot = pacing.propose(pace, ballot, step=step, now_ms=_now_ms())
    rows = parts.gang.gather(ballot.as_row())
    return pacing.resolve(rows, step=step, total_steps=parts.total_steps)


def suspected(parts: Run, decision: Decision, step: int) -> list[int]:
    """Return, and tell before the step itself, the rows of data that broken ranks computed."""
    if not decision.broken_ranks or parts.loader is None:
        return []
    position = (step - 1) * parts.asked.global_batch
    rows = [row for rank in decision.broken_ranks for row in parts.loader.rows_of(position, rank)]
    for row in rows[:SUSPECTS_MAX] if parts.gang.is_leader else ():
        parts.link.metric("non_finite_sample", float(row), step)
    return rows


def save(parts: Run, progress: Progress, done: Done) -> None:
    """Save and commit a checkpoint; a failure is told and training goes on, up to a bound."""
    parts.link.phase("saving")
    metrics = {"loss": progress.loss, "learning_rate": done.learning_rate}
    with parts.meter.saving():
        is_kept = parts.saver.save(parts.engine, progress.step, metrics)
    if not is_kept and parts.gang.is_leader:
        parts.link.metric("checkpoint_failed", 1.0, progress.step)
    parts.link.phase("training")


def measure(parts: Run, step: int, split: str) -> Report | None:
    """Evaluate the model as it is now; rank 0 tells every value."""
    if not parts.examiner.has_work:
        return None
    parts.link.phase("evaluating")
    report = parts.examiner.examine()
    if parts.gang.is_leader:
        for task, metric, value in examiner.values(report):
            parts.link.metric(metric, value, step, split=split, subtask=task)
    return report


def finish(parts: Run, progress: Progress, before: Report | None, after: Report | None) -> None:
    """Write the final folder on rank 0 and hand it to the agent."""
    parts.link.phase("finishing")
    state = parts.engine.weights()
    if not parts.gang.is_leader:
        return
    numbers = dict(parts.meter.numbers)
    if math.isfinite(progress.loss):
        numbers["loss"] = progress.loss
    ending = Ending(
        step=progress.step,
        before=before,
        after=after,
        identity=parts.examiner.identity,
        numbers=numbers,
        resumed_from=progress.resumed_from,
    )
    folder = parts.final.write(parts.engine.module, state or {}, ending)
    parts.link.finished(str(folder), progress.step)


def _is_stopped_early(parts: Run) -> bool:
    """Tell whether a stop reached any rank before the first step: there is nothing to save."""
    asked = parts.link.stop_requested() is not None
    rows = parts.gang.gather(Ballot(stop=asked).as_row())
    return any(row[0] for row in rows)


def _non_finite(decision: Decision, step: int, suspects: list[int]) -> NonFinite:
    ranks = ", ".join(str(rank) for rank in decision.broken_ranks)
    rows = ", ".join(str(row) for row in suspects[:SUSPECTS_MAX])
    more = f" and {len(suspects) - SUSPECTS_MAX} more" if len(suspects) > SUSPECTS_MAX else ""
    return NonFinite(
        f"step {step}: the loss or the gradient is no finite number on rank {ranks} (rows {rows}"
        f"{more} of the prepared data); nothing was saved of it. Lower learningRate, or look at "
        "the data of this step"
    )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def main() -> int:
    """Run one rank by hand, without an agent."""
    parser = argparse.ArgumentParser(prog="python -m trainer.loop")
    parser.add_argument("--order", type=Path, required=True, help="the launch order (JSON)")
    order = json.loads(parser.parse_args().order.read_text(encoding="utf-8"))
    run(order, Link.connect())
    return 0


if __name__ == "__main__":
    sys.exit(main())
