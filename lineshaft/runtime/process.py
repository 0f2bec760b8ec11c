"""One service as a process of its own: settings, logging, signals, a graceful stop.

``services/<name>/__main__.py`` is ``main(build)``. Whatever the process needs may come later than
it: the token file, the bus and the store are waited for.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from lineshaft.runtime import observability
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings, SettingsError, load

SETTINGS_HEAD = "wrong settings:"
EXIT_SETTINGS = 2
EXIT_START = 3
_LOOK_S = 0.1
_SAY_EVERY_LOOKS = 100


class StartFailed(Exception):
    """The service could not be started; its log has the story."""


def main(build: Callable[[Settings], Service]) -> None:
    """Run one service until SIGTERM or SIGINT, then drain.

    Exit codes: 0 after a stop, 2 for wrong settings, 3 when it cannot be started here.
    """
    module = build.__module__.rpartition(".")[0]
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description="Run one service of the platform."
    )
    parser.add_argument("--config", type=Path, help="settings file (default: lineshaft.toml here)")
    parser.add_argument("--state", help="state folder (default: .lineshaft here)")
    given = parser.parse_args()
    try:
        settings = load(given.config, overrides={"state_dir": given.state})
        observability.configure(settings.log_level)
        asyncio.run(_run(build, settings))
    except SettingsError as error:
        parser.exit(EXIT_SETTINGS, f"{SETTINGS_HEAD}\n{error}\n")
    except StartFailed as error:
        parser.exit(EXIT_START, f"{module} could not be started: {error}\n")
    sys.exit(0)


async def _run(build: Callable[[Settings], Service], settings: Settings) -> None:
    told = _told_to_stop()
    await _wait_for_token(settings, told)
    if told.is_set():
        return
    try:
        service = build(settings)
    except SettingsError:
        raise
    except ValueError as error:  # a policy value or a URL that cannot be used
        raise SettingsError([str(error)]) from None
    await _run_until(service, told)


async def _wait_for_token(settings: Settings, told: asyncio.Event) -> None:
    """Wait until the token file is there: whoever starts the bus makes it."""
    path, looks = settings.bus_token_file, 0
    if settings.bus_token is not None or path is None:
        return
    while not told.is_set() and not (path.is_file() and path.stat().st_size):
        if looks % _SAY_EVERY_LOOKS == 0:
            observability.logger("process").warning("waits_for_the_token_file", path=str(path))
        looks += 1
        await asyncio.sleep(_LOOK_S)


def _told_to_stop() -> asyncio.Event:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    return told


async def run_until_signal(service: Service) -> None:
    """Start ``service``, wait for SIGTERM or SIGINT, stop it. Raises ``StartFailed``."""
    await _run_until(service, _told_to_stop())


async def _run_until(service: Service, told: asyncio.Event) -> None:
    starting = asyncio.ensure_future(service.start())
    waiting = asyncio.ensure_future(told.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            await starting
            await waiting
    except Exception as error:
        service.log.exception("start_failed", detail=repr(error))
        raise StartFailed(str(error) or repr(error)) from error
    finally:
        starting.cancel()
        waiting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        await service.stop()
