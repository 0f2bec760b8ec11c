"""Builders for tests of services that are started by hand, one process each."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lineshaft.sdk.client import Client
from tests.builders_line import Line, poll

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("scheduler", "admission", "monitor", "registry")
STOP_WAIT_S = 60


class Parts(Line):
    """The parts of a platform, each started and ended by the test; and the CLI beside them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, processes=True)
        self.bus_port = a_free_port()
        self.token_file = self.state / "bus" / "token"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.probes: dict[str, int] = {}

    def start(self, service: str, *, replica: str = "one") -> None:
        """Start a service as a process; several ``replica`` of one may run."""
        part = f"{service}/{replica}"
        self.probes[part] = a_free_port()
        env = {
            "LINESHAFT_BUS_URL": f"nats://127.0.0.1:{self.bus_port}",
            "LINESHAFT_BUS_TOKEN_FILE": str(self.token_file),
            "LINESHAFT_REPLICA": replica,
            "LINESHAFT_HEALTH_PORTS": json.dumps({service: self.probes[part]}),
        }
        command = [f"services.{service}", "--state", str(self.state), "--config", str(self.config)]
        self._launch(part, command, env)

    def start_bus(self) -> None:
        """Start the bundled bus alone."""
        command = ["services.bus", "--state", str(self.state), "--port", str(self.bus_port)]
        self._launch("bus", command, {})

    def _launch(self, part: str, command: list[str], env: dict[str, str]) -> None:
        with (self.root / f"{part.replace('/', '-')}.log").open("ab") as log:
            self.running[part] = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    def said(self, part: str) -> str:
        """Return the log of a part."""
        return (self.root / f"{part.replace('/', '-')}.log").read_text()

    def probe(self, part: str, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        """Ask a probe; status 0 while nobody listens."""
        url = f"http://127.0.0.1:{self.probes[part]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    def check(self, part: str, name: str) -> dict[str, Any]:
        """Return one check of a part's readiness; empty while nobody listens."""
        checks = self.probe(part)[1].get("checks", [])
        return next((dict(check) for check in checks if check["name"] == name), {})

    def wait_ready(self, *parts: str) -> None:
        """Wait until each of the parts says that it is ready."""
        for part in parts or [part for part in self.running if part != "bus"]:
            poll(lambda part=part: self.probe(part), lambda answer: answer[0] == 200, 60)

    def kill(self, part: str) -> None:
        """End a part by SIGKILL."""
        process = self.running.pop(part)
        process.kill()
        process.wait()

    def freeze(self, service: str, replica: str) -> None:
        """Put a part to sleep, but not inside a write: its lock on the file would sleep too."""
        process = self.running[f"{service}/{replica}"]
        journal = self.state / "journal" / f"{service}.journal.db"

        def is_asleep() -> bool:
            process.send_signal(signal.SIGSTOP)
            with contextlib.closing(sqlite3.connect(journal, timeout=0.5)) as file:
                try:
                    file.execute("BEGIN IMMEDIATE")
                    file.rollback()
                except sqlite3.OperationalError:
                    process.send_signal(signal.SIGCONT)
                    return False
            return True

        poll(is_asleep, bool)

    def stop(self, part: str) -> int:
        """End a part by SIGTERM; return its exit code."""
        process = self.running.pop(part)
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_WAIT_S)

    def hand_in(self, file: Path) -> str:
        """Submit a job file to admission alone, as the bus would; return the job's id.

        The command asks the scheduler too, and half of its questions reach one that is frozen.
        """

        async def submit() -> str:
            async with Client.connect(self.url()) as client:
                return str((await client.submit(file.read_text()))["job"])

        return asyncio.run(submit())

    def url(self) -> str:
        """Return the bus's URL with its token."""
        return f"nats://{self.token_file.read_text().strip()}@127.0.0.1:{self.bus_port}"

    def cli(self, *arguments: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run ``lineshaft ...``; nobody wrote a state file, so it is told the URL."""
        done = subprocess.run(
            [sys.executable, "-m", "lineshaft.cli", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "LINESHAFT_URL": self.url()},
            cwd=self.root,
            timeout=150,
            check=False,
        )
        if check is not None:
            assert done.returncode == check, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    def down(self) -> None:
        """End all that still runs, the bus last."""
        for part in sorted(self.running, key=lambda name: name == "bus"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop(part)
        super().down()


def a_free_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def some_parts(root: Path) -> Iterator[Parts]:
    """Give parts of which none runs yet, and end those that run at the end."""
    parts = Parts(root)
    try:
        yield parts
    finally:
        parts.down()
