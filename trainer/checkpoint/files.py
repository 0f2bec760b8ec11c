"""Files that survive: hashed while written, synced before they are named.

Knows nothing of ranks, engines or steps.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch

from trainer.checkpoint.layout import FileRecord

READ_BYTES = 4 * 1024 * 1024


class _Hashing:
    """A stream that hashes what passes; ``torch.save`` needs no more of it than ``write``."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._whole = hashlib.sha256()
        self.size = 0

    def write(self, piece: Any) -> int:
        view = memoryview(piece).cast("B")
        self._whole.update(view)
        self.size += len(view)
        return self._stream.write(view)

    def flush(self) -> None:
        self._stream.flush()

    @property
    def digest(self) -> str:
        return "sha256:" + self._whole.hexdigest()


class FolderSink:
    """Writes this rank's files of one checkpoint, and remembers the first failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, FileRecord] = {}
        self.failure: OSError | None = None

    def save(self, state: Any, path: str) -> None:
        """Write ``state`` at ``path``, hashed and synced; after a failure do nothing."""
        if self.failure is not None:
            return
        try:
            self.written[path] = write(self.folder / path, state)
        except OSError as error:
            self.failure = error
        except RuntimeError as error:  # how torch reports a stream that refuses to write
            self.failure = OSError(str(error))


def write(file: Path, state: Any) -> FileRecord:
    """Write ``state`` with ``torch.save``, durably. Raises ``OSError``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        hashing = _Hashing(stream)
        torch.save(state, hashing)
        stream.flush()
        os.fsync(stream.fileno())
    sync(file.parent)
    return FileRecord(hashing.size, hashing.digest)


def write_bytes(file: Path, raw: bytes) -> None:
    """Write bytes durably under the file's name, in one step."""
    making = file.with_name(f".{file.name}.{os.getpid()}")
    with making.open("wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())
    making.replace(file)
    sync(file.parent)


def sync(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()
