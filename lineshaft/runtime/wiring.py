"""Which adapters the settings select: the ports of one service, opened in entry points only."""

from dataclasses import dataclass

from lineshaft.ports import Bus, Clock, Journal, Objects, Views
from lineshaft.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Ports:
    """The five ports of one service."""

    clock: Clock
    bus: Bus
    journal: Journal
    views: Views
    objects: Objects


def open_ports(settings: Settings, service: str) -> Ports:
    """Return the adapters that the settings' URLs select. Nothing connects before its first use."""
    raise NotImplementedError
