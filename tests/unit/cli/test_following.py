"""Following a job: plain lines, JSON, and the live view."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from lineshaft.cli import live
from lineshaft.sdk.watch import Change, progress_of
from tests.builders_terminal import JOB, a_job, a_line, runs

CURVES = {
    "series": {"loss": [[1, 2.0, 1], [40, 1.0, 1]], "learning_rate": [[40, 1e-4, 1]]},
    "metrics": [],
    "planned_steps": 100,
    "throughput": {"step": 40, "eta_s": 90, "tokens_per_s": 1234.5, "step_ms": 800.0},
}
TIMELINE = [
    {"at": 1_000, "state": "Running", "substate": None, "reason": "started", "attempt": 1},
    {"at": 2_000, "state": "Succeeded", "substate": None, "reason": "whole", "attempt": 1},
]
ENDED = a_job(state="Succeeded", substate=None, timeline=TIMELINE, manifest="sha256:1")
ANSWERS: dict[tuple[str, str], Any] = {
    ("admission", "submit"): {"job": JOB, "admitted": True, "reasons": [], "warnings": []},
    ("scheduler", "job"): ENDED,
    ("monitor", "curves"): CURVES,
    ("monitor", "alerts"): {"alerts": []},
    ("registry", "model"): {"versions": [{"job": JOB, "version": "1.0.0"}]},
}


def test_progress_is_the_last_of_everything() -> None:
    """Rates, the plan and the time left come with the last values."""
    now = progress_of(CURVES)
    assert (now["step"], now["loss"], now["planned_steps"], now["eta_s"]) == (40, 1.0, 100, 90)
    assert progress_of({"series": {}, "throughput": None, "planned_steps": None}) == {}


def test_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """States, progress with the time left, the version; exit code 0."""
    file = tmp_path / "job.yaml"
    file.write_text("any")
    shown = runs(monkeypatch, ANSWERS)("submit", str(file), "--watch")
    assert shown.exit_code == 0
    assert "Running (attempt 1): started" in shown.output
    assert "1,234.5 tokens/s" in shown.output
    assert "90 s left" in shown.output
    assert "registered: chat:1.0.0" in shown.output


def test_json_is_one_change_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program reads line by line."""
    shown = runs(monkeypatch, ANSWERS)("status", "chat", "--watch", "-o", "json")
    kinds = [json.loads(line)["kind"] for line in shown.output.splitlines()]
    assert kinds == ["state", "state", "progress"]


def test_a_failed_job_ends_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 says that the job failed."""
    failed = a_job(state="Failed", timeline=[{**TIMELINE[0], "state": "Failed"}])
    shown = runs(monkeypatch, {**ANSWERS, ("scheduler", "job"): failed})("status", "chat", "-w")
    assert shown.exit_code == 1


def drawn(view: live.LiveView) -> str:
    screen = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    for part in view._parts():
        screen.print(part)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_the_view_shows_state_progress_curve_and_log() -> None:
    """All of a job on one screen, and how to leave."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with live.LiveView(console) as view:
        view.show(Change("state", TIMELINE[0], a_job()))
        view.take(CURVES, [a_line(f"line {n} [red]") for n in range(20)])
        text = drawn(view)
        assert "Running/training" in text
        assert "step 40/100" in text
        assert "loss" in text
        assert "line 19 [red]" in text
        assert "line 3 " not in text
        assert "Ctrl-C leaves the job running" in text
        view.show(Change("lost", {"message": "gone"}))
        assert "does not answer" in drawn(view)
        view.show(Change("back", {}, a_job()))
        assert "Running/training" in drawn(view)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Running (attempt 1): started" in written
    assert "the platform answers again" in written
