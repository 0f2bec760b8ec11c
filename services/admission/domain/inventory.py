"""The inventory: which nodes a pool has, with what devices, and which models are known.

Read from the scheduler's ``nodes`` answer or from an inventory file, already parsed to plain
values. Pure: nobody is asked anything here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.admission.domain.policy import GIB

NODES_MAX = 10_000
NAMES_MAX = 16


class InventoryError(ValueError):
    """An inventory that cannot be read; its message says where."""


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` equal nodes; ``memory_bytes`` per device, 0 where unknown."""

    gpu_type: str
    slots: int
    count: int = 1
    memory_bytes: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """Nodes by group, the mounts they have, and the configurations of named models.

    ``is_declared``: someone wrote it down for a cluster that is not here, so what does not fit
    into it never will.
    """

    groups: tuple[Group, ...] = ()
    mounts: tuple[str, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_declared: bool = False

    def of_type(self, gpu_type: str) -> list[Group]:
        """Return the groups with that device type."""
        return [group for group in self.groups if group.gpu_type == gpu_type]

    def gpu_types(self) -> list[str]:
        """Return the device types that exist, sorted."""
        return sorted({group.gpu_type for group in self.groups})

    def memory_bytes(self, gpu_type: str) -> int:
        """Return the smallest stated memory of that device type, 0 when none is stated."""
        stated = [group.memory_bytes for group in self.of_type(gpu_type) if group.memory_bytes]
        return min(stated, default=0)


def read(value: Any) -> Inventory:
    """Read an inventory file's content.

    ``{nodes: [{name?, count?, gpuType, gpus | slots, gpuMemoryGiB?}], mounts: [path],
    models: {name: configuration}}``. Raises ``InventoryError``.
    """
    if not isinstance(value, Mapping):
        raise InventoryError("an inventory is a mapping with 'nodes'")
    unknown = sorted(set(map(str, value)) - {"nodes", "mounts", "models"})
    if unknown:
        raise InventoryError(f"an inventory has nodes, mounts and models, not '{unknown[0]}'")
    rows = value.get("nodes")
    if not isinstance(rows, list) or not 0 < len(rows) <= NODES_MAX:
        raise InventoryError(f"nodes must be a list of 1 to {NODES_MAX} nodes")
    models = value.get("models") or {}
    if not isinstance(models, Mapping) or not all(isinstance(m, Mapping) for m in models.values()):
        raise InventoryError("models must map names to configurations")
    mounts = value.get("mounts") or []
    if not isinstance(mounts, list):
        raise InventoryError("mounts must be a list of paths")
    groups = tuple(_group(row, f"nodes[{index}]") for index, row in enumerate(rows))
    return Inventory(groups, tuple(map(str, mounts)), dict(models), is_declared=True)


def _group(row: Any, where: str) -> Group:
    if not isinstance(row, Mapping):
        raise InventoryError(f"{where} must be a mapping")
    known = {"name", "count", "gpuType", "gpus", "slots", "gpuMemoryGiB", "labels"}
    for key in row:
        if key not in known:
            raise InventoryError(f"{where}: '{key}' is none of {', '.join(sorted(known))}")
    slots, count = row.get("slots", row.get("gpus")), row.get("count", 1)
    for name, number in (("gpus", slots), ("count", count)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InventoryError(f"{where}.{name} must be a whole number of at least 1")
    memory = row.get("gpuMemoryGiB", 0)
    if isinstance(memory, bool) or not isinstance(memory, int | float) or memory < 0:
        raise InventoryError(f"{where}.gpuMemoryGiB must be a number")
    name = str(row["name"]) if "name" in row else where
    names = (name,) if count == 1 else ()
    gpu_type = str(row.get("gpuType", "cpu"))
    return Group(gpu_type, int(slots or 1), count, int(memory * GIB), names)


def from_scheduler(answer: Mapping[str, Any]) -> Inventory:
    """Read the scheduler's answer to ``nodes``; rows that cannot be read are left out.

    Equal nodes become one group, which keeps at most ``NAMES_MAX`` of their names.
    """
    rows = answer.get("nodes")
    equal: dict[tuple[str, int], list[str]] = {}
    for row in rows if isinstance(rows, Sequence) else ():
        read = _reported(row)
        if read is not None:
            equal.setdefault(read[:2], []).append(read[2])
    groups = (
        Group(gpu_type, slots, len(names), 0, tuple(sorted(names)[:NAMES_MAX]))
        for (gpu_type, slots), names in sorted(equal.items())
    )
    return Inventory(tuple(groups))


def _reported(row: Any) -> tuple[str, int, str] | None:
    if not isinstance(row, Mapping):
        return None
    slots = row.get("slots", row.get("total"))
    if isinstance(slots, Sequence) and not isinstance(slots, str):
        slots = len(slots)
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        return None
    name = str(row.get("node") or row.get("name") or "")
    gpu_type = str(row.get("gpu_type") or row.get("gpuType") or "cpu")
    return gpu_type, slots, name


def to_dict(inventory: Inventory) -> dict[str, Any]:
    """Return an inventory as JSON values, for an observation."""
    return {
        "declared": inventory.is_declared,
        "groups": [
            [g.gpu_type, g.slots, g.count, g.memory_bytes, list(g.names)] for g in inventory.groups
        ],
    }


def from_dict(value: Mapping[str, Any]) -> Inventory:
    """Read ``to_dict`` back."""
    rows = value.get("groups") or []
    groups = tuple(Group(g[0], g[1], g[2], g[3], tuple(g[4])) for g in rows)
    return Inventory(groups, is_declared=bool(value.get("declared")))


def outside(inventory: Inventory, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a finding for each path of a job that lies outside the stated mounts.

    Only spelling is compared: the disks are not here. Without stated mounts nothing is said.
    """
    paths = {f"spec.datasets[{i}].path": row["path"] for i, row in enumerate(spec["datasets"])}
    paths["spec.output.modelSavePath"] = spec["output"]["modelSavePath"]
    roots = [root.rstrip("/") for root in inventory.mounts]
    hint = f"mounts: {', '.join(inventory.mounts)}"
    return [
        {"path": where, "message": f"{path} is outside the mounts", "hint": hint}
        for where, path in paths.items()
        if roots and path and path.startswith("/") and not _is_below(path, roots)
    ]


def _is_below(path: str, roots: Sequence[str]) -> bool:
    is_plain = ".." not in path.split("/")
    return is_plain and any(path == root or path.startswith(f"{root}/") for root in roots)
