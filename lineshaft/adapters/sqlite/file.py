"""Opening a SQLite file for durable use, and what its errors mean to a port.

No table of any adapter is known here.
"""

import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from lineshaft.ports import StorageFull, StoreUnavailable

BUSY_TIMEOUT_MS = 10_000
WAL_BYTES_KEPT_MAX = 64 * 1024 * 1024
_OPEN_RETRY_S = 0.02

_FULL = {sqlite3.SQLITE_FULL}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_PROTOCOL,
}

# SQLite's locks and its shared memory file need one kernel: https://sqlite.org/wal.html
_NETWORK_TYPES = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ncpfs",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ocfs2",
    "gfs2",
    "davfs",
}
_NETWORK_FUSE = (
    "sshfs",
    "glusterfs",
    "ceph",
    "s3fs",
    "gcsfuse",
    "rclone",
    "juicefs",
    "mountpoint",
    "blobfuse",
    "davfs",
    "nfs",
    "smb",
)


class StoreCorrupt(Exception):
    """A file that cannot be used: damaged, not ours, or of a newer release. Waiting is no help."""


class NetworkFileSystem(ValueError):
    """A folder whose file system is shared between machines, where SQLite loses data."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file holds: SQLite's application id, the layout's version, and its tables."""

    name: str
    application_id: int
    version: int
    tables: tuple[str, ...]


def refuse_network(folder: Path, mounts: str | None = None) -> None:
    """Raise ``NetworkFileSystem`` when ``folder`` lies on one.

    ``mounts`` is the text of ``/proc/mounts``; without one to read nothing is refused.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        except OSError:
            return
    whole = folder.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_unescaped(fields[1]))
        # A later line of the same mount point hides the earlier one.
        if whole.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    if kind in _NETWORK_TYPES or (
        kind.startswith("fuse") and any(name in kind for name in _NETWORK_FUSE)
    ):
        raise NetworkFileSystem(
            f"{folder} is on a network file system ({kind}); name a folder on a local disk"
        )


def open_file(path: Path, kind: FileKind) -> sqlite3.Connection:
    """Return a connection in WAL mode with synchronous commits; make folder and tables first.

    Transactions are the caller's. Raises ``NetworkFileSystem``, ``StoreUnavailable``,
    ``StorageFull`` or ``StoreCorrupt``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{path.parent}: {error.strerror}") from error
    refuse_network(path.parent)
    is_new = not path.exists()
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection = _open(path, kind)
            break
        except sqlite3.Error as error:
            # Two processes that make the file at once meet locks that no busy handler covers.
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise meaning(error, path) from error
            time.sleep(_OPEN_RETRY_S)
    if is_new:
        _sync_folders(path.parent)
    return connection


def meaning(error: sqlite3.Error, path: Path) -> Exception:
    """Return what ``error`` means to a caller of a port; a fault of ours stays as it is."""
    code = primary_code(error)
    if code in _FULL:
        return StorageFull(f"{path}: {error}")
    if code in _CORRUPT:
        return StoreCorrupt(f"{path}: {error}; restore it, or move it away to start anew")
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{path}: {error}")
    return error


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; ``SQLITE_ERROR`` where Python raised by itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return sqlite3.SQLITE_ERROR if code is None else code & 0xFF


def _open(path: Path, kind: FileKind) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path, kind)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    _check(connection, path, kind)
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(f"{path}: this file system cannot keep a write-ahead log ({mode})")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_KEPT_MAX}")
    if _number(connection, "user_version") == kind.version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _number(connection, "user_version") == 0:
            for table in kind.tables:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id={kind.application_id}")
            connection.execute(f"PRAGMA user_version={kind.version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if is_empty:
        return
    if _number(connection, "application_id") != kind.application_id:
        raise StoreCorrupt(f"{path} is a SQLite file, but holds no {kind.name} of Lineshaft")
    version = _number(connection, "user_version")
    if version != kind.version:
        raise StoreCorrupt(
            f"{path} has layout {version}, this release reads {kind.version}; "
            "use the release that wrote it"
        )


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _sync_folders(folder: Path) -> None:
    for place in (folder, folder.parent):
        try:
            handle = os.open(place, os.O_RDONLY)
        except OSError:
            continue  # a parent that may not be read was not made by us
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unescaped(point: str) -> str:
    for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        point = point.replace(code, char)
    return point
