"""From a URL to a bus: ``memory://[name]``, ``nats://host:port`` or ``tls://host:port``.

Standard library and nats-py only: the agent imports this module.
"""

from collections.abc import Sequence
from typing import Protocol

from lineshaft.adapters import urls
from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.ports import Bus

_named: dict[str, MemoryBus] = {}


class ClosableBus(Bus, Protocol):
    """A bus that holds a connection until it is closed, and can make its streams."""

    @property
    def generation(self) -> int:
        """A number that changes with each connection."""
        ...

    def heard_ms(self, durable: str) -> int | None:
        """Return how long ago the bus said a word about a consumer pulled here; None: never."""
        ...

    async def aclose(self) -> None:
        """Flush and let go of the connection."""
        ...

    async def provision(self, lost: Sequence[str] = ()) -> None:
        """Make or grow the streams of ``subjects.STREAMS``. Raises ``BusUnavailable``.

        The durable consumers of streams in ``lost`` begin again from the start.
        """
        ...


def bus(url: str, token: str | None = None) -> ClosableBus:
    """Return the bus at ``url``. Nothing connects before the first use.

    ``memory://name`` is the same at every call of this process, ``memory://`` is new. Raises
    ``ValueError`` for a URL that is none.
    """
    match urls.scheme_of(url):
        case "memory":
            name = urls.memory_name(url)
            return _named.setdefault(name, MemoryBus()) if name else MemoryBus()
        case "nats" | "tls":
            return NatsBus(url, token)
    raise urls.unknown(url, ("memory://", "nats://host:port", "tls://host:port"))
