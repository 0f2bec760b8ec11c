"""Cleaning, exact de-duplication and splitting by content. Pure functions over texts.

A sample's side depends on its content alone, so it keeps its side when versions of a data set
merge. Nothing here reads files or knows about tokens. Standard library only.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Sample = TypeVar("Sample")

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SPACES = re.compile(r"\s+")


@dataclass(slots=True)
class Tally:
    """What became of the samples that were read."""

    read: int = 0
    empty: int = 0
    duplicates: int = 0
    kept: int = 0


def clean(text: str) -> str:
    """Return ``text`` in NFC, with Unix line ends, without control characters or outer blanks."""
    plain = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", plain).strip()


def key_of(text: str) -> bytes:
    """Return 16 bytes that are equal for texts that differ in case and blanks only."""
    folded = _SPACES.sub(" ", text).strip().casefold()
    return hashlib.sha256(folded.encode()).digest()[:16]


class Seen:
    """Remembers contents over several data sets, so that the first of equal samples stays."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._tally = Tally()

    def unique(
        self, samples: Iterable[Sample], content: Callable[[Sample], str]
    ) -> Iterator[Sample]:
        """Yield samples whose content is new and not blank; count the others."""
        tally = self._tally
        for sample in samples:
            tally.read += 1
            text = content(sample)
            if not text.strip():
                tally.empty += 1
                continue
            key = key_of(text)
            if key in self._keys:
                tally.duplicates += 1
                continue
            self._keys.add(key)
            tally.kept += 1
            yield sample

    def take(self) -> Tally:
        """Return the counts since the last call."""
        taken, self._tally = self._tally, Tally()
        return taken


def is_held_out(content: str, share: float, salt: str = "") -> bool:
    """Tell whether a sample belongs to the held-out side: ``share`` of all contents do."""
    digest = hashlib.sha256(salt.encode() + b"\0" + key_of(content)).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
