"""Builders for the registry's tests: manifests, candidates, staged runs, a pure journal."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lineshaft.adapters.clock import SystemClock
from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.contracts import ids, manifest, records
from lineshaft.contracts.events import Event, Fact
from lineshaft.ports import Clock, Entry, Objects
from lineshaft.runtime.host import DeciderHost
from services.registry.domain import commands, registering
from services.registry.domain.decider import RegistryDecider, stream_of
from services.registry.domain.models import Shelf
from services.registry.examination import Candidate, registration
from services.registry.projector import RegistryProjector

TEAM = "default"
NAME = "domain-chat"


def a_job(key: str = "1") -> str:
    """A job's id."""
    return ids.job_id(TEAM, key)


def a_manifest(
    contents: Mapping[str, bytes] | None = None,
    *,
    name: str = NAME,
    kind: str = "model",
    job: str | None = None,
    attempt: int = 1,
    base: Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
    team: str = TEAM,
    metrics: Mapping[str, Any] | None = None,
    **model: Any,
) -> dict[str, Any]:
    """A manifest of ``contents`` (path -> bytes; ``*.safetensors`` are weights)."""
    contents = contents if contents is not None else {"model.safetensors": b"weights"}
    files = [
        {
            "path": path,
            "size": len(data),
            "digest": ids.digest_of(data),
            "role": "weights" if path.endswith(".safetensors") else "config",
        }
        for path, data in contents.items()
    ]
    lineage: dict[str, Any] = {"base": base, "job": job or a_job(), "attempt": attempt}
    if adapter is not None:
        lineage["adapter"] = adapter
    facts = {"architecture": "Qwen2ForCausalLM", "vocabSize": 512, "context": 256, **model}
    return manifest.make(
        kind=kind,
        name=name,
        team=team,
        files=files,
        lineage=lineage,
        model=facts,
        metrics=metrics or {"kind": {"exactMatch": 0.6}},
    )


def a_candidate(made: Mapping[str, Any], **changes: Any) -> Candidate:
    """The candidate whose manifest is ``made``."""
    job, attempt = made["lineage"]["job"], made["lineage"]["attempt"]
    parts: dict[str, Any] = {
        "session": ids.run_name(job, attempt),
        "job": job,
        "attempt": attempt,
        "manifest": manifest.digest(made),
        "model_name": made["name"],
        "job_name": "a-job",
        "team": made["team"],
    }
    return Candidate(**{**parts, **changes})


def succeeded(candidate: Candidate, id: str = "pool/default:1:0") -> Fact:
    """The scheduler's fact that makes a candidate."""
    return Fact(
        id=id,
        kind="job.succeeded",
        data={
            "state": "Succeeded",
            "substate": None,
            "reason": "completed",
            "actor": "platform",
            "attempt": candidate.attempt,
            "manifest": candidate.manifest,
            "name": candidate.job_name,
            "model_name": candidate.model_name,
        },
        at=1,
        source="scheduler",
        subject=candidate.job,
        team=candidate.team,
    )


def examined(made: Mapping[str, Any], **changes: Any) -> Fact:
    """What the registrar hands in after it looked at ``made``."""
    candidate = a_candidate(made)
    data = registration(candidate, made) | changes
    return Fact(
        id=f"examined:{candidate.session}:{candidate.manifest}",
        kind=registering.EXAMINED,
        data=data,
        at=1,
        source="registry",
        subject=candidate.job,
        team=candidate.team,
    )


def a_hold(name: str, digest: str, holder: str, id: str = "") -> Fact:
    """A child's wish to hold a version."""
    data = {"name": name, "manifest": digest, "holder": holder}
    return Fact(
        id=id or f"hold:{holder}:{digest}",
        kind=registering.HOLD,
        data=data,
        at=1,
        source="registry",
    )


def a_command(verb: str, key: str, **data: Any) -> Fact:
    """A command under its idempotency key."""
    full = {"name": NAME, "actor": "ada", "reason": "because", "fingerprint": repr(data), **data}
    return Fact(id=f"command:{key}", kind=commands.PREFIX + verb, data=full, at=1, source="rpc")


