"""What must be true of a service before it is of use, asked for real each time.

Alive: its own loops run; a process that is not is best started again. Ready: its store, objects
and bus answer, it leads or stands by, and what it takes from the bus was fetched a moment ago.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from lineshaft.ports import BusUnavailable, StoreUnavailable
from lineshaft.runtime.delivery import Consumption
from lineshaft.runtime.driving import Driver
from lineshaft.runtime.host import DeciderHost
from lineshaft.runtime.wiring import Ports

ANSWER_WAIT_S = 2
FETCH_SILENCE_MS_MAX = 15_000
"""A request for messages stands for 10 s and beats each second; longer silence is a fault."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true before a service is ready."""

    name: str
    is_ok: bool
    detail: str = ""


def as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return checks as answers carry them."""
    return [{"name": c.name, "ok": c.is_ok, "detail": c.detail} for c in checks]


def alive(host: DeciderHost) -> list[Check]:
    """Return what only a new process can mend."""
    return [Check("loops", host.is_alive, "" if host.is_alive else "a loop of the host has ended")]


async def stores(service: str, ports: Ports) -> list[Check]:
    """Ask the journal, the objects and the bus, side by side."""
    return list(
        await asyncio.gather(
            _tried("journal", ports.journal.marks(f"lease/{service}/")),
            _tried("objects", ports.objects.stat("health")),
            _tried("bus", ports.bus.state("job")),
        )
    )


def leader(host: DeciderHost) -> Check:
    """Tell whether this process leads, or could take over from the one that does."""
    led = host.led_streams()
    if led:
        return Check("leader", True, f"leads {len(led)} of {len(host.lanes)} streams")
    if not host.is_fresh():
        return Check("leader", False, "its lease is not renewed; another may have its name")
    holders = sorted({lane.holder.partition("@")[0] for lane in host.lanes.values()})
    is_standby = stands_by(host)
    led_by = ", ".join(name or "nobody" for name in holders)
    return Check("leader", is_standby, f"{'stands by' if is_standby else 'waits'}: led by {led_by}")


def stands_by(host: DeciderHost) -> bool:
    """Tell whether other processes lead all streams and this one follows them closely."""
    lanes = host.lanes.values()
    return host.is_fresh() and all(x.is_loaded and x.holder and not x.is_led for x in lanes)


def consumers(
    driver: Driver | None, consumptions: Sequence[Consumption], ports: Ports, *, is_standby: bool
) -> Check:
    """Tell whether every consumer exists and delivered or beat a moment ago."""
    names = ", ".join(which.durable for which in consumptions)
    if driver is None or not driver.is_running():
        return Check("consumers", False, f"not pulled: {names}")
    if is_standby:
        return Check("consumers", True, f"a standby takes nothing; would take: {names}")
    silent = []
    for which in consumptions:
        ago = ports.bus.heard_ms(which.durable)
        if ago is None:
            silent.append(f"{which.durable} was never heard")
        elif ago > FETCH_SILENCE_MS_MAX:
            silent.append(f"{which.durable} was last heard {ago // 1000} s ago")
    return Check("consumers", not silent, "; ".join(silent) or names)


async def _tried(name: str, asking: Awaitable[Any]) -> Check:
    try:
        async with asyncio.timeout(ANSWER_WAIT_S):
            await asking
    except (StoreUnavailable, BusUnavailable, TimeoutError) as error:
        return Check(name, False, str(error) or f"no answer within {ANSWER_WAIT_S} s")
    return Check(name, True)
