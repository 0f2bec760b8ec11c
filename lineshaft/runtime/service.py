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

    from lineshaft.runtime.process import main
    from services.admission.app import build

    main(build)

What a handler may raise: ``RpcError`` (answered as it is); ``FactRefused`` (code ``refused``);
``NotLeader`` (``not_leader``); ``StoreUnavailable``, ``BusUnavailable`` (``unavailable``). Anything
else is logged with its story and answered as ``unavailable`` without it.

Order of a start: probes, host (leases, state), ``on_start`` hooks, projection, relay, requests,
background work, consumption. A stop goes the other way round and drains.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from lineshaft.contracts import events, subjects
from lineshaft.contracts.events import Fact
from lineshaft.ports import BusUnavailable, Message, StoreUnavailable
from lineshaft.runtime import observability, readiness
from lineshaft.runtime.answering import Handler, Verb
from lineshaft.runtime.auditing import Auditor
from lineshaft.runtime.decider import Decider, Projector
from lineshaft.runtime.delivery import Consumption, Delivery, Observe
from lineshaft.runtime.driving import Driver, IsReady, PortDriver, Take
from lineshaft.runtime.host import DeciderHost
from lineshaft.runtime.lease import holder_of_this_process
from lineshaft.runtime.probes import Probes
from lineshaft.runtime.projection import Projection
from lineshaft.runtime.readiness import Check
from lineshaft.runtime.relay import Relay
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.serving import Serving
from lineshaft.runtime.settings import Settings
from lineshaft.runtime.supervision import Supervisor
from lineshaft.runtime.wiring import Ports

__all__ = ["Check", "Consumption", "RpcError", "Service"]

Work = Callable[[], Awaitable[None]]
BindDriver = Callable[["Service", Take, IsReady], Driver]
_STOP_FLUSH_S = 3.0


