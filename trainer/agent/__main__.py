"""``python -m trainer.agent --order FILE``: the agent as a process.

Takes the node's lock for life, chooses the adapters by their URLs, and turns the story's end
into the exit code. Nothing else is decided here.
"""

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

from lineshaft.adapters.bus.select import bus as select_bus
from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.objects.select import objects as select_objects
from lineshaft.contracts.failures import EXIT_FENCED, EXIT_OF_CLASS, FailureClass
from trainer.agent import procfs
from trainer.agent.order import Order, OrderError, read
from trainer.agent.story import Agent

LOCK = "lock"
IDENTITY = "agent.json"
TOMBSTONES = ("stopped.json", "launch-failed.json")
_CLOSE_S = 5.0
_LOCK_TRIES = 50
_LOCK_WAIT_S = 0.02


def main() -> int:
    """Carry out the order named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="trainer.agent", description="Runs one node of a run.")
    parser.add_argument("--order", type=Path, required=True, help="the node's order.json")
    try:
        order = read(parser.parse_args().order)
    except OrderError as error:
        sys.stderr.write(f"agent: {error}\n")
        return EXIT_OF_CLASS[FailureClass.CONFIG]
    if not _takes_lock(order.node_folder / LOCK) or not _is_first(order):
        return EXIT_FENCED
    return asyncio.run(_run(order))


def _takes_lock(path: Path) -> bool:
    """Take the lock for life. Who only probes it holds it for a moment: so try for a while."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)
    sys.stderr.write("agent: another agent holds this node's lock\n")
    return False


def _is_first(order: Order) -> bool:
    """Leave who we are beside the lock; False when the run has had its agent or its end."""
    for name in TOMBSTONES:
        if (order.run_folder / name).exists():
            sys.stderr.write("agent: this run must not start any more\n")
            return False
    me = procfs.look(os.getpid())
    body = {
        "pid": os.getpid(),
        "start_time": me.start_time if me else 0,
        "boot_id": procfs.boot_id(),
        "at": SystemClock().now(),
    }
    draft = order.node_folder / f".{IDENTITY}.{os.getpid()}"
    draft.write_text(json.dumps(body), encoding="utf-8")
    try:
        os.link(draft, order.node_folder / IDENTITY)  # whole or not at all, and only once
    except FileExistsError:
        sys.stderr.write("agent: this run has had its agent on this node\n")
        return False
    finally:
        draft.unlink()
    return True


async def _run(order: Order) -> int:
    token_file = order.raw.get("bus_token_file")
    token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else None
    bus = select_bus(str(order.raw["bus_url"]), token)
    objects = select_objects(str(order.raw["objects_url"]))
    agent = Agent(order, bus, objects, SystemClock())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stops.signalled)
    try:
        return await agent.run()
    finally:
        for closing in (bus.aclose(), objects.aclose()):
            try:
                await asyncio.wait_for(closing, _CLOSE_S)
            except (TimeoutError, OSError):
                continue


if __name__ == "__main__":
    sys.exit(main())
