"""Preparation of a run: data made ready and the base model fetched, before any rank starts.

``python -m trainer.prepare --order order.json`` is run by the agent; it holds no accelerator,
is cached by what it depends on, and may run twice at once. What it found is written beside
the order for the ranks. Exit codes are those of ``lineshaft.contracts.failures``.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lineshaft.contracts.failures import EXIT_COMPLETED, EXIT_OF_CLASS
from trainer import models, recipe
from trainer.datasets import cleaning, reading, store, tokens
from trainer.datasets.reading import Exchange
from trainer.datasets.rendering import Rendered, Renderer
from trainer.evaluation import suite
from trainer.faults import ConfigFault, DataFault, TrainingFault
from trainer.recipe import Recipe, Source

CODE_VERSION = 1
HELD_OUT_OF_CORPUS = 0.02
IN_SUITES_SHARE_MAX = 0.1
FOUND = "prepared.json"
PACKED = "packed"


@dataclass(frozen=True, slots=True)
class Found:
    """Where the ranks find what was prepared. ``base`` is the base model's lineage, if any."""

    data: Path | None
    model: Path
    tokenizer: Path
    base: dict[str, Any] | None

    def write(self, file: Path) -> None:
        """Keep it beside the order, atomically."""
        body = asdict(self)
        paths = {key: str(value) for key, value in body.items() if isinstance(value, Path)}
        write_json(file, {**body, **paths})


def found_file(asked: Recipe) -> Path:
    """Return where this node's preparation is kept."""
    return asked.place.run_folder / asked.node / FOUND


def found(asked: Recipe) -> Found | None:
    """Return what this node's preparation left for the ranks, or None."""
    file = found_file(asked)
    if not file.is_file():
        return None
    body = json.loads(file.read_text(encoding="utf-8"))
    data = body["data"]
    return Found(
        data=None if data is None else Path(data),
        model=Path(body["model"]),
        tokenizer=Path(body["tokenizer"]),
        base=body["base"],
    )


def prepare(order: Mapping[str, Any]) -> Found:
    """Fetch the model, make the data ready, and return where both lie.

    Raises ``TrainingFault`` with the class of what is wrong.
    """
    asked = recipe.of(order)
    base = models.materialise(asked)
    named = asked.tokenizer or base.tokenizer
    data = _data(asked, base, named)
    tokenizer = data.tokenizer if data else named
    if tokenizer is None:
        raise ConfigFault("the model folder has no tokenizer and the job names none")
    made = Found(
        data=data.folder if data else None,
        model=base.folder,
        tokenizer=tokenizer,
        base=base.lineage,
    )
    found_file(asked).parent.mkdir(parents=True, exist_ok=True)
    made.write(found_file(asked))
    return made


def _data(
    asked: Recipe, base: models.Materialised, tokenizer: Path | None
) -> store.Prepared | None:
    if not asked.sources:
        return None
    if any(source.format == PACKED for source in asked.sources):
        return _packed(asked, base)
    inputs = _inputs(asked)
    suites = [suite.load(Path(each)) for each in asked.suites]
    vocabulary = tokens.load(tokenizer) if tokenizer else None
    if vocabulary is None and not asked.is_pretraining:
        raise ConfigFault(f"{base.folder}: the base model comes without a tokenizer")
    depends = {
        "code": CODE_VERSION,
        "jobType": "pretrain" if asked.is_pretraining else "fine-tune",
        "sources": [_dependence(each) for each in inputs],
        "tokenizer": vocabulary.digest if vocabulary else base.vocabulary_size,
        "sequenceLength": asked.sequence_length,
        "packed": asked.is_packed,
        "suites": [each.digest for each in suites],
    }
    key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
    target = asked.place.cache_folder / "prepared" / key
    if not (target / store.META).is_file():
        build = _Build(asked, inputs, vocabulary, tokenizer, base.vocabulary_size)
        _publish(target, lambda folder: build.run(folder, key, suites))
    return store.read(target)


