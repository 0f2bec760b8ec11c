"""Diagnoses of ranks that ended: who was the root, of which class, what to do."""

from dataclasses import replace
from typing import Any

import pytest

from lineshaft.contracts.events import check
from tests.builders_monitor import NOW, Line, a_fact, an_exit, running

OOM_KILL = "Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB"
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"


def _line() -> Line:
    line = Line()
    line.take(*running())
    return line


@pytest.mark.parametrize(
    ("exit_", "failure_class", "action", "words"),
    [
        ({"signal": 9}, "infrastructure", "restart", "killed from outside (signal 9)"),
        ({"exit_code": 137}, "infrastructure", "restart", "signal 9"),
        ({"exit_code": -9}, "infrastructure", "restart", "signal 9"),
        ({"signal": 9, "host_memory": 0.98}, "config", "hold", "want of memory"),
        ({"signal": 9, "last_lines": [OOM_KILL]}, "config", "hold", "want of memory"),
        ({"signal": 15}, "infrastructure", "restart", "signal 15"),
        ({"signal": 11}, "infrastructure", "restart", "segmentation fault"),
        ({}, "infrastructure", "restart", "vanished"),
        ({"exit_code": 0}, "user_code", "fail", "before its work was complete"),
        ({"exit_code": 1}, "user_code", "fail", "exit code 1"),
        (
            {"exit_code": 1, "last_lines": ["  x()", "ZeroDivisionError: division by zero"]},
            "user_code",
            "fail",
            "ZeroDivisionError",
        ),
        (
            {"exit_code": 1, "last_lines": ["torch.OutOfMemoryError: CUDA out of memory."]},
            "config",
            "hold",
            "cuda.oom",
        ),
        (
            {"exit_code": 1, "last_lines": ["OSError: [Errno 28] No space left on device"]},
            "infrastructure",
            "restart",
            "fs.enospc",
        ),
        ({"exit_code": 1, "failure_class": "data"}, "data", "fail", "exit code 1"),
        ({"exit_code": 45}, "config", "fail", "exit code 45"),
    ],
)
def test_an_end_is_explained_at_once(
    exit_: dict[str, Any], failure_class: str, action: str, words: str
) -> None:
    """One rank's end gives one diagnosis and one alert in the very decision that hears of it."""
    line = _line()
    made = line.take(an_exit(1, **exit_))
    (found,) = [e.data for e in made if e.kind == "run.diagnosed"]
    (alert,) = [e.data for e in made if e.kind == "alert.firing"]
    assert (found["what"], found["class"], found["action"]) == (
        "rank_exited",
        failure_class,
        action,
    )
    assert words in found["summary"]
    assert (found["node"], found["rank"]) == ("n0", 1)
    assert found["advice"]
    assert (alert["kind"], alert["severity"], alert["subject"]) == (
        "rank_exited",
        "critical",
        "rank-1",
    )
    for event in made:
        if event.is_public:
            check(event.kind, event.data)


def test_the_first_rank_to_go_is_the_root_and_peers_are_cascade() -> None:
    """A killed rank, then a peer whose connection broke: one diagnosis, one alert."""
    line = _line()
    line.take(an_exit(1, signal=9, at=NOW))
    line.take(an_exit(0, exit_code=1, last_lines=[PEER], at=NOW + 40))
    line.wait(10_000)
    assert [d["rank"] for d in line.of("run.diagnosed")] == [1]
    assert len(line.of("alert.firing")) == 1


def test_a_cascade_that_is_heard_first_waits_for_its_root() -> None:
    """The peer's word arrives before the root's: the root is diagnosed, the peer is not."""
    line = _line()
    assert not [
        e
        for e in line.take(an_exit(0, exit_code=1, last_lines=[PEER], at=NOW + 40))
        if e.kind == "run.diagnosed"
    ]
    line.now += 500
    line.take(an_exit(1, signal=9, at=NOW))
    line.wait(10_000)
    assert [d["rank"] for d in line.of("run.diagnosed")] == [1]


