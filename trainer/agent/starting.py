"""What comes before and with the start of the ranks: the node's check, commands, environment.

Makes commands and environments and starts child processes with them; it waits for none and
judges none.
"""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer.agent import procfs
from trainer.agent.order import Order

NODE_FOLDER_VARIABLE = "LINESHAFT_NODE_FOLDER"
"""Marks every process of a node's part of a run, whoever started it."""
_OURS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LIBRARIES = ("torch", "deepspeed", "transformers", "numpy")
_DISK_FREE_BYTES_MIN = 64 * 1024 * 1024


def check_node(order: Order) -> dict[str, Any]:
    """Look at the node before anything starts there; ``faults`` holds what must not be."""
    faults: list[str] = []
    address = str(order.raw.get("master_addr") or "127.0.0.1")
    try:
        socket.getaddrinfo(address, int(order.raw.get("master_port") or 0))
    except OSError as error:
        faults.append(f"MASTER_ADDR {address} cannot be resolved: {error}")
    free = 0
    try:
        order.attempt_folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(order.attempt_folder).free
    except OSError as error:
        faults.append(f"the checkpoint folder cannot be made: {error}")
    else:
        if free < _DISK_FREE_BYTES_MIN:
            faults.append(f"only {free} bytes are free under {order.attempt_folder}")
    return {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
        "disk_free_bytes": free,
        "cpus": os.cpu_count(),
        "boot_id": procfs.boot_id(),
        "faults": faults,
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def environment(order: Order, socket_path: Path) -> dict[str, str]:
    """Return the environment of the ranks: the agent's own, the user's, then the platform's.

    ``python`` is the interpreter that the platform runs with, unless the user's PATH says
    otherwise: who started the platform, and from which shell, makes no difference.
    ``launcher: none`` with one rank gets no gang variables, since plain programs take WORLD_SIZE
    for a reason to look for peers.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LINESHAFT_") and name not in _OURS
    }
    inherited["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
    )
    made = {**inherited, **{str(k): str(v) for k, v in (order.raw.get("env") or {}).items()}}
    if len(order.ranks) > 1:
        made.setdefault("OMP_NUM_THREADS", "1")
    if order.launcher != "none" or order.world_size > 1:
        made |= {
            "MASTER_ADDR": str(order.raw["master_addr"]),
            "MASTER_PORT": str(order.raw["master_port"]),
            "WORLD_SIZE": str(order.world_size),
            "NODE_RANK": str(order.node_rank),
        }
    return made | _devices(order) | _ours(order, socket_path)


def _devices(order: Order) -> dict[str, str]:
    resources = order.spec.get("resources") or {}
    if resources.get("gpuType", "cpu") == "cpu":
        return {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(str(slot) for slot in order.slots),
        # What a hanging collective leaves behind: without these there is no record to read.
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(order.ranks_folder / "nccl-"),
    }


def _ours(order: Order, socket_path: Path) -> dict[str, str]:
    made = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "LINESHAFT_AGENT_SOCKET": str(socket_path),
        "LINESHAFT_JOB": order.job,
        "LINESHAFT_ATTEMPT": str(order.attempt),
        "LINESHAFT_NODE": order.node,
        NODE_FOLDER_VARIABLE: str(order.node_folder),
        "LINESHAFT_OUTPUT_DIR": str(order.output_folder),
        "LINESHAFT_CHECKPOINT_DIR": str(order.attempt_folder / "checkpoints"),
    }
    source = _resume_source(order)
    if source is not None:
        made["LINESHAFT_RESUME_FROM"] = str(source)
    return made


def _resume_source(order: Order) -> Path | None:
    """Return where a run continues: the named checkpoint, else what an earlier attempt left."""
    resume = order.raw.get("resume")
    if resume:
        return Path(resume["path"])
    if not order.is_script or order.raw["spec"].get("resume") == "never":
        return None
    for attempt in range(order.attempt - 1, 0, -1):
        folder = order.checkpoint_root / order.job / str(attempt) / "checkpoints"
        if folder.is_dir() and any(folder.iterdir()):
            return folder
    return None


def commands(order: Order, env: Mapping[str, str]) -> list[tuple[list[str], dict[str, str]]]:
    """Return what starts the local ranks: commands, each with its environment."""
    entry = ["trainer.rank", "--order", str(order.path)]
    if order.launcher == "deepspeed":
        return [([*_deepspeed(order), *entry], dict(env))]
    if order.launcher == "torchrun":
        return [([*_torchrun(order), *entry], dict(env))]
    return [
        (
            [sys.executable, "-u", "-m", *entry],
            {**env, **_rank_variables(order, rank, local_rank)},
        )
        for local_rank, rank in enumerate(order.ranks)
    ]


def _rank_variables(order: Order, rank: int, local_rank: int) -> dict[str, str]:
    ours = {"LINESHAFT_RANK": str(rank)}
    if order.world_size == 1:
        return ours
    return ours | {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _deepspeed(order: Order) -> list[str]:
    """Return DeepSpeed's launcher for this node alone; a host file names the whole gang."""
    nodes = [(str(n["node"]), [int(slot) for slot in n["slots"]]) for n in order.raw["nodes"]]
    host_file = order.node_folder / "hostfile"
    lines = (f"{node} slots={max(slots) + 1}\n" for node, slots in nodes)
    host_file.write_text("".join(lines), encoding="utf-8")
    chosen = "@".join(f"{node}:{','.join(map(str, slots))}" for node, slots in nodes)
    return [
        *(sys.executable, "-u", "-m", "deepspeed.launcher.runner"),
        *("--hostfile", str(host_file), "--include", chosen),
        *("--no_ssh", "--node_rank", str(order.node_rank), "--no_local_rank"),
        *("--master_addr", str(order.raw["master_addr"])),
        *("--master_port", str(order.raw["master_port"])),
        "--module",
    ]


def _torchrun(order: Order) -> list[str]:
    return [
        *(sys.executable, "-u", "-m", "torch.distributed.run", "--max-restarts", "0"),
        *("--nnodes", str(len(order.nodes)), "--node-rank", str(order.node_rank)),
        *("--nproc-per-node", str(len(order.ranks))),
        *("--log-dir", str(order.node_folder / "torchrun")),
        *("--master-addr", str(order.raw["master_addr"])),
        *("--master-port", str(order.raw["master_port"])),
        "-m",
    ]


async def start(
    command: list[str], env: Mapping[str, str], *, output: Path, cwd: Path
) -> asyncio.subprocess.Process:
    """Start a child in a process group of its own; its output goes to ``output``.out and .err."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [os.open(f"{output}.{end}", flags, 0o600) for end in ("out", "err")]
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            env=dict(env),
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            process_group=0,
        )
    finally:
        for stream in streams:
            os.close(stream)