class Service:
    """One service. Attributes: name, settings, clock, bus, journal, views, objects, host, relay.

    ``addresses`` holds what else the service listens on: ``probes`` where the settings give it
    a port, and what its hooks add (the registry: ``http``).
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        ports: Ports,
        *,
        decider: Decider[Any],
        projector: Projector | None = None,
        policy: Any = None,
        driver: BindDriver | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.ports = ports
        self.clock, self.bus, self.journal = ports.clock, ports.bus, ports.journal
        self.views, self.objects = ports.views, ports.objects
        self.addresses: dict[str, str] = {}
        self.consumptions: list[Consumption] = []
        self.log = observability.logger(name)
        self._auditor = Auditor(name, ports.bus, ports.clock, self.log)
        self._supervisor = Supervisor(ports.clock, self.alarm)
        self.host = DeciderHost(
            decider,
            ports.journal,
            ports.clock,
            holder=holder_of_this_process(settings.replica),
            objects=ports.objects,
            policy=policy,
            on_alarm=self.alarm,
        )
        self.relay = Relay(
            name,
            self.host,
            journal=ports.journal,
            bus=ports.bus,
            clock=ports.clock,
            alarm=self.alarm,
            open_since=getattr(decider, "open_since", None),
        )
        self.host.add_listener(self.relay.committed)
        self._projection = self._projected(projector, decider)
        self._delivery = Delivery(
            name, self.host, bus=ports.bus, clock=ports.clock, alarm=self.alarm
        )
        self._bind_driver = driver or _port_driver
        self._driver: Driver | None = None
        self._verbs: dict[str, Verb] = {"health": Verb(self._health, needs_leader=False)}
        self._work: list[tuple[str, Work]] = []
        self._start_hooks: list[Work] = []
        self._stop_hooks: list[Work] = []
        self._serving = Serving(self, self._verbs, ports)
        self._probes: Probes | None = None
        self._is_serving = False

    def _projected(self, projector: Projector | None, decider: Decider[Any]) -> Projection | None:
        if projector is None:
            return None
        return Projection(
            projector,
            decider.streams(),
            journal=self.journal,
            views=self.views,
            clock=self.clock,
            alarm=self.alarm,
        )

    # -- what a service declares before its start ---------------------------------------------

    def rpc(self, verb: str, handler: Handler, *, needs_leader: bool = True) -> None:
        """Answer ``lineshaft.rpc.<name>.<verb>``.

        A parameter ``at_least`` {stream, seq} is waited for, at most 2 s, before the handler
        runs. ``needs_leader`` refuses with ``not_leader`` while this process leads no stream.
        """
        self._verbs[verb] = Verb(handler, needs_leader)

    def background(self, name: str, work: Work) -> None:
        """Run ``work`` while the service runs; when it raises or returns it is started again.

        A crash is logged, opens an audit finding, and is retried with a growing delay. Work ends
        by cancellation. A doer must look at ``host.is_leader(stream)`` before it acts.
        """
        self._work.append((name, work))

    def on_start(self, hook: Work) -> None:
        """Await ``hook`` once, after the state is loaded and before anything is served."""
        self._start_hooks.append(hook)

    def on_stop(self, hook: Work) -> None:
        """Await ``hook`` once, after serving ended."""
        self._stop_hooks.append(hook)

    def consume(
        self, stream: str, subjects: Sequence[str], *, observe: Observe | None = None
    ) -> None:
        """Hand facts of a bus stream (``in``, ``job``, ``run``, ...) to the decider.

        ``observe`` may gather bounded observations and returns the fact with them in its data
        (``fact.with_data``); it may raise ``FactRefused``. Beats, telemetry and logs are no facts:
        take those with ``self.bus.pull`` in background work.
        """
        number = sum(1 for other in self.consumptions if other.stream == stream)
        durable = f"{self.name}-{stream}" + (f"-{number + 1}" if number else "")
        self.consumptions.append(Consumption(stream, tuple(subjects), durable, observe))

    # -- what a service does while it runs ----------------------------------------------------

    async def publish(self, fact: Fact) -> None:
        """Publish a fact of a doer, or of an agent restated. Raises ``BusUnavailable``."""
        raw = events.encode(fact)
        await self.bus.publish(subjects.of_fact(fact), raw, message_id=fact.id)

    def audit(self, kind: str, subject: str, status: str, summary: str) -> None:
        """Publish the finding ``<service>.<kind>`` about ``subject``: status open or closed.

        Returns at once; published as soon as the bus takes it, once per change of status.
        """
        self._auditor.find(kind, subject, status, summary)

    def alarm(self, kind: str, subject: str, summary: str) -> None:
        """Log what went wrong in the shell itself and open a finding about it."""
        self.log.warning(kind, subject=subject, summary=summary)
        self.audit(kind, subject, "open", summary)

    async def handle_batch(self, messages: Sequence[Message], which: Consumption) -> None:
        """Decode, decide, acknowledge; what can never be handled goes to the dead stream."""
        await self._delivery.handle_batch(messages, which)

    async def wait_for(self, stream: str, seq: int, timeout_ms: int) -> bool:
        """Wait until answers of this service reflect ``seq`` of any service's ``stream``."""
        deadline = self.clock.monotonic() + timeout_ms
        if stream not in self.host.lanes:
            while self._delivery.seen.get(stream, 0) < seq:
                if self.clock.monotonic() >= deadline:
                    return False
                await self.clock.sleep(10)
            return True
        if not await self.host.wait_position(stream, seq, timeout_ms):
            return False
        if self._projection is None:
            return True
        left = max(0, deadline - self.clock.monotonic())
        return await self._projection.wait_for(stream, seq, left)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; returns when the service serves."""
        await self._listen()
        self._supervisor.run("auditor", self._auditor.run)
        await self.host.start()
        for hook in self._start_hooks:
            await hook()
        if self._projection is not None:
            self._supervisor.run("projection", self._projection.run)
        self._supervisor.run("relay", self.relay.run)
        await self._serving.start()
        self._supervisor.run("serving", self._serving.follow)
        for name, work in self._work:
            self._supervisor.run(name, work)
        self._driver = self._bind_driver(self, self.handle_batch, self._leads)
        await self._driver.start()
        self._is_serving = True
        self.log.info("started", leads=len(self.host.led_streams()))

    async def _listen(self) -> None:
        """Answer probes from the first moment: a service that waits for its bus is alive."""
        port = self.settings.health_ports.get(self.name)
        if port is None:
            return

        async def alive() -> list[Check]:
            return readiness.alive(self.host)

        asked: dict[str, Callable[[], Awaitable[list[Check]]]] = {
            "/livez": alive,
            "/readyz": self.ready,
        }
        self._probes = Probes(self.settings.health_host, port, dict(asked))
        self.addresses["probes"] = await self._probes.start()

    def _leads(self) -> bool:
        return any(self.host.is_leader(stream) for stream in self.host.lanes)

    async def stop(self) -> None:
        """Stop taking, finish what is in hand, release the leases, close the ports.

        Every step is tried, also when one before it failed.
        """
        self._is_serving = False
        steps: list[Work] = [] if self._driver is None else [self._driver.stop]
        steps += [self._serving.stop, self._supervisor.stop, self._flush, self.host.stop]
        steps += (
            self._stop_hooks if self._probes is None else [*self._stop_hooks, self._probes.stop]
        )
        steps += [self.ports.aclose] if self.ports.is_owned else []
        for step in steps:
            try:
                await step()
            except Exception as error:
                self.log.warning("stop_failed", detail=repr(error))
        self.log.info("stopped")

    async def _flush(self) -> None:
        """Publish what is decided, if the bus takes it soon; the rest is published at the start."""
        with suppress(TimeoutError, BusUnavailable, StoreUnavailable):
            async with asyncio.timeout(_STOP_FLUSH_S):
                await self._auditor.turn()
                await self.relay.turn()
                await self.relay.write_marks()

    # -- how it is ----------------------------------------------------------------------------

    async def _health(self, _: dict[str, Any]) -> dict[str, Any]:
        checks = await self.ready()
        return {
            "ready": all(check.is_ok for check in checks),
            "checks": readiness.as_json(checks),
        }

    async def ready(self) -> list[Check]:
        """Return what must be true before the service is of use; each is asked now."""
        is_standby = readiness.stands_by(self.host)
        return [
            *await readiness.stores(self.name, self.ports),
            readiness.leader(self.host),
            readiness.consumers(self._driver, self.consumptions, self.ports, is_standby=is_standby),
            Check("serving", self._is_serving, "" if self._is_serving else "starts or stops"),
        ]


def _port_driver(service: Service, take: Take, is_ready: IsReady) -> Driver:
    return PortDriver(
        service.consumptions, take, bus=service.bus, clock=service.clock, is_ready=is_ready
    )
