"""The shell of a service: ports, host, relay, projection, requests, consumption, background work.

Nothing about jobs, runs or models stands here.

How every service is wired
--------------------------
``services/<name>/app.py`` has one function, ``build``; it makes the service and starts nothing::

    from lineshaft.runtime import subscribers
    from lineshaft.runtime.service import Service
    from lineshaft.runtime.settings import Settings
    from lineshaft.runtime.wiring import Ports, open_ports
    from services.admission import handlers
    from services.admission.domain.decider import AdmissionDecider
    from services.admission.domain.policy import AdmissionPolicy

    NAME = "admission"

    def build(settings: Settings, ports: Ports | None = None) -> Service:
        service = Service(
            NAME,
            settings,
            ports or open_ports(settings, NAME),
            decider=AdmissionDecider(),
            projector=AdmissionProjector(),      # or None
            policy=AdmissionPolicy.read(settings.policy(NAME)),
            driver=subscribers.bind,             # FastStream for nats://, the Bus port otherwise
        )
        handlers.register(service)
        return service

``services/<name>/handlers.py`` registers what the service answers and does::

    def register(service: Service) -> None:
        service.consume("in", ["lineshaft.in.>"], observe=look_at_paths)
        service.rpc("submit", partial(submit, service))
        service.background("anti-entropy", partial(compare, service))

    async def submit(service: Service, params: dict[str, Any]) -> dict[str, Any]:
        fact = Fact(id=rpc.text(params, "key"), kind="in.submit", data={...},
                    at=service.clock.now(), source="rpc")
        outcome = await service.host.submit(fact)       # after the append
        return {**answer_from(outcome.events), "stream": outcome.stream, "seq": outcome.seq}

``services/<name>/__main__.py``::

    from lineshaft.runtime.service import main
    from services.admission.app import build

    main(build)

What a handler may raise: ``RpcError`` (answered as it is); ``FactRefused`` (code ``refused``);
``NotLeader`` (``not_leader``); ``StoreUnavailable``, ``BusUnavailable`` (``unavailable``). Anything
else is logged with its story and answered as ``unavailable`` without it.

Order of a start: host (leases, state), ``on_start`` hooks, projection, relay, requests,
background work, consumption. A stop goes the other way round and drains.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts.events import Fact
from lineshaft.ports import Bus, Clock, Journal, Message, Objects, Views
from lineshaft.runtime.decider import Decider, Projector
from lineshaft.runtime.host import DeciderHost
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.settings import Settings
from lineshaft.runtime.wiring import Ports

__all__ = ["Check", "Consumption", "RpcError", "Service", "main"]

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Work = Callable[[], Awaitable[None]]
Observe = Callable[[Fact], Awaitable[Fact]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true before a service is ready."""

    name: str
    is_ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a service takes from one stream of the bus, by a durable consumer of its own."""

    stream: str
    subjects: tuple[str, ...]
    durable: str
    observe: Observe | None = None


class Service:
    """One service. Attributes: name, settings, clock, bus, journal, views, objects, host, relay.

    ``addresses`` holds what else the service listens on (the registry sets ``http``).
    """

    name: str
    settings: Settings
    clock: Clock
    bus: Bus
    journal: Journal
    views: Views
    objects: Objects
    host: DeciderHost
    addresses: dict[str, str]

    def __init__(
        self,
        name: str,
        settings: Settings,
        ports: Ports,
        *,
        decider: Decider[Any],
        projector: Projector | None = None,
        policy: Any = None,
        driver: Any = None,
    ) -> None:
        raise NotImplementedError

    def rpc(self, verb: str, handler: Handler, *, needs_leader: bool = True) -> None:
        """Answer ``lineshaft.rpc.<name>.<verb>``.

        A parameter ``at_least`` {stream, seq} is waited for, at most 2 s, before the handler
        runs. ``needs_leader`` refuses with ``not_leader`` while this process leads no stream.
        """

    def background(self, name: str, work: Work) -> None:
        """Run ``work`` while the service runs; when it raises or returns it is started again.

        A crash is logged, opens an audit finding, and is retried with a growing delay. Work ends
        by cancellation. A doer must look at ``host.is_leader(stream)`` before it acts.
        """

    def on_start(self, hook: Work) -> None:
        """Await ``hook`` once, after the state is loaded and before anything is served."""

    def on_stop(self, hook: Work) -> None:
        """Await ``hook`` once, after serving ended."""

    def consume(
        self, stream: str, subjects: Sequence[str], *, observe: Observe | None = None
    ) -> None:
        """Hand facts of a bus stream (``in``, ``job``, ``run``, ...) to the decider.

        ``observe`` may gather bounded observations and returns the fact with them in its data
        (``fact.with_data``); it may raise ``FactRefused``. Beats, telemetry and logs are no facts:
        take those with ``self.bus.pull`` in background work.
        """

    async def publish(self, fact: Fact) -> None:
        """Publish a fact of a doer (launcher, agent restated). Raises ``BusUnavailable``."""

    def audit(self, kind: str, subject: str, status: str, summary: str) -> None:
        """Publish the finding ``<service>.<kind>`` about ``subject``: status open or closed.

        Returns at once; published as soon as the bus takes it, once per change of status.
        """

    async def handle_batch(self, messages: Sequence[Message], which: Consumption) -> None:
        """Decode, decide, acknowledge; what can never be handled goes to the dead stream."""

    async def start(self) -> None:
        """Start everything; returns when the service serves."""

    async def stop(self) -> None:
        """Stop taking, finish what is in hand, release the leases, close the ports."""

    async def ready(self) -> list[Check]:
        """Return what must be true before the service is of use."""
        raise NotImplementedError


def main(build: Callable[[Settings], Service]) -> None:
    """Run one service as a process: settings, logging, signals, a graceful stop."""
