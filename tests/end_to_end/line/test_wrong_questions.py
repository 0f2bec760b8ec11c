"""What a person types wrong, and what a program must be able to read."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.builders_line import Line


def typed(line: Line, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with more environment, and return how it ended."""
    return subprocess.run(
        [sys.executable, "-m", "lineshaft.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "LINESHAFT_STATE_DIR": str(line.state), **env},
        cwd=line.root,
        timeout=60,
        check=False,
    )


def test_a_wrong_token_is_named(line: Line) -> None:
    """The message tells that the token is wrong, and where the right one is; exit code 4."""
    assert line.platform
    url = line.platform.bus_url.replace("nats://", "nats://wrong@")
    done = typed(line, "jobs", "--url", url)
    assert done.returncode == 4
    assert "token" in done.stderr
    assert "state.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume"])
def test_a_command_for_a_job_that_is_over_is_refused(line: Line, verb: str) -> None:
    """Nobody believes that a command was carried out which could not be."""
    job = line.submit(line.a_job("over"), "--key", "over")
    line.ended(job)
    done = line.cli(verb, job, check=3)
    assert "Succeeded" in done.stderr
    assert "next:" in done.stderr
    refused = json.loads(line.cli(verb, job, "-o", "json", check=3).stdout)
    assert refused["error"]["code"] == "refused"


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs",),
        ("nodes",),
        ("alerts",),
        ("models",),
        ("doctor",),
        ("status", "no-such-job"),
        ("explain", "no-such-job"),
        ("logs", "no-such-job"),
        ("cancel", "no-such-job"),
        ("models", "no-such-model"),
        ("pull", "no-such-model"),
        ("pull", "no-such-model@latest"),
        ("promote", "no-such-model", "1.0.0"),
        ("rollback", "no-such-model"),
        ("acknowledge", "no-such-alert"),
        ("resolve", "no-such-alert"),
        ("validate", "broken.yaml"),
        ("plan", "broken.yaml"),
        ("submit", "broken.yaml"),
    ],
)
def test_json_is_one_document(line: Line, arguments: tuple[str, ...]) -> None:
    """Whatever a command answers, with -o json it is one JSON document; never a stack trace."""
    (line.root / "broken.yaml").write_text("apiVersion: [\nkind: {}: 3\n")
    done = line.cli(*arguments, "-o", "json", check=None)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2, 3)
    assert isinstance(json.loads(done.stdout), dict | list)


def test_a_watched_submission_is_json_lines(line: Line) -> None:
    """A stream is one JSON object a line, the receipt first."""
    file = line.a_job("json-lines")
    done = line.cli("submit", str(file), "--watch", "-o", "json")
    rows: list[dict[str, Any]] = [json.loads(row) for row in done.stdout.splitlines()]
    assert rows[0]["kind"] == "receipt"
    assert [r["data"]["state"] for r in rows if r["kind"] == "state"][-1] == "Succeeded"