def _packed(asked: Recipe, base: models.Materialised) -> store.Prepared:
    """Open data that was prepared elsewhere: a folder that this module made."""
    if len(asked.sources) > 1:
        raise ConfigFault("a packed data set stands alone; prepare the others together with it")
    data = store.read(asked.sources[0].path)
    wanted = {
        "packed": asked.is_packed,
        "sequenceLength": asked.sequence_length,
    }
    for name, value in wanted.items():
        if data.meta[name] != value:
            raise ConfigFault(
                f"{data.folder}: {name} is {data.meta[name]}, the job needs {value}; prepare it "
                "again"
            )
    if int(data.meta["vocabulary"]) > base.vocabulary_size:
        raise ConfigFault(
            f"{data.folder}: {data.meta['vocabulary']} ids, the model {base.vocabulary_size}"
        )
    return data


@dataclass(frozen=True, slots=True)
class _Input:
    source: Source
    files: list[Path]
    digest: str


def _inputs(asked: Recipe) -> list[_Input]:
    made = []
    for source in asked.sources:
        files = reading.files_of(source.path, source.format)
        digest = reading.digest_of(files, source.path)
        if source.digest is not None and digest != source.digest:
            raise DataFault(
                f"{source.path}: the data changed since the job was admitted ({source.digest} "
                f"then, {digest} now); submit the job again to train on what is there now"
            )
        made.append(_Input(source, files, digest))
    return made


def _dependence(each: _Input) -> dict[str, Any]:
    return {
        "name": each.source.name,
        "version": each.source.version,
        "format": each.source.format,
        "digest": each.digest,
    }


