"""A client that cannot reach its platform says so at once, and what to do."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineshaft.sdk import discovery
from lineshaft.sdk.client import Client
from lineshaft.sdk.discovery import Platform
from lineshaft.sdk.errors import EXIT_UNREACHABLE, UnreachableError

NOBODY = "nats://127.0.0.1:1"
AT_ONCE_S = 5


async def _connect(platform: Platform) -> None:
    async with Client.connect(platform=platform):
        pass


def fault_of(platform: Platform) -> UnreachableError:
    """Connect, and return why that failed."""
    began = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        asyncio.run(_connect(platform))
    assert time.monotonic() - began < AT_ONCE_S
    assert caught.value.exit_code == EXIT_UNREACHABLE
    return caught.value


def test_an_address_where_nobody_listens() -> None:
    """A wrong URL is named, with where it came from; nobody waits for it."""
    fault = fault_of(Platform(NOBODY, "token", origin="--url"))
    assert NOBODY in fault.message
    assert "--url" in fault.message
    assert fault.hint


def test_a_platform_that_is_gone(tmp_path: Path) -> None:
    """A state file that a killed platform left does not keep anybody waiting."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    fault = fault_of(Platform(NOBODY, "token", state_dir=tmp_path, pid=gone.pid))
    assert str(gone.pid) in fault.message
    assert f"lineshaft up --state {tmp_path}" in str(fault.hint)


def test_what_ended_and_was_not_collected_is_gone() -> None:
    """Where nobody collects ended processes, `down` does not wait for ever."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, still in the table
    assert not discovery.is_alive(Platform(NOBODY, "", pid=child.pid))
    child.wait()


@pytest.mark.parametrize(
    "url", ["nats://host:99999", "nats://host:port", "nats://[::1", "http://a"]
)
def test_an_url_that_is_none(url: str) -> None:
    """Whatever is typed as a URL is answered with a message."""
    with pytest.raises(UnreachableError, match="--url"):
        discovery.find(url, environ={})
