"""The terminal on a real platform: a followed job that is left, and the commands that look."""

import contextlib
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.builders_line import Line, poll


class Terminal:
    """A command on a terminal of its own, what it wrote, and its keyboard."""

    def __init__(self, pid: int, screen: int) -> None:
        self.pid = pid
        self.screen = screen
        self.text = ""

    def read(self) -> str:
        """Return everything that was written so far."""
        while select.select([self.screen], [], [], 0.05)[0]:
            try:
                piece = os.read(self.screen, 65536)
            except OSError:  # the command is gone and its terminal with it
                break
            if not piece:
                break
            self.text += piece.decode(errors="replace")
        return self.text

    def ended(self) -> int:
        """Wait for the command's end and return its exit code."""
        deadline = time.monotonic() + 60
        while True:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                self.read()
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.text[-2000:]


@contextmanager
def a_terminal(line: Line, *arguments: str) -> Iterator[Terminal]:
    pid, screen = pty.fork()
    if pid == 0:
        os.environ |= {"LINESHAFT_STATE_DIR": str(line.state), "TERM": "xterm", "COLUMNS": "100"}
        os.chdir(line.root)
        os.execv(sys.executable, [sys.executable, "-m", "lineshaft.cli", *arguments])
    terminal = Terminal(pid, screen)
    try:
        yield terminal
    finally:
        if terminal.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(terminal.pid, signal.SIGKILL)
            os.waitpid(terminal.pid, 0)
        os.close(screen)


def test_a_followed_job_goes_on_without_its_watcher(line: Line) -> None:
    """Ctrl-C ends the view with 130, says so, and leaves the job running."""
    file = line.a_job("left-alone", waits=True)
    with a_terminal(line, "submit", str(file), "--watch") as terminal:
        poll(terminal.read, lambda text: "step 6" in text and "says hello" in text)
        assert "Ctrl-C leaves the job running" in terminal.text
        os.write(terminal.screen, b"\x03")
        assert terminal.ended() == 130
    assert "goes on without you" in terminal.text
    assert "Traceback" not in terminal.text
    looked: dict[str, Any] = line.ask("top")
    job = next(one for one in looked["jobs"] if one["name"] == "left-alone")
    assert job["state"] == "Running"
    assert job["progress"]["loss"]
    with a_terminal(line, "top", "--every", "0.5") as terminal:
        poll(terminal.read, lambda text: "left-alone" in text and "slots in use" in text)
        os.write(terminal.screen, b"\x03")
        assert terminal.ended() == 0
    line.open_gate("left-alone")
    line.ended("left-alone")


def test_what_a_job_did_and_left_is_told(line: Line) -> None:
    """Timeline, artifacts, log filters, comparison: of a real job, by name."""
    end = 'pathlib.Path(os.environ["LINESHAFT_OUTPUT_DIR"], "made.txt").write_text("made")'
    first, second = (line.a_job(name, end=end) for name in ("told-one", "told-two"))
    for file in (first, second):
        line.ended(line.submit(file))
    moments = line.ask("timeline", "told-one")["timeline"]
    assert [one["at"] for one in moments] == sorted(one["at"] for one in moments)
    assert moments[-1]["text"].startswith("Succeeded")
    poll(lambda: line.ask("artifacts", "told-one"), lambda made: made["version"], within=20)
    made = line.ask("artifacts", "told-one")
    assert made["version"]["ref"] == "told-one:1.0.0"
    assert sum(entry["lines"] for entry in made["logs"]) >= 2
    hello = line.cli("logs", "told-one", "--grep", "says h[ae]llo", "--since", "1h").stdout
    assert len(hello.splitlines()) == 1
    assert line.cli("logs", "told-one", "--level", "error").stdout == ""
    compared = line.ask("compare", "told-one", "told-two:1.0.0")
    assert compared["b"]["version"] == "told-two:1.0.0"
    assert {row["field"] for row in compared["settings"]} == {"command"}
    assert [row["metric"] for row in compared["metrics"]] == ["train.loss"]
    named = line.ask("jobs", "--name", "told-*", "--limit", "1")
    assert (named["total"], named["jobs"][0]["name"]) == (2, "told-two")
