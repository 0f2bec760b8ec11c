"""Reading what users bring: JSON lines and text, with the file and line of whatever is wrong.

Turns files into documents (pretraining) or exchanges (fine-tuning) and nothing else: cleaning,
splitting and tokenising live beside it. Standard library only.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.faults import DataFault

SUFFIXES = {"jsonl": (".jsonl", ".ndjson"), "text": (".txt", ".text", ".md")}
LINE_BYTES_MAX = 64 * 1024 * 1024
_TEXT_KEYS = ("text", "content")
_PAIR_KEYS = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"))
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Turn:
    """One part of an exchange; only parts that are ``trained`` count in the loss."""

    role: str
    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """One fine-tuning sample; ``is_chat`` when the user gave it as messages."""

    turns: tuple[Turn, ...]
    is_chat: bool = False

    @property
    def content(self) -> str:
        """The text that makes two samples the same, whatever file they came from."""
        return "\x1e".join(f"{turn.role}\x1f{turn.text}" for turn in self.turns)


def files_of(path: Path, form: str) -> list[Path]:
    """Return the data files of a file or folder, in the order of their names.

    Raises ``DataFault`` when there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataFault(f"{path}: no such file or folder")
    suffixes = SUFFIXES[form]
    found = sorted(p for p in path.rglob("*") if p.suffix in suffixes and p.is_file())
    if not found:
        raise DataFault(f"{path}: no file ends in {' or '.join(suffixes)}")
    return found


def digest_of(files: list[Path], root: Path) -> str:
    """Return one SHA-256 over the names (relative to ``root``) and contents of ``files``."""
    whole = hashlib.sha256()
    for file in files:
        name = file.name if file == root else file.relative_to(root).as_posix()
        with file.open("rb") as stream:
            inner = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{name}\0{inner}\n".encode())
    return "sha256:" + whole.hexdigest()


def records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a JSON-lines file; empty lines do not count.

    Raises ``DataFault`` with file and line for anything that is not a JSON object.
    """
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            if not raw.strip():
                continue
            if len(raw) > LINE_BYTES_MAX:
                raise DataFault(f"{file}:{number}: a line of {len(raw)} bytes is too long")
            try:
                record = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise DataFault(f"{file}:{number}: not JSON: {error}") from None
            if not isinstance(record, dict):
                kind = type(record).__name__
                raise DataFault(f"{file}:{number}: expected an object, found a {kind}")
            yield number, record


def documents(file: Path, form: str) -> Iterator[str]:
    """Yield the texts of a corpus: ``text`` of each JSON line, or a text file's paragraphs."""
    if form == "text":
        yield from _paragraphs(file)
        return
    for number, record in records(file):
        value = next((record[key] for key in _TEXT_KEYS if key in record), None)
        if not isinstance(value, str):
            wanted = " or ".join(repr(key) for key in _TEXT_KEYS)
            raise DataFault(f"{file}:{number}: no text under {wanted}")
        yield value


def _paragraphs(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFault(f"{file}: not UTF-8 at byte {error.start}") from None
    yield from (piece for piece in text.replace("\r\n", "\n").split("\n\n") if piece.strip())


def exchanges(file: Path) -> Iterator[Exchange]:
    """Yield fine-tuning samples of a JSON-lines file.

    Understood: {prompt, response | completion}, {question, answer}, {instruction, input, output}
    and {messages: [{role, content}]}; answers alone count in the loss. Raises ``DataFault`` with
    file and line.
    """
    for number, record in records(file):
        try:
            yield _exchange(record)
        except ValueError as error:
            raise DataFault(f"{file}:{number}: {error}") from None


def _exchange(record: Mapping[str, Any]) -> Exchange:
    if "messages" in record:
        return _chat(record["messages"])
    prompt, response = _pair(record)
    return Exchange((Turn("user", prompt, False), Turn("assistant", response, True)))


def _pair(record: Mapping[str, Any]) -> tuple[str, str]:
    if "instruction" in record and "output" in record:
        given = record.get("input") or ""
        if not isinstance(given, str):
            raise ValueError("'input' is no text")
        asked = _text(record, "instruction")
        return (f"{asked}\n{given}" if given.strip() else asked), _text(record, "output")
    for asked, answered in _PAIR_KEYS:
        if asked in record and answered in record:
            return _text(record, asked), _text(record, answered)
    raise ValueError(
        f"found {sorted(map(str, record))[:8]}; expected prompt and response, question and answer, "
        "instruction and output, or messages"
    )


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key!r} must be a text that is not empty")
    return value


def _chat(messages: Any) -> Exchange:
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' must be a list that is not empty")
    turns = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"each message needs a role out of {', '.join(_ROLES)}")
        is_answer = message["role"] == "assistant"
        turns.append(Turn(message["role"], _text(message, "content"), is_answer))
    if not any(turn.role == "assistant" for turn in turns):
        raise ValueError("'messages' holds no answer of the assistant to learn from")
    return Exchange(tuple(turns), is_chat=True)