def _publish(target: Path, fill: Any) -> None:
    """Fill a folder and give it its name in one step; another process may have been faster."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        fill(folder)
        try:
            folder.rename(target)
        except OSError:
            if not (target / store.META).is_file():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Build:
    """One building of a prepared folder."""

    asked: Recipe
    inputs: list[_Input]
    vocabulary: tokens.Vocabulary | None
    tokenizer: Path | None
    vocabulary_size: int

    def run(self, folder: Path, key: str, suites: list[suite.Suite]) -> None:
        """Read, clean, split, tokenise and write; ``meta.json`` last."""
        reports: list[dict[str, Any]] = []
        sides = (
            self._documents(folder, reports)
            if self.asked.is_pretraining
            else self._exchanges(suites, reports)
        )
        vocabulary = self._vocabulary(folder, sides)
        lengths = _Lengths(self.asked.sequence_length)
        written: dict[str, store.Written] = {}
        for name, samples in sides.items():
            rendered = self._rendered(vocabulary, samples, lengths)
            written[name] = store.write(folder / name, rendered, vocabulary.size)
        self._check(written)
        meta = {
            "schema": store.SCHEMA,
            "key": key,
            "jobType": self.asked.job_type,
            "packed": self.asked.is_packed,
            "sequenceLength": self.asked.sequence_length,
            "dtype": "uint16" if vocabulary.size <= 1 << 16 else "uint32",
            "tokenizer": vocabulary.digest,
            "vocabulary": vocabulary.size,
            "datasets": reports,
            "truncated": lengths.truncated,
            "withoutAnswer": lengths.without_answer,
            "longestTokens": lengths.longest,
            "subsets": {name: asdict(each) for name, each in written.items()},
            "digest": written["train"].digest,
        }
        write_json(folder / store.META, meta)

    def _check(self, written: Mapping[str, store.Written]) -> None:
        made = written["train"]
        where = ", ".join(str(each.source.path) for each in self.inputs)
        if made.documents == 0 or made.trained_tokens == 0:
            raise DataFault(f"{where}: no sample is left to train on")
        if self.asked.is_packed and made.tokens < self.asked.sequence_length:
            raise DataFault(
                f"{where}: {made.tokens} tokens do not fill one row of sequenceLength "
                f"{self.asked.sequence_length}"
            )

    def _vocabulary(self, folder: Path, sides: Mapping[str, list[Any]]) -> tokens.Vocabulary:
        if self.vocabulary is None or self.tokenizer is None:
            made = tokens.train_tokenizer(iter(sides["train"]), self.vocabulary_size)
            made.save(folder / "tokenizer")
        else:
            made = self.vocabulary
            tokens.copy_folder(self.tokenizer, folder / "tokenizer")
        if made.size > self.vocabulary_size:
            raise ConfigFault(
                f"the tokenizer has {made.size} ids, the model {self.vocabulary_size}"
            )
        return made

    def _documents(self, folder: Path, reports: list[dict[str, Any]]) -> dict[str, list[Any]]:
        train: list[str] = []
        held_out: list[str] = []
        seen = cleaning.Seen()
        for each in self.inputs:
            texts = (
                cleaning.clean(text)
                for file in each.files
                for text in reading.documents(file, each.source.format)
            )
            before = len(held_out), len(train)
            for text in seen.unique(texts, str):
                is_held_out = cleaning.is_held_out(text, HELD_OUT_OF_CORPUS)
                (held_out if is_held_out else train).append(text)
            reports.append(
                _report(each, seen, len(train) - before[1], held_out=len(held_out) - before[0])
            )
        return {"train": train, "heldOut": held_out}

    def _exchanges(
        self, suites: list[suite.Suite], reports: list[dict[str, Any]]
    ) -> dict[str, list[Any]]:
        """Samples that a suite asks are left out; many of them mean a wrong split: refused."""
        asked_for = {
            cleaning.key_of(sample.content)
            for each in suites
            for task in each.tasks
            for sample in task.samples
        }
        train: list[Exchange] = []
        seen = cleaning.Seen()
        for each in self.inputs:
            samples = (one for file in each.files for one in reading.exchanges(file))
            kept = list(seen.unique(samples, lambda sample: sample.content))
            fresh = [one for one in kept if cleaning.key_of(one.content) not in asked_for]
            train += fresh
            reports.append(_report(each, seen, len(fresh), in_suites=len(kept) - len(fresh)))
        return {"train": train}

    def _rendered(
        self, vocabulary: tokens.Vocabulary, samples: list[Any], lengths: "_Lengths"
    ) -> Iterator[Rendered]:
        if self.asked.is_pretraining:
            yield from _texts(vocabulary, samples)
            return
        rendered = Renderer(vocabulary).render(samples, self.asked.sequence_length + 1)
        yield from lengths.fitting(rendered)


def _texts(vocabulary: tokens.Vocabulary, texts: list[str]) -> Iterator[Rendered]:
    for begin in range(0, len(texts), 1024):
        for ids in vocabulary.encode(texts[begin : begin + 1024]):
            ids.append(vocabulary.eos_id)
            yield Rendered(ids, [True] * len(ids))


@dataclass(slots=True)
class _Lengths:
    """Cuts samples to the longest length and counts what that cost."""

    limit: int
    truncated: int = 0
    without_answer: int = 0
    longest: int = 0

    def fitting(self, samples: Iterator[Rendered]) -> Iterator[Rendered]:
        """Yield samples of at most ``limit`` tokens that still have something to learn."""
        for sample in samples:
            self.longest = max(self.longest, min(len(sample.ids), self.limit))
            if len(sample.ids) > self.limit:
                self.truncated += 1
                del sample.ids[self.limit :], sample.mask[self.limit :]
            if any(sample.mask[1:]):
                yield sample
            else:
                self.without_answer += 1


def _report(
    each: _Input, seen: cleaning.Seen, train: int, *, held_out: int = 0, in_suites: int = 0
) -> dict[str, Any]:
    tally = seen.take()
    if tally.read == 0:
        raise DataFault(f"{each.source.path}: the data set is empty")
    if in_suites > IN_SUITES_SHARE_MAX * max(1, train + in_suites):
        raise DataFault(
            f"{each.source.path}: {in_suites} of {train + in_suites} samples are in an evaluation "
            "suite of this job; train on another split"
        )
    return {
        "name": each.source.name,
        "version": each.source.version or each.digest.removeprefix("sha256:")[:12],
        "digest": each.digest,
        "files": len(each.files),
        **asdict(tally),
        "inSuites": in_suites,
        "train": train,
        "heldOut": held_out,
    }


def write_json(file: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON file atomically and durably."""
    text = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    Path(name).replace(file)


def main() -> int:
    """Run the command; what is wrong goes to standard error in one line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.prepare")
    parser.add_argument("--order", type=Path, required=True, help="the launch order (JSON)")
    order = json.loads(parser.parse_args().order.read_text(encoding="utf-8"))
    try:
        made = prepare(order)
    except TrainingFault as fault:
        sys.stderr.write(f"preparation failed ({fault.failure_class}): {fault}\n")
        return EXIT_OF_CLASS[fault.failure_class]
    sys.stdout.write(f"prepared: data {made.data}, model {made.model}\n")
    return EXIT_COMPLETED


if __name__ == "__main__":
    sys.exit(main())
