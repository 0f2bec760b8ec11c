"""The line between a rank and its agent, seen from the rank: ``Channel``, ``report``, ``Link``."""

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts import limits
from lineshaft.report import Channel, rank_of
from trainer.faults import Fenced, StorageFault
from trainer.link import Link, Stop


class Listener:
    """An agent's end of the line that keeps what it hears and says what it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | None = {"ok": True}
        self._lines: list[socket.socket] = []
        self._server: socket.socket | None = None

    def open(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen()
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            self._lines.append(line)
            threading.Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: socket.socket) -> None:
        for raw in line.makefile("rb"):
            message = json.loads(raw)
            self.heard.append(message)
            if "id" in message and self.answer is not None:
                self.say({"op": "answer", "id": message["id"], **self.answer})

    def say(self, message: dict[str, Any]) -> None:
        for line in self._lines:
            line.sendall(json.dumps(message).encode() + b"\n")

    def ops(self) -> list[str]:
        return [message["op"] for message in self.heard]

    def close(self) -> None:
        for each in (self._server, *self._lines):
            if each is not None:
                each.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "a.sock")
    yield made
    made.close()


def until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_link_without_an_agent_drops_everything() -> None:
    """A loop run by hand is told that it may commit, never that it should stop."""
    link = Link.connect({})
    link.step(1, loss=1.0)
    link.metric("a", 1.0, 1)
    link.committed(1, "sha256:", 1, "/", {})
    link.finished("/", 1)
    assert link.may_commit()
    assert link.stop_requested() is None
    link.close()


def test_a_link_tells_and_asks(agent: Listener) -> None:
    """Steps, metrics, plans and phases arrive with the rank; questions get the agent's answer."""
    agent.open()
    link = Link.connect({"LINESHAFT_AGENT_SOCKET": str(agent.path), "RANK": "3"})
    assert link.may_commit()
    link.plan(total_steps=10)
    link.phase("training")
    link.step(4, loss=0.25)
    link.close()
    until(lambda: "step" in agent.ops())
    hello = agent.heard[0]
    assert (hello["op"], hello["rank"], hello["role"]) == ("hello", 3, "rank")
    step = next(message for message in agent.heard if message["op"] == "step")
    assert (step["step"], step["loss"]) == (4, 0.25)
    assert math.isnan(step["tokens"])
    metric = next(message for message in agent.heard if message["op"] == "metric")
    assert (metric["name"], metric["value"]) == ("planned_steps", 10.0)


def test_a_refused_commit_says_why(agent: Listener) -> None:
    """A fenced attempt and a store that is away are told apart; no answer counts as away."""
    agent.open()
    link = Link(Channel(str(agent.path), rank=0))
    agent.answer = {"ok": False, "fenced": True, "reason": "newer"}
    assert not link.may_commit()
    with pytest.raises(Fenced, match="newer"):
        link.committed(1, "sha256:", 1, "/", {})
    agent.answer = {"ok": False, "reason": "full"}
    with pytest.raises(StorageFault, match="full"):
        link.finished("/", 1)
    agent.answer = None
    assert not link.may_commit(timeout_s=0.1)
    link.close()


def test_a_stop_is_seen_without_waiting(agent: Listener) -> None:
    """What the agent says of a stop is there at the next look."""
    agent.open()
    link = Link(Channel(str(agent.path), rank=0))
    assert link.may_commit()
    assert link.stop_requested() is None
    agent.say({"op": "stop", "intent": "suspend", "deadline_ms": 5, "reason": "window"})
    until(link.stop_requested)
    assert link.stop_requested() == Stop("suspend", 5, "window")
    link.close()


def test_the_oldest_reports_give_way_and_are_counted(agent: Listener) -> None:
    """While the agent is away the queue is bounded; questions survive; the count is told."""
    channel = Channel(str(agent.path), rank=0)
    for step in range(limits.REPORT_QUEUE_MAX + 10):
        channel.send({"op": "step", "step": step})
    channel.send({"op": "error", "kind": "x"}, urgent=True)
    agent.open()
    assert channel.flush(10)
    until(lambda: "dropped" in agent.ops())
    steps = [message["step"] for message in agent.heard if message["op"] == "step"]
    assert steps == list(range(10, limits.REPORT_QUEUE_MAX + 10))
    assert {"op": "dropped", "count": 10} in agent.heard
    assert "error" in agent.ops()
    channel.close()


def test_reporting_to_nobody_costs_nothing_and_never_raises() -> None:
    """User code may report rubbish, outside of a run or with an agent that never comes."""
    code = (
        "import lineshaft, time\n"
        "began = time.monotonic()\n"
        "for step in range(20_000):\n"
        "    lineshaft.report(step=step, loss=1.0, odd=object())\n"
        "lineshaft.report(step='x', loss='y'); lineshaft.phase(None)\n"
        "assert not lineshaft.stop_requested()\n"
        "assert time.monotonic() - began < 10\n"
    )
    for path in ("", "/nowhere/at.sock"):
        environ = {**os.environ, "LINESHAFT_AGENT_SOCKET": path}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_report_is_a_function_whatever_was_imported_first() -> None:
    """``lineshaft.report(...)`` works also after ``import lineshaft.report``; phases are timed."""
    code = (
        "import lineshaft.report\nfrom lineshaft.report import Channel\nimport lineshaft\n"
        "lineshaft.report(step=1, loss=1.0)\nlineshaft.phase('data')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_phases_become_times_of_the_next_step(agent: Listener) -> None:
    """Time between ``phase('data')`` and the next phase is the step's data time; fork is safe."""
    agent.open()
    code = (
        "import lineshaft, os, time\n"
        "lineshaft.report(step=1, loss=1.0)\n"
        "lineshaft.phase('data'); time.sleep(0.05); lineshaft.phase('compute')\n"
        "lineshaft.report(step=2, loss=0.5, accuracy=0.75)\n"
        "pid = os.fork()\n"
        "lineshaft.report(step=3 if pid else 4, loss=0.5)\n"
        "os.waitpid(pid, 0) if pid else None\n"
    )
    environ = {**os.environ, "LINESHAFT_AGENT_SOCKET": str(agent.path), "LINESHAFT_RANK": "1"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    until(lambda: {m.get("step") for m in agent.heard if m["op"] == "step"} == {1, 2, 3, 4})
    second = next(m for m in agent.heard if m["op"] == "step" and m["step"] == 2)
    assert 40 < second["data_ms"] < 5_000
    assert second["step_ms"] >= second["data_ms"]
    assert {"op": "metric", "name": "accuracy", "value": 0.75, "step": 2} in agent.heard


def test_the_rank_is_read_from_the_environment() -> None:
    """Our own variable comes before the launcher's; without either it is 0."""
    assert rank_of({"LINESHAFT_RANK": "2", "RANK": "1"}) == 2
    assert rank_of({"RANK": "1"}) == 1
    assert rank_of({"RANK": "x"}) == 0
