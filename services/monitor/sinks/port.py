"""The port of a sink: one way of telling people about alerts."""

from typing import Protocol

from lineshaft.contracts.events import Fact


class NotTaken(Exception):
    """A sink could not tell; ``is_final``: it never will, so there is no use in another try."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Sink(Protocol):
    """Tells about one alert event. Deliveries are recorded per name, so a name is for life."""

    name: str

    async def deliver(self, notice: Fact) -> None:
        """Tell about an ``alert.*`` fact; its data is the whole alert.

        Raises ``NotTaken`` (or anything else) when it could not.
        """
        ...
