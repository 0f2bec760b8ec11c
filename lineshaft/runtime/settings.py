"""Settings: what a platform is told at its start, where each value came from, what is wrong.

Values come from defaults, then ``lineshaft.toml``, then ``LINESHAFT_*``, then the caller's
overrides (a command's options). All faults are reported at once. Nothing here starts anything;
the only files read are the settings file and, when asked, the token file.
"""

import difflib
import json
import os
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lineshaft.contracts import ids

ENV_PREFIX = "LINESHAFT_"
FILE_NAME = "lineshaft.toml"
LOG_LEVELS = ("debug", "info", "warning", "error")
SERVICES = ("admission", "scheduler", "monitor", "registry")


class SettingsError(ValueError):
    """One or more settings are wrong; ``faults`` holds a line for each, fit for people."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Secret:
    """A text that shows itself only when asked by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the pool. ``slots`` counts GPUs, or ranks where ``gpu_type`` is ``cpu``."""

    name: str
    gpu_type: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a platform is told. Paths are absolute; URLs select adapters.

    ``quotas`` maps a team to the slots it may hold; a team that is absent is not limited.
    ``health_ports`` maps a service to the port of its probes; one that is absent has none.
    ``policies`` maps a service to its policy values, which that service checks itself, as the
    monitor does ``webhooks``.
    """

    state_dir: Path
    bus_url: str
    bus_token: Secret | None
    bus_token_file: Path | None
    store_url: str
    views_url: str
    objects_url: str
    checkpoint_root: Path
    cache_dir: Path
    runs_dir: Path
    mounts: tuple[Path, ...]
    nodes: tuple[Node, ...]
    pool: str
    quotas: Mapping[str, int]
    http_host: str
    http_port: int
    health_host: str
    health_ports: Mapping[str, int]
    replica: str
    log_level: str
    webhooks: tuple[Mapping[str, Any], ...]
    policies: Mapping[str, Mapping[str, Any]]
    _origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def policy(self, service: str) -> Mapping[str, Any]:
        """Return the policy values of ``service`` (table ``[policy.<service>]``)."""
        return self.policies.get(service, {})

    def token(self) -> str | None:
        """Return the bus's token: the value itself, else what the token file holds."""
        if self.bus_token is not None:
            return self.bus_token.reveal()
        if self.bus_token_file is not None:
            return self.bus_token_file.read_text(encoding="utf-8").strip()
        return None

    def origins(self) -> dict[str, str]:
        """Return where each value came from: ``default``, a file, a variable, or ``given``."""
        return dict(self._origins)

    def with_values(self, origin: str, **values: Any) -> "Settings":
        """Return a copy with some values replaced, their origin kept."""
        origins = {**self._origins, **dict.fromkeys(values, origin)}
        return replace(self, **values, _origins=origins)


@dataclass(slots=True)
class _Reading:
    """Values gathered so far, each with its origin, and the faults met on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def take(self, name: str, raw: Any, *, origin: str, folder: Path) -> None:
        """Check one value and keep it, or keep the fault."""
        try:
            self.values[name] = _READERS[name](raw, folder)
        except (ValueError, TypeError, KeyError) as error:
            self.faults.append(f"{origin}: {name}: {error}")
        else:
            self.origins[name] = origin


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read settings. ``path`` None: ``LINESHAFT_CONFIG``, else ``lineshaft.toml`` if it is here.

    ``overrides`` maps setting names to values and wins. Raises ``SettingsError`` with every fault.
    """
    environ = os.environ if environ is None else environ
    reading = _Reading()
    here = Path.cwd()
    chosen = path or (Path(environ["LINESHAFT_CONFIG"]) if "LINESHAFT_CONFIG" in environ else None)
    if chosen is not None or (here / FILE_NAME).is_file():
        _read_file(reading, (chosen or here / FILE_NAME).absolute())
    _read_environment(reading, environ, here)
    for name, value in (overrides or {}).items():
        if name not in _READERS:
            reading.faults.append(f"given: {_unknown(name, _READERS)}")
        elif value is not None:
            reading.take(name, value, origin="given", folder=here)
    if reading.faults:
        raise SettingsError(reading.faults)
    return _with_defaults(reading, here)


