"""Processes of runs on this machine: starting agents, finding what lives, ending it.

A process is named by pid and start time, or by the mark that every process of a node's run
carries in its environment. Nothing here knows why something has to start or end.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import lineshaft

SIGTERM = signal.SIGTERM
MARK = "LINESHAFT_NODE_FOLDER"
_PROC = Path("/proc")
_DEAD = "ZXx"
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
)
_INHERITED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "OMP_", "HF_", "TORCH")
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


@dataclass(frozen=True, slots=True)
class Identity:
    """One very process. ``start_time`` is in clock ticks since the machine started."""

    pid: int
    start_time: int

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; one that only waits to be collected does not."""
        return look(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it still runs."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def kill(processes: Iterable[Identity]) -> None:
    """Kill those that still run; at the next look they are gone."""
    for process in processes:
        process.send(signal.SIGKILL)


def look(pid: int) -> Identity | None:
    """Return who ``pid`` is now, or None when nobody lives there."""
    try:
        raw = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = raw.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in _DEAD else Identity(pid, int(fields[19]))


def marked(folders: Iterable[Path]) -> dict[Path, list[Identity]]:
    """Return the living processes that carry the mark of each of the node folders."""
    wanted = {f"{MARK}={folder}".encode(): folder for folder in folders}
    found: dict[Path, list[Identity]] = {folder: [] for folder in wanted.values()}
    for pid, marks in _environments(f"{MARK}=".encode()) if wanted else ():
        for mark in marks:
            identity = look(pid) if mark in wanted else None
            if identity is not None:
                found[wanted[mark]].append(identity)
    return found


def _environments(start: bytes) -> Iterator[tuple[int, list[bytes]]]:
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if start in environ:
            yield int(entry.name), [each for each in environ.split(b"\0") if each.startswith(start)]


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds the lock on ``path``; an absent file is held by nobody."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return an agent's environment: what programs need of ours, and nothing that is secret."""
    made = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
        if not any(word in name for word in _SECRET_WORDS)
    }
    ours = str(Path(lineshaft.__file__).resolve().parent.parent)
    made["PYTHONPATH"] = os.pathsep.join(p for p in (made.get("PYTHONPATH"), ours) if p)
    return made | dict(extra)


def start_agent(node_folder: Path) -> subprocess.Popen[bytes]:
    """Start the agent of one node in a session of its own; it outlives us."""
    command = [sys.executable, "-m", "trainer.agent", "--order", str(node_folder / "order.json")]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [os.open(node_folder / f"agent.{end}", flags, 0o600) for end in ("out", "err")]
    try:
        return subprocess.Popen(
            command,
            cwd=node_folder,
            env=environment({MARK: str(node_folder)}),
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
        )
    finally:
        for stream in streams:
            os.close(stream)
