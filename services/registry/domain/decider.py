"""The registry's decider: streams, routes, and which decision a kind of fact calls. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from lineshaft.contracts import ids, limits
from lineshaft.contracts.events import Event, Fact
from services.registry.domain import commands, models, registering
from services.registry.domain.models import Shelf

STREAM_PREFIX = "model/"


def stream_of(name: str) -> str:
    """Return the journal stream of a model's name, or of a job's id while it is a candidate."""
    return f"{STREAM_PREFIX}{ids.shard(name)}"


class RegistryDecider:
    """Decides over ``model/<shard>``: models by their name, candidates by their job."""

    service = "registry"

    def streams(self) -> Sequence[str]:
        """Return all shards."""
        return [f"{STREAM_PREFIX}{shard}" for shard in range(limits.SHARDS)]

    def route(self, fact: Fact) -> Sequence[str]:
        """Return the stream of the job (a candidate) or of the model that ``fact`` is about."""
        if fact.kind not in _DECISIONS:
            return []
        if fact.kind == "job.succeeded":
            return [] if fact.data.get("manifest") is None else [stream_of(fact.subject)]
        return [
            stream_of(fact.subject if fact.kind == registering.CONCLUDED else fact.data["name"])
        ]

    def initial(self, stream: str) -> Shelf:
        """Return an empty shelf."""
        return Shelf()

    def decide(self, state: Shelf, fact: Fact, *, now: int, policy: Any) -> list[Event]:
        """Return what ``fact`` causes; see ``registering`` and ``commands``."""
        decision = _DECISIONS.get(fact.kind)
        return [] if decision is None else decision(state, fact)

    def evolve(self, state: Shelf, event: Event, *, at: int) -> Shelf:
        """Apply one event."""
        return models.evolve(state, event)

    def due(self, state: Shelf) -> int | None:
        """Return None: nothing here waits for a time."""
        return None

    def dump(self, state: Shelf) -> dict[str, Any]:
        """Return the shelf as JSON values."""
        return models.dump(state)

    def load(self, stream: str, dumped: dict[str, Any]) -> Shelf:
        """Read a snapshot back."""
        return models.load(dumped)


_DECISIONS: dict[str, Callable[[Shelf, Fact], list[Event]]] = {
    "job.succeeded": registering.take,
    registering.EXAMINED: registering.register,
    registering.CONCLUDED: registering.conclude,
    registering.HOLD: registering.hold,
    registering.RELEASE: registering.release,
    **{commands.PREFIX + verb: commands.decide for verb in commands.VERBS},
}
