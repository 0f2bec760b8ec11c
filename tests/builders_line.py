"""Builders for tests of the whole line: a real platform in a folder, and the CLI beside it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lineshaft.cli import platform as processes
from lineshaft.sdk.discovery import Platform

SETTINGS = """\
mounts = ["{root}"]

[[nodes]]
name = "local"
gpu_type = "cpu"
slots = 4
"""

JOB = """\
apiVersion: lineshaft.io/v1
kind: TrainingJob
metadata:
  name: {name}
spec:
  jobType: script
  command: [python, {script}]
  resources:
    gpuType: cpu
    gpuCount: {ranks}
    nodeCount: 1
  output:
    modelSavePath: {root}/models/{name}
"""

SCRIPT = """\
import os, pathlib, sys, time
import lineshaft

gate = pathlib.Path(sys.argv[0]).with_suffix(".go")
print("rank", os.environ.get("RANK", "0"), "says hello", flush=True)
for step in range(1, 6):
    lineshaft.report(step=step, loss=1.0 / step)
deadline = time.monotonic() + 120
while {waits} and not gate.exists():
    if time.monotonic() > deadline:
        raise SystemExit("nobody opened the gate")
    lineshaft.report(step=6, loss=0.1)
    time.sleep(0.02)
{end}
print("done", flush=True)
"""


class Line:
    """A running platform, the folder it may use, and the CLI."""

    def __init__(self, root: Path, *, processes: bool = False) -> None:
        self.root = root
        self.is_in_processes = processes
        self.state = root / "state"
        self.config = root / "lineshaft.toml"
        self.config.write_text(SETTINGS.format(root=root))
        self.platform: Platform | None = None

    def up(self) -> Platform:
        """Start the platform, or start it again."""
        self.platform = processes.start(self.state, self.config, processes=self.is_in_processes)
        return self.platform

    def down(self) -> None:
        """Stop the platform and what its runs left."""
        if self.platform:
            processes.stop(self.platform)
        for pid in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[int]:
        """Return processes whose command line or environment names this state folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if str(self.state).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def cli(self, *arguments: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run ``lineshaft ...`` in a process of its own."""
        env = {**os.environ, "LINESHAFT_STATE_DIR": str(self.state)}
        done = subprocess.run(
            [sys.executable, "-m", "lineshaft.cli", *arguments],
            capture_output=True,
            text=True,
            env=env,
            cwd=self.root,
            timeout=150,
            check=False,
        )
        if check is not None:
            assert done.returncode == check, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run a command with ``-o json`` and return what it printed."""
        return dict(json.loads(self.cli(*arguments, "-o", "json").stdout))

    def a_job(
        self, name: str, *, ranks: int = 1, waits: bool = False, end: str = "", more: str = ""
    ) -> Path:
        """Write a script and its job file; ``waits``: until ``open_gate(name)``."""
        script = self.root / f"{name}.py"
        script.write_text(SCRIPT.format(waits=waits, end=end))
        file = self.root / f"{name}.yaml"
        text = JOB.format(name=name, script=script, ranks=ranks, root=self.root)
        file.write_text(text + more)
        return file

    def open_gate(self, name: str) -> None:
        """Let the script of a waiting job go on."""
        (self.root / f"{name}.go").touch()

    def submit(self, file: Path, *more: str) -> str:
        """Submit a job file and return the job's id."""
        return str(self.ask("submit", str(file), *more)["job"])

    def wait(self, job: str, until: Callable[[dict[str, Any]], bool], within: float = 60) -> Any:
        """Poll ``status -o json`` until ``until`` holds; fail with the last state seen."""
        return poll(lambda: self.ask("status", job), until, within)

    def ended(self, job: str, state: str = "Succeeded", within: float = 90) -> dict[str, Any]:
        """Wait for the job's end and return its status."""
        whole = self.wait(job, lambda s: s["state"] in ("Succeeded", "Failed", "Cancelled"), within)
        assert whole["state"] == state, brief(whole)
        return dict(whole)


def poll(look: Callable[[], Any], until: Callable[[Any], bool], within: float = 60) -> Any:
    """Look until ``until`` holds, with a deadline; return what was seen."""
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if until(seen):
            return seen
        if time.monotonic() > deadline:
            shown = brief(seen) if isinstance(seen, dict) and "timeline" in seen else seen
            raise AssertionError(f"not within {within} s; last seen: {shown}")
        time.sleep(0.1)


def brief(whole: dict[str, Any]) -> str:
    """Return a job's timeline on a few lines."""
    lines = [
        f"{line['state']}/{line.get('substate')}: {line['reason']}" for line in whole["timeline"]
    ]
    return "\n".join([whole["state"], *lines])


def pids(whole: dict[str, Any]) -> dict[int, int]:
    """Return rank -> pid of the current attempt, out of ``status -o json``."""
    found = {}
    for attempt in (whole.get("run") or {}).get("attempts", []):
        if attempt["attempt"] == whole["attempt"]:
            for node in attempt["nodes"]:
                found |= {rank["rank"]: rank["pid"] for rank in node["ranks"] if rank.get("pid")}
    return found


@contextlib.contextmanager
def a_line(root: Path, *, processes: bool = False) -> Iterator[Line]:
    """Give a running platform, in one process or in several, and stop it at the end."""
    line = Line(root, processes=processes)
    line.up()
    try:
        yield line
    finally:
        line.down()
