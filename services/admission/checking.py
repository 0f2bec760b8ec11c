"""Preflight checks as data: files of id, when, test, message and severity, in the order of names.

The product's own lie in ``services/admission/checks``; a folder of the settings adds more, so an
operator needs no code. A file that cannot be read is a fault of the settings, found at the start.
Paths, data and models are looked at by ``data_checks`` and ``model_checks``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from services.admission import scanning
from services.admission.findings import Problem, Seen
from services.admission.scanning import Pattern, Source

OURS: Final = Path(__file__).parent / "checks"
FILE_BYTES_MAX: Final = 64 * 1024
LINES_SHOWN: Final = 3
SEVERITIES: Final = ("warning", "reason")
_KEYS: Final = {"id", "when", "test", "message", "severity", "hint"}
_PATTERN_KEYS: Final = {"call", "calls_any", "where", "lacks", "sets_environment", "unless_named"}
_BOUNDS: Final = {"above", "below", "is", "matches", "isSet"}


class CheckError(ValueError):
    """A check that cannot be used; its message names file and fault."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``when`` and ``test.job`` are conditions on the job, by path."""

    id: str
    when: Mapping[str, Any]
    python: tuple[Pattern, ...]
    job: Mapping[str, Any]
    message: str
    hint: str | None
    severity: str


def load(folders: Sequence[Path]) -> tuple[Check, ...]:
    """Read every ``*.yaml`` of the folders, in the order of folders and names.

    Raises ``CheckError``, also for an id that occurs twice.
    """
    checks: dict[str, Check] = {}
    for folder in folders:
        if not folder.is_dir():
            raise CheckError(f"{folder} is no folder of checks")
        for file in sorted(folder.glob("*.yaml")):
            check = _read(file)
            if check.id in checks:
                raise CheckError(f"{file}: the id '{check.id}' occurs twice")
            checks[check.id] = check
    return tuple(checks.values())


def _read(file: Path) -> Check:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise CheckError(f"{file}: more than {FILE_BYTES_MAX} bytes")
        body = yaml.safe_load(file.read_text(encoding="utf-8"))
        return _check(body)
    except CheckError:
        raise
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError, re.error) as error:
        raise CheckError(f"{file}: {error}") from None


def _check(body: Any) -> Check:
    _known(body, _KEYS, "a check")
    for key in ("id", "message"):
        if not isinstance(body.get(key), str) or not body[key]:
            raise ValueError(f"'{key}' must be a text")
    if body.get("severity") not in SEVERITIES:
        raise ValueError(f"'severity' must be one of {', '.join(SEVERITIES)}")
    test = body.get("test")
    _known(test, {"python", "job"}, "'test'")
    if not test:
        raise ValueError("'test' must hold python or job")
    return Check(
        id=body["id"],
        when=_conditions(body.get("when") or {}, "'when'"),
        python=tuple(_pattern(row) for row in test.get("python") or ()),
        job=_conditions(test.get("job") or {}, "'test.job'"),
        message=body["message"],
        hint=body.get("hint"),
        severity=body["severity"],
    )


def _known(body: Any, keys: set[str], what: str) -> None:
    if not isinstance(body, dict):
        raise ValueError(f"{what} must be a mapping")
    unknown = sorted(set(map(str, body)) - keys)
    if unknown:
        raise ValueError(f"{what} has no '{unknown[0]}'; it takes {', '.join(sorted(keys))}")


def _conditions(rows: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(rows, dict):
        raise ValueError(f"{what} must map paths to conditions")
    for condition in rows.values():
        if isinstance(condition, dict):
            _known(condition, _BOUNDS, f"a condition of {what}")
            re.compile(str(condition.get("matches", "")))
    return rows


def _pattern(row: Any) -> Pattern:
    _known(row, _PATTERN_KEYS, "a pattern")
    calls = [row["call"]] if "call" in row else list(row.get("calls_any") or ())
    variables = row.get("sets_environment")
    if not calls and variables is None:
        raise ValueError("a pattern needs call, calls_any or sets_environment")
    return Pattern(
        calls=tuple(map(str, calls)),
        where={str(k): re.compile(str(v)) for k, v in (row.get("where") or {}).items()},
        lacks=row.get("lacks"),
        sets_environment=None if variables is None else re.compile(str(variables)),
        unless_named=frozenset(map(str, row.get("unless_named") or ())),
    )


def look(seen: Seen, spec: Mapping[str, Any], checks: Sequence[Check]) -> None:
    """Apply the checks to a job whose paths were resolved, and record what they find."""
    where, sources = _program(seen, spec)
    for check in checks:
        if not all(_holds(spec, path, rule) for path, rule in check.when.items()):
            continue
        if check.job and all(_holds(spec, path, rule) for path, rule in check.job.items()):
            _tell(seen, f"spec.{next(iter(check.job))}", check, "")
        found = [row for p in check.python for row in scanning.matches(sources, p)]
        if found:
            rows = sorted({f"{path.name}:{line}" for path, line in found}, key=_by_line)
            more = f" and {len(rows) - LINES_SHOWN} more" if len(rows) > LINES_SHOWN else ""
            _tell(seen, where, check, f"{', '.join(rows[:LINES_SHOWN])}{more}: ")


def _by_line(row: str) -> tuple[str, int]:
    name, _, line = row.rpartition(":")
    return name, int(line)


def _program(seen: Seen, spec: Mapping[str, Any]) -> tuple[str, list[Source]]:
    for index, _ in enumerate(spec.get("command") or ()):
        where = f"spec.command[{index}]"
        if seen.paths.get(where, "").endswith(".py"):
            return where, scanning.program(Path(seen.paths[where]))
    return "spec.command", []


def _tell(seen: Seen, where: str, check: Check, at: str) -> None:
    message = f"{at}{check.message} [{check.id}]"
    if check.severity == "reason":
        seen.problem(where, Problem(message, check.hint))
    else:
        seen.warn(where, f"{message}; {check.hint}" if check.hint else message)


def _holds(spec: Mapping[str, Any], path: str, rule: Any) -> bool:
    value: Any = spec
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(rule, dict):
        return bool(value == rule)
    is_number = isinstance(value, int | float)
    tests: Mapping[str, Callable[[Any], bool]] = {
        "above": lambda bound: is_number and value > bound,
        "below": lambda bound: is_number and value < bound,
        "is": lambda wanted: value == wanted,
        "matches": lambda text: isinstance(value, str) and bool(re.fullmatch(text, value)),
        "isSet": lambda wanted: (value not in (None, [], {})) == wanted,
    }
    return all(tests[name](bound) for name, bound in rule.items())
