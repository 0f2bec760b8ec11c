"""The scheduler as a service: ports, decider, read models, requests, its launcher."""

from functools import partial

from lineshaft.runtime import subscribers
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings, SettingsError
from lineshaft.runtime.wiring import Ports, open_ports
from services.scheduler import handlers
from services.scheduler.doer import LaunchDoer
from services.scheduler.domain.decider import PoolDecider
from services.scheduler.domain.policy import DeclaredNodes, Policy, PolicyError
from services.scheduler.launchers.port import Launcher
from services.scheduler.launchers.subprocess import SubprocessLauncher
from services.scheduler.projection import JobProjector

NAME = "scheduler"


def build(
    settings: Settings, ports: Ports | None = None, launcher: Launcher | None = None
) -> Service:
    """Make the service; it starts nothing.

    ``launcher`` None: runs are processes of this machine. Raises ``SettingsError``.
    """
    policy = read_policy(settings)
    opened = ports or open_ports(settings, NAME)
    decider = PoolDecider([settings.pool])
    service = Service(
        NAME,
        settings,
        opened,
        decider=decider,
        projector=JobProjector(),
        policy=policy,
        driver=subscribers.bind,
    )
    chosen = launcher or SubprocessLauncher(settings, opened.objects, opened.clock)
    doer = LaunchDoer(service, chosen, decider.streams())
    handlers.register(service, doer, policy, settings.pool)
    service.host.add_listener(doer.wake)
    service.on_stop(partial(chosen.aclose, leave_running=policy.should_leave_running))
    return service


def read_policy(settings: Settings) -> Policy:
    """Return the pool's policy, its nodes as declared. Raises ``SettingsError``."""
    declared = [DeclaredNodes(node.gpu_type, node.slots) for node in settings.nodes]
    try:
        return Policy.read(settings.policy(NAME), quotas=settings.quotas, declared=declared)
    except PolicyError as error:
        raise SettingsError(error.faults) from None
