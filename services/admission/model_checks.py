"""What preflight reads of a model folder, a configuration, a tokenizer, a suite, a script.

Blocking and bounded; runs in a thread.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from services.admission.findings import Problem, Seen
from services.admission.mounts import Mounts

JSON_BYTES_MAX: Final = 16 << 20
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
SCRIPT_SUFFIXES: Final = (".py", ".sh", ".bash", ".pl", ".rb", ".js")
_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


def read_json(path: Path, mounts: Mounts) -> dict[str, Any]:
    """Return a JSON object from a file, which lies in a mount itself. Raises ``Problem``."""
    _check_part(path, mounts)
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise Problem(f"{path} is too large to be read here")
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Problem(f"{path}: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Problem(f"{path}: expected an object")
    return body


def _check_part(path: Path, mounts: Mounts) -> None:
    """Raise ``Problem`` unless a named part is a plain file inside a mount, after its links."""
    if not path.is_file():
        raise Problem(f"{path} is no file" if path.exists() else f"{path} is missing")
    if not mounts.holds(os.path.realpath(path)):
        raise Problem(f"{path} leads outside the mounts", "copy the file")


def look_at_configuration(seen: Seen, text: str, mounts: Mounts) -> None:
    """Look at the configuration that pretraining starts from: a JSON file, or a folder with it."""
    try:
        path = mounts.readable(text)
        file = path / "config.json" if path.is_dir() else path
        config = read_json(file, mounts)
        if "model_type" not in config:
            raise Problem(f"{file}: 'model_type' is missing", "use a Hugging Face config.json")
        seen.paths["spec.model"] = str(path)
        seen.model = {"kind": "config", "config": config, "source": str(file)}
    except Problem as problem:
        seen.problem("spec.model", problem)


def look_at_folder(seen: Seen, text: str, mounts: Mounts, *, needs_tokenizer: bool) -> None:
    """Look at a model folder: configuration, complete weights, tokenizer."""
    try:
        path = mounts.readable(text)
        if not path.is_dir():
            raise Problem(f"{path} is a file; a model is a folder with config.json")
        seen.paths["spec.model"] = str(path)
        config = read_json(path / "config.json", mounts)
        seen.model = {"kind": "folder", "path": str(path), "config": config}
        _check_weights(path, mounts)
    except Problem as problem:
        seen.problem("spec.model", problem)
        return
    if needs_tokenizer and not _has_tokenizer(path):
        hint = "name one in spec.tokenizer"
        seen.problem("spec.model", Problem(f"{path} holds no tokenizer", hint))


def _check_weights(folder: Path, mounts: Mounts) -> None:
    if (folder / _INDEX).is_file():
        parts = read_json(folder / _INDEX, mounts).get("weight_map")
        names = sorted(set(parts.values())) if isinstance(parts, dict) else []
        missing = [str(name) for name in names if not (folder / str(name)).is_file()]
        if missing or not names:
            count = f"{len(missing)} of {len(names)} weight files are missing"
            raise Problem(f"{folder}: {count}: {missing[0] if missing else 'the index is empty'}")
        for name in names:
            _check_part(folder / str(name), mounts)
        return
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        pickles = list(folder.glob("*.bin"))
        hint = "convert them: pickled weights run code when loaded" if pickles else None
        raise Problem(f"{folder} holds no {_WEIGHTS} and no {_INDEX}", hint)
    for file in found:
        _check_part(file, mounts)
    empty = [file.name for file in found if not file.stat().st_size]
    if empty:
        raise Problem(f"{folder}/{empty[0]} is empty")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def look_at_tokenizer(seen: Seen, text: str, mounts: Mounts) -> None:
    """Look at ``spec.tokenizer``: a folder with tokenizer files, or one of them."""
    try:
        path = mounts.readable(text)
        if path.is_dir() and not _has_tokenizer(path):
            wanted = ", ".join(TOKENIZER_FILES)
            raise Problem(f"{path} holds no tokenizer", f"one of {wanted} is needed")
        seen.paths["spec.tokenizer"] = str(path)
    except Problem as problem:
        seen.problem("spec.tokenizer", problem)


def look_at_suite(seen: Seen, where: str, text: str, mounts: Mounts) -> None:
    """Look at an evaluation suite: it parses, and the data of every task is there."""
    try:
        path = mounts.readable(text)
        body = read_json(path, mounts)
        tasks = body.get("tasks")
        if body.get("schema") != 1 or not isinstance(tasks, list) or not tasks:
            raise Problem(f"{path} is no suite", "a suite has schema 1 and at least one task")
        for number, task in enumerate(tasks):
            _check_task(path, number, task, mounts=mounts)
        seen.paths[where] = str(path)
    except Problem as problem:
        seen.problem(where, problem)


def _check_task(suite: Path, number: int, task: Any, *, mounts: Mounts) -> None:
    if not isinstance(task, dict) or not isinstance(task.get("data"), str):
        raise Problem(f"{suite}: tasks[{number}] names no data")
    data = suite.parent / task["data"]
    if not data.is_file() or not data.stat().st_size:
        raise Problem(f"{suite}: {data} of tasks[{number}] is missing or empty")
    _check_part(data, mounts)


def look_at_command(seen: Seen, spec: dict[str, Any], mounts: Mounts) -> None:
    """Look for the script of a command: its program exists, its file lies in a mount."""
    folder: Path | None = None
    if spec["workingDir"] is not None:
        try:
            folder = mounts.readable(spec["workingDir"])
            if not folder.is_dir():
                raise Problem(f"{folder} is a file, not a folder")
            seen.paths["spec.workingDir"] = str(folder)
        except Problem as problem:
            seen.problem("spec.workingDir", problem)
            return
    words = spec["command"]
    if words[0].endswith(SCRIPT_SUFFIXES) or "/" not in words[0]:
        program: str | None = None if words[0].endswith(SCRIPT_SUFFIXES) else words[0]
    else:
        program = str((folder or Path()) / words[0])
    if program is not None and not _is_program(program):
        seen.problem("spec.command[0]", Problem(f"the program {words[0]} is not on this machine"))
    index = _script_index(words)
    if index is None:
        return
    try:
        inside = folder / words[index] if folder is not None else Path(words[index])
        script = mounts.readable(str(inside))
        if not script.is_file():
            raise Problem(f"{script} is no file")
        seen.paths[f"spec.command[{index}]"] = str(script)
    except Problem as problem:
        seen.problem(f"spec.command[{index}]", problem)


def _is_program(name: str) -> bool:
    """Tell whether a run would find the program: on the path, or beside our interpreter."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name) is not None or shutil.which(name, path=beside) is not None


def _script_index(words: list[str]) -> int | None:
    """Return which word names the script: the first that looks like one, unless code is given."""
    for index, word in enumerate(words):
        if word in ("-c", "-m"):
            return None
        if word.endswith(SCRIPT_SUFFIXES):
            return index
    return None
