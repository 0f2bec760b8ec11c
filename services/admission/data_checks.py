"""What preflight reads of a dataset: files, size, digest, the first lines and samples of more.

Blocking and bounded; runs in a thread. Says with file and line what a trainer would stumble on.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.admission.findings import Problem, Seen
from services.admission.mounts import Mounts

SUFFIXES: Final = {"jsonl": (".jsonl", ".ndjson"), "text": (".txt", ".text", ".md")}
FILES_MAX: Final = 10_000
FILES_LOOKED_INTO: Final = 16
FIRST_LINES: Final = 200
EVERY_LINE: Final = 97  # behind the first lines; prime, so that no period of the data hides
SCAN_BYTES_MAX: Final = 64 << 20
DIGEST_BYTES_MAX: Final = 256 << 20
LINE_BYTES_MAX: Final = 4 << 20
PROBLEMS_SHOWN: Final = 5

# The forms of a line that training understands: the keys that must be texts.
CORPUS_FORMS: Final = (("text",), ("content",))
PAIR_FORMS: Final = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("instruction", "output"),
)


@dataclass(slots=True)
class _Lines:
    """What the lines of one dataset turned out to be."""

    forms: Counter[str] = field(default_factory=Counter)
    first_of_form: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    scanned_bytes: int = 0

    def saw(self, form: str, where: str) -> None:
        self.forms[form] += 1
        self.first_of_form.setdefault(form, where)


def look(seen: Seen, where: str, row: dict[str, Any], *, mounts: Mounts, is_corpus: bool) -> None:
    """Look at one dataset of the job file and record findings, size and digest."""
    try:
        path = mounts.readable(str(row["path"]))
        files = _files(path, str(row["format"]), mounts)
        sizes = [file.stat().st_size for file in files]
    except Problem as problem:
        seen.problem(f"{where}.path", problem)
        return
    except OSError as error:
        seen.problem(f"{where}.path", Problem(f"{row['path']}: {error.strerror}"))
        return
    seen.paths[f"{where}.path"] = str(path)
    if not sum(sizes):
        seen.problem(f"{where}.path", Problem(f"{path} is empty", "put samples into it"))
        return
    empty = [file.name for file, size in zip(files, sizes, strict=True) if not size]
    if empty:
        seen.warn(f"{where}.path", f"{len(empty)} of {len(files)} files are empty: {empty[0]}")
    observed: dict[str, Any] = {"bytes": sum(sizes), "files": len(files), "digest": None}
    if sum(sizes) <= DIGEST_BYTES_MAX:
        observed["digest"] = digest_of(files, path)
    seen.datasets[where.partition("[")[2].rstrip("]")] = observed
    _look_into(seen, f"{where}.path", files, form=str(row["format"]), is_corpus=is_corpus)


def _files(path: Path, form: str, mounts: Mounts) -> list[Path]:
    if path.is_file():
        return [path]
    suffixes = SUFFIXES[form]
    found, others = [], Counter[str]()
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix in suffixes:
                found.append(file)
            else:
                others[file.suffix or name] += 1
        if len(found) > FILES_MAX:
            raise Problem(f"{path} holds more than {FILES_MAX} files", "join them into fewer files")
    if not found:
        there = ", ".join(f"{n} x {suffix}" for suffix, n in others.most_common(4))
        hint = f"there are: {there}" if there else "the folder is empty"
        raise Problem(f"{path}: no file ends in {' or '.join(suffixes)}", hint)
    for file in found:
        _check_file(file, mounts)
    return sorted(found)


def _check_file(file: Path, mounts: Mounts) -> None:
    if not file.is_file():
        raise Problem(f"{file} is no plain file", "remove it or its link")
    if file.is_symlink() and not mounts.holds(os.path.realpath(file)):
        raise Problem(f"{file} leads outside the mounts", "copy the file")
    if not os.access(file, os.R_OK):
        raise Problem(f"{file} cannot be read", "check its permissions")


def digest_of(files: list[Path], root: Path) -> str:
    """Return one SHA-256 over names (relative to ``root``) and contents, as training does."""
    whole = hashlib.sha256()
    for file in files:
        name = file.name if file == root else file.relative_to(root).as_posix()
        with file.open("rb") as stream:
            inner = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{name}\0{inner}\n".encode())
    return "sha256:" + whole.hexdigest()


def _look_into(seen: Seen, where: str, files: list[Path], *, form: str, is_corpus: bool) -> None:
    lines = _Lines()
    step = max(1, len(files) // FILES_LOOKED_INTO)
    for file in files[::step]:
        if form == "text":
            _look_at_text(file, lines)
        else:
            _look_at_lines(file, lines, is_corpus=is_corpus)
        if len(lines.problems) > PROBLEMS_SHOWN:
            break
    for problem in lines.problems[:PROBLEMS_SHOWN]:
        seen.problem(where, Problem(problem))
    if len(lines.forms) > 1:
        first = "; ".join(f"{form} at {at}" for form, at in sorted(lines.first_of_form.items()))
        seen.warn(where, f"lines of {len(lines.forms)} different forms: {first}")
    if form == "jsonl" and not lines.forms and not lines.problems:
        seen.problem(where, Problem(f"{files[0]} holds only empty lines"))


def _look_at_text(file: Path, lines: _Lines) -> None:
    with file.open("rb") as stream:
        raw = stream.read(1 << 20)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(raw) - 4:  # the cut may go through a character
            lines.problems.append(f"{file}: not UTF-8 at byte {error.start}")


def _look_at_lines(file: Path, lines: _Lines, *, is_corpus: bool) -> None:
    for number, raw in _sampled(file, lines):
        where = f"{file.name}:{number}"
        if len(raw) > LINE_BYTES_MAX:
            continue  # training reads it; parsing it here would take too long
        try:
            record = json.loads(raw)
        except (ValueError, RecursionError) as error:
            lines.problems.append(f"{where}: not JSON: {error}")
            continue
        form = _form(record, is_corpus=is_corpus)
        if form is None:
            lines.problems.append(f"{where}: {_unknown_form(record, is_corpus=is_corpus)}")
        else:
            lines.saw(form, where)
        if len(lines.problems) > PROBLEMS_SHOWN:
            return


def _sampled(file: Path, lines: _Lines) -> Iterator[tuple[int, bytes]]:
    """Yield the first lines and then every 97th, as far as the budget of bytes goes."""
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            lines.scanned_bytes += len(raw)
            is_chosen = number <= FIRST_LINES or number % EVERY_LINE == 0
            if is_chosen and raw.strip():
                yield number, raw
            if lines.scanned_bytes > SCAN_BYTES_MAX and number > FIRST_LINES:
                return


def _form(record: Any, *, is_corpus: bool) -> str | None:
    if not isinstance(record, dict):
        return None
    for keys in CORPUS_FORMS if is_corpus else PAIR_FORMS:
        if all(isinstance(record.get(key), str) for key in keys):
            return "{" + ", ".join(keys) + "}"
    turns = record.get("messages")
    if not is_corpus and isinstance(turns, list) and turns:
        whole = all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in turns)
        return "{messages}" if whole else None
    return None


def _unknown_form(record: Any, *, is_corpus: bool) -> str:
    if not isinstance(record, dict):
        return f"expected an object, found {type(record).__name__}"
    forms = CORPUS_FORMS if is_corpus else (*PAIR_FORMS, ("messages",))
    known = ", ".join("{" + ", ".join(keys) + "}" for keys in forms)
    keys = ", ".join(sorted(map(str, record))[:6])
    return f"has the keys {keys or '(none)'}; understood are texts under {known}"
