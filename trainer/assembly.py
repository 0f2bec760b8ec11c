"""Putting a run together: from the launch order to the parts that the loop moves.

Every choice of a part is made here and nowhere else; nothing is trained or measured yet.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer import gang as ranks
from trainer import network, prepare, recipe
from trainer.artifacts import Final
from trainer.checkpoint.layout import FileRecord, Manifest, Shape
from trainer.checkpoint.saving import Saver, forecast
from trainer.datasets import store, tokens
from trainer.datasets.loader import Loader, Share
from trainer.engines import select
from trainer.engines.port import Engine
from trainer.engines.timing import CollectiveClock
from trainer.evaluation import suite
from trainer.evaluation.examiner import Examiner, held_out_rows
from trainer.gang import Gang
from trainer.link import Link
from trainer.meter import Meter
from trainer.recipe import Recipe

BEAT_S = 1.0
BEFORE = "evaluation-before.json"


@dataclass(slots=True)
class Run:
    """The parts of a run on this rank. ``loader`` is None when nothing is trained."""

    asked: Recipe
    link: Link
    gang: Gang
    engine: Engine
    loader: Loader | None
    saver: Saver
    examiner: Examiner
    meter: Meter
    final: Final
    total_steps: int
    shape: Shape
    data_digest: str

    @property
    def before_file(self) -> Path:
        """Where the report of the untrained model is kept for all attempts."""
        return self.asked.place.checkpoint_root / self.asked.job / BEFORE


def build(order: Mapping[str, Any], link: Link) -> Run:
    """Join the ranks, read what was prepared, make the network and its engine."""
    asked = recipe.of(order)
    gang = ranks.form(asked)
    found = _found(order, asked, gang)
    data = None if found.data is None else store.read(found.data)
    train = data.subset("train") if data and asked.job_type != "evaluate" else None
    total = asked.total_steps(len(train)) if train else 0
    engine = select.engine(asked, network.build(asked, found.model), max(1, total))
    vocabulary = tokens.load(found.tokenizer)
    shape = Shape(
        engine.layout, asked.world_size, asked.micro_batch, asked.accumulation, asked.precision
    )
    digest = str(data.meta["digest"]) if data else ""
    describe = _describer(asked, shape, digest)
    clock = CollectiveClock()
    if asked.zero_stage is not None:
        clock.install()
    return Run(
        asked=asked,
        link=link,
        gang=gang,
        engine=engine,
        loader=_loader(asked, train, gang, vocabulary.pad_id) if train else None,
        saver=Saver(
            root=asked.place.checkpoints(asked.job, asked.attempt),
            keep=asked.keep_last,
            gang=gang,
            link=link,
            describe=describe,
            forecast_bytes=forecast(engine, gang),
        ),
        examiner=Examiner(
            engine=engine,
            gang=gang,
            vocabulary=vocabulary,
            suites=[suite.load(Path(each)) for each in asked.suites],
            held_out=held_out_rows(data),
            limit=asked.sequence_length,
            beat=_beat(link),
        ),
        meter=Meter(link, clock),
        final=Final(asked, order["spec"], order["resolved"], found, data),
        total_steps=total,
        shape=shape,
        data_digest=digest,
    )


def _found(order: Mapping[str, Any], asked: Recipe, gang: Gang) -> prepare.Found:
    """Return what the agent's preparation left; a loop run by hand prepares here."""
    if prepare.found(asked) is None and gang.local_rank == 0:
        prepare.prepare(order)
    gang.wait()
    found = prepare.found(asked)
    assert found is not None
    return found


def _loader(asked: Recipe, train: store.Subset, gang: Gang, pad_id: int) -> Loader:
    share = Share(asked.micro_batch, asked.accumulation, gang.rank, gang.world_size)
    return Loader(train, share, seed=asked.seed, pad_id=pad_id)


def _describer(
    asked: Recipe, shape: Shape, data: str
) -> Callable[[int, Mapping[str, FileRecord], Mapping[str, float]], Manifest]:
    packages = ["torch", "transformers"] + (["deepspeed"] if asked.zero_stage is not None else [])
    versions = {package: metadata.version(package) for package in packages}

    def describe(
        step: int, files: Mapping[str, FileRecord], metrics: Mapping[str, float]
    ) -> Manifest:
        return Manifest(
            job=asked.job,
            attempt=asked.attempt,
            step=step,
            position=step * asked.global_batch,
            shape=shape,
            data=data,
            versions=versions,
            files=files,
            metrics=metrics,
        )

    return describe


def _beat(link: Link) -> Callable[[], None]:
    """Return what tells the agent, at most once a second, that evaluation goes on."""
    told = 0.0

    def beat() -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= BEAT_S:
            told = now
            link.phase("evaluating")

    return beat
