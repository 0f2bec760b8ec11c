"""YAML (or JSON) text of a job file to a plain document that knows its line numbers.

Reads events of the C parser and builds the document itself, so that size, depth and node count
are bounded while reading, duplicate keys are seen, and nothing is ever constructed from a tag.
Scalars follow YAML 1.2's core schema: ``1e-5`` is a number, ``no`` and ``on`` are texts.
What the fields mean is the business of ``lineshaft.contracts.job``.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from lineshaft.contracts import limits
from lineshaft.contracts.job_faults import (
    Fault,
    FaultList,
    JobFileError,
    Locations,
    Path,
    shown,
)

__all__ = ["Fault", "JobFileError", "Locations", "read"]

_LITERAL_CHARS_MAX = 64
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_WHOLE = re.compile(r"^[-+]?[0-9]+$", re.ASCII)
_OTHER_WHOLE = re.compile(r"^0(?:o[0-7]+|x[0-9a-fA-F]+)$", re.ASCII)
_NUMBER = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", re.ASCII)
_FOREIGN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_STANDARD_TAG = "tag:yaml.org,2002:"
_HARMLESS_TAGS = frozenset(("str", "map", "seq"))


def read(text: str | bytes, *, name: str = "job.yaml") -> tuple[dict[str, Any], Locations]:
    """Read one job file into a document and the places of its keys.

    Raises ``JobFileError`` with everything that is wrong with the file as a file. ``name`` is
    how the file is called in messages.
    """
    decoded = _decode(text, name)
    marks: dict[Path, tuple[int, int]] = {}
    faults = FaultList(Locations(marks))
    try:
        document = _Builder(marks, faults).build(_events(decoded))
    except _Broken as broken:
        as_json = _read_json(decoded)
        if as_json is not None:
            return as_json, Locations()
        raise JobFileError([*faults.sorted(), broken.fault], name) from None
    if document is None:
        faults.add((), "the file is empty")
    elif not isinstance(document, dict):
        faults.add((), "a job file is a mapping that begins with 'apiVersion:'")
    faults.raise_if_any(name)
    return document, Locations(marks)


class _Broken(Exception):
    """Reading cannot go on behind this fault."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.fault = Fault("", line, column, message)