class PureJournal:
    """Decides facts as the host does: by stream, once per id, entry after entry. No I/O."""

    def __init__(self) -> None:
        self.decider = RegistryDecider()
        self.entries: dict[str, list[Entry]] = {}
        self.states: dict[str, Shelf] = {}
        self.now = 1_000

    def hand_in(self, fact: Fact) -> list[Event]:
        """Decide ``fact`` in its streams; return the new events (none when it was known)."""
        self.now += 1_000
        made: list[Event] = []
        for stream in self.decider.route(fact):
            entries = self.entries.setdefault(stream, [])
            if any(fact.id in entry.causes for entry in entries):
                continue
            state = self.states.setdefault(stream, self.decider.initial(stream))
            events = self.decider.decide(state, fact, now=self.now, policy=None)
            entry = Entry(
                stream, len(entries) + 1, f"e{self.now}", self.now, (fact.id,), tuple(events)
            )
            entries.append(entry)
            for event in events:
                self.decider.evolve(state, event, at=self.now)
            made += events
        return made

    def all(self, facts: Iterable[Fact]) -> list[Event]:
        """Decide many."""
        return [event for fact in facts for event in self.hand_in(fact)]

    def shelf(self, name: str = NAME) -> Shelf:
        """The state that holds a model."""
        return self.states[stream_of(name)]

    def replayed(self) -> dict[str, dict[str, Any]]:
        """The dumps of states rebuilt from the entries alone."""
        made = {}
        for stream, entries in self.entries.items():
            state = self.decider.initial(stream)
            for entry in entries:
                for event in entry.events:
                    state = self.decider.evolve(state, event, at=entry.at)
            made[stream] = self.decider.dump(state)
        return made

    async def views(self) -> MemoryViews:
        """The read models of all entries."""
        views, projector = MemoryViews(), RegistryProjector()
        for entries in self.entries.values():
            for entry in entries:
                await views.put(await projector.project(entry, views))
        return views


async def stage(
    objects: Objects,
    made: Mapping[str, Any],
    contents: Mapping[str, bytes],
    *,
    record: Mapping[str, Any] | None = None,
) -> Candidate:
    """Stage a run's artefacts as the agent does: files, manifest, completion record last."""
    candidate = a_candidate(made)
    for path, data in contents.items():
        await objects.put(records.staging(candidate.session, records.staged_name(path)), data)
    await objects.put(records.staging(candidate.session, "manifest.json"), manifest.encode(made))
    said = record or {
        "manifest": candidate.manifest,
        "session": candidate.session,
        "step": 10,
        "rank": 0,
        "at": 1,
    }
    key = records.complete(candidate.job, candidate.attempt)
    await objects.put(key, json.dumps(said).encode())
    return candidate


async def publish(objects: Objects, made: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
    """Put files and manifest where a registered version has them."""
    for data in {ids.digest_of(data): data for data in contents.values()}.values():
        await objects.put(records.blob(ids.digest_of(data)), data)
    await objects.put(records.blob(manifest.digest(made)), manifest.encode(made))


class RegistryShell:
    """A registry without a bus: a real host on any journal, the projection done when asked."""

    def __init__(self, journal: Any, objects: Any, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.objects: Objects = objects
        self.journal = journal
        self.findings: list[tuple[str, str, str]] = []
        self.host = DeciderHost(RegistryDecider(), journal, self.clock, holder="test")

    def audit(self, kind: str, subject: str, status: str, summary: str) -> None:
        """Remember a finding."""
        self.findings.append((kind, subject, status))

    async def __aenter__(self) -> "RegistryShell":
        """Start the host."""
        await self.host.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        await self.host.stop()

    async def events(self, *kinds: str) -> list[Event]:
        """All events of some kinds, over all streams."""
        return [
            event
            for stream in RegistryDecider().streams()
            async for entry in self.journal.read(stream, 0)
            for event in entry.events
            if event.kind in kinds
        ]

    async def views(self) -> MemoryViews:
        """The read models of the whole journal."""
        views, projector = MemoryViews(), RegistryProjector()
        for stream in RegistryDecider().streams():
            async for entry in self.journal.read(stream, 0):
                await views.put(await projector.project(entry, views))
        return views
