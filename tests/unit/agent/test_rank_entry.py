"""The ranks' entry point as a process: it leaves pids and end, and ends as its rank does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders_agent import an_order
from trainer.agent.order import Order


def start(order: Order, **more: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "LINESHAFT_RANK": "0", **more}
    command = [sys.executable, "-m", "trainer.rank", "--order", str(order.path)]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def left(order: Order, name: str) -> dict[str, int | None]:
    return dict(json.loads((order.ranks_folder / f"rank-0.{name}").read_text()))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 7])
def test_an_exit_code_is_left_and_repeated(tmp_path: Path, code: int) -> None:
    """Supervisors and the agent see the same code; the output is in the rank's files."""
    script = f"print('out'); import sys; sys.stderr.write('err'); sys.exit({code})"
    order = an_order(tmp_path, command=[sys.executable, "-c", script])
    assert start(order).wait(20) == code
    end = left(order, "exit")
    assert (end["exit_code"], end["signal"]) == (code, None)
    assert (order.ranks_folder / "rank-0.out").read_text() == "out\n"
    assert (order.ranks_folder / "rank-0.err").read_text() == "err"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_left_and_repeated(tmp_path: Path, number: signal.Signals) -> None:
    """A rank that dies by a signal makes its watcher die by the same one."""
    order = an_order(tmp_path, command=["sleep", "600"])
    watcher = start(order)
    wait_for(order.ranks_folder / "rank-0.pids")
    pids = left(order, "pids")
    assert pids["supervisor_pid"] == watcher.pid
    os.kill(int(pids["pid"] or 0), number)
    assert watcher.wait(20) == -number
    assert left(order, "exit")["signal"] == number


def test_a_signal_to_the_watcher_reaches_the_rank(tmp_path: Path) -> None:
    """A launcher that ends its child ends the rank, which may save first."""
    script = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    order = an_order(tmp_path, command=[sys.executable, "-c", script])
    watcher = start(order)
    out = order.ranks_folder / "rank-0.out"
    wait_for(out)
    deadline = time.monotonic() + 20
    while "ready" not in out.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watcher.terminate()
    assert watcher.wait(20) == 5


def test_an_order_our_loop_refuses_is_recorded_with_its_class(tmp_path: Path) -> None:
    """Without a command the rank runs our loop; what it raises is left with type and class."""
    order = an_order(tmp_path, command=None, spec={"jobType": "no-such-type"})
    code = start(order).wait(120)
    error = json.loads((order.ranks_folder / "rank-0.error").read_text())
    assert code not in (0, None)
    assert error["type"]
    assert "Traceback" in error["traceback"]
    assert left(order, "exit")["exit_code"] == code
