"""Starting a platform that cannot start: the words, and the exit code."""

from pathlib import Path

import pytest

from lineshaft.cli import platform
from lineshaft.sdk.errors import EXIT_REFUSED, EXIT_USAGE, PlatformError


def refusal(folder: Path, config: Path | None = None) -> PlatformError:
    """Start a platform that cannot start, and return why."""
    with pytest.raises(PlatformError) as caught:
        platform.start(folder, config)
    return caught.value


def test_a_state_folder_that_is_none(tmp_path: Path) -> None:
    """The folder and the reason are named, and what to do."""
    taken = tmp_path / "taken"
    taken.write_text("a file")
    fault = refusal(taken)
    assert str(taken) in fault.message
    assert "--state" in str(fault.hint)
    assert fault.exit_code == EXIT_REFUSED


def test_wrong_settings(tmp_path: Path) -> None:
    """Every fault of the settings is in the message of the command itself, and nothing older."""
    config = tmp_path / "lineshaft.toml"
    config.write_text("nodes = 3\npoool = 'x'\n")
    fault = refusal(tmp_path / "state", config)
    assert "nodes" in fault.message
    assert "pool" in fault.message
    assert fault.exit_code == EXIT_USAGE
    config.write_text("http_port = 'x'\n")
    again = refusal(tmp_path / "state", config)
    assert "http_port" in again.message
    assert "nodes" not in again.message
