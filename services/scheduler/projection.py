"""The scheduler's projector: job documents out of the pool's journal."""

from collections.abc import Sequence
from typing import Any

from lineshaft.contracts.events import NOT_APPLICABLE
from lineshaft.ports import Document, Entry, Views
from services.scheduler.domain.view import fold

KIND = "job"


class JobProjector:
    """Folds each entry into the documents of the jobs that it names."""

    async def project(self, entry: Entry, views: Views) -> Sequence[Document]:
        """Return the documents that ``entry`` changes; an entry seen before changes none."""
        bodies: dict[str, dict[str, Any] | None] = {}
        seen: set[str] = set()
        changed: set[str] = set()
        for event in entry.events:
            job = event.subject
            if job == NOT_APPLICABLE or job in seen:
                continue
            if job not in bodies:
                stored = await views.get(KIND, job)
                if stored is not None and stored.version >= entry.seq:
                    seen.add(job)
                    continue
                bodies[job] = stored.body if stored else None
            folded = fold(bodies[job], event, at=entry.at)
            if folded is not bodies[job]:
                bodies[job] = folded
                changed.add(job)
        return [
            Document(KIND, job, entry.seq, body, stream=entry.stream)
            for job, body in sorted(bodies.items())
            if job in changed and body is not None
        ]
