"""What every platform of one machine stands on: its state folder, the bundled bus, its state file.

The folder is locked while a platform runs on it; the bus gets its streams before anybody else
comes; the state file tells clients where everything is. Which services there are, and in which
processes, is not known here.
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
from typing import Any, Protocol, TextIO

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import NatsServer, ServerFailed, write_private
from lineshaft.ports import BusUnavailable
from lineshaft.runtime import observability, platforms
from lineshaft.runtime.settings import Settings, SettingsError, load

STATE_FILE = "state.json"
PROVISION_WAIT_S = 15.0
FREE_BYTES_MIN = 256 * 1024 * 1024
FOLDER_OF_THE_START = "the folder of the start"


class PlatformRefused(Exception):
    """The platform cannot be started here; the message says why and what to do."""


class Premises:
    """State folder, bus and state file of one platform; the caller holds the folder locked."""

    def __init__(self, settings: Settings, *, port: int | None = None) -> None:
        self.state = settings.state_dir
        self.log = observability.logger("platform")
        self.server = NatsServer(self.state / "bus", port=port, on_event=self._heard)
        self._settings = settings
        self._found: dict[str, Any] = {}

    def _heard(self, what: str, detail: str) -> None:
        self.log.warning(what, detail=detail)
        self.tell()

    async def open(self) -> Settings:
        """Start the bus and make its streams; return the settings that lead to it."""
        (self.state / STATE_FILE).unlink(missing_ok=True)  # of a platform that was killed
        await self.server.start()
        await self._provision()
        return self._settings.with_values(
            "bundled bus",
            bus_url=self.server.url,
            bus_token=None,
            bus_token_file=self.server.token_file,
        )

    async def _provision(self) -> None:
        bus = NatsBus(self.server.url, self.server.token, name="lineshaft-provisioner")
        try:
            async with asyncio.timeout(PROVISION_WAIT_S):
                while True:
                    try:
                        await bus.provision()
                        return
                    except BusUnavailable as error:
                        self.log.warning("bus_unavailable", detail=str(error))
                        await asyncio.sleep(0.2)
        except TimeoutError:
            raise PlatformRefused(
                f"the bus did not make its streams; see {self.server.log}"
            ) from None
        finally:
            await bus.aclose()

    def announce(self, **more: Any) -> None:
        """Write the state file with ``more`` in it, and put the platform on the user's list."""
        self._found = {
            "schema": 1,
            "bus_url": self.server.url,
            "bus_token": self.server.token,
            "http_url": None,
            "pid": os.getpid(),
            "started_at": time.time_ns() // 1_000_000,
            "version": version("lineshaft"),
            "state_dir": str(self.state),
            **more,
        }
        self.tell()
        platforms.add(self.state, os.getpid())
        self.log.info("platform_ready", state_dir=str(self.state), http=self._found["http_url"])

    def tell(self, **changed: Any) -> None:
        """Write the state file again with what has changed; nothing before it was announced."""
        if not self._found:
            return
        self._found |= changed
        self._found["bus_pid"] = self.server.pid
        write_private(self.state / STATE_FILE, json.dumps(self._found, indent=1) + "\n")

    def withdraw(self) -> None:
        """Take the state file away: the platform stops."""
        self._found = {}
        platforms.remove(self.state)
        (self.state / STATE_FILE).unlink(missing_ok=True)

    async def close(self) -> None:
        """Stop the bus."""
        await self.server.stop()
        self.log.info("platform_stopped", state_dir=str(self.state))


class Platform(Protocol):
    """Something that is started on premises and stopped."""

    async def start(self) -> None:
        """Start everything; returns when it can be used."""
        ...

    async def stop(self) -> None:
        """Stop everything in order, also after a start that failed half-way."""
        ...


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the state folder for this process alone; raise ``PlatformRefused`` when it is taken."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o700)
        lock = (state / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise PlatformRefused(
            f"{state} cannot be the state folder: {error.strerror}; choose another with --state"
        ) from None
    with lock as file:
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


async def run(platform: Platform) -> None:
    """Run a platform until SIGTERM or SIGINT. Raises what its start raises."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
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


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options that all ways to run a platform share."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--state", help="state folder (default: .lineshaft here)")
    made.add_argument("--config", type=Path, help="settings file (default: lineshaft.toml here)")
    return made


def main(
    options: argparse.ArgumentParser,
    make: Callable[[Settings, argparse.Namespace], Platform],
) -> None:
    """Run what ``make`` gives from a terminal or as the child of ``lineshaft up``.

    Exit codes: 0 after a stop, 2 for wrong settings, 3 when it cannot be started here.
    """
    given = options.parse_args()
    try:
        settings = with_this_folder(load(given.config, overrides={"state_dir": given.state}))
        observability.configure(settings.log_level)
        with locked(settings.state_dir):
            _check_room(settings.state_dir)
            asyncio.run(_made_and_run(settings, given, make))
    except SettingsError as error:
        options.exit(2, f"wrong settings:\n{error}\n")
    except (PlatformRefused, ServerFailed) as error:
        options.exit(3, f"{error}\n")
    sys.exit(0)


def with_this_folder(settings: Settings) -> Settings:
    """Return ``settings`` where jobs may use the folder of the start, unless mounts are named.

    Whoever starts a platform in his project wants to train on what lies there. The root folder
    is never taken: a platform that may touch everything has to be asked for by name.
    """
    here = Path.cwd()
    if settings.origins().get("mounts") != "default" or here == here.parent:
        return settings
    return settings.with_values(FOLDER_OF_THE_START, mounts=(here,))


async def _made_and_run(
    settings: Settings,
    given: argparse.Namespace,
    make: Callable[[Settings, argparse.Namespace], Platform],
) -> None:
    await run(make(settings, given))