def test_a_cascade_whose_root_never_comes_is_diagnosed_within_two_seconds() -> None:
    """The scheduler waits three seconds: it gets the best that is known."""
    line = _line()
    line.take(an_exit(0, exit_code=1, last_lines=[PEER], at=NOW))
    assert not line.wait(1_000)
    made = line.wait(600)
    (found,) = [e.data for e in made if e.kind == "run.diagnosed"]
    assert (found["class"], found["action"], found["is_cascade"]) == ("transient", "restart", True)


def test_a_root_that_is_heard_late_is_still_told() -> None:
    """Of two causes the earlier one by the agents' clocks is told, even when heard second."""
    line = _line()
    line.take(an_exit(0, exit_code=1, last_lines=["KeyError: 'x'"], at=NOW + 40))
    line.take(an_exit(1, signal=9, at=NOW))
    assert [d["rank"] for d in line.of("run.diagnosed")] == [0, 1]
    line.take(an_exit(2, signal=9, at=NOW + 50))
    assert len(line.of("run.diagnosed")) == 2


def test_the_numeric_guard_of_a_rank_raises_its_alert_too() -> None:
    """A rank that ended itself over a loss that is no number is told as what it is."""
    line = _line()
    line.take(an_exit(0, exit_code=43, failure_class="user_code", error_kind="non_finite"))
    assert {a["kind"] for a in line.of("alert.firing")} == {"rank_exited", "non_finite"}


def test_an_end_that_its_agent_saw_after_another_waits() -> None:
    """Two ranks of a node ended badly: the agent's root is diagnosed, in any order of hearing."""
    line = _line()
    second = an_exit(0, exit_code=1, at=NOW + 5)
    line.take(replace(second, data={**second.data, "root": False, "ended_at": NOW + 5}))
    assert not line.of("run.diagnosed")
    first = an_exit(1, signal=9, at=NOW + 90)
    line.take(replace(first, data={**first.data, "root": True, "ended_at": NOW}))
    line.wait(5_000)
    (found,) = line.of("run.diagnosed")
    assert (found["rank"], found["evidence"]["at"]) == (1, NOW)


def test_an_end_after_a_wanted_stop_is_no_fault() -> None:
    """A suspended run's ranks end, and nobody is alarmed."""
    line = _line()
    stop = {"epoch": 1, "intent": "suspend", "reason": "asked", "grace_ms": 1}
    line.take(a_fact("run.stop_ordered", stop))
    assert not line.take(an_exit(0, signal=15))
    line.take(*running(attempt=2, at=NOW + 9)[1:])
    assert line.take(an_exit(0, signal=9, attempt=2)), "a later attempt is judged again"


def test_a_node_that_failed_without_a_ranks_end_is_diagnosed_by_its_own_word() -> None:
    """The agent could not even start: its class is taken, after a moment's wait for ranks."""
    line = _line()
    data = {"node": "n0", "outcome": "failed", "class": "config", "reason": "no such command"}
    line.take(a_fact("run.ended", data, source="agent"))
    made = line.wait(2_000)
    (found,) = [e.data for e in made if e.kind == "run.diagnosed"]
    assert (found["what"], found["class"], found["action"]) == ("node_failed", "config", "fail")
    assert "no such command" in found["summary"]


def test_three_failures_without_a_new_checkpoint_are_a_storm() -> None:
    """The job is to be held; a checkpoint in between means progress and no storm."""
    stuck, moving = _line(), _line()
    for attempt in (1, 2, 3):
        data = {
            "state": "Retrying",
            "substate": None,
            "reason": "-",
            "actor": "-",
            "attempt": attempt,
            "class": "infrastructure",
            "budget": "node",
            "resume_from": None,
        }
        at = NOW + attempt * 60_000
        checkpoint = {"step": attempt * 10, "digest": "d", "bytes": 1, "path": "p"}
        moving.take(a_fact("run.checkpoint_committed", checkpoint, attempt=attempt, at=at))
        for line in (stuck, moving):
            line.take(a_fact("job.retrying", data, attempt=attempt, at=at))
    (found,) = [d for d in stuck.of("run.diagnosed") if d["what"] == "restart_storm"]
    assert found["action"] == "hold"
    assert not moving.of("run.diagnosed")
