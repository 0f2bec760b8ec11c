"""`jobs`, `nodes`, `queue`: order, filters, pages."""

import json
from typing import Any

import pytest

from tests.builders_terminal import a_job, runs


def pages(params: dict[str, Any]) -> dict[str, Any]:
    """Give five jobs by id, two a page, as the scheduler does."""
    states = ("Running", "Failed", "Succeeded", "Pending", "Failed")
    found = [
        a_job(
            f"job-{n}",
            job=f"j-{n}",
            state=state,
            submitted_at=1_000 * ((n * 3) % 5),
            labels={"project": "chat"} if n % 2 else {},
        )
        for n, state in enumerate(states)
    ]
    found = [j for j in found if params.get("state") in (None, j["state"])]
    start = int(params.get("after", "0"))
    more = start + 2 < len(found)
    return {"jobs": found[start : start + 2], "next": str(start + 2) if more else None}


ANSWERS = {("scheduler", "jobs"): pages}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ["job-3", "job-1", "job-4", "job-2", "job-0"]),
        (("--state", "failed"), ["job-1", "job-4"]),
        (("--state", "Failed", "--state", "Pending"), ["job-3", "job-1", "job-4"]),
        (("--name", "*-[34]"), ["job-3", "job-4"]),
        (("--label", "project"), ["job-3", "job-1"]),
        (("--label", "project=chat", "--state", "Failed"), ["job-1"]),
        (("--label", "project=other"), []),
        (("--limit", "2", "--page", "2"), ["job-4", "job-2"]),
        (("--limit", "2", "--page", "9"), []),
    ],
)
def test_jobs_are_newest_first_and_narrowed(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], names: list[str]
) -> None:
    """All pages of the platform are read before anything is sorted or cut."""
    shown = runs(monkeypatch, ANSWERS)("jobs", *arguments, "-o", "json")
    assert shown.exit_code == 0, shown.output
    assert [job["name"] for job in json.loads(shown.output)["jobs"]] == names


def test_a_page_says_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """People and programs learn that there are more."""
    run = runs(monkeypatch, ANSWERS)
    assert "page 1: 2 of 5" in run("jobs", "--limit", "2").output
    answer = json.loads(run("jobs", "--limit", "2", "-o", "json").output)
    assert (answer["total"], answer["next_page"]) == (5, 2)


def test_an_unknown_state_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt state is no empty list."""
    shown = runs(monkeypatch, ANSWERS)("jobs", "--state", "Runing")
    assert shown.exit_code == 2
    assert "Running" in shown.output


def test_nodes_show_what_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is named once, with its slots."""
    leases = [{"slot": slot, "job": "j-1", "attempt": 2} for slot in (0, 1)]
    node = {"node": "local", "status": "ready", "gpu_type": "cpu", "slots": 4, "free": 2}
    answers = {("scheduler", "nodes"): {"nodes": [{**node, "leases": leases}]}}
    assert "j-1#2 (2)" in runs(monkeypatch, answers)("nodes").output


def test_the_queue_says_why_each_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with what it needs; an empty queue says so."""
    waiting = {
        "position": 1,
        "job": "j-1",
        "name": "chat",
        "team": "default",
        "priority": 500,
        "submitted_at": 1_700_000_000_000,
        "slots": 16,
        "gpu_type": "a100-80g",
        "why": "capacity",
    }
    shown = runs(monkeypatch, {("scheduler", "queue"): {"jobs": [waiting]}})("queue").output
    assert "16 x a100-80g" in shown
    assert "capacity" in shown
    assert (
        "nothing waits" in runs(monkeypatch, {("scheduler", "queue"): {"jobs": []}})("queue").output
    )
