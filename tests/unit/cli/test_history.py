"""`timeline`, `artifacts`, `top`, `compare`: what is put together, and what is named as missing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lineshaft.sdk import comparing
from lineshaft.sdk.comparing import Side
from lineshaft.sdk.errors import PlatformError
from tests.builders_terminal import JOB, a_job, a_line, runs

CHECKPOINT = {
    "attempt": 1,
    "step": 50,
    "digest": "d",
    "bytes": 2_000_000,
    "path": "/c",
    "at": 2_500,
}
STATE = a_job(
    state="Succeeded",
    substate=None,
    manifest="sha256:1",
    checkpoints=[CHECKPOINT],
    timeline=[
        {"at": 1_000, "state": "Running", "substate": None, "reason": "started", "attempt": 1},
        {"at": 4_000, "state": "Succeeded", "substate": None, "reason": "whole", "attempt": 1},
    ],
)
ALERT = {
    "alert": "a1-x",
    "opened_at": 2_000,
    "changed_at": 3_000,
    "status": "resolved",
    "severity": "warning",
    "kind": "loss_spike",
    "summary": "it jumped",
    "attempt": 1,
}
RESOLVED = {
    "name": "chat",
    "version": "1.0.0",
    "manifest": "sha256:1",
    "kind": "model",
    "bytes": 3_000_000,
    "metrics": {"kind.exactMatch": 0.5},
    "lineage": {"job": JOB, "datasets": [{"name": "qa", "digest": "sha256:aa"}], "base": None},
    "files": [{"path": "model.safetensors", "role": "weights", "size": 3_000_000}],
}
ANSWERS: dict[tuple[str, str], Any] = {
    ("scheduler", "job"): STATE,
    ("monitor", "run"): {"attempts": [{"diagnoses": [{"at": 3_500, "summary": "rank 1 died"}]}]},
    ("monitor", "alerts"): {"alerts": [ALERT]},
    ("monitor", "logs"): {"lines": [a_line("abc"), a_line("de", rank=-1)], "next": None},
    ("registry", "model"): {"versions": [{"job": JOB, "version": "1.0.0"}]},
    ("registry", "resolve"): RESOLVED,
}


def test_the_timeline_is_everything_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """States, checkpoints, diagnoses, and alerts with their end."""
    told = json.loads(runs(monkeypatch, ANSWERS)("timeline", "chat", "-o", "json").output)
    assert [(one["at"], one["kind"]) for one in told["timeline"]] == [
        (1_000, "state"),
        (2_000, "alert"),
        (2_500, "checkpoint"),
        (3_000, "alert"),
        (3_500, "diagnosis"),
        (4_000, "state"),
    ]
    assert "rank 1 died" in runs(monkeypatch, ANSWERS)("timeline", "chat").output


def test_the_timeline_without_a_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scheduler knows is told, and what is not known is named."""
    away = PlatformError("unreachable", "nobody")
    answers = {**ANSWERS, ("monitor", "run"): away, ("monitor", "alerts"): away}
    shown = runs(monkeypatch, answers)("timeline", "chat")
    assert shown.exit_code == 0
    assert "Succeeded: whole" in shown.output
    assert "not known now - diagnoses" in shown.output


def test_artifacts_have_sizes_and_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints, the version's files, logs by rank."""
    run = runs(monkeypatch, ANSWERS)
    run.client.platform = SimpleNamespace(state_dir=Path("/state"))  # type: ignore[attr-defined]
    made = json.loads(run("artifacts", "chat", "-o", "json").output)
    assert made["checkpoints"][0]["path"] == "/c"
    assert made["version"]["files"][0]["size"] == 3_000_000
    assert made["logs"] == [
        {"attempt": 1, "rank": -1, "lines": 1, "bytes": 3},
        {"attempt": 1, "rank": 0, "lines": 1, "bytes": 4},
    ]
    assert made["logs_in"] == f"/state/objects/logs/{JOB}/"
    text = run("artifacts", "chat").output
    assert "2.0 MB" in text
    assert "lineshaft pull chat:1.0.0" in text


