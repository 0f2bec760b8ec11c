"""What this machine makes of a run: the order of each node, and the preflight before it.

Reads the disk to see whether the run can begin; starts and decides nothing.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lineshaft.runtime.settings import Settings
from services.scheduler.launchers.claims import Claim
from services.scheduler.launchers.port import DesiredRun

ADDRESS = "127.0.0.1"
"""Where rank 0 listens: all nodes of a subprocess launcher are this machine."""


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def per_node(
    run: DesiredRun, claim: Claim, *, epoch: int, settings: Settings, token_file: Path | None
) -> dict[str, dict[str, Any]]:
    """Return each node's launch order, by the node's name."""
    spec = run.order.get("spec") or {}
    command = spec.get("command")
    first = 0
    made: dict[str, dict[str, Any]] = {}
    for node_rank, share in enumerate(run.nodes):
        count = len(share.slots)
        made[share.node] = {
            **run.order,
            "epoch": epoch,
            "not_after": run.not_after,
            "node": share.node,
            "node_rank": node_rank,
            "nodes": [{"node": each.node, "slots": list(each.slots)} for each in run.nodes],
            "slots": list(share.slots),
            "ranks": list(range(first, first + count)),
            "world_size": sum(len(each.slots) for each in run.nodes),
            "master_addr": ADDRESS,
            "master_port": claim.master_port,
            "env": dict(spec.get("env") or {}),
            "command": [*command, *(spec.get("args") or [])] if command else None,
            "bus_url": settings.bus_url,
            "bus_token_file": None if token_file is None else str(token_file),
            "objects_url": settings.objects_url,
            "run_folder": str(settings.runs_dir / claim.name),
            "checkpoint_root": str(settings.checkpoint_root),
            "cache_folder": str(settings.cache_dir),
            "state_dir": str(settings.state_dir),
        }
        first += count
    return made


def preflight(order: Mapping[str, Any], settings: Settings) -> list[str]:
    """Return what makes it impossible to begin, in words fit for people."""
    return [*_unreadable(order), *_unwritable(order, settings)]


def _unreadable(order: Mapping[str, Any]) -> Iterator[str]:
    spec, resolved = order.get("spec") or {}, order.get("resolved") or {}
    for dataset in resolved.get("datasets") or []:
        yield from _check_readable(f"dataset {dataset.get('name')}", dataset.get("path"))
    model = resolved.get("model") or {}
    if model.get("kind") == "folder":
        yield from _check_readable("model", model.get("path"))
    for suite in (spec.get("evaluation") or {}).get("suites") or []:
        yield from _check_readable("evaluation suite", suite)
    folder = spec.get("workingDir")
    if folder and not Path(folder).is_dir():
        yield f"workingDir {folder} is no folder here"


def _check_readable(what: str, path: Any) -> Iterator[str]:
    if not path:
        return
    if not Path(path).exists():
        yield f"{what}: {path} is not there"
    elif not os.access(path, os.R_OK):
        yield f"{what}: {path} cannot be read"


def _unwritable(order: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    save_path = ((order.get("resolved") or {}).get("output") or {}).get("save_path")
    wanted = [("the checkpoint folder", settings.checkpoint_root)]
    if save_path:
        wanted.append(("output.modelSavePath", Path(save_path)))
    for what, path in wanted:
        existing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            yield f"{what}: {path} cannot be written ({existing} does not let us)"
