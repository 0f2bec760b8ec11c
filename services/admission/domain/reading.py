"""A submission's content: read into a job or into reasons, and its digest.

Reasons are plain JSON values: {code, path, line, column, message, hint, nearest}. Pure.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts import ids, job, jobfile
from lineshaft.contracts.job import Fault, JobFileError, Locations, TrainingJob
from lineshaft.contracts.job_faults import Path, spelled

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a submission's content says: a job, or everything that is wrong with it."""

    job: TrainingJob | None
    faults: tuple[Fault, ...]
    locations: Locations
    digest: str

    def reasons(self) -> list[dict[str, Any]]:
        """Return the faults as reasons."""
        return [{"code": "job_file", **fault.to_dict(), "hint": None} for fault in self.faults]

    def reason(
        self, code: str, path: Path, message: str, hint: str | None = None
    ) -> dict[str, Any]:
        """Return a reason at a place of the job file, with its line where it is known."""
        line, column = self.locations.find(path)
        return {
            "code": code,
            "path": spelled(path),
            "line": line,
            "column": column,
            "message": message,
            "hint": hint,
            "nearest": None,
        }


def read(content: Any) -> Reading:
    """Read a job file's text, or a document that was JSON. Never raises."""
    if isinstance(content, str):
        return _read_text(content)
    digest = ids.digest_of(_canonical(content))
    return _read_document(content, Locations(), digest)


@functools.lru_cache(maxsize=64)  # the handler and the decider read the same text
def _read_text(text: str) -> Reading:
    try:
        document, locations = jobfile.read(text)
    except JobFileError as error:
        digest = ids.digest_of(text.encode("utf-8", "surrogatepass"))
        return Reading(None, error.faults, Locations(), digest)
    return _read_document(document, locations, ids.digest_of(_canonical(document)))


def _read_document(document: Any, locations: Locations, digest: str) -> Reading:
    try:
        return Reading(job.parse(document, locations), (), locations, digest)
    except JobFileError as error:
        return Reading(None, error.faults, locations, digest)


def _canonical(document: Any) -> bytes:
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":"), default=repr).encode()
    except (ValueError, TypeError, RecursionError):
        return repr(type(document)).encode()


def path_of(text: str) -> Path:
    """Read a spelled path (``spec.datasets[0].path``) back."""
    return tuple(int(m[2]) if m[2] else m[1] for m in _STEP.finditer(text))


def some(value: Any) -> Mapping[str, Any]:
    """Return ``value`` when it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def text_of(value: Any, otherwise: str) -> str:
    """Return ``value`` as a text that can be encoded, or ``otherwise`` when it is none."""
    text = value if isinstance(value, str) and value else otherwise
    return text.encode("utf-8", "replace").decode()
