"""Faults of a job file: where each stands, how they are collected, which name was meant.

All faults of a file are reported at once. Standard library only.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts import limits

Path = tuple[str | int, ...]
"""Place of a value in a document: keys and list positions from the top."""

_SHOWN_CHARS = 80
_ROOT = "the job file"


def spelled(path: Path) -> str:
    """Return a path as people write it: ``spec.datasets[0].path``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + shown(part)
    return text


def shown(value: Any) -> str:
    """Return a value as a message shows it: printable, on one line, at most 80 characters."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text[: _SHOWN_CHARS + 1])
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. ``line`` and ``column`` count from 1; None where unknown.

    ``nearest`` is the known name or path that was probably meant.
    """

    path: str
    line: int | None
    column: int | None
    message: str
    nearest: str | None = None

    def text(self, name: str = "job.yaml") -> str:
        """Return ``job.yaml:12:5: spec.hyperparameters.learningRte: ...`` on one line."""
        place = name if self.line is None else f"{name}:{self.line}:{self.column or 1}"
        return f"{place}: {self.path or _ROOT}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fault as JSON values, for events and answers."""
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "nearest": self.nearest,
        }


class JobFileError(ValueError):
    """A job file that cannot be accepted; ``faults`` holds everything that is wrong with it."""

    def __init__(self, faults: Iterable[Fault], name: str = "job.yaml") -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        self.name = name
        super().__init__("\n".join(fault.text(name) for fault in self.faults))


@dataclass(frozen=True, slots=True)
class Locations:
    """Line and column (from 1) of every key and list item of a document."""

    marks: Mapping[Path, tuple[int, int]] = field(default_factory=dict)

    def find(self, path: Path) -> tuple[int | None, int | None]:
        """Return the place of ``path``, or of what contains it, or two Nones."""
        for length in range(len(path), -1, -1):
            mark = self.marks.get(path[:length])
            if mark is not None:
                return mark
        return None, None


class FaultList:
    """Collects faults up to ``limits.JOB_FILE_FAULTS_MAX``, and which fields were given."""

    def __init__(self, locations: Locations | None = None) -> None:
        self._locations = locations or Locations()
        self._faults: dict[tuple[str, str], Fault] = {}
        self.given: set[Path] = set()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more; looking further is then useless."""
        return len(self._faults) >= limits.JOB_FILE_FAULTS_MAX

    def add(self, path: Path, message: str, nearest: str | None = None) -> None:
        """Record a fault at ``path``; the same words at the same place count once."""
        if self.is_full:
            return
        line, column = self._locations.find(path)
        text = spelled(path)
        self._faults.setdefault((text, message), Fault(text, line, column, message, nearest))

    def sorted(self) -> list[Fault]:
        """Return the faults in the order of the file."""
        return sorted(
            self._faults.values(),
            key=lambda f: (f.line or 1 << 30, f.column or 0, f.path, f.message),
        )

    def raise_if_any(self, name: str = "job.yaml") -> None:
        """Raise ``JobFileError`` when at least one fault was recorded."""
        if self._faults:
            raise JobFileError(self.sorted(), name)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``word`` was probably meant to be, or None.

    Letter case, ``_`` and ``-`` do not count: ``learning_rate`` is ``learningRate``.
    """
    by_plain = {_plain(name): name for name in known}
    found = difflib.get_close_matches(_plain(word[:64]), list(by_plain), n=1, cutoff=0.7)
    return by_plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