def test_top_shows_what_runs_and_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look without a terminal; a job without numbers is no fault."""
    node = {"node": "local", "status": "ready", "gpu_type": "cpu", "slots": 4, "free": 1}
    waiting = {
        "position": 1,
        "job": "j-2",
        "name": "next",
        "team": "t",
        "slots": 2,
        "why": "capacity",
    }
    curves = {
        "series": {"loss": [[n, 2.0 - n / 10, 1] for n in range(9)]},
        "throughput": {"tokens_per_s": 1000.0, "eta_s": 300},
        "planned_steps": 100,
    }

    def numbers(params: dict[str, Any]) -> Any:
        return curves if params["job"] == JOB else PlatformError("not_found", "none yet")

    answers = {
        ("scheduler", "nodes"): {"nodes": [{**node, "leases": []}]},
        ("scheduler", "queue"): {"jobs": [waiting]},
        ("scheduler", "jobs"): {
            "jobs": [a_job(), a_job("young", job="j-3"), a_job("old", job="j-4", state="Failed")],
            "next": None,
        },
        ("monitor", "curves"): numbers,
        ("monitor", "alerts"): {"alerts": [ALERT]},
    }
    run = runs(monkeypatch, answers)
    text = run("top").output
    for wanted in ("3 of 4 slots", "8/100", "1,000 tokens/s", "5 min", "next", "capacity", "young"):
        assert wanted in text, wanted
    assert "old" not in text
    found = json.loads(run("top", "-o", "json").output)
    assert [job["name"] for job in found["jobs"]] == ["young", "chat"]


def a_side(**more: Any) -> Side:
    hyper = {"learningRate": 1e-4, "seed": 42, "lora": {"rank": 8}}
    given = {"label": "x", "spec": {"hyperparameters": hyper}, "batch": {"global": 16}, **more}
    return Side(**given)


def test_only_what_differs_is_listed() -> None:
    """Fields by their paths; a field that one side lacks differs."""
    other = {"hyperparameters": {"learningRate": 1e-4, "seed": 7, "lora": {}}}
    made = comparing.compare(a_side(), a_side(spec=other))
    assert made["settings"] == [
        {"field": "hyperparameters.lora.rank", "a": 8, "b": None},
        {"field": "hyperparameters.seed", "a": 42, "b": 7},
    ]


def test_data_is_the_same_only_by_its_digest() -> None:
    """Unknown digests are not taken for equal."""
    a = a_side(datasets={"qa": "1", "more": None, "left": "3"})
    b = a_side(datasets={"qa": "1", "more": None, "right": "3"})
    same = {row["name"]: row["is_same"] for row in comparing.compare(a, b)["datasets"]}
    assert same == {"qa": True, "more": False, "left": False, "right": False}


def test_a_rate_is_suggested_where_batches_differ() -> None:
    """Linear and square root, from a's rate; equal batches need none."""
    made = comparing.compare(a_side(), a_side(batch={"global": 64}))["batch"]
    assert made["suggestion"] == {
        "factor": 4.0,
        "linear": pytest.approx(4e-4),
        "square_root": pytest.approx(2e-4),
    }
    assert made["learning_rate_b"] == 1e-4
    assert comparing.compare(a_side(), a_side())["batch"]["suggestion"] is None
    assert comparing.compare(a_side(), a_side(batch={}))["batch"] is None


def test_metrics_stand_beside_each_other() -> None:
    """A difference only where both have one."""
    a, b = a_side(metrics={"loss": 2.0, "only": 1.0}), a_side(metrics={"loss": 1.5})
    assert comparing.compare(a, b)["metrics"] == [
        {"metric": "loss", "a": 2.0, "b": 1.5, "difference": -0.5},
        {"metric": "only", "a": 1.0, "b": None, "difference": None},
    ]


def test_jobs_versions_and_models_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose job is forgotten still has its metrics and data."""
    run = runs(monkeypatch, ANSWERS)
    made = json.loads(run("compare", "chat", "chat:1.0.0", "-o", "json").output)
    assert made["a"]["version"] == made["b"]["version"] == "chat:1.0.0"
    assert made["datasets"][0]["is_same"]
    forgotten = {k: v for k, v in ANSWERS.items() if k != ("scheduler", "job")}
    made = json.loads(
        runs(monkeypatch, forgotten)("compare", "chat@a", "chat", "-o", "json").output
    )
    assert made["metrics"][0]["difference"] == 0.0
    assert made["settings"] == []
    nothing = runs(monkeypatch, {})("compare", "nobody", "chat")
    assert nothing.exit_code == 2
