"""The whole platform in one process: the bundled bus and the four services.

The only module that sees all four. It makes the state folder, starts ``nats-server``, makes the
bus's streams, builds and starts the services, says where everything is, and stops it all in order.
``python -m services.embedded --state DIR [--config FILE]``.
"""

import argparse
import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer, ServerFailed, write_private
from lineshaft.ports import BusUnavailable
from lineshaft.runtime import observability, platforms
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings, SettingsError, load
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
STATE_FILE = "state.json"
PROVISION_WAIT_S = 15.0
FREE_BYTES_MIN = 256 * 1024 * 1024


class PlatformRefused(Exception):
    """The platform cannot be started here; the message says why and what to do."""


class Platform:
    """One running platform over one state folder, which the caller holds locked."""

    def __init__(self, settings: Settings) -> None:
        self._state = settings.state_dir
        self._settings = settings
        self._log = observability.logger("platform")
        self._server = NatsServer(self._state / "bus", on_event=self._heard)
        self._services: list[Service] = []
        self._found: dict[str, Any] = {}

    def _heard(self, what: str, detail: str) -> None:
        self._log.warning(what, detail=detail)
        if self._found:
            self._write_state()

    def _write_state(self) -> None:
        self._found["bus_pid"] = self._server.pid
        write_private(self._state / STATE_FILE, json.dumps(self._found, indent=1) + "\n")

    async def start(self) -> None:
        """Start everything, then write the state file."""
        (self._state / STATE_FILE).unlink(missing_ok=True)  # of a platform that was killed
        await self._server.start()
        settings = self._settings.with_values(
            "embedded",
            bus_url=self._server.url,
            bus_token=None,
            bus_token_file=self._server.token_file,
        )
        await self._provision()
        for build in BUILDERS:
            service = build(settings)
            self._services.append(service)
            await service.start()
        addresses = {name: at for s in self._services for name, at in s.addresses.items()}
        self._found = {
            "schema": 1,
            "bus_url": self._server.url,
            "bus_token": self._server.token,
            "http_url": addresses.get("http"),
            "pid": os.getpid(),
            "started_at": time.time_ns() // 1_000_000,
            "version": version("lineshaft"),
            "state_dir": str(self._state),
        }
        self._write_state()
        platforms.add(self._state, os.getpid())
        self._log.info("platform_ready", state_dir=str(self._state), http=addresses.get("http"))

    async def _provision(self) -> None:
        bus = NatsBus(self._server.url, self._server.token, name="lineshaft-provisioner")
        try:
            async with asyncio.timeout(PROVISION_WAIT_S):
                while True:
                    try:
                        await bus.provision()
                        return
                    except BusUnavailable as error:
                        self._log.warning("bus_unavailable", detail=str(error))
                        await asyncio.sleep(0.2)
        except TimeoutError:
            raise PlatformRefused(
                f"the bus did not make its streams; see {self._server.log}"
            ) from None
        finally:
            await bus.aclose()

    async def stop(self) -> None:
        """Stop the services in the other order, then the bus."""
        self._found = {}
        platforms.remove(self._state)
        (self._state / STATE_FILE).unlink(missing_ok=True)
        for service in reversed(self._services):
            await service.stop()
        await self._server.stop()
        self._log.info("platform_stopped", state_dir=str(self._state))


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the state folder for this process alone; raise ``PlatformRefused`` when it is taken."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    with (state / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PlatformRefused(_taken(state, file)) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _taken(state: Path, file: TextIO) -> str:
    file.seek(0)
    pid = file.read().strip()
    who = f" (process {pid})" if pid.isdigit() else ""
    return (
        f"a platform already runs on {state}{who}; use it, stop it with 'lineshaft down', "
        "or choose another folder with --state"
    )


def _check_room(state: Path) -> None:
    free = shutil.disk_usage(state).free
    if free < FREE_BYTES_MIN:
        raise PlatformRefused(
            f"{state} has {free >> 20} MiB free; at least {FREE_BYTES_MIN >> 20} MiB are needed"
        )


async def run(settings: Settings) -> None:
    """Run a platform until SIGTERM or SIGINT. Raises ``PlatformRefused``, ``ServerFailed``."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    platform = Platform(settings)
    starting = asyncio.ensure_future(platform.start())
    waiting = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await starting
            await waiting
    finally:
        starting.cancel()
        waiting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        await platform.stop()


def main() -> None:
    """Run from a terminal or as the child of ``lineshaft up``. Exit codes: 0, 2, 3."""
    parser = argparse.ArgumentParser(prog="python -m services.embedded", description=__doc__)
    parser.add_argument("--state", help="state folder (default: .lineshaft here)")
    parser.add_argument("--config", type=Path, help="settings file (default: lineshaft.toml here)")
    given = parser.parse_args()
    try:
        settings = load(given.config, overrides={"state_dir": given.state})
    except SettingsError as error:
        parser.exit(2, f"wrong settings:\n{error}\n")
    observability.configure(settings.log_level)
    try:
        with locked(settings.state_dir):
            _check_room(settings.state_dir)
            asyncio.run(run(settings))
    except SettingsError as error:
        parser.exit(2, f"wrong settings:\n{error}\n")
    except (PlatformRefused, ServerFailed) as error:
        parser.exit(3, f"{error}\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