def _read_file(reading: _Reading, path: Path) -> None:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reading.faults.append(f"{path}: cannot be read: {error.strerror}")
        return
    except ValueError as error:  # both TOML and UTF-8 faults
        reading.faults.append(f"{path}: {error}")
        return
    for spelled, value in table.items():
        name = "policies" if spelled == "policy" else spelled
        if name not in _READERS:
            reading.faults.append(f"{path}: {_unknown(name, _READERS)}")
        else:
            reading.take(name, value, origin=str(path), folder=path.parent)


def _read_environment(reading: _Reading, environ: Mapping[str, str], here: Path) -> None:
    variables = {ENV_PREFIX + name.upper(): name for name in _READERS}
    for variable, raw in sorted(environ.items()):
        if variable in variables:
            reading.take(variables[variable], raw, origin=variable, folder=here)
        elif variable.startswith(ENV_PREFIX):
            # Agents, ranks and the installer have variables of their own; only what looks
            # like a misspelt setting is a fault.
            near = difflib.get_close_matches(variable, variables, n=1, cutoff=0.88)
            if near:
                reading.faults.append(f"{variable}: unknown; the nearest known is {near[0]}")


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, [*known, "policy"], n=1, cutoff=0.5)
    return f"{name}: unknown setting" + (f"; the nearest known is '{near[0]}'" if near else "")


def _with_defaults(reading: _Reading, here: Path) -> Settings:
    values, origins = reading.values, reading.origins
    state = values.setdefault("state_dir", here / ".lineshaft")
    defaults: dict[str, Any] = {
        "bus_url": "nats://127.0.0.1:4222",
        "bus_token": None,
        "bus_token_file": None,
        "store_url": _folder_url("sqlite", state / "journal"),
        "views_url": _folder_url("sqlite", state / "views"),
        "objects_url": _folder_url("file", state / "objects"),
        "checkpoint_root": state / "checkpoints",
        "cache_dir": state / "cache",
        "runs_dir": state / "runs",
        "mounts": (),
        "nodes": (Node("local", "cpu", os.cpu_count() or 1),),
        "pool": "default",
        "quotas": {},
        "http_host": "127.0.0.1",
        "http_port": 0,
        "health_host": "127.0.0.1",
        "health_ports": {},
        "replica": ids.slug(socket.gethostname()),
        "log_level": "info",
        "webhooks": (),
        "policies": {},
    }
    for name in _READERS:
        if name not in values:
            values[name] = defaults[name]
        origins.setdefault(name, "default")
    return Settings(**values, _origins=origins)


def _folder_url(scheme: str, folder: Path) -> str:
    return f"{scheme}://{quote(str(folder))}"


# ---------------------------------------------------------------------------------------------
# One reader per setting: raw value and the folder that relative paths start from.

Reader = Callable[[Any, Path], Any]


def _text(raw: Any, _: Path) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("must be a text")
    return raw.strip()


def _path(raw: Any, folder: Path) -> Path:
    if not isinstance(raw, str | Path) or not str(raw):
        raise ValueError("must be a path")
    return Path(os.path.normpath(folder / Path(raw).expanduser()))


def _paths(raw: Any, folder: Path) -> tuple[Path, ...]:
    pieces = [p for p in raw.split(os.pathsep) if p] if isinstance(raw, str) else raw
    if not isinstance(pieces, list | tuple):
        raise ValueError("must be a list of paths")
    return tuple(_path(piece, folder) for piece in pieces)


def _url(raw: Any, folder: Path) -> str:
    text = _text(raw, folder)
    if "://" not in text:
        raise ValueError("must be a URL, such as sqlite:///folder")
    return text


def _secret(raw: Any, folder: Path) -> Secret:
    return raw if isinstance(raw, Secret) else Secret(_text(raw, folder))


