"""What a field of a job file means: its path as people spell it, an example, its neighbours.

Pure; the fields themselves are tabled in ``lineshaft.contracts.job_fields``.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import yaml

from lineshaft.contracts import job_page
from lineshaft.contracts.job_faults import nearest
from lineshaft.contracts.job_fields import refused_words
from lineshaft.contracts.job_records import Field, ListOf, MapOf, Record

_INDEX: Final = re.compile(r"\[\d*\]|\.\d+(?=\.|$)")
_EXAMPLES: Final[dict[str, Any]] = {
    "metadata.name": "domain-chat",
    "metadata.labels": {"project": "chat"},
    "spec.labels": {"project": "chat"},
    "spec.team": "research",
    "spec.jobType": "full-finetune",
    "spec.model": "qwen-tiny-base@latest",
    "spec.tokenizer": "/data/tokenizer",
    "spec.datasets[].name": "domain-qa",
    "spec.datasets[].path": "/data/domain-qa.jsonl",
    "spec.datasets[].version": "2026-05",
    "spec.resources.gpuType": "cpu",
    "spec.hyperparameters.epochs": 3,
    "spec.hyperparameters.maxSteps": 1000,
    "spec.hyperparameters.batchSize": 4,
    "spec.hyperparameters.gradientAccumulation": 8,
    "spec.hyperparameters.globalBatchSize": 64,
    "spec.hyperparameters.warmupRatio": 0.03,
    "spec.hyperparameters.warmupSteps": 100,
    "spec.hyperparameters.deepspeedConfig": {"zero_optimization": {"overlap_comm": True}},
    "spec.hyperparameters.lora.targets": ["q_proj", "v_proj"],
    "spec.checkpoint.everySteps": 500,
    "spec.checkpoint.everyMinutes": 30,
    "spec.evaluation.everySteps": 500,
    "spec.evaluation.suites": ["/data/suite.json"],
    "spec.output.modelSavePath": "/models/domain-chat",
    "spec.output.modelName": "domain-chat",
    "spec.command": ["python", "train.py"],
    "spec.args": ["--epochs", "3"],
    "spec.workingDir": "/data/project",
    "spec.env": {"HF_HUB_OFFLINE": "1"},
    "spec.gracePeriod": "2m",
    "spec.startTimeout": "15m",
    "spec.schedule.maxRunTime": "12h",
}


class UnknownFieldError(LookupError):
    """No field has this name; ``near`` are the paths that were probably meant."""

    def __init__(self, text: str, near: list[str]) -> None:
        super().__init__(f"a job file has no field '{text}'")
        self.near = near


@dataclass(frozen=True, slots=True)
class Explained:
    """A field, told: how it is written, and what is below it."""

    path: str
    is_honoured: bool
    meaning: str
    type: str
    default: str
    refused_values: tuple[str, ...]
    example: str
    below: tuple[str, ...]

    def as_object(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "path": self.path,
            "honoured": self.is_honoured,
            "meaning": self.meaning,
            "type": self.type,
            "default": self.default or None,
            "refused_values": list(self.refused_values),
            "example": self.example or None,
            "fields": list(self.below),
        }


def explain(text: str) -> Explained:
    """Explain the field that ``text`` names: a path, or the end of one that is unique.

    Raises ``UnknownFieldError``.
    """
    known = job_page.fields()
    refused = _refused_below(known)
    path = _find(text, [*known, *refused])
    if path in refused:
        return Explained(path, False, "", "", "", (), "", ())
    field = known[path]
    below = tuple(p for p in known if p.startswith((f"{path}.", f"{path}[].")))
    return Explained(
        path=path,
        is_honoured=not field.later,
        meaning=field.summary,
        type="" if field.later else job_page.words_of(field),
        default="" if field.later else job_page.default_of(field),
        refused_values=refused_words().get(path, ()),
        example="" if field.later else _written(path, field),
        below=below,
    )


def example_of(path: str, field: Field) -> Any:
    """Return a value that the field accepts, as it would stand in a file."""
    if path in _EXAMPLES:
        return _EXAMPLES[path]
    if isinstance(field.type, Record):
        return {one.name: example_of(f"{path}.{one.name}", one) for one in _worth(field.type)}
    if isinstance(field.type, ListOf) and isinstance(field.type.item, Record):
        inner = _worth(field.type.item)
        return [{one.name: example_of(f"{path}[].{one.name}", one) for one in inner}]
    if isinstance(field.default, bool | int | float | str):
        return field.default
    return _of_schema(field.type.schema(), field)


def _of_schema(schema: dict[str, Any], field: Field) -> Any:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object" or isinstance(field.type, MapOf):
        return {}
    if kind == "array":
        return []
    is_number = kind == "number" or isinstance(kind, list)
    return max(1, schema.get("minimum", 1)) if is_number else "text"


def _worth(record: Record) -> list[Field]:
    """Return what an example of a record shows: what is required, else the first three."""
    honoured = [one for one in record.fields if not one.later]
    required = [one for one in honoured if job_page.default_of(one) == "required"]
    return required or honoured[:3]


def _written(path: str, field: Field) -> str:
    value = example_of(path, field)
    for part in reversed(path.split(".")):
        name = part.removesuffix("[]")
        value = {name: [value]} if part.endswith("[]") else {name: value}
    return str(yaml.safe_dump(value, sort_keys=False, default_flow_style=False)).rstrip()


def _refused_below(known: dict[str, Field]) -> set[str]:
    return {f"{path}.{name}" for path, field in known.items() for name in field.names}


def _find(text: str, known: list[str]) -> str:
    asked = _INDEX.sub("[]", text.strip().strip("."))
    exact = [path for path in known if path in (asked, f"spec.{asked}")]
    if exact:
        return exact[0]
    ends = [path for path in known if _plain(path).endswith(f".{_plain(asked)}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UnknownFieldError(text, ends)
    raise UnknownFieldError(text, _near(asked, known))


def _plain(path: str) -> str:
    return path.replace("[]", "").lower()


def _near(asked: str, known: list[str]) -> list[str]:
    whole = nearest(asked, known) or nearest(f"spec.{asked}", known)
    last = asked.rpartition(".")[2]
    names = {path.rpartition(".")[2]: path for path in reversed(known)}
    by_name = nearest(last, names)
    found = [whole, names[by_name] if by_name else None]
    return list(dict.fromkeys(path for path in found if path))
