"""The entry point of the monitor: makes the service, starts nothing."""

from lineshaft.runtime import subscribers
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings
from lineshaft.runtime.wiring import Ports, open_ports
from services.monitor import handlers
from services.monitor.domain.decider import MonitorDecider
from services.monitor.domain.policy import policy_of
from services.monitor.projector import MonitorProjector

NAME = "monitor"


def build(settings: Settings, ports: Ports | None = None) -> Service:
    """Return the monitor. Raises ``PolicyError`` for a policy value that cannot be used."""
    policy = policy_of(settings.policy(NAME))
    service = Service(
        NAME,
        settings,
        ports or open_ports(settings, NAME),
        decider=MonitorDecider(),
        projector=MonitorProjector(),
        policy=policy,
        driver=subscribers.bind,
    )
    handlers.register(service, policy)
    return service
