"""Finding a running platform without configuration.

In this order: an explicit URL, ``LINESHAFT_URL``, a state folder's file found upwards from here,
the only running platform of this user; else an error that lists what runs.
"""

import contextlib
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from lineshaft.sdk.errors import UnreachableError

STATE_FOLDER = ".lineshaft"
STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class Platform:
    """Where a platform is reached. ``token`` is a secret and left out of the representation."""

    bus_url: str
    token: str
    http_url: str | None = None
    state_dir: Path | None = None
    pid: int | None = None
    origin: str = ""

    def __repr__(self) -> str:
        return f"Platform({self.bus_url}, {self.origin})"


def registry_of_platforms(environ: Mapping[str, str] | None = None) -> Path:
    """Return the file in which this user's running platforms are listed."""
    env = os.environ if environ is None else environ
    root = env.get("XDG_STATE_HOME") or str(
        Path(env.get("HOME", "~")).expanduser() / ".local/state"
    )
    return Path(root) / "lineshaft" / "platforms.json"


def find(
    url: str | None = None,
    *,
    start: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Platform:
    """Return the platform to talk to. Raises ``UnreachableError`` with what was looked at."""
    env = os.environ if environ is None else environ
    if url:
        return of_url(url, "--url", env)
    if env.get("LINESHAFT_URL"):
        return of_url(env["LINESHAFT_URL"], "LINESHAFT_URL", env)
    explicit = env.get("LINESHAFT_STATE_DIR")
    if explicit:
        return of_state(Path(explicit))
    for folder in _upwards(start or Path.cwd()):
        if (folder / STATE_FILE).is_file():
            found = of_state(folder)
            if is_alive(found):
                return found
    return _the_only_one(env)


def _upwards(start: Path) -> list[Path]:
    here = start.resolve()
    return [folder / STATE_FOLDER for folder in (here, *here.parents)]


def _the_only_one(env: Mapping[str, str]) -> Platform:
    alive = [platform for platform in running(env) if is_alive(platform)]
    if len(alive) == 1:
        return alive[0]
    if not alive:
        raise UnreachableError(
            "no platform is running here", "start one with `lineshaft up`, or name one with --url"
        )
    folders = ", ".join(str(platform.state_dir) for platform in alive)
    raise UnreachableError(
        f"{len(alive)} platforms are running: {folders}",
        "run the command below one of these folders' parents, or set LINESHAFT_STATE_DIR",
    )


def running(environ: Mapping[str, str] | None = None) -> list[Platform]:
    """Return the platforms that this user's list names, alive or not."""
    try:
        listed = json.loads(registry_of_platforms(environ).read_text())
    except (OSError, ValueError):
        return []
    entries = listed.get("platforms", []) if isinstance(listed, dict) else []
    found = []
    for entry in entries:
        folder = Path(str(entry.get("state_dir", "") if isinstance(entry, dict) else ""))
        if (folder / STATE_FILE).is_file():
            try:
                found.append(of_state(folder))
            except UnreachableError:
                continue
    return found


def of_state(folder: Path) -> Platform:
    """Read the state file of a state folder. Raises ``UnreachableError``."""
    file = folder / STATE_FILE
    try:
        state: dict[str, Any] = json.loads(file.read_text())
        return Platform(
            bus_url=str(state["bus_url"]),
            token=str(state.get("bus_token", "")),
            http_url=state.get("http_url"),
            state_dir=folder,
            pid=int(state["pid"]),
            origin=str(file),
        )
    except FileNotFoundError:
        raise UnreachableError(
            f"no platform keeps its state in {folder}",
            f"start one: lineshaft up --state {shlex.quote(str(folder))}",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreachableError(f"{file} cannot be read: {error}") from None


def is_alive(platform: Platform) -> bool:
    """Tell whether the platform's process exists on this machine.

    One that ended and was not collected yet is gone: in a container nobody may ever collect it.
    """
    if platform.pid is None:
        return True
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{platform.pid}/stat").read_text(encoding="utf-8", errors="replace")
        if stat.rpartition(")")[2].split()[0] in "ZX":
            return False
    try:
        os.kill(platform.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def of_url(url: str, origin: str, environ: Mapping[str, str]) -> Platform:
    """Make a platform of ``nats://[token@]host:port``; the token may be in LINESHAFT_TOKEN."""
    try:
        parts = urlsplit(url)
        port = parts.port or 4222
    except ValueError as error:
        raise UnreachableError(f"{origin}: {error}", "use nats://token@host:port") from None
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise UnreachableError(f"{origin}: not the URL of a bus", "use nats://token@host:port")
    token = parts.username or environ.get("LINESHAFT_TOKEN", "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    clean = urlunsplit((parts.scheme, f"{host}:{port}", "", "", ""))
    return Platform(bus_url=clean, token=token, origin=origin)
