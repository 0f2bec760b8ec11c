"""The host of a decider: it drains facts, decides, appends, answers. It knows only ports."""

from collections.abc import Callable, Sequence
from typing import Any

from lineshaft.contracts.events import Fact
from lineshaft.ports import Clock, Entry, Journal, Objects
from lineshaft.runtime.decider import Decider, Outcome


class NotLeader(Exception):
    """This process does not lead the stream now; another replica does, or will soon."""


class DecisionFailed(Exception):
    """The decider raised, or wrote what may not be written; a fault of ours."""


class DeciderHost:
    """Runs one decider over the streams it owns. (Being filled; the interface stands.)"""

    def __init__(
        self,
        decider: Decider[Any],
        journal: Journal,
        clock: Clock,
        *,
        holder: str,
        objects: Objects | None = None,
        policy: Any = None,
        on_commit: Callable[[Entry], None] | None = None,
        on_alarm: Callable[[str, str, str], None] | None = None,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Load the streams, take what is free to lead, begin to decide."""

    async def stop(self) -> None:
        """Answer what is in hand, release the leases, stop."""

    async def handle(self, facts: Sequence[Fact]) -> list[Outcome]:
        """Decide ``facts``; return an outcome for each, the worst over its streams. Never raises
        for a single fact's fault.
        """
        raise NotImplementedError

    async def submit(self, fact: Fact) -> Outcome:
        """Decide one request and return after the append; always leaves an entry.

        A known id gives kind ``known`` with the events of its first decision. Raises
        ``NotLeader``, ``StoreUnavailable``, ``DecisionFailed``; a refusal is an outcome.
        """
        raise NotImplementedError

    def state(self, stream: str) -> Any:
        """Return the committed state of ``stream`` (read it, never change it)."""

    def position(self, stream: str) -> int:
        """Return the seq of the last entry that ``state`` holds."""
        raise NotImplementedError

    def epoch(self, stream: str) -> int:
        """Return the epoch of the stream's present leader."""
        raise NotImplementedError

    def is_leader(self, stream: str) -> bool:
        """Tell whether this process leads ``stream`` and renewed its lease recently enough."""
        raise NotImplementedError
