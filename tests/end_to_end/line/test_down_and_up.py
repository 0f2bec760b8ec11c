"""The platform goes down in good order while jobs run; they do not notice."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders_line import Line, a_line, pids, poll

DOWN_WITHIN_S = 20


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """Give a platform that the test may stop and start."""
    with a_line(tmp_path) as made:
        yield made


def down_at_once(line: Line, job: str) -> None:
    """Stop the platform by its command; fail when that takes long or leaves some of it."""
    assert line.platform
    server = line.platform.pid
    began = time.monotonic()
    told = line.ask("down")
    assert (told["stopped"], told["running"]) == (True, [job])
    assert time.monotonic() - began < DOWN_WITHIN_S
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in line.leftovers()]
    assert server
    assert not [name for name in names if b"nats-server" in name or b"services." in name]


def test_runs_live_on_and_are_taken_over(line: Line) -> None:
    """`down` is prompt, the ranks run on, and the next `up` adopts them: one attempt, same pids."""
    job = line.submit(line.a_job("lives-on", ranks=2, waits=True))
    whole = line.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    ranks = pids(whole)

    down_at_once(line, job)
    for pid in ranks.values():
        os.kill(pid, 0)  # raises when it is gone
    line.up()

    whole = line.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    assert pids(whole) == ranks
    line.open_gate("lives-on")
    assert line.ended(job)["attempt"] == 1


def test_a_run_that_ends_while_the_platform_is_down(line: Line) -> None:
    """Work that became whole without a platform is found by the next `up`, and registered."""
    job = line.submit(line.a_job("ends-alone", waits=True))
    whole = line.wait(job, lambda s: s["state"] == "Running" and bool(pids(s)))
    rank = pids(whole)[0]

    down_at_once(line, job)
    line.open_gate("ends-alone")
    poll(lambda: Path(f"/proc/{rank}").exists(), lambda there: not there)
    line.up()

    assert line.ended(job)["attempt"] == 1


def test_a_command_after_the_return_reaches_the_run(line: Line) -> None:
    """A run that was taken over can be cancelled; nothing of it is left."""
    job = line.submit(line.a_job("cancelled-later", waits=True))
    whole = line.wait(job, lambda s: s["state"] == "Running" and bool(pids(s)))
    rank = pids(whole)[0]

    down_at_once(line, job)
    line.up()
    line.ask("cancel", job, "--reason", "no longer wanted")

    line.ended(job, "Cancelled")
    poll(lambda: Path(f"/proc/{rank}").exists(), lambda there: not there)
