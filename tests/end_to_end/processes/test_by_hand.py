"""Services started one by one: in any order, probed over HTTP, drained, doubled."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders_line import pids, poll
from tests.builders_processes import SERVICES, Parts, some_parts


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """Give parts of a platform of which none runs yet."""
    with some_parts(tmp_path) as made:
        yield made


def test_any_order_then_a_job_then_each_drains(parts: Parts) -> None:
    """Services wait for a bus that comes after them; SIGTERM ends each with 0; nothing is lost."""
    for service in ("admission", "scheduler"):
        parts.start(service)
    assert "waits_for_the_token_file" in poll(lambda: parts.said("admission/one"), bool)
    parts.start("monitor")
    parts.start_bus()
    parts.start("registry")
    parts.wait_ready()
    job = parts.submit(parts.a_job("by-hand", waits=True))
    whole = parts.wait(job, lambda s: s["state"] == "Running" and pids(s))
    rank = pids(whole)[0]
    for service in SERVICES:
        assert parts.stop(f"{service}/one") == 0
        assert '"stopped"' in parts.said(f"{service}/one")
    os.kill(rank, 0)  # a platform that stops leaves the run alone
    for service in reversed(SERVICES):
        parts.start(service)
    parts.open_gate("by-hand")
    whole = parts.ended(job)
    assert whole["attempt"] == 1
    assert parts.stop("bus") == 0


def test_probes_tell_alive_from_ready(parts: Parts) -> None:
    """Without its bus a service is alive and not ready; with it, until it ends, both."""
    parts.start_bus()
    poll(parts.token_file.is_file, bool)
    assert parts.stop("bus") == 0
    parts.start("registry")
    status, answer = poll(lambda: parts.probe("registry/one", "/livez"), lambda a: a[0] == 200)
    assert answer["ok"]
    status, answer = parts.probe("registry/one")
    assert status == 503
    assert not parts.check("registry/one", "bus")["ok"]
    assert parts.check("registry/one", "journal")["ok"]
    assert parts.probe("registry/one", "/elsewhere")[0] == 404
    parts.start_bus()
    parts.wait_ready("registry/one")
    assert "registry-job" in parts.check("registry/one", "consumers")["detail"]
    parts.kill("bus")
    poll(lambda: parts.probe("registry/one"), lambda a: a[0] == 503)
    assert parts.probe("registry/one", "/livez")[0] == 200


def test_a_standby_takes_over_and_launches_nothing_twice(parts: Parts) -> None:
    """Of two schedulers one leads; killed while a job runs, it is replaced, and the run goes on."""
    parts.start_bus()
    for service in SERVICES:
        parts.start(service)
    parts.wait_ready()
    parts.start("scheduler", replica="two")
    parts.wait_ready("scheduler/two")
    assert "stands by: led by one" in parts.check("scheduler/two", "leader")["detail"]
    job = parts.submit(parts.a_job("doubled", ranks=2, waits=True))
    whole = parts.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    before = pids(whole)
    parts.kill("scheduler/one")
    poll(
        lambda: parts.check("scheduler/two", "leader"),
        lambda check: check.get("detail", "").startswith("leads"),
    )
    second = parts.submit(parts.a_job("after-the-change", waits=False))
    parts.ended(second)
    whole = parts.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    assert pids(whole) == before
    parts.open_gate("doubled")
    whole = parts.ended(job)
    assert whole["attempt"] == 1
    states = [line["state"] for line in whole["timeline"]]
    assert "Retrying" not in states
    assert len(list((parts.state / "runs").glob(f"{job}-*"))) == 1


def test_a_leader_that_only_slept_steps_down(parts: Parts) -> None:
    """Frozen beyond its lease, it is replaced; awake again it stands by and launches nothing."""
    parts.start_bus()
    for service in SERVICES:
        parts.start(service)
    parts.wait_ready()
    parts.start("scheduler", replica="two")
    parts.wait_ready("scheduler/two")
    first = parts.submit(parts.a_job("asleep", waits=True))
    whole = parts.wait(first, lambda s: s["state"] == "Running" and pids(s))
    before = pids(whole)
    parts.freeze("scheduler", "one")
    try:
        poll(
            lambda: parts.check("scheduler/two", "leader").get("detail", ""),
            lambda detail: detail.startswith("leads"),
        )
        second = parts.hand_in(parts.a_job("meanwhile"))
        runs = parts.state / "runs"
        poll(lambda: list(runs.glob(f"{second}-*")), bool)
    finally:
        parts.running["scheduler/one"].send_signal(signal.SIGCONT)
    poll(
        lambda: parts.check("scheduler/one", "leader").get("detail", ""),
        lambda detail: detail.startswith("stands by: led by two"),
    )
    parts.ended(second)
    parts.open_gate("asleep")
    whole = parts.wait(first, lambda s: s["state"] == "Succeeded")
    assert whole["attempt"] == 1
    assert len(before) == 1
    assert [len(list(runs.glob(f"{job}-*"))) for job in (first, second)] == [1, 1]


def test_wrong_settings_and_taken_ports_are_told(parts: Parts) -> None:
    """Exit code 2 names the setting, 3 what could not be had, each in the last line."""
    parts.config.write_text("[policy.scheduler]\nno_such_value = 1\n")
    parts.start_bus()
    parts.start("scheduler")
    assert parts.running.pop("scheduler/one").wait(60) == 2
    assert "no_such_value" in parts.said("scheduler/one").splitlines()[-1]
    parts.config.write_text("")
    parts.start("admission")
    parts.wait_ready("admission/one")
    os.environ["LINESHAFT_HTTP_PORT"] = str(parts.probes["admission/one"])
    try:
        parts.start("registry")
    finally:
        del os.environ["LINESHAFT_HTTP_PORT"]
    assert parts.running.pop("registry/one").wait(60) == 3
    assert "could not be started" in parts.said("registry/one").splitlines()[-1]
