"""Builders for the tests of runtime and bus: a small decider, hosts, services, polling."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from lineshaft.adapters.bus.memory import MemoryBus
from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.contracts.events import Event, Fact, encode
from lineshaft.ports import Clock, Entry, Journal, Objects
from lineshaft.runtime import subscribers
from lineshaft.runtime.decider import CLOCK_DUE, FactRefused
from lineshaft.runtime.host import DeciderHost
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings, load
from lineshaft.runtime.wiring import Ports, open_ports

DEADLINE_S = 20.0
REFUSED, BROKEN, SILENT, LARGE, DUE = -1, 13, 0, 77, 50
"""Amounts that the ledger refuses, breaks on, ignores, makes too much of, wakes for."""

State = dict[str, Any]


class Ledger:
    """A decider that adds amounts: one public and one internal event for each that counts."""

    service = "registry"

    def __init__(self, shards: int = 2, *, breaks_in_evolve: bool = False) -> None:
        self._names = [f"model/{number}" for number in range(shards)]
        self._breaks_in_evolve = breaks_in_evolve

    def streams(self) -> Sequence[str]:
        return self._names

    def route(self, fact: Fact) -> Sequence[str]:
        if fact.data["job"] == "everywhere":
            return self._names
        return [self._names[int(fact.data["job"]) % len(self._names)]]

    def initial(self, stream: str) -> State:
        return {"total": 0, "count": 0, "due": None, "rung": 0, "seen": []}

    def decide(self, state: State, fact: Fact, *, now: int, policy: Any) -> list[Event]:
        if fact.kind == CLOCK_DUE:
            return [Event("ledger.rung", {})] if state["due"] is not None else []
        amount = fact.data["priority"]
        if amount == REFUSED:
            raise FactRefused("no debts")
        if amount == BROKEN:
            raise RuntimeError("a fault of ours")
        if amount == SILENT:
            return []
        if amount == LARGE:
            return [Event("ledger.added", {"amount": 0, "by": fact.id})] * 600
        due = [Event("ledger.wake_wanted", {"at": now + 1000})] if amount == DUE else []
        total = state["total"] + amount
        told = Event("model.refused", {"name": "m", "reason": str(total)}, subject="m")
        return [told, Event("ledger.added", {"amount": amount, "by": fact.id}), *due]

    def evolve(self, state: State, event: Event, *, at: int) -> State:
        if event.kind == "ledger.added":
            if self._breaks_in_evolve and event.data["amount"] == 5:
                raise RuntimeError("the state cannot take five")
            state["total"] += event.data["amount"]
            state["count"] += 1
            state["seen"].append(event.data["by"])
        elif event.kind == "ledger.wake_wanted":
            state["due"] = event.data["at"]
        elif event.kind == "ledger.rung":
            state["due"], state["rung"] = None, state["rung"] + 1
        return state

    def due(self, state: State) -> int | None:
        due: int | None = state["due"]
        return due

    def dump(self, state: State) -> State:
        return state

    def load(self, stream: str, dumped: State) -> State:
        return dumped


def a_fact(id: str = "f1", amount: int = 1, account: int | str = 0, **more: Any) -> Fact:
    """A fact that adds ``amount`` to the account's shard; ``job.queued`` has no such data."""
    kind = more.pop("kind", "in.priority")
    return Fact(id, kind, {"job": str(account), "priority": amount}, 0, "test", **more)


def a_message(id: str = "f1", amount: int = 1, account: int = 0) -> bytes:
    """The same as a CloudEvent."""
    return encode(a_fact(id, amount, account))


def a_host(
    journal: Journal | None = None,
    clock: Clock | None = None,
    *,
    decider: Any = None,
    holder: str = "one@-/-/1/1/0",
    objects: Objects | None = None,
    alarms: list[tuple[str, str, str]] | None = None,
    on_commit: Callable[[Entry], None] | None = None,
) -> DeciderHost:
    """A host over memory that nothing is proven about."""
    return DeciderHost(
        decider or Ledger(),
        journal or MemoryJournal(),
        clock or SystemClock(),
        holder=holder,
        objects=objects,
        on_commit=on_commit,
        on_alarm=None if alarms is None else lambda *alarm: alarms.append(alarm),
    )


def some_settings(state: Path, **values: Any) -> Settings:
    """Settings over a folder of the test, untouched by the environment."""
    return load(environ={}, overrides={"state_dir": str(state), "replica": "test", **values})


def memory_ports(clock: Clock | None = None, bus: MemoryBus | None = None) -> Ports:
    """Five memory adapters."""
    clock = clock or SystemClock()
    return Ports(clock, bus or MemoryBus(clock), MemoryJournal(), MemoryViews(), MemoryObjects())


async def eventually(
    look: Callable[[], Any] | Callable[[], Awaitable[Any]], deadline_s: float = DEADLINE_S
) -> Any:
    """Poll ``look`` until it is true; return what it gave. Fails at the deadline."""
    end = asyncio.get_running_loop().time() + deadline_s
    while True:
        found = look()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < end, f"never became true: {look}"
        await asyncio.sleep(0.01)


async def entries_of(journal: Journal, stream: str) -> list[Entry]:
    """Everything in a stream."""
    return [entry async for entry in journal.read(stream, 0)]


def a_ledger_service(state: Path, bus_url: str, bus_token: str | None = None) -> Service:
    """A whole service around the ledger: SQLite, folder, the bus at ``bus_url``, FastStream."""
    settings = some_settings(state, bus_url=bus_url, bus_token=bus_token)
    service = Service(
        "registry",
        settings,
        open_ports(settings, "registry"),
        decider=Ledger(4),
        driver=subscribers.bind,
    )
    service.consume("in", ["lineshaft.in.>"])

    async def add(params: dict[str, Any]) -> dict[str, Any]:
        outcome = await service.host.submit(a_fact(params["key"], params["amount"]))
        told = [event.data["reason"] for event in outcome.events if event.is_public]
        return {"told": told, "stream": outcome.stream, "seq": outcome.seq}

    async def seen(params: dict[str, Any]) -> dict[str, Any]:
        return {"seen": [name for lane in service.host.lanes for name in seen_in(service, lane)]}

    service.rpc("add", add)
    service.rpc("seen", seen)
    return service


def seen_in(service: Service, stream: str) -> list[str]:
    """The ids of all facts that counted in a stream."""
    ids: list[str] = service.host.state(stream)["seen"]
    return ids
