"""Paths of a job against the configured mounts: inside one after resolving links, spelt right.

Blocking; runs in a thread. Opens nothing but folders, and writes one probe file where asked.
"""

import difflib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from services.admission.findings import Problem

_LISTED_MAX = 5_000


class Mounts:
    """The folders of this machine that jobs may use."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [Path(root) for root in roots]
        self._real = [os.path.realpath(root) for root in self._roots]

    def find(self, text: str, *, must_exist: bool = True) -> Path:
        """Return the absolute path, without links, that ``text`` means. Raises ``Problem``.

        A relative path is looked for below each mount; the first that has it counts.
        """
        if not self._roots:
            raise Problem("no folder is mounted", "name folders in 'mounts' of lineshaft.toml")
        if "\0" in text or len(text) > 4096:
            raise Problem("is no path")
        given = Path(text)
        if not given.is_absolute():
            given = next((r / given for r in self._roots if (r / given).exists()), None) or (
                self._roots[0] / given
            )
        try:
            real = os.path.realpath(given)
        except OSError as error:
            raise Problem(f"{given} cannot be resolved: {error.strerror}") from None
        if not self.holds(real):
            raise Problem(*self._outside(text, str(given), real))
        if must_exist and not Path(real).exists():
            raise Problem(f"{given} does not exist", _spelling(given))
        return Path(real)

    def holds(self, real: str) -> bool:
        """Tell whether a path without links lies in a mount."""
        return any(real == root or real.startswith(root + os.sep) for root in self._real)

    def _outside(self, text: str, given: str, real: str) -> tuple[str, str]:
        link = f" (it leads to {real})" if real != os.path.normpath(given) else ""
        there = ", ".join(str(root) for root in self._roots[:8])
        return f"{text} is outside the mounts{link}", f"mounts: {there}"

    def readable(self, text: str) -> Path:
        """Return an existing path that this process may read. Raises ``Problem``."""
        path = self.find(text)
        if not path.is_dir() and not path.is_file():
            raise Problem(f"{path} is neither a file nor a folder")
        wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
        if not os.access(path, wanted):
            raise Problem(f"{path} cannot be read", "check its permissions")
        return path

    def writable(self, text: str) -> Path:
        """Return a path below which a small file could be written just now. Raises ``Problem``."""
        path = self.find(text, must_exist=False)
        if path.exists() and not path.is_dir():
            raise Problem(f"{path} is a file, not a folder")
        there = path
        while not there.exists():
            there = there.parent
        try:
            with tempfile.NamedTemporaryFile(dir=there, prefix=".lineshaft-probe-") as probe:
                probe.write(b"probe")
                probe.flush()
        except OSError as error:
            raise Problem(
                f"{there} cannot be written: {error.strerror}", "check permissions and free space"
            ) from None
        return path


def _spelling(path: Path) -> str | None:
    """Return a hint with the nearest existing spelling of a path, if there is one."""
    missing: list[str] = []
    there = path
    while not there.is_dir():
        missing.append(there.name)
        if there.parent == there:
            return None
        there = there.parent
    if not missing:
        return None
    names = _names(there)
    wanted = missing[-1]
    folded = {name.casefold(): name for name in names}
    found = folded.get(wanted.casefold())
    if found is None:
        near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.75)
        found = near[0] if near else None
    return f"did you mean {there / found}?" if found else f"{there} exists"


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as rows:
            return [row.name for row, _ in zip(rows, range(_LISTED_MAX), strict=False)]
    except OSError:
        return []
