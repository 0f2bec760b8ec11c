"""The platform in one process: its state, its end, its return."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0


class Platforms:
    """Platforms of one test, with a list of running ones of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.state = tmp_path / "state"
        self.list = tmp_path / "xdg" / "lineshaft" / "platforms.json"
        self._environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg")}
        self._log = tmp_path / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> "subprocess.Popen[bytes]":
        """Start one, whether it will come up or not."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "services.embedded", "--state", str(self.state)],
                cwd=ROOT,
                env=self._environment,
                stderr=log,
            )
        self._started.append(process)
        return process

    def said(self) -> str:
        """All that they wrote."""
        return self._log.read_text(encoding="utf-8")

    def wait_ready(self, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
        """What the state file says once ``process`` wrote it."""

        def look() -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = json.loads((self.state / "state.json").read_text())
            except (OSError, ValueError):
                assert process.poll() is None, self.said()
                return None
            return found if found["pid"] == process.pid else None

        return poll(look)

    def end(self) -> None:
        """Kill what is left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()


def poll(look: Any) -> Any:
    """What ``look`` gives once it is true; fails at the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < end, "never became true"
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def platforms(tmp_path: Path) -> Iterator[Platforms]:
    made = Platforms(tmp_path)
    yield made
    made.end()


def test_a_platform_says_where_it_is_and_leaves_cleanly(platforms: Platforms) -> None:
    """Private state, a list for clients, one platform a folder, nothing left after SIGTERM."""
    process = platforms.start()
    found = platforms.wait_ready(process)
    assert stat.S_IMODE(platforms.state.stat().st_mode) == 0o700
    assert stat.S_IMODE((platforms.state / "state.json").stat().st_mode) == 0o600
    assert found["bus_url"].startswith("nats://127.0.0.1:")
    assert found["http_url"].startswith("http://127.0.0.1:")
    listed = json.loads(platforms.list.read_text())["platforms"]
    assert listed == [{"state_dir": str(platforms.state), "pid": process.pid}]

    second = platforms.start()
    assert second.wait(DEADLINE_S) == 3
    assert f"already runs on {platforms.state} (process {process.pid})" in platforms.said()
    assert found["bus_token"] not in platforms.said()

    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert not (platforms.state / "state.json").exists()
    assert json.loads(platforms.list.read_text())["platforms"] == []
    assert not is_alive(found["bus_pid"])


def test_a_killed_platform_takes_its_bus_along_and_returns_at_its_place(
    platforms: Platforms,
) -> None:
    """SIGKILL leaves no server behind; the next platform has the same bus, and leads at once."""
    process = platforms.start()
    former = platforms.wait_ready(process)
    process.kill()
    process.wait()
    poll(lambda: not is_alive(former["bus_pid"]))
    process = platforms.start()
    found = platforms.wait_ready(process)
    assert (found["bus_url"], found["bus_token"]) == (former["bus_url"], former["bus_token"])
    assert '"leads": 0' not in platforms.said()
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0


def test_wrong_settings_are_all_told_at_once(platforms: Platforms, tmp_path: Path) -> None:
    """Exit code 2, each fault with its file, its key and the nearest known one."""
    config = tmp_path / "lineshaft.toml"
    config.write_text('bus_ulr = "nats://x"\nhttp_port = -1\n[policy.schedular]\n')
    done = subprocess.run(
        [sys.executable, "-m", "services.embedded", "--config", str(config)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    for told in ("bus_ulr", "'bus_url'", "http_port", "'schedular' is no service", str(config)):
        assert told in done.stderr
