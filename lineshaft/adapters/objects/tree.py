"""A folder tree as object storage: the blocking steps, each safe against other processes.

Every path is walked from the root by folder handles that follow no link, so nothing outside
the root is ever touched. Partial files lie in one folder of the root and are locked by
their writer. No event loop here. Standard library only: the agent imports this module.
"""

import contextlib
import errno
import fcntl
import io
import os
import secrets
import stat
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from lineshaft.adapters.objects import keys
from lineshaft.ports import ObjectExists, ObjectMissing, ObjectStat, StoreUnavailable

PARTIAL_KEPT_S = 3600
# A folder may be pruned by another process between its making and its use.
_TRIES_MAX = 100

Parts = tuple[str, ...]


class Partial:
    """A file being written, invisible until ``Tree.publish``. Its lock says that we live."""

    def __init__(self, folder: int, name: str, file: int) -> None:
        self.folder = folder
        self.name = name
        self.size = 0
        self._file: int | None = file

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of ``data``."""
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            written = os.write(self._file, rest)
            self.size += written
            rest = rest[written:]

    def sync(self) -> None:
        """Make the content durable."""
        assert self._file is not None
        os.fsync(self._file)

    def discard(self) -> None:
        """Remove the partial name and close; safe to call again, and after publication."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self.folder)
        os.close(self._file)
        os.close(self.folder)
        self._file = None


class Tree:
    """Objects as files below ``root``. Keys are checked by the caller."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_clean = False
        self._cleaning = threading.Lock()

    def begin(self) -> Partial:
        """Return a new partial file. The first call removes what killed writers left."""
        self.root.mkdir(parents=True, exist_ok=True)
        with self._folders((keys.RESERVED,), create=True) as chain:
            folder = os.dup(chain[-1])
        try:
            self._clean_once(folder)
            name = f"{os.getpid()}-{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(name, flags, 0o666, dir_fd=folder)
        except BaseException:
            os.close(folder)
            raise
        fcntl.flock(file, fcntl.LOCK_EX)
        return Partial(folder, name, file)

    def publish(self, partial: Partial, key: str, replace: bool) -> int:
        """Give a whole partial file its key, durably; return its size.

        Raises ``ObjectExists``, or ``ValueError`` when another object's key is in the way.
        """
        partial.sync()
        parts = keys.checked(key)
        for _ in range(_TRIES_MAX):
            try:
                with self._folders(parts[:-1], create=True) as chain:
                    is_placed = _place(partial, chain[-1], key, replace)
                    if is_placed is not None:
                        # Also when it is there already: its writer may not have come so far.
                        _sync(chain)
                        break
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                raise keys.occupied(key) from None
        else:
            raise StoreUnavailable(f"{key}: its folder vanished again and again")
        if not is_placed:
            raise ObjectExists(key)
        partial.discard()
        return partial.size

    def store(self, key: str, data: bytes, replace: bool) -> int:
        """Write and publish an object at once."""
        self.check_place(key, replace)
        partial = self.begin()
        try:
            partial.write(data)
            return self.publish(partial, key, replace)
        finally:
            partial.discard()

    def check_place(self, key: str, replace: bool) -> None:
        """Raise ``ObjectExists`` before any data is taken, when it is clear already."""
        if not replace and self.stat(key) is not None:
            raise ObjectExists(key)

    def open(self, key: str) -> io.FileIO:
        """Return a file to read an object from. Raises ``ObjectMissing``."""
        parts = keys.checked(key)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _absent_as(ObjectMissing(key)), self._folders(parts[:-1]) as chain:
            file = os.open(parts[-1], flags, dir_fd=chain[-1])
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise ObjectMissing(key)
        return io.FileIO(file)

    def stat(self, key: str) -> ObjectStat | None:
        """Return size and time, or None when there is no such object."""
        parts = keys.checked(key)
        try:
            with _absent_as(ObjectMissing(key)), self._folders(parts[:-1]) as chain:
                return _stat_of(key, parts[-1], chain[-1])
        except ObjectMissing:
            return None

    def walk(self, prefix: str, after: str) -> Generator[ObjectStat, None, None]:
        """Yield objects in the order of their keys, reading one folder at a time."""
        start, slash, _ = prefix.rpartition("/")
        if slash and not keys.is_key(start):
            return
        parts = tuple(start.split("/")) if slash else ()
        if parts[:1] != (keys.RESERVED,):
            yield from self._walk(parts, prefix, after)

    def remove(self, wanted: Sequence[str]) -> None:
        """Remove objects and the folders that become empty; what is absent is no error."""
        by_folder: dict[Parts, list[str]] = {}
        for key in wanted:
            *folder, name = keys.checked(key)
            by_folder.setdefault(tuple(folder), []).append(name)
        for parts, names in by_folder.items():
            with (
                contextlib.suppress(ObjectMissing),
                _absent_as(ObjectMissing()),
                self._folders(parts) as chain,
            ):
                _unlink(names, chain[-1])
                os.fsync(chain[-1])
                _prune(parts, chain)

    @contextlib.contextmanager
    def _folders(self, parts: Iterable[str], *, create: bool = False) -> Iterator[list[int]]:
        """Hold the handles of the root and of each folder of ``parts``, the deepest last."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        chain = [os.open(self.root, flags)]
        try:
            for part in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=chain[-1])
                try:
                    chain.append(os.open(part, flags | os.O_NOFOLLOW, dir_fd=chain[-1]))
                except OSError as error:
                    if error.errno == errno.ELOOP:  # a link: as good as a file in the way
                        raise NotADirectoryError(errno.ENOTDIR, "a link", part) from None
                    raise
            yield chain
        finally:
            for handle in chain:
                os.close(handle)

    def _walk(self, parts: Parts, prefix: str, after: str) -> Iterator[ObjectStat]:
        beginning = "".join(f"{part}/" for part in parts)
        with (
            contextlib.suppress(ObjectMissing),
            _absent_as(ObjectMissing()),
            self._folders(parts) as chain,
        ):
            for key, name in _sorted_names(chain[-1], beginning):
                if not key.endswith("/"):
                    found = None
                    if key > after and key.startswith(prefix) and keys.is_key(key):
                        found = _stat_of(key, name, chain[-1])
                    if found is not None:
                        yield found
                elif _may_hold(key, prefix, after):
                    yield from self._walk((*parts, name), prefix, after)

    def _clean_once(self, folder: int) -> None:
        with self._cleaning:
            if not self._is_clean:
                _remove_leftovers(folder)
                self._is_clean = True


