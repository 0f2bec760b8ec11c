"""The launcher's port: what the scheduler wants to run, and what a launcher tells back.

A launcher decides nothing. It makes what runs equal what should run, and reports facts about it.
Protocols and plain values only; nothing here does anything.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lineshaft.contracts.events import Fact
from lineshaft.contracts.failures import StopIntent


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node of a gang and the slot numbers on it that belong to the run, ascending."""

    node: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DesiredRun:
    """One run (job, attempt) that should live, or that should come to its end.

    ``order`` is the part of the launch order that no machine changes (``ARCHITECTURE.md``, "The
    launch order"): schema, job, attempt, name, team, pool, spec, resolved, grace_ms,
    hang_limit_ms, first_step_limit_ms, resume, mutation, nodes, world_size, launcher.
    The launcher adds the rest per node; ``nodes`` is in the order of the node ranks.

    ``not_after`` (ms since the epoch): a run whose claim does not exist yet, or exists without
    any agent having started, is started only before it; later its claim becomes a tombstone and
    ``run.launch_failed`` (class ``infrastructure``) is reported. It binds no run that lives.

    ``intent`` is None while the run should live. Otherwise the run should stop: tell it the
    intent and ``stop_reason``, ask its agents to end, wait ``grace_ms`` from ``stop_at`` (ms
    since the epoch, when the stop was decided), kill, and report ``run.stopped``. An absent run
    becomes a tombstone and is reported stopped, so that it can never start later. An intent may
    be raised from one pass to the next, never lowered.
    """

    job: str
    attempt: int
    order: Mapping[str, Any]
    nodes: tuple[NodeShare, ...]
    not_after: int
    intent: StopIntent | None = None
    grace_ms: int = 30_000
    stop_reason: str = ""
    stop_at: int = 0


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Desired:
    """All runs of one pool that should exist, by the lease holder's state of that moment.

    A run stays listed, with its intent, until the scheduler has recorded that every process of
    it is gone. A run of this pool that a launcher finds alive and that is not listed (an older
    attempt, a job that ended) must not live: it is stopped with the intent ``fault`` and reported.
    ``epoch`` is the lease's; a lower one than was seen before is a deposed leader's: do nothing.
    ``is_current`` tells whether its maker leads at this moment. A launcher goes on by itself, so
    it asks before each act: what a leader wanted that has slept or lost its lease is not wanted.
    """

    pool: str
    epoch: int
    runs: tuple[DesiredRun, ...] = ()
    is_current: Callable[[], bool] = field(default=_always, compare=False)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node as it is now. ``status`` is ``ready`` or ``lost``; slots are numbered from 0.

    ``gpu_type`` is ``cpu`` for slots without an accelerator.
    """

    name: str
    gpu_type: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    status: str = "ready"
    pool: str = "default"


class Launcher(Protocol):
    """Makes what runs equal what should run, and reports facts."""

    async def reconcile(self, desired: Desired) -> None:
        """Take one step towards ``desired``; called after each decision and every few seconds.

        Idempotent and quick: what takes long (a grace, a start) goes on in tasks of the
        launcher's own. The fence of each run exists in Objects before this is called; a run's
        own object (for a subprocess: its folder) is its claim, made create-only.
        """
        ...

    async def inventory(self) -> Sequence[NodeReport]:
        """Return the nodes as they are now, of all pools; the scheduler compares and records.

        ``run.node_changed`` is made from it by the scheduler's doer, not by the launcher.
        """
        ...

    def facts(self) -> AsyncIterator[Fact]:
        """Yield the facts to report, for ever; one reader.

        ``run.launched``, ``run.launch_failed``, ``run.stopped`` with source ``launcher`` and the
        ids ``<records.run(job, attempt)>launched``, ``...launch-failed``, ``...stopped``; and facts
        of the agents restated from their records in Objects, with the agent's own ids and source.
        Known ids may come again (at start, after the bus lost something, each minute): nothing
        changes twice. The reader publishes them on the bus; a fact handed out is not lost by a
        crash, because the next start finds its record or its run again.
        """
        ...

    async def aclose(self, *, leave_running: bool) -> None:
        """Stop working; with ``leave_running`` the runs live on and are adopted at the next start.

        Without it every run is asked to save and stop, waited for by its grace, then killed.
        """
        ...
