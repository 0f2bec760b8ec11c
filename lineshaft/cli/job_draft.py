"""A first job file out of a few answers: what is asked, and the commented text.

Pure. Whether the text is a valid job is ``lineshaft.contracts.job``'s word.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from lineshaft.contracts import ids, jobfile


class Kind(StrEnum):
    """The kinds of job that a draft can be made for."""

    FINETUNE = "full-finetune"
    LORA = "lora"
    PRETRAIN = "pretrain"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Answers:
    """What was answered so far, in the order of the questions; None: not yet."""

    kind: Kind | None = None
    name: str | None = None
    model: str | None = None
    data: str | None = None
    tokenizer: str | None = None
    command: str | None = None
    gpu_type: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    save: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question: to whom it applies, its default, and how the answer is read.

    ``read`` raises ``ValueError`` with what is meant.
    """

    text: str
    read: Callable[[str], Any]
    default: Callable[[Answers], Any] = lambda _: None
    applies: Callable[[Answers], bool] = lambda _: True


def _name(text: str) -> str:
    if not ids.is_name(text):
        raise ValueError(f"a name is of a-z, 0-9 and '-'; {ids.slug(text)} would do")
    return text


def _kind(text: str) -> Kind:
    if text not in list(Kind):
        raise ValueError(f"one of {', '.join(Kind)}")
    return Kind(text)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("something must be said here")
    return text.strip()


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:9]) < 1:
        raise ValueError("a whole number, at least 1")
    return int(text[:9])


def _command(text: str) -> str:
    if not shlex.split(text):
        raise ValueError("a command, as in a shell")
    return text


def _trains(answers: Answers) -> bool:
    return answers.kind is not Kind.SCRIPT


def _needs_model(answers: Answers) -> bool:
    return answers.kind in (Kind.FINETUNE, Kind.LORA, Kind.PRETRAIN)


QUESTIONS: dict[str, Question] = {
    "kind": Question(f"What kind of job ({', '.join(Kind)})", _kind, lambda _: Kind.FINETUNE.value),
    "name": Question("A name for the job", _name, lambda _: "my-job"),
    "model": Question(
        "Which model to start from (a registered model, a folder, or a configuration file)",
        _text,
        applies=_needs_model,
    ),
    "data": Question("The training data (a .jsonl file or a folder)", _text, applies=_trains),
    "tokenizer": Question(
        "The tokenizer's folder", _text, applies=lambda a: a.kind is Kind.PRETRAIN
    ),
    "command": Question(
        "The command to run",
        _command,
        lambda _: "python train.py",
        applies=lambda a: a.kind is Kind.SCRIPT,
    ),
    "gpu_type": Question("Which devices (cpu, a100-80g, ...)", _name, lambda _: "cpu"),
    "gpus": Question("How many devices together", _count, lambda _: "1"),
    "nodes": Question("On how many nodes", _count, lambda _: "1"),
    "save": Question(
        "Where to save the model (a folder)",
        _text,
        lambda a: f"models/{a.name}",
        applies=_trains,
    ),
}


def filled(answers: Answers) -> Answers:
    """Fill in the default of every question that has one and was not answered."""
    for name, question in QUESTIONS.items():
        default = question.default(answers)
        if getattr(answers, name) is None and question.applies(answers) and default is not None:
            answers = replace(answers, **{name: question.read(str(default))})
    return answers


def missing(answers: Answers) -> list[str]:
    """Return the options for which there is neither an answer nor a default."""
    return [
        f"--{name.replace('_', '-')}"
        for name, question in QUESTIONS.items()
        if question.applies(answers) and getattr(answers, name) is None
    ]


def text(answers: Answers) -> str:
    """Return the job file; every question that applies must be answered."""
    lines = [
        "# A job file of Lineshaft. `lineshaft explain-field NAME` says what a field means;",
        "# `lineshaft plan` says what the job needs and whether it can run here.",
        "apiVersion: lineshaft.io/v1",
        "kind: TrainingJob",
        "metadata:",
        f"  name: {_quoted(answers.name)}  # for people; the platform makes the job's id",
        "spec:",
        f"  jobType: {answers.kind}",
        *(_script(answers) if answers.kind is Kind.SCRIPT else _data(answers)),
        "  resources:",
        f"    gpuType: {_quoted(answers.gpu_type)}  # 'cpu' counts slots",
        f"    gpuCount: {answers.gpus}  # of all nodes together; one rank each",
        f"    nodeCount: {answers.nodes}",
        *(() if answers.kind is Kind.SCRIPT else _training(answers)),
    ]
    return "\n".join(lines) + "\n"


def _script(answers: Answers) -> list[str]:
    command = json.dumps(shlex.split(answers.command or ""), ensure_ascii=False)
    return [
        f"  command: {command}",
        "  # What the script writes to $LINESHAFT_OUTPUT_DIR is kept and registered;",
        "  # lineshaft.report(step=..., loss=...) makes its curves visible.",
        "  # env:",
        '  #   PYTHONHASHSEED: "0"',
    ]


def _data(answers: Answers) -> list[str]:
    path = answers.data or ""
    form = "text" if PurePath(path).suffix in (".txt", ".text", ".md") else "jsonl"
    name = ids.slug(PurePath(path).stem)
    lines = [f"  model: {_quoted(answers.model)}"]
    if answers.tokenizer:
        lines.append(f"  tokenizer: {_quoted(answers.tokenizer)}")
    return [
        *lines,
        "  datasets:",
        f"    - name: {_quoted(name if ids.is_name(name) else 'training-data')}",
        f"      path: {_quoted(path)}  # inside a folder that `mounts` of lineshaft.toml names",
        f"      format: {form}",
    ]


_RATES = {Kind.FINETUNE: "1e-5", Kind.LORA: "2e-4", Kind.PRETRAIN: "3e-4"}


def _training(answers: Answers) -> list[str]:
    kind = answers.kind or Kind.FINETUNE
    strategy = "none" if answers.gpus == 1 else "ddp"
    lora = ["    lora:", "      rank: 8", "      alpha: 16"] if kind is Kind.LORA else []
    return [
        "  hyperparameters:",
        "    epochs: 1  # or maxSteps",
        "    batchSize: 4  # samples per rank and forward pass",
        "    gradientAccumulation: 1  # global batch = batchSize x this x ranks",
        f"    learningRate: {_RATES[kind]}",
        "    warmupRatio: 0.03",
        f"    distributedStrategy: {strategy}  # ddp, or deepspeed-zero1/2/3 to save memory",
        *lora,
        "  # checkpoint:",
        "  #   everyMinutes: 30  # the platform chooses when nothing is said",
        "  # evaluation:",
        "  #   suites: [suites/held-out.json]",
        "  output:",
        f"    modelSavePath: {_quoted(answers.save)}",
    ]


def _quoted(value: str | None) -> str:
    """Write a text as YAML: plain where a job file's reader gives the same text back."""
    raw = value or ""
    try:
        is_plain = jobfile.read(f"a: {raw}")[0] == {"a": raw}
    except jobfile.JobFileError:
        is_plain = False
    return raw if is_plain else json.dumps(raw, ensure_ascii=False)
