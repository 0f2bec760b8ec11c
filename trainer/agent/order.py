"""The launch order of one node, read once and typed, and where things lie on this machine.

Nothing here starts or writes anything.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
LAUNCHERS = ("deepspeed", "torchrun", "none")


class OrderError(ValueError):
    """An order that no agent can follow."""


@dataclass(frozen=True, slots=True)
class Order:
    """What this node has to do for the run (job, attempt). ``raw`` is the whole order."""

    raw: Mapping[str, Any]
    path: Path
    job: str
    attempt: int
    name: str
    team: str
    pool: str
    node: str
    node_rank: int
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    slots: tuple[int, ...]
    world_size: int
    launcher: str
    run_folder: Path
    checkpoint_root: Path
    grace_ms: int
    hang_limit_ms: int
    first_step_limit_ms: int

    @property
    def node_folder(self) -> Path:
        """The folder of this node: the order, the lock, the output of the ranks."""
        return self.run_folder / self.node

    @property
    def ranks_folder(self) -> Path:
        """Where the ranks' entry points leave pids, ends, errors, output and stacks."""
        return self.node_folder / "ranks"

    @property
    def attempt_folder(self) -> Path:
        """The folder of this attempt's checkpoints; no other attempt writes there."""
        return self.checkpoint_root / self.job / str(self.attempt)

    @property
    def output_folder(self) -> Path:
        """Where a script leaves the files it wants kept."""
        return self.attempt_folder / "output"

    @property
    def is_first_node(self) -> bool:
        """Whether rank 0 runs here."""
        return self.node_rank == 0

    @property
    def is_script(self) -> bool:
        """Whether the ranks run the user's own command."""
        return bool(self.raw.get("command"))

    @property
    def model_name(self) -> str:
        """The name under which what comes out is registered."""
        output = self.resolved.get("output") or {}
        return str(output.get("model_name") or self.name)

    @property
    def save_path(self) -> Path | None:
        """The folder that the user wants filled, if any."""
        output = self.resolved.get("output") or {}
        given = output.get("save_path")
        return Path(given) if given else None

    @property
    def spec(self) -> Mapping[str, Any]:
        """The canonical job."""
        return self.raw.get("spec") or {}

    @property
    def resolved(self) -> Mapping[str, Any]:
        """What admission worked out."""
        return self.raw.get("resolved") or {}


def read(path: Path) -> Order:
    """Read an order. Raises ``OrderError`` with what is wrong."""
    try:
        raw = json.loads(path.read_bytes())
        if raw["schema"] != SCHEMA:
            raise OrderError(f"{path}: schema {raw['schema']!r} is unknown")
        order = Order(
            raw=raw,
            path=path.absolute(),
            job=str(raw["job"]),
            attempt=int(raw["attempt"]),
            name=str(raw["name"]),
            team=str(raw["team"]),
            pool=str(raw["pool"]),
            node=str(raw["node"]),
            node_rank=int(raw["node_rank"]),
            nodes=tuple(str(each["node"]) for each in raw["nodes"]),
            ranks=tuple(int(rank) for rank in raw["ranks"]),
            slots=tuple(int(slot) for slot in raw["slots"]),
            world_size=int(raw["world_size"]),
            launcher=str(raw["launcher"]),
            run_folder=Path(raw["run_folder"]),
            checkpoint_root=Path(raw["checkpoint_root"]),
            grace_ms=int(raw.get("grace_ms") or 30_000),
            hang_limit_ms=int(raw.get("hang_limit_ms") or 0),
            first_step_limit_ms=int(raw.get("first_step_limit_ms") or 0),
        )
    except OSError as error:
        raise OrderError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise OrderError(f"{path}: {error!r}") from error
    if order.launcher not in LAUNCHERS or not order.ranks:
        raise OrderError(f"{path}: launcher {order.launcher!r}, ranks {list(order.ranks)}")
    return order