def _decode(text: str | bytes, name: str) -> str:
    if len(text) > limits.JOB_FILE_BYTES_MAX:
        message = f"the file has {len(text)} bytes; at most {limits.JOB_FILE_BYTES_MAX} are read"
        raise JobFileError([Fault("", None, None, message)], name)
    if isinstance(text, str):
        return _checked(text.removeprefix("\ufeff"), name)
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise JobFileError([Fault("", 1, 1, "the file is UTF-16; save it as UTF-8")], name)
    try:
        return _checked(text.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        before = text[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = "the file is not UTF-8 text here; save it as UTF-8"
        raise JobFileError([Fault("", line, column, message)], name) from None


def _checked(text: str, name: str) -> str:
    match = _FOREIGN.search(text)
    if match is None:
        return text
    position = match.start()
    before = text[:position]
    fault = Fault(
        "",
        before.count("\n") + 1,
        position - before.rfind("\n"),
        f"the character U+{ord(text[position]):04X} does not belong in a job file",
    )
    raise JobFileError([fault], name)


def _events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(text.splitlines()) or 1  # what is missing at the end is missing on this line
        line = None if mark is None else min(mark.line + 1, last)
        column = None if mark is None else mark.column + 1
        raise _Broken(_explained(error, text, line), line, column) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _Broken(f"not YAML: {shown(str(error))}") from None


def _explained(error: yaml.MarkedYAMLError, text: str, line: int | None) -> str:
    problem = str(error.problem)
    lines = text.splitlines()
    indent = re.match(r"\s*", lines[line - 1]) if line and line <= len(lines) else None
    if "tab" in problem or (indent is not None and "\t" in indent[0]):
        return "a tab indents this line; YAML is indented with spaces"
    if "nesting depth" in problem:
        return f"nested deeper than {limits.JOB_FILE_DEPTH_MAX}"
    if "mapping values are not allowed" in problem:
        return "a second ':' on this line, or wrong indentation; put texts that hold ': ' in quotes"
    if "expected key" in problem or "block end" in problem:
        return "the indentation does not match the lines above"
    context = f" {error.context}" if error.context else ""
    return f"not YAML: {problem}{context}"


def _read_json(text: str) -> dict[str, Any] | None:
    """Read what YAML refused as JSON (surrogate escapes, tabs); None when it is none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"duplicate key {key!r}")
        made[key] = value
    return made


class _Builder:
    """Builds one document from parser events, iteratively and within bounds."""

    def __init__(self, marks: dict[Path, tuple[int, int]], faults: FaultList) -> None:
        self._marks = marks
        self._faults = faults
        self._nodes = 0
        self._documents = 0
        self._root: Any = None
        self._open: list[_Container] = []

    def build(self, events: Iterator[Any]) -> Any:
        """Consume all events; return the first document (None when the file is empty)."""
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    line = _mark(event)[0]
                    raise _Broken("a second document ('---'); a job file holds one job", line, 1)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self._open.pop()
            elif isinstance(event, yaml.NodeEvent):
                self._node(event)
        return self._root

    def _node(self, event: Any) -> None:
        line, column = _mark(event)
        self._nodes += 1
        if self._nodes > limits.JOB_FILE_NODES_MAX:
            raise _Broken(f"more than {limits.JOB_FILE_NODES_MAX} values", line, column)
        if self._open and self._open[-1].wants_key:
            self._key(event, line, column)
            return
        path = self._open[-1].next_path() if self._open else ()
        self._marks.setdefault(path, (line, column))
        self._refuse_references(event, path)
        value, opened = self._value_of(event, path)
        if self._open:
            self._open[-1].put(value)
        else:
            self._root = value
        if opened is not None:
            if len(self._open) >= limits.JOB_FILE_DEPTH_MAX:
                raise _Broken(f"nested deeper than {limits.JOB_FILE_DEPTH_MAX}", line, column)
            self._open.append(opened)

    def _key(self, event: Any, line: int, column: int) -> None:
        mapping = self._open[-1]
        self._refuse_references(event, mapping.path)
        if not isinstance(event, yaml.ScalarEvent):
            raise _Broken("a key must be a plain text", line, column)
        key = event.value
        path = (*mapping.path, key)
        if key == "<<":
            self._faults.add(mapping.path, "merge keys ('<<') are not read: write the values out")
        if key in mapping.value:
            first = self._marks.get(path, (line, column))[0]
            self._marks[path] = (line, column)
            self._faults.add(path, f"the key occurs twice; the first is on line {first}")
        self._marks[path] = (line, column)
        mapping.key = key
        mapping.wants_key = False

    def _refuse_references(self, event: Any, path: Path) -> None:
        if getattr(event, "anchor", None):
            self._faults.add(path, "anchors and aliases are not read: write the value out")

    def _value_of(self, event: Any, path: Path) -> tuple[Any, "_Container | None"]:
        if isinstance(event, yaml.AliasEvent):
            return None, None
        tag = event.tag
        is_odd = tag not in (None, "!") and tag.removeprefix(_STANDARD_TAG) not in _HARMLESS_TAGS
        if is_odd:
            self._faults.add(path, f"tags are not read: remove '{shown(_short(tag))}'")
        if isinstance(event, yaml.MappingStartEvent):
            mapping = _Container(path, {})
            return mapping.value, mapping
        if isinstance(event, yaml.SequenceStartEvent):
            sequence = _Container(path, [])
            return sequence.value, sequence
        return (_resolved(event.value) if event.implicit[0] else event.value), None


class _Container:
    """A mapping or a list under construction."""

    def __init__(self, path: Path, value: Any) -> None:
        self.path = path
        self.value = value
        self.key: str | None = None
        self.wants_key = isinstance(value, dict)

    def next_path(self) -> Path:
        """Return the path of the value that comes next."""
        return (*self.path, len(self.value) if self.key is None else self.key)

    def put(self, value: Any) -> None:
        """Take the next value."""
        if isinstance(self.value, dict):
            self.value[self.key] = value
            self.wants_key = True
        else:
            self.value.append(value)


def _mark(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _short(tag: str) -> str:
    is_standard = tag.startswith(_STANDARD_TAG)
    return "!!" + tag.removeprefix(_STANDARD_TAG) if is_standard else tag


def _resolved(text: str) -> Any:
    """Return what a plain scalar means in YAML 1.2's core schema (chapter 10.3)."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LITERAL_CHARS_MAX:
        return text
    if _WHOLE.match(text):
        return int(text)
    if _OTHER_WHOLE.match(text):
        return int(text, 0)
    return float(text) if _NUMBER.match(text) else text
