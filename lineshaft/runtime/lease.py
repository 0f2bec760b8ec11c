"""Leases: who leads a service's streams, kept in the journal and never on the bus.

Leadership itself is an entry: a takeover appends ``lease.taken`` {epoch, holder} to the stream, so
the former leader's next append conflicts and it steps down. Renewal is one mark for each replica
of a service, ``lease/<service>/<replica>`` {holder, is_released}: one small write renews all the
streams a process leads, however many. A standby measures how long the holder's mark has not
changed on its own monotonic clock; no clock of another machine is compared.

Correctness never rests on a lease, only on the append's compare-and-set.
"""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from lineshaft.contracts import limits
from lineshaft.ports import Clock, Journal, Mark, StoreUnavailable

_BOOT = Path("/proc/sys/kernel/random/boot_id")


_instances = itertools.count(1)


def holder_of_this_process(replica: str) -> str:
    """Return ``replica@boot/pids/pid/start/instance``: this process, unmistakably.

    Each call gives another instance, so that two hosts in one process are two holders. ``pids``
    is the process-id namespace; without ``/proc`` the parts are ``-`` and no other process can
    be proven gone.
    """
    boot, namespace, start = _boot_id(), _pid_namespace(), _start_of(os.getpid())
    return f"{replica}@{boot}/{namespace}/{os.getpid()}/{start}/{next(_instances)}"


def is_gone(holder: str) -> bool:
    """Tell whether ``holder`` is proven gone: this machine, this boot, and no such process.

    Another boot of the same machine cannot be told from another machine; that waits.
    """
    _, _, place = holder.partition("@")
    parts = place.split("/")
    if len(parts) != 5 or parts[0] == "-" or not parts[2].isdigit():
        return False
    if parts[0] != _boot_id() or parts[1] != _pid_namespace():
        return False
    return _start_of(int(parts[2])) != parts[3]


def _boot_id() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return "-"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).partition("[")[2].rstrip("]") or "-"
    except OSError:
        return "-"


def _start_of(pid: int) -> str:
    """Return a process's start time in clock ticks since boot, or ``-`` when it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "-"
    after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets
    if after_name[0] in ("Z", "X"):
        return "-"
    return after_name[19]  # field 22 of proc(5)


class Lease:
    """The renewal of one process, and its watch over the others'."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        service: str,
        holder: str,
        has_gone: Callable[[str], bool] = is_gone,
    ) -> None:
        self.holder = holder
        self._journal = journal
        self._clock = clock
        self._prefix = f"lease/{service}/"
        self._name = self._prefix + holder.partition("@")[0]
        self._has_gone = has_gone
        self._renewed_at: int | None = None
        self._seen: dict[str, tuple[int, int]] = {}  # holder: (version of its mark, since when)
        self._marks: dict[str, Mark] = {}

    def age_ms(self) -> int | None:
        """Return how long ago the renewal was written, or None when it never was."""
        return None if self._renewed_at is None else self._clock.monotonic() - self._renewed_at

    def is_fresh(self) -> bool:
        """Tell whether queries may be answered and effects had: renewed within half the lease."""
        age = self.age_ms()
        return age is not None and age <= limits.LEASE_MS // 2

    async def renew(self) -> bool:
        """Write the renewal; False when the store does not answer or the name is another's."""
        began = self._clock.monotonic()
        try:
            await self._look(began)
            mine = self._marks.get(self._name)
            if mine is not None and not self._may_replace(mine, began):
                return False
            value = {"holder": self.holder, "is_released": False}
            version = 0 if mine is None else mine.version
            written = await self._journal.mark(self._name, value, version)
        except StoreUnavailable:
            return False
        if written is None:
            return False
        self._renewed_at = began  # the moment before the write: never too young
        return True

    def _may_replace(self, mark: Mark, now: int) -> bool:
        holder = str(mark.value.get("holder"))
        return holder == self.holder or self._is_free(holder, now)

    def may_take(self, holder: str) -> bool:
        """Tell whether a stream that ``holder`` leads (or nobody: empty) is free to take."""
        return not holder or self._is_free(holder, self._clock.monotonic())

    def _is_free(self, holder: str, now: int) -> bool:
        if holder == self.holder or self._has_gone(holder):
            return True
        mark = self._mark_of(holder)
        if mark is not None and mark.value.get("is_released"):
            return True
        version, since = self._seen.setdefault(holder, (-1 if mark is None else mark.version, now))
        if mark is not None and mark.version != version:
            self._seen[holder] = (mark.version, now)
            return False
        return now - since >= limits.LEASE_MS

    def _mark_of(self, holder: str) -> Mark | None:
        return next((m for m in self._marks.values() if m.value.get("holder") == holder), None)

    async def _look(self, now: int) -> None:
        self._marks = await self._journal.marks(self._prefix)
        for mark in self._marks.values():
            holder = str(mark.value.get("holder"))
            if self._seen.get(holder, (None, 0))[0] != mark.version:
                self._seen[holder] = (mark.version, now)

    async def release(self) -> None:
        """Say that this process leads nothing any more, so that others need not wait."""
        self._renewed_at = None
        try:
            mark = (await self._journal.marks(self._name)).get(self._name)
            if mark is not None and mark.value.get("holder") == self.holder:
                value = {"holder": self.holder, "is_released": True}
                await self._journal.mark(self._name, value, mark.version)
        except StoreUnavailable:
            return  # the others wait for the lease to run out
