"""TrainingJob: a checked job in its canonical form, and how a job file becomes one.

``parse`` reports every fault of a document at once, with path, line and the nearest known
name. The fields are tabled in ``job_fields``, their types are in ``job_types``, what they need
from one another in ``job_rules``; the text of a file is read by ``jobfile``.
Nothing here looks at a disk or a network: whether a job can run is preflight's word.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts import jobfile, limits
from lineshaft.contracts.job_faults import Fault, FaultList, JobFileError, Locations, Path
from lineshaft.contracts.job_fields import FILE, KIND, statuses
from lineshaft.contracts.job_records import copied
from lineshaft.contracts.job_rules import Draft, apply
from lineshaft.contracts.job_sources import filled
from lineshaft.contracts.job_types import Place

__all__ = [
    "Fault",
    "JobFileError",
    "Locations",
    "Report",
    "TrainingJob",
    "json_schema",
    "parse",
    "read",
    "statuses",
    "validate",
]

_NUMBER_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job whose every field was checked; ``spec`` is its canonical form.

    ``spec`` is flat and camelCase: ``name``, ``labels``, then the fields of the file's
    ``spec``, each with its default; None is "not set". ``given`` holds the paths of the
    fields that the file itself gives (``spec``, ``hyperparameters``, ``seed``).
    """

    spec: dict[str, Any]
    given: frozenset[Path]

    @property
    def name(self) -> str:
        """The job's name, a label."""
        return str(self.spec["name"])

    @property
    def team(self) -> str | None:
        """The team that the file names, if it names one."""
        team: str | None = self.spec["team"]
        return team

    @property
    def job_type(self) -> str:
        """``pretrain``, ``full-finetune``, ``lora``, ``evaluate`` or ``script``."""
        return str(self.spec["jobType"])

    @property
    def priority(self) -> int:
        """0 to 1000, higher goes first."""
        return int(self.spec["priority"])

    @property
    def gpu_type(self) -> str:
        """``cpu`` or a device type."""
        return str(self.spec["resources"]["gpuType"])

    @property
    def ranks(self) -> int:
        """Ranks of the whole gang: one per device."""
        return int(self.spec["resources"]["gpuCount"])

    @property
    def nodes(self) -> int:
        """Nodes of the gang."""
        return int(self.spec["resources"]["nodeCount"])

    @property
    def slots_per_node(self) -> int:
        """Devices, and ranks, on each node."""
        return self.ranks // self.nodes

    def canonical(self) -> dict[str, Any]:
        """Return the canonical form; the caller owns the copy."""
        made: dict[str, Any] = copied(self.spec)
        return made


@dataclass(frozen=True, slots=True)
class Report:
    """What ``validate`` found: the job, or why there is none."""

    job: TrainingJob | None
    faults: tuple[Fault, ...]
    name: str = "job.yaml"

    @property
    def is_valid(self) -> bool:
        """Whether the file holds a job that a platform would look at."""
        return self.job is not None

    def lines(self) -> list[str]:
        """Return one line per fault: ``job.yaml:12:5: spec.model: ...``."""
        return [fault.text(self.name) for fault in self.faults]


def read(text: str | bytes, *, name: str = "job.yaml") -> TrainingJob:
    """Read and check a job file's text. Raises ``JobFileError`` with all faults."""
    document, locations = jobfile.read(text, name=name)
    return parse(document, locations)


def validate(text: str | bytes, *, name: str = "job.yaml") -> Report:
    """Check a job file's text; needs no platform and looks at no disk. Never raises."""
    try:
        return Report(read(text, name=name), (), name)
    except JobFileError as error:
        return Report(None, error.faults, name)


def parse(document: Any, locations: Locations | None = None) -> TrainingJob:
    """Check a document (from ``jobfile.read`` or JSON) and return its canonical job.

    Raises ``JobFileError`` with all faults, in the order of the file; never anything else.
    """
    faults = FaultList(locations)
    if not _is_bounded(document, faults):
        faults.raise_if_any()
    document = filled(document, faults)
    read = FILE.read(document, Place((), faults))
    spec = _flattened(read, faults)
    if spec is not None:
        apply(Draft(spec, faults))
    faults.raise_if_any()
    if spec is None:  # a record that is not even a mapping was recorded as a fault above
        raise JobFileError([Fault("", None, None, "not a job")])
    _check_size(spec)
    return TrainingJob(spec, frozenset(faults.given))


def _flattened(read: dict[str, Any] | None, faults: FaultList) -> dict[str, Any] | None:
    metadata, spec = (read or {}).get("metadata"), (read or {}).get("spec")
    if spec is None:
        return None
    metadata = metadata or {}
    own, outer = spec.pop("labels") or {}, metadata.get("labels") or {}
    for key in own.keys() & outer.keys():
        if own[key] != outer[key]:
            faults.add(("spec", "labels", key), "differs from metadata.labels")
    return {"name": metadata.get("name"), "labels": {**outer, **own}, **spec}


def _is_bounded(document: Any, faults: FaultList) -> bool:
    """Record what makes a document no bounded JSON; tell whether it is safe to look further."""
    waiting: list[tuple[Path, Any]] = [((), document)]
    seen, is_safe = 0, True
    while waiting:
        path, value = waiting.pop()
        seen += 1
        if seen > limits.JOB_FILE_NODES_MAX:
            faults.add((), f"more than {limits.JOB_FILE_NODES_MAX} values")
            return False
        if len(path) > limits.JOB_FILE_DEPTH_MAX:
            faults.add(path[:2], f"nested deeper than {limits.JOB_FILE_DEPTH_MAX}")
            is_safe = False
        elif isinstance(value, dict):
            odd = [key for key in value if not isinstance(key, str) or not _is_encodable(key)]
            if odd:
                faults.add(path, "every key must be a plain text")
                is_safe = False
            waiting.extend(((*path, k), v) for k, v in value.items() if k not in odd)
        elif isinstance(value, list):
            waiting.extend(((*path, index), each) for index, each in enumerate(value))
        elif not _is_json(value):
            faults.add(path, "is no value of JSON: a finite number, a text, true, false or null")
    return is_safe


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, str):
        return _is_encodable(value)
    is_number = isinstance(value, int | float)
    return is_number and abs(value) < (_NUMBER_MAX if isinstance(value, int) else math.inf)


def _is_encodable(text: str) -> bool:
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _check_size(spec: dict[str, Any]) -> None:
    size = len(json.dumps(spec, ensure_ascii=False).encode())
    if size > limits.JOB_SPEC_BYTES_MAX:
        message = f"the job has {size} bytes; at most {limits.JOB_SPEC_BYTES_MAX} are accepted"
        raise JobFileError([Fault("", None, None, message)])


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file (2020-12): the fields that are honoured."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": KIND,
        "description": "A job file of Lineshaft",
    } | FILE.schema()
