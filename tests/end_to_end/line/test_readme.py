"""What the README says of one's own job works as it stands there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.source import ROOT


@pytest.mark.parametrize("form", [(), ("--processes",)], ids=["one", "processes"])
def test_the_example_script_runs_without_a_settings_file(
    tmp_path: Path, form: tuple[str, ...]
) -> None:
    """Up, submit, jobs, down, typed in the clone: jobs may use the folder of the start."""
    env = {**os.environ, "LINESHAFT_STATE_DIR": str(tmp_path / "state")}

    def lineshaft(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lineshaft.cli", *arguments],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    lineshaft("up", "--detach", "--state", str(tmp_path / "state"), *form)
    try:
        assert "Succeeded" in lineshaft("submit", "examples/script.yaml", "--watch")
        assert "count-words" in lineshaft("jobs")
    finally:
        lineshaft("down")
