"""Commands that start and stop a platform on this machine: up, down."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk import discovery
from lineshaft.sdk.client import Client
from lineshaft.sdk.discovery import Platform
from lineshaft.sdk.errors import EXIT_UNREACHABLE, PlatformError, UnreachableError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
_ASK_S = 3.0
_WORDS_LINES_MAX = 12
_CODE_OF_END = {2: "usage", 3: "refused"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="Examples: lineshaft up;  lineshaft up --detach --state /data/lineshaft;  "
        "lineshaft up --processes"
    )(up)
    app.command(epilog="Example: lineshaft down")(down)


def up(
    state: options.State = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings (default: lineshaft.toml here).")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Come back when it is ready.")
    ] = False,
    processes: options.Processes = False,
    form: options.Output = Format.TABLE,
) -> None:
    """Start everything on this machine: bus, journal, the four services. Ctrl-C stops it.

    Jobs that run are not stopped: they go on, and the next `up` takes them over. With
    --processes each service is a process of its own, and one that dies is started again; the
    state folder is the same, so a platform may change between the two from one `up` to the next.
    """
    folder = (state or Path(discovery.STATE_FOLDER)).absolute()
    command = start_command(folder, config, processes=processes)
    if not detach:
        os.execv(command[0], command)  # noqa: S606 - our own interpreter and module
    try:
        platform = start(folder, config, processes=processes)
    except PlatformError as error:
        output.fail(error, form)
    if form is Format.JSON:
        output.print_json({"state_dir": str(folder), "pid": platform.pid, "url": platform.bus_url})
    else:
        output.print_line(f"the platform runs (process {platform.pid}); its state is in {folder}")
        output.print_line("next: lineshaft submit FILE --watch; stop it with lineshaft down")


def start_command(
    folder: Path, config: Path | None = None, *, processes: bool = False
) -> list[str]:
    """Return the command that runs the platform on the state folder ``folder``."""
    module = "services.processes" if processes else "services.embedded"
    command = [sys.executable, "-m", module, "--state", str(folder)]
    return [*command, "--config", str(config)] if config else command


def start(folder: Path, config: Path | None = None, *, processes: bool = False) -> Platform:
    """Start the platform in a process of its own and wait until it is ready.

    ``processes``: with a process for each service. Raises ``PlatformError`` with what it said
    when it does not come up.
    """
    log = folder / "logs" / "platform.log"
    known = _pid_of(folder)
    with _opened(log) as sink:
        begin = sink.tell()
        process = subprocess.Popen(
            start_command(folder, config, processes=processes),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PlatformError(
                _CODE_OF_END.get(process.returncode, "unreachable"),
                f"the platform did not start: {_last_words(log, begin)}",
                f"its log: {log}",
            )
        if _pid_of(folder) == process.pid != known:
            return discovery.of_state(folder)
        time.sleep(0.05)
    process.terminate()
    raise UnreachableError(f"not ready after {START_TIMEOUT_S:.0f} s", f"its log: {log}")


def _pid_of(folder: Path) -> int | None:
    try:
        return discovery.of_state(folder).pid
    except UnreachableError:
        return None


def _opened(log: Path) -> BinaryIO:
    """Make the state folder and open its log. Raises ``PlatformError``."""
    folder = log.parent.parent
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        return log.open("ab")
    except OSError as error:
        raise PlatformError(
            "refused",
            f"{folder} cannot be the state folder: {error.strerror}",
            "choose another one with --state",
        ) from None


def _last_words(log: Path, begin: int) -> str:
    """Return how the log ends: the words for people after the last event, else that event."""
    text = log.read_bytes()[begin:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said: list[str] = []
    while lines and len(said) < _WORDS_LINES_MAX and not lines[-1].startswith("{"):
        said.insert(0, lines.pop())
    return " | ".join(said or lines[-1:] or ["it said nothing"])


def down(state: options.State = None, form: options.Output = Format.TABLE) -> None:
    """Stop the platform; jobs that run go on and are taken over by the next `up`."""
    try:
        platform = discovery.of_state(state) if state else discovery.find()
        running = asyncio.run(_running(platform))
        stopped = stop(platform)
    except PlatformError as error:
        output.fail(error, form)
    if form is Format.JSON:
        output.print_json({"stopped": stopped, "pid": platform.pid, "running": running})
        return
    output.print_line("stopped" if stopped else "it was not running")
    if running:
        output.print_line(f"jobs that go on: {', '.join(running)}; the next up takes them over")


async def _running(platform: Platform) -> list[str]:
    """Return the jobs that run now, as far as the platform tells within a moment."""
    try:
        async with asyncio.timeout(_ASK_S), Client.connect(platform=platform) as client:
            return [str(job["job"]) for job in await client.jobs(state="Running")]
    except (PlatformError, TimeoutError):
        return []


def stop(platform: Platform, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Ask the platform's process to stop and wait; False when it was gone already."""
    if platform.pid is None or not discovery.is_alive(platform):
        return False
    os.kill(platform.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while discovery.is_alive(platform):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(platform.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            sys.stderr.write(f"process {platform.pid} still runs after {timeout_s:.0f} s\n")
            raise typer.Exit(EXIT_UNREACHABLE)
        time.sleep(0.05)
    return True
