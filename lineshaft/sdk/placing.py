"""Where a download puts its bytes: the target folder, its partial folder, the publication.

Everything here blocks; ``download`` calls it in threads. No network. No path of a manifest is
followed through a link, and nothing outside the target is touched.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lineshaft.contracts import limits, manifest
from lineshaft.contracts.manifest import ManifestError
from lineshaft.sdk.errors import PlatformError
from lineshaft.sdk.fetching import Content, Partial

_READ_BYTES = 1024 * 1024
_SPARE_BYTES = 16 * 1024 * 1024
_NAMES_SHOWN = 3


class Place:
    """One target folder. It is made when it is not there; its parent folder too."""

    def __init__(self, target: Path) -> None:
        self._is_new = not target.exists()
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"{target} cannot be made a folder: {error.strerror}"
            raise PlatformError("refused", text, "choose another target") from None
        self.root = target.resolve()
        self._partial = self.root / manifest.PARTIAL_FOLDER
        if self._partial.is_symlink() or (self._partial.exists() and not self._partial.is_dir()):
            raise PlatformError("refused", f"{self._partial} is not a folder of ours")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the target for this pull alone; at the end remove what is empty."""
        self._partial.mkdir(exist_ok=True)
        path = self._partial / "lock"
        file = path.open("a")
        try:
            _lock(file.fileno(), path)
            try:
                yield
            finally:
                if sys.platform == "win32":  # what is open cannot be removed there
                    file.close()
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self._partial.rmdir()
                    if self._is_new:
                        self.root.rmdir()
        finally:
            file.close()

    def survey(self, made: Mapping[str, Any], raw: bytes, *, replace: bool) -> set[str]:
        """Return the paths of ``made`` that are here and right.

        Raises ``PlatformError`` (refused) when other things are in the way.
        """
        files = {file["path"]: file for file in made["files"]}
        here = {path for path, file in files.items() if fault_of(self.root, file) is None}
        if replace:
            for path in files:
                _check_way(self.root, path)
            return here
        marker = self.root / manifest.FILE_NAME
        allowed = here | ({manifest.FILE_NAME} if _bytes_of(marker) == raw else set())
        foreign = [path for path in paths_in(self.root) if path not in allowed]
        if foreign:
            shown = ", ".join(foreign[:_NAMES_SHOWN])
            more = " ..." if len(foreign) > _NAMES_SHOWN else ""
            text = f"{self.root} holds other content: {shown}{more}"
            raise PlatformError("refused", text, "choose an empty folder, or --replace")
        return here

    def partial(self, content: Content) -> Partial:
        """Open what is here of ``content``, nothing at first."""
        return Partial(self._partial, content)

    def check_space(self, needed: int) -> None:
        """Raise ``PlatformError`` (refused) unless ``needed`` more bytes fit."""
        free = shutil.disk_usage(self.root).free
        if needed and free < needed + _SPARE_BYTES:
            text = f"{needed} bytes are needed in {self.root}, {free} are free"
            raise PlatformError("refused", text, "make room; what came is kept")

    def publish(self, made: Mapping[str, Any], raw: bytes, here: set[str]) -> None:
        """Give every verified file its name, remove what an earlier version left, then commit."""
        marker = self.root / manifest.FILE_NAME
        is_new = _bytes_of(marker) != raw
        if is_new:
            earlier = _paths_of(marker)
            marker.unlink(missing_ok=True)
            for path in earlier - {file["path"] for file in made["files"]}:
                self._remove(path)
        last_use = {
            file["digest"]: file["path"] for file in made["files"] if file["path"] not in here
        }
        for file in made["files"]:
            if file["path"] not in here:
                self._place(file, is_last=last_use[file["digest"]] == file["path"])
        if is_new:
            written = self._partial / "manifest"
            _write(written, raw)
            written.replace(marker)
            _sync_folder(self.root)
        self._clear()

    def _place(self, file: Mapping[str, Any], *, is_last: bool) -> None:
        _check_way(self.root, file["path"])
        source = self._partial / Partial.name_of(file["digest"])
        goal = self.root / file["path"]
        goal.parent.mkdir(parents=True, exist_ok=True)
        if not is_last:
            copy = source.with_suffix(".copy")
            shutil.copyfile(source, copy)
            source = copy
        with source.open("rb+") as written:
            os.fsync(written.fileno())
        source.replace(goal)

    def _remove(self, path: str) -> None:
        """Remove a file that an earlier pull placed, and folders that become empty."""
        try:
            _check_way(self.root, path)
        except PlatformError:
            return
        (self.root / path).unlink(missing_ok=True)
        for folder in (self.root / path).parents:
            if folder == self.root:
                return
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _clear(self) -> None:
        for left in self._partial.iterdir():
            if left.name != "lock":
                left.unlink()


def _lock(file: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415 - absent on Windows, where the client runs too

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # One that ended just now took the name away with it.
        if os.path.samestat(os.fstat(file), path.stat()):
            return
    except OSError:
        pass
    text = f"another pull works in {path.parent.parent}"
    raise PlatformError("conflict", text, "wait for it, or choose another target")


def _check_way(root: Path, path: str) -> None:
    """Raise unless every folder on the way to ``path`` is one, or absent, and no link."""
    manifest.check_path(path)
    place = root
    for part in path.split("/")[:-1]:
        place = place / part
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise PlatformError("refused", f"{place} is in the way: it is no folder", "remove it")
    if (root / path).is_dir() and not (root / path).is_symlink():
        raise PlatformError("refused", f"{root / path} is in the way: it is a folder", "remove it")


def fault_of(root: Path, file: Mapping[str, Any]) -> str | None:
    """Say what is wrong with ``file`` (an entry of a manifest) below ``root``; None: nothing."""
    path = root / file["path"]
    try:
        _check_way(root, file["path"])
        found = path.lstat()
    except PlatformError as error:
        return error.message
    except OSError:
        return f"{file['path']} is missing"
    if not stat.S_ISREG(found.st_mode):
        return f"{file['path']} is no file"
    if found.st_size != file["size"]:
        return f"{file['path']} has {found.st_size} bytes, not {file['size']}"
    sha = hashlib.sha256()
    with path.open("rb") as opened:
        while chunk := opened.read(_READ_BYTES):
            sha.update(chunk)
    return None if f"sha256:{sha.hexdigest()}" == file["digest"] else f"{file['path']} differs"


def paths_in(root: Path) -> list[str]:
    """Return the paths of all that is below ``root`` and no folder, without the partial folder."""
    found = []
    for folder, folders, names in os.walk(root):
        inside = Path(folder).relative_to(root)
        if folder == str(root) and manifest.PARTIAL_FOLDER in folders:
            folders.remove(manifest.PARTIAL_FOLDER)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        found += [(inside / name).as_posix() for name in (*names, *links)]
    return sorted(found)


def _bytes_of(path: Path) -> bytes | None:
    try:
        if path.is_symlink() or path.stat().st_size > limits.MANIFEST_BYTES_MAX:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _paths_of(marker: Path) -> set[str]:
    """Return what the manifest at ``marker`` placed; nothing when it cannot be trusted."""
    try:
        return {file["path"] for file in manifest.decode(_bytes_of(marker) or b"")["files"]}
    except ManifestError:
        return set()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
