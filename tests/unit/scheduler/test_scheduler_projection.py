"""The job document that queries show is folded from the journal."""

from dataclasses import replace

from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.ports import Entry
from services.scheduler.projection import JobProjector
from tests.builders_scheduler import STREAM, Pool, a_pool, a_running_job


def entries(pool: Pool) -> list[Entry]:
    """Return the pool's journal, one event an entry."""
    return [
        Entry(STREAM, number, f"e{number}", at, (), (event,))
        for number, (at, event) in enumerate(pool.journal, start=1)
    ]


def a_whole_life() -> Pool:
    pool = a_running_job(a_pool())
    pool.checkpoint(step=10)
    pool.crash()
    pool.wait(1_000)
    pool.diagnosed(attempt=2, what="loss_spike", action="note")
    pool.started(attempt=2)
    pool.command("priority", value=5)
    pool.checkpoint(attempt=2, step=11)
    pool.completed(attempt=2, step=12)
    pool.ended(attempt=2, outcome="completed")
    return pool


async def projected(journal: list[Entry]) -> dict:
    views = MemoryViews()
    for entry in journal:
        await views.put(await JobProjector().project(entry, views))
    document = await views.get("job", "j-1")
    assert document is not None
    return document.body


async def test_the_document_tells_the_whole_life():
    """Every agreed field, each state with reason, actor and time."""
    body = await projected(entries(a_whole_life()))
    assert set(body) >= {
        "job", "name", "team", "pool", "state", "substate", "reason", "actor", "since", "attempt",
        "attempts", "priority", "job_type", "submitted_at", "nodes", "resume_from", "checkpoints",
        "timeline", "diagnosis", "manifest", "model", "spec", "resolved", "estimate", "version",
    }  # fmt: skip
    assert (body["state"], body["attempt"], body["priority"]) == ("Succeeded", 2, 5)
    assert body["manifest"] == "sha256:aa"
    assert body["resume_from"]["step"] == 10
    assert [one["step"] for one in body["checkpoints"]] == [10, 11]
    assert body["attempts"]["node"] == 0, "progress gave the budget back"
    assert body["diagnosis"]["what"] == "loss_spike"
    assert body["model"] == {"name": "tiny", "version": None}
    assert [(one["state"], one["attempt"]) for one in body["timeline"]] == [
        ("Pending", 0), ("Scheduled", 1), ("Running", 1), ("Retrying", 1), ("Retrying", 1),
        ("Scheduled", 2), ("Running", 2), ("Running", 2), ("Succeeded", 2),
    ]  # fmt: skip
    assert "SIGKILL" in body["timeline"][3]["reason"]


async def test_an_entry_projected_twice_counts_once():
    """A projector that starts over after a crash changes nothing twice."""
    journal = entries(a_whole_life())
    views = MemoryViews()
    for number, entry in enumerate(journal):
        for again in journal[max(0, number - 3) : number + 1]:
            await views.put(await JobProjector().project(again, views))
        await views.put(await JobProjector().project(entry, views))
    document = await views.get("job", "j-1")
    assert document is not None
    assert document.body == await projected(journal)


async def test_one_entry_may_hold_several_events_of_a_job():
    """An admission and its placement are one decision and one document."""
    pool = a_whole_life()
    events = tuple(event for _, event in pool.journal)
    entry = replace(entries(pool)[0], events=events)
    views = MemoryViews()
    (document,) = await JobProjector().project(entry, views)
    assert document.body["state"] == "Succeeded"
    assert document.version == entry.seq
