"""The platform loses parts of itself while a job runs; the job does not notice."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders_line import Line, a_line, pids, poll


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """Give a platform that the test may break."""
    with a_line(tmp_path) as made:
        yield made


def bus_pids(line: Line) -> list[int]:
    """Return the bundled server's processes of this platform."""
    found = []
    for pid in line.leftovers():
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        if b"nats-server" in name:
            found.append(pid)
    return found


def test_the_bus_loses_its_store(line: Line) -> None:
    """Deleting the bus's store folder, and the server with it, costs no job."""
    job = line.submit(line.a_job("bus-loss", ranks=2, waits=True))
    line.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    [server] = bus_pids(line)
    shutil.rmtree(line.state / "bus", ignore_errors=True)
    os.kill(server, signal.SIGKILL)
    poll(lambda: bus_pids(line), lambda found: found and found != [server])
    line.open_gate("bus-loss")
    line.ended(job)


def test_the_platform_is_killed_and_comes_back(line: Line) -> None:
    """Kill -9 of everything but the run: the next start adopts it, and it succeeds once."""
    job = line.submit(line.a_job("survivor", waits=True))
    whole = line.wait(job, lambda s: s["state"] == "Running" and pids(s))
    rank = pids(whole)[0]
    assert line.platform
    assert line.platform.pid
    os.kill(line.platform.pid, signal.SIGKILL)
    for pid in bus_pids(line):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(line.platform.pid, 0)
    line.up()
    whole = line.wait(job, lambda s: s["state"] == "Running" and pids(s))
    assert pids(whole)[0] == rank
    line.open_gate("survivor")
    whole = line.ended(job)
    assert whole["attempt"] == 1