def _place(partial: Partial, folder: int, key: str, replace: bool) -> bool | None:
    """Link or rename ``partial`` to its name; False when an object is there, None: try again."""
    name = key.rpartition("/")[2]
    try:
        if replace:
            os.replace(partial.name, name, src_dir_fd=partial.folder, dst_dir_fd=folder)
        else:
            os.link(
                partial.name,
                name,
                src_dir_fd=partial.folder,
                dst_dir_fd=folder,
                follow_symlinks=False,
            )
    except (FileExistsError, IsADirectoryError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            return None if replace else False
        if stat.S_ISDIR(mode) and _remove_empty(name, folder):
            return None
        raise keys.occupied(key) from None
    return True


def _remove_empty(name: str, folder: int) -> bool:
    """Remove a folder that holds nothing but empty folders; say whether it is gone."""
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with os.scandir(inner) as entries:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            if not all(is_folder and _remove_empty(each, inner) for each, is_folder in names):
                return False
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _sync(chain: Sequence[int]) -> None:
    # Every folder up to the root, not only those made here: another process may have made
    # one and not have synced it yet. A folder without changes costs about 40 microseconds.
    for handle in reversed(chain):
        os.fsync(handle)


def _prune(parts: Parts, chain: Sequence[int]) -> None:
    for name, above in zip(reversed(parts), reversed(chain[:-1]), strict=True):
        try:
            os.rmdir(name, dir_fd=above)
        except OSError:
            return  # not empty, or another process was first


def _unlink(names: Iterable[str], folder: int) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)


def _stat_of(key: str, name: str, folder: int) -> ObjectStat | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return ObjectStat(key, found.st_size, found.st_mtime_ns // 1_000_000)


def _sorted_names(folder: int, beginning: str) -> list[tuple[str, str]]:
    """Return (key, name) of what lies in a folder; the key of a folder ends in a slash."""
    made = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if beginning or entry.name != keys.RESERVED:
                slash = "/" if entry.is_dir(follow_symlinks=False) else ""
                made.append((f"{beginning}{entry.name}{slash}", entry.name))
    made.sort()
    return made


def _may_hold(folder_key: str, prefix: str, after: str) -> bool:
    is_in_prefix = folder_key.startswith(prefix) or prefix.startswith(folder_key)
    return is_in_prefix and (folder_key > after or after.startswith(folder_key))


@contextlib.contextmanager
def _absent_as(error: ObjectMissing) -> Iterator[None]:
    """Raise ``error`` where a part of a path is missing, is a link, or is no folder."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise error from None
    except OSError as failure:
        if failure.errno == errno.ELOOP:
            raise error from None
        raise


def _remove_leftovers(folder: int) -> None:
    oldest = time.time() - PARTIAL_KEPT_S
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    for name in names:
        with contextlib.suppress(OSError):  # in use, or another process was first
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_mtime < oldest:
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(file)
