"""Reading ``/proc``: who a process is, how it fares, and how this machine fares.

Read-only. A process is named by its pid and its start time, so that a reused pid is another one.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only measured
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
DEAD_STATES = "ZXx"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it is now. ``start_time`` is in clock ticks since the machine started."""

    pid: int
    state: str
    start_time: int
    cpu_ms: int
    parent: int
    group: int

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only waits to be collected."""
        return self.state in DEAD_STATES


def look(pid: int) -> Process | None:
    """Return the process ``pid``, or None when there is none."""
    try:
        raw = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    fields = raw.rpartition(")")[2].split()  # the name may hold anything, also brackets
    cpu = sum(int(ticks) for ticks in fields[11:15])
    return Process(
        pid=pid,
        state=fields[0],
        start_time=int(fields[19]),
        cpu_ms=int(cpu * _TICK_MS),
        parent=int(fields[1]),
        group=int(fields[2]),
    )


def is_alive(pid: int, start_time: int) -> bool:
    """Tell whether this very process (not another of the same pid) still runs."""
    process = look(pid)
    return process is not None and process.start_time == start_time and not process.is_dead


def catches(pid: int, signal_number: int) -> bool:
    """Tell whether a process has a handler of its own for a signal."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) >> (signal_number - 1) & 1)
    return False


def wait_channel(pid: int) -> str:
    """Return the kernel function in which a process waits, where the kernel tells."""
    try:
        return (_PROC / str(pid) / "wchan").read_text(encoding="utf-8").strip() or "-"
    except OSError:
        return "-"


def marked(name: str, value: str) -> Iterator[Process]:
    """Yield living processes that were started with the variable ``name`` set to ``value``."""
    wanted = f"{name}={value}".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environ.split(b"\0"):
            process = look(int(entry.name))
            if process is not None and not process.is_dead:
                yield process


def boot_id() -> str:
    """Return what names this start of the machine."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class MachineSampler:
    """Samples of host memory, /dev/shm, disk and CPU, by ``telemetry.NODE_FIELDS``."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._busy: tuple[float, float] | None = None

    def sample(self) -> dict[str, float]:
        """Return what the machine tells now; what it does not tell is left out."""
        made: dict[str, float] = {}
        for name, folder in (("shm", _SHARED_MEMORY), ("disk", self._disk)):
            try:
                usage = shutil.disk_usage(folder)
            except OSError:
                continue
            made[f"{name}_used_bytes"] = float(usage.used)
            made[f"{name}_total_bytes"] = float(usage.total)
        return made | self._memory() | self._cpu()

    def _memory(self) -> dict[str, float]:
        try:
            text = (_PROC / "meminfo").read_text(encoding="utf-8")
        except OSError:
            return {}
        lines = (line.split() for line in text.splitlines())
        kilobytes = {words[0].rstrip(":"): float(words[1]) for words in lines if len(words) > 1}
        total, free = kilobytes.get("MemTotal"), kilobytes.get("MemAvailable")
        if total is None or free is None:
            return {}
        return {
            "host_memory_total_bytes": total * 1024,
            "host_memory_used_bytes": (total - free) * 1024,
        }

    def _cpu(self) -> dict[str, float]:
        try:
            first = (_PROC / "stat").read_text(encoding="utf-8").splitlines()[0]
        except OSError:
            return {}
        ticks = [float(word) for word in first.split()[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        before, self._busy = self._busy, (total, total - idle)
        if before is None or total <= before[0]:
            return {}
        return {"cpu_percent": 100 * (total - idle - before[1]) / (total - before[0])}
