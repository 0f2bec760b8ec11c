"""Which adapters the settings select: the ports of one service, opened in entry points only."""

import asyncio
from dataclasses import dataclass

from lineshaft.adapters.bus import select as bus_select
from lineshaft.adapters.bus.select import ClosableBus
from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.journal import select as journal_select
from lineshaft.adapters.journal.select import ClosableJournal
from lineshaft.adapters.objects import select as objects_select
from lineshaft.adapters.objects.select import ClosableObjects
from lineshaft.adapters.views import select as views_select
from lineshaft.adapters.views.select import ClosableViews
from lineshaft.ports import Clock
from lineshaft.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Ports:
    """The five ports of one service. ``is_owned``: the service closes them when it stops."""

    clock: Clock
    bus: ClosableBus
    journal: ClosableJournal
    views: ClosableViews
    objects: ClosableObjects
    is_owned: bool = False

    async def aclose(self) -> None:
        """Close all of them; the first failure is raised once all were tried."""
        closing = (port.aclose() for port in (self.bus, self.journal, self.views, self.objects))
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


def open_ports(settings: Settings, service: str) -> Ports:
    """Return the adapters that the settings' URLs select. Nothing connects before its first use.

    Raises ``ValueError`` for a URL that selects none, ``OSError`` when the token file cannot
    be read.
    """
    return Ports(
        clock=SystemClock(),
        bus=bus_select.bus(settings.bus_url, settings.token()),
        journal=journal_select.journal(settings.store_url, service),
        views=views_select.views(settings.views_url, service),
        objects=objects_select.objects(settings.objects_url),
        is_owned=True,
    )
