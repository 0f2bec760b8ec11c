"""Findings: what preflight has to say about a job's paths, data and model.

Plain values, so that they can be recorded; what they mean for the job is the decider's word.
"""

from dataclasses import dataclass, field
from typing import Any

FINDINGS_MAX = 100


class Problem(Exception):
    """One thing that is wrong with a path or file; ``hint`` says what to do next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(slots=True)
class Seen:
    """Everything that looking at one job brought to light.

    ``paths`` maps the place of a path in the job file to the absolute path it means. ``disks``
    holds, for ``output`` and ``checkpoints``: {path, device, free_bytes, bytes_per_s}.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    disks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def problem(self, where: str, problem: Problem) -> None:
        """Record what keeps the job out."""
        self._add(where, problem.message, problem.hint, "reason")

    def warn(self, where: str, message: str) -> None:
        """Record what the user should know."""
        self._add(where, message, None, "warning")

    def _add(self, where: str, message: str, hint: str | None, severity: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            row = {"path": where, "message": message, "hint": hint, "severity": severity}
            self.findings.append(row)

    def to_dict(self) -> dict[str, Any]:
        """Return the observations as JSON values."""
        return {
            "findings": self.findings,
            "paths": self.paths,
            "datasets": self.datasets,
            "model": self.model,
            "disks": self.disks,
        }