def _name(raw: Any, folder: Path) -> str:
    text = _text(raw, folder)
    if not ids.is_name(text):
        raise ValueError("must be a name of a-z, 0-9 and '-'")
    return text


def _port(raw: Any, _: Path) -> int:
    number = _whole(raw)
    if not 0 <= number <= 65535:
        raise ValueError("must be a port, 0 to 65535")
    return number


def _ports(raw: Any, folder: Path) -> dict[str, int]:
    ports = {_service(name): _port(port, folder) for name, port in _table(raw).items()}
    chosen = [port for port in ports.values() if port]
    if len(set(chosen)) < len(chosen):
        raise ValueError("two services have the same port")
    return ports


def _service(name: str) -> str:
    if name not in SERVICES:
        raise ValueError(f"'{name}' is no service; services are {', '.join(SERVICES)}")
    return name


def _whole(raw: Any) -> int:
    if isinstance(raw, str) and raw.strip().isdigit():
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError("must be a whole number")
    return raw


def _level(raw: Any, folder: Path) -> str:
    text = _text(raw, folder).lower()
    if text not in LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
    return text


def _table(raw: Any) -> Mapping[str, Any]:
    value = json.loads(raw) if isinstance(raw, str) else raw
    if not isinstance(value, Mapping):
        raise ValueError("must be a table")
    return value


def _quotas(raw: Any, folder: Path) -> dict[str, int]:
    return {_name(team, folder): _whole(slots) for team, slots in _table(raw).items()}


def _policies(raw: Any, _: Path) -> dict[str, Mapping[str, Any]]:
    table = _table(raw)
    for service, values in table.items():
        _service(service)
        if not isinstance(values, Mapping):
            raise ValueError(f"'{service}' must be a table")
    return dict(table)


def _webhooks(raw: Any, folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Take a list of tables as they are, their paths made whole; the monitor checks the rest."""
    rows = json.loads(raw) if isinstance(raw, str) else raw
    if not isinstance(rows, list | tuple):
        raise ValueError("must be a list of tables")
    if not all(isinstance(row, Mapping) and "secret_file" in row for row in rows):
        raise ValueError("each must be a table that names its 'secret_file'")
    return tuple({**row, "secret_file": _path(row["secret_file"], folder)} for row in rows)


def _nodes(raw: Any, folder: Path) -> tuple[Node, ...]:
    rows = json.loads(raw) if isinstance(raw, str) else raw
    if not isinstance(rows, list | tuple) or not rows:
        raise ValueError("must be a list of nodes, at least one")
    nodes = tuple(row if isinstance(row, Node) else _node(row, folder) for row in rows)
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise ValueError("two nodes have the same name")
    return nodes


def _node(row: Any, folder: Path) -> Node:
    known = {f.name for f in fields(Node)}
    for name in _table(row):
        if name not in known:
            raise ValueError(f"a node has no '{name}'; it has {', '.join(sorted(known))}")
    slots = _whole(row.get("slots", os.cpu_count() or 1))
    if slots < 1:
        raise ValueError("slots must be at least 1")
    return Node(
        name=_name(row.get("name"), folder),
        gpu_type=_name(row.get("gpu_type", "cpu"), folder),
        slots=slots,
        labels={str(k): str(v) for k, v in _table(row.get("labels", {})).items()},
    )


_READERS: dict[str, Reader] = {
    "state_dir": _path,
    "bus_url": _url,
    "bus_token": _secret,
    "bus_token_file": _path,
    "store_url": _url,
    "views_url": _url,
    "objects_url": _url,
    "checkpoint_root": _path,
    "cache_dir": _path,
    "runs_dir": _path,
    "mounts": _paths,
    "nodes": _nodes,
    "pool": _name,
    "quotas": _quotas,
    "http_host": _text,
    "http_port": _port,
    "health_host": _text,
    "health_ports": _ports,
    "replica": _name,
    "log_level": _level,
    "webhooks": _webhooks,
    "policies": _policies,
}
