"""Admission as a service: ports, decider, read model, preflight, requests."""

from pathlib import Path

from lineshaft.runtime import subscribers
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings, SettingsError
from lineshaft.runtime.wiring import Ports, open_ports
from services.admission import checking, handlers
from services.admission.asking import Neighbours
from services.admission.checking import CheckError
from services.admission.domain.decider import AdmissionDecider
from services.admission.domain.policy import AdmissionPolicy, PolicyError
from services.admission.dry_runs import DryRuns
from services.admission.mounts import Mounts
from services.admission.observing import Preflight
from services.admission.projector import SubmissionProjector
from services.admission.reconciling import Reconciler

NAME = "admission"


def build(settings: Settings, ports: Ports | None = None) -> Service:
    """Make the service; it starts nothing. Raises ``SettingsError``."""
    try:
        policy = AdmissionPolicy.read(settings.policy(NAME), pool=settings.pool)
        folders = [checking.OURS, *([Path(policy.checks)] if policy.checks else [])]
        checks = checking.load(folders)
    except (PolicyError, CheckError) as error:
        raise SettingsError([str(error)]) from None
    service = Service(
        NAME,
        settings,
        ports or open_ports(settings, NAME),
        decider=AdmissionDecider(),
        projector=SubmissionProjector(),
        policy=policy,
        driver=subscribers.bind,
    )
    ask = Neighbours(service.bus, service.objects, service.clock)
    look = Preflight(
        Mounts(settings.mounts),
        ask,
        service.clock,
        checks=checks,
        checkpoint_root=settings.checkpoint_root,
    )

    compare = Reconciler(service, ask)
    service.host.add_listener(compare.committed)
    service.consume("job", ["lineshaft.job.queued.>"], observe=compare.queued)
    service.background("anti-entropy", compare.run)

    rehearse = DryRuns(settings.cache_dir / "dry-runs")

    async def close() -> None:
        look.close()
        await rehearse.close()

    service.on_stop(close)
    handlers.register(handlers.Desk(service, policy, look=look, ask=ask, rehearse=rehearse))
    return service
