"""Finding a platform: the order, and what is said when there is none or more than one."""

import json
import os
from pathlib import Path

import pytest

from lineshaft.sdk import discovery
from lineshaft.sdk.errors import UnreachableError


def a_state(folder: Path, *, pid: int | None = None) -> Path:
    folder.mkdir(parents=True)
    state = {"pid": pid or os.getpid(), "bus_url": "nats://127.0.0.1:1", "bus_token": "t0ken"}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def listed(home: Path, *folders: Path) -> None:
    file = home / ".local/state/lineshaft/platforms.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"platforms": [{"state_dir": str(f)} for f in folders]}))


def test_a_state_folder_is_found_upwards(tmp_path: Path) -> None:
    """A command works in any folder below the one in which the platform was started."""
    a_state(tmp_path / ".lineshaft")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert discovery.find(start=below, environ=environ(tmp_path)).token == "t0ken"


def test_an_explicit_url_wins(tmp_path: Path) -> None:
    """--url beats LINESHAFT_URL beats the state file."""
    a_state(tmp_path / ".lineshaft")
    env = environ(tmp_path, LINESHAFT_URL="nats://two:2")
    assert discovery.find("nats://x@one:1", start=tmp_path, environ=env).bus_url == "nats://one:1"
    assert discovery.find(start=tmp_path, environ=env).bus_url == "nats://two:2"


def test_the_only_running_platform_is_taken(tmp_path: Path) -> None:
    """One platform needs no configuration, wherever the command is typed."""
    one = a_state(tmp_path / "one")
    gone = a_state(tmp_path / "gone", pid=2**22 - 1)
    listed(tmp_path, one, gone)
    found = discovery.find(start=tmp_path / "one", environ=environ(tmp_path))
    assert found.state_dir == one


def test_two_running_platforms_are_listed(tmp_path: Path) -> None:
    """Nobody's job goes to the wrong platform by chance."""
    one, two = a_state(tmp_path / "one"), a_state(tmp_path / "two")
    listed(tmp_path, one, two)
    with pytest.raises(UnreachableError, match="2 platforms") as error:
        discovery.find(start=tmp_path / "one", environ=environ(tmp_path))
    assert str(one) in str(error.value)
    assert str(two) in str(error.value)


def test_nothing_runs(tmp_path: Path) -> None:
    """The message says how to start one."""
    with pytest.raises(UnreachableError) as error:
        discovery.find(start=tmp_path, environ=environ(tmp_path))
    assert "lineshaft up" in str(error.value.hint)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"bus_url": 3, "pid": "x"}'])
def test_a_damaged_state_file_is_named(tmp_path: Path, text: str) -> None:
    """A half-written state file gives a message, not a stack trace."""
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UnreachableError, match=r"state\.json"):
        discovery.of_state(tmp_path)


def test_the_token_is_not_shown() -> None:
    """A platform in a log line keeps its secret."""
    assert "t0ken" not in repr(discovery.Platform("nats://h:1", "t0ken"))


@pytest.mark.parametrize("url", ["http://h:1", "nats://", "h:1", "file:///etc"])
def test_a_url_that_is_no_bus_is_refused(url: str) -> None:
    """Usage, with an example."""
    with pytest.raises(UnreachableError):
        discovery.of_url(url, "--url", {})
