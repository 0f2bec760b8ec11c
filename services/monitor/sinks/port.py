"""The port of a sink: one way of telling people about alerts."""

from typing import Protocol

from lineshaft.contracts.events import Fact


class Sink(Protocol):
    """Tells about one alert event. Deliveries are recorded per name, so a name is for life."""

    name: str

    async def deliver(self, notice: Fact) -> None:
        """Tell about an ``alert.*`` fact; its data is the whole alert. Raises when it could not."""
        ...
