"""The whole platform in one process: the bundled bus and the four services.

The only module that sees all four. On its premises it builds and starts the services, says where
everything is, and stops it all in order.
``python -m services.embedded --state DIR [--config FILE]``.
"""

from collections.abc import Callable

from lineshaft.runtime import premises
from lineshaft.runtime.premises import Premises
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings
from services.admission.app import build as build_admission
from services.monitor.app import build as build_monitor
from services.registry.app import build as build_registry
from services.scheduler.app import build as build_scheduler

# Started in this order, stopped in the other: whoever answers stands before whoever asks.
BUILDERS: tuple[Callable[[Settings], Service], ...] = (
    build_registry,
    build_monitor,
    build_scheduler,
    build_admission,
)


class EmbeddedPlatform:
    """One running platform over one state folder, which the caller holds locked."""

    def __init__(self, settings: Settings) -> None:
        self._premises = Premises(settings)
        self._services: list[Service] = []

    async def start(self) -> None:
        """Start everything, then write the state file."""
        settings = await self._premises.open()
        for build in BUILDERS:
            service = build(settings)
            self._services.append(service)
            await service.start()
        addresses = {name: at for s in self._services for name, at in s.addresses.items()}
        self._premises.announce(http_url=addresses.get("http"))

    async def stop(self) -> None:
        """Stop the services in the other order, then the bus."""
        self._premises.withdraw()
        for service in reversed(self._services):
            await service.stop()
        await self._premises.close()


def main() -> None:
    """Run from a terminal or as the child of ``lineshaft up``. Exit codes: 0, 2, 3."""
    options = premises.parser("services.embedded", __doc__)
    premises.main(options, lambda settings, _: EmbeddedPlatform(settings))


if __name__ == "__main__":
    main()
