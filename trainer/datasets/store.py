"""Prepared data on disk: one row of tokens, where each sample begins, and what it was made of.

A subset is ``tokens.bin`` (uint16 or uint32), ``offsets.npy`` (int64, one more than documents)
and, where not every token counts in the loss, ``mask.bin`` (uint8). Written once, read through
memory maps. Numpy only.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.datasets.rendering import Rendered
from trainer.faults import DataFault

SCHEMA = 1
META = "meta.json"


@dataclass(slots=True)
class Written:
    """What one subset came to."""

    documents: int
    tokens: int
    trained_tokens: int
    digest: str


def write(folder: Path, samples: Iterable[Rendered], vocabulary_size: int) -> Written:
    """Write a subset into ``folder`` and return its counts and digest."""
    folder.mkdir(parents=True)
    dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.uint32
    digest = hashlib.sha256()
    offsets, trained, is_masked = [0], 0, False
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "mask.bin").open("wb") as masks:
        for sample in samples:
            raw = np.asarray(sample.ids, dtype=dtype).tobytes()
            mask = np.asarray(sample.mask, dtype=np.uint8)
            tokens.write(raw)
            masks.write(mask.tobytes())
            digest.update(raw)
            digest.update(mask.tobytes())
            trained += int(mask.sum())
            is_masked = is_masked or not bool(mask.all())
            offsets.append(offsets[-1] + len(sample.ids))
    if not is_masked:
        (folder / "mask.bin").unlink()
    np.save(folder / "offsets.npy", np.asarray(offsets, dtype=np.int64))
    return Written(len(offsets) - 1, offsets[-1], trained, "sha256:" + digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Row:
    """One training sample: token ids, marks of what counts, place in the document."""

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64] | None


class Subset:
    """Samples of one prepared subset, read through memory maps.

    Packed: rows of ``length`` tokens cut out of the whole; ``positions`` begin again at every
    document, by which attention stays inside documents. Not packed: one document per row.
    """

    def __init__(self, folder: Path, *, dtype: str, length: int, is_packed: bool) -> None:
        self._offsets: npt.NDArray[np.int64] = np.load(folder / "offsets.npy", mmap_mode="r")
        self._length = length
        self._is_packed = is_packed
        self._tokens: npt.NDArray[Any] = _map(folder / "tokens.bin", dtype)
        mask = folder / "mask.bin"
        self._mask: npt.NDArray[Any] | None = _map(mask, "uint8") if mask.is_file() else None

    def __len__(self) -> int:
        if self._is_packed:
            return len(self._tokens) // self._length
        return len(self._offsets) - 1

    def row(self, number: int) -> Row:
        """Return one sample."""
        if self._is_packed:
            begin = number * self._length
            end = begin + self._length
            return Row(self._ids(begin, end), self._marks(begin, end), self._places(begin, end))
        begin, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return Row(self._ids(begin, end), self._marks(begin, end), None)

    def _ids(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        return self._tokens[begin:end].astype(np.int64)

    def _marks(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        if self._mask is None:
            return np.ones(end - begin, dtype=np.bool_)
        return self._mask[begin:end].astype(np.bool_)

    def _places(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        places = np.arange(begin, end, dtype=np.int64)
        documents = np.searchsorted(self._offsets, places, side="right") - 1
        return places - np.maximum(self._offsets[documents], begin)


def _map(file: Path, dtype: str) -> npt.NDArray[Any]:
    if file.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared folder: its report (``meta``) and its subsets."""

    folder: Path
    meta: dict[str, Any]

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's folder."""
        return self.folder / "tokenizer"

    def subset(self, name: str) -> Subset:
        """Return ``train`` or ``heldOut``."""
        return Subset(
            self.folder / name,
            dtype=str(self.meta["dtype"]),
            length=int(self.meta["sequenceLength"]),
            is_packed=bool(self.meta["packed"]),
        )


def read(folder: Path) -> Prepared:
    """Open a prepared folder. Raises ``DataFault`` when it is none, or of another schema."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataFault(f"{folder}: no prepared data: {error}") from None
    if meta.get("schema") != SCHEMA:
        raise DataFault(f"{folder}: prepared by another release (schema {meta.get('schema')})")
    return Prepared(folder, meta)
