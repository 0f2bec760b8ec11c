"""Read model of admission: one document per submission, with its answer and its commands."""

from collections.abc import Sequence
from typing import Any, Final

from lineshaft.contracts.events import Event
from lineshaft.ports import Document, Entry, Views
from services.admission.domain import commanding
from services.admission.domain.decider import ADMITTED, REJECTED

KIND: Final = "submission"
COMMANDS_KEPT: Final = 100
_ANSWER: Final[tuple[str, ...]] = (
    "job",
    "key",
    "actor",
    "digest",
    "reasons",
    "warnings",
    "estimate",
    "name",
)
_COMMANDS: Final = {
    commanding.ACCEPTED: "accepted",
    commanding.IGNORED: "ignored",
    commanding.REFUSED: "refused",
}


class SubmissionProjector:
    """Makes ``submission`` documents out of admission's own journal."""

    async def project(self, entry: Entry, views: Views) -> Sequence[Document]:
        """Return the documents that an entry changes."""
        bodies: dict[str, dict[str, Any]] = {}
        for event in entry.events:
            if event.kind in (ADMITTED, REJECTED) and not event.data.get("conflict"):
                kept = await _body(bodies, views, event.subject)
                place = {"stream": entry.stream, "seq": entry.seq}
                answer = {**_answer(event, entry.at), "place": place}
                bodies[event.subject] = {**kept, **answer}
            elif event.kind in _COMMANDS:
                kept = await _body(bodies, views, event.subject)
                rows = [*kept.get("commands", []), _command(event, entry.at)]
                bodies[event.subject] = {**kept, "commands": rows[-COMMANDS_KEPT:]}
        return [Document(KIND, job, entry.seq, body, entry.stream) for job, body in bodies.items()]


async def _body(bodies: dict[str, dict[str, Any]], views: Views, job: str) -> dict[str, Any]:
    if job in bodies:
        return bodies[job]
    stored = await views.get(KIND, job)
    return dict(stored.body) if stored else {"job": job, "commands": []}


def _answer(event: Event, at: int) -> dict[str, Any]:
    made = {name: event.data[name] for name in _ANSWER if name in event.data}
    made |= {"admitted": event.kind == ADMITTED, "team": event.team, "pool": event.pool}
    return {**made, "at": at}


def _command(event: Event, at: int) -> dict[str, Any]:
    names = ("verb", "actor", "reason", "key", "why", "priority", "based_on")
    made = {name: event.data[name] for name in names if name in event.data}
    return {**made, "outcome": _COMMANDS[event.kind], "at": at}
