"""``lineshaft up --processes``: the same platform, and each of its processes may die."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.cli import platform as platforms
from lineshaft.sdk.errors import PlatformError
from tests.builders_line import Line, a_line, pids, poll


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """Give a platform of five processes that the test may break."""
    with a_line(tmp_path, processes=True) as made:
        yield made


def state_of(line: Line) -> dict[str, Any]:
    """Return what the state file says."""
    return dict(json.loads((line.state / "state.json").read_text()))


def is_there(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_each_service_is_killed_in_turn_while_a_job_runs(line: Line) -> None:
    """Kill -9 of every service: each comes back, the job succeeds once, its story is whole."""
    job = line.submit(line.a_job("through-it", ranks=2, waits=True))
    whole = line.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    before = pids(whole)
    for service in ("registry", "monitor", "scheduler", "admission"):
        old = state_of(line)["processes"][service]
        os.kill(old, signal.SIGKILL)
        poll(
            lambda service=service: state_of(line)["processes"][service],
            lambda pid, old=old: pid not in (old, None),
        )
        assert line.ask("status", job)["job"] == job
    # Each answers again: a new job goes the whole way through all four.
    line.ended(line.submit(line.a_job("afterwards")))
    whole = line.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    assert pids(whole) == before
    line.open_gate("through-it")
    whole = line.ended(job)
    assert whole["attempt"] == 1
    states = [at["state"] for at in whole["timeline"]]
    assert states[0] == "Pending"
    assert states.count("Succeeded") == 1
    assert "Retrying" not in states
    http = poll(lambda: state_of(line)["http_url"], bool)
    assert http.startswith("http://127.0.0.1:")


def test_a_platform_leaves_nothing_and_changes_its_form(line: Line) -> None:
    """A stop ends all processes; the same state folder then runs in one, the run still there."""
    job = line.submit(line.a_job("changes-form", waits=True))
    whole = line.wait(job, lambda s: s["state"] == "Running" and pids(s))
    rank = pids(whole)[0]
    found = state_of(line)
    assert line.platform
    platforms.stop(line.platform)
    assert not (line.state / "state.json").exists()
    ended = [*found["processes"].values(), found["bus_pid"], found["pid"]]
    assert not [pid for pid in ended if is_there(pid)]
    line.is_in_processes = False
    line.up()
    whole = line.wait(job, lambda s: s["state"] == "Running" and pids(s))
    assert pids(whole)[0] == rank
    line.open_gate("changes-form")
    assert line.ended(job)["attempt"] == 1


@pytest.mark.parametrize("processes", [False, True])
def test_wrong_settings_of_a_service_are_the_first_words(tmp_path: Path, processes: bool) -> None:
    """Both forms refuse with the fault itself, and leave nothing running."""
    line = Line(tmp_path, processes=processes)
    line.config.write_text("[policy.scheduler]\nno_such_value = 1\n")
    with pytest.raises(PlatformError, match=r"wrong settings.*no_such_value"):
        line.up()
    poll(line.leftovers, lambda left: not left)


def test_a_killed_supervisor_takes_its_processes_along(line: Line) -> None:
    """Nothing of a platform outlives it but the runs; the next one finds them."""
    job = line.submit(line.a_job("orphan", waits=True))
    line.wait(job, lambda s: s["state"] == "Running" and pids(s))
    found = state_of(line)
    os.kill(found["pid"], signal.SIGKILL)
    os.waitpid(found["pid"], 0)
    ended = [*found["processes"].values(), found["bus_pid"]]
    poll(lambda: [pid for pid in ended if is_there(pid)], lambda left: not left)
    line.up()
    line.open_gate("orphan")
    assert line.ended(job)["attempt"] == 1
