"""The monitor's read models: alerts and diagnoses, as documents that outlive their jobs."""

from collections.abc import Sequence

from lineshaft.ports import Document, Entry, Views

ALERT, DIAGNOSIS = "alert", "diagnosis"
_ALERTS = frozenset({"alert.firing", "alert.acknowledged", "alert.resolved"})


class MonitorProjector:
    """Alert events carry the alert whole, so the newest event of an alert is its document."""

    async def project(self, entry: Entry, views: Views) -> Sequence[Document]:
        """Return the documents that ``entry`` changes, the last word on each."""
        made: dict[tuple[str, str], Document] = {}
        for event in entry.events:
            if event.kind in _ALERTS:
                kind, name = ALERT, str(event.data["alert"])
                body = {**event.data, "is_open": event.kind != "alert.resolved"}
            elif event.kind == "run.diagnosed":
                kind, name = DIAGNOSIS, str(event.data["diagnosis"])
                body = {**event.data, "attempt": event.attempt, "at": entry.at}
            else:
                continue
            made[kind, name] = Document(kind, name, entry.seq, body, entry.stream)
        return list(made.values())
