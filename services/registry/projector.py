"""The registry's read models, made from its own journal. No decision stands here.

| kind | id | what |
|---|---|---|
| candidate | ``<job>-<attempt>`` | a run's candidate: waiting, registered or refused |
| model | name | team, latest, its versions in short, its aliases |
| version | ``<name>:<version>`` | one version, with lineage and metrics |
| alias_move | ``<name>@<alias>/<seq>-<index>`` | one move of an alias, oldest first |
| refusal | ``<name>/<job>-<attempt>`` | a candidate that was kept but not released |
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lineshaft.contracts import manifest
from lineshaft.contracts.events import Event
from lineshaft.ports import Document, Entry, Views
from services.registry.domain import models, versions

_IN_SHORT = ("version", "manifest", "kind", "change", "job", "attempt", "bytes")
_OF_VERSION = (
    *("name", "version", "manifest", "kind", "team", "job", "attempt", "lineage", "base"),
    *("parents", "change", "reasons", "after", "files", "bytes", "metrics"),
)


class RegistryProjector:
    """Turns entries of ``model/<shard>`` into documents."""

    async def project(self, entry: Entry, views: Views) -> Sequence[Document]:
        """Return the documents that ``entry`` changes."""
        page = _Page(entry, views)
        for index, event in enumerate(entry.events):
            draw = _DRAW.get(event.kind)
            if draw is not None:
                await draw(page, event, index)
        return page.documents()


class _Page:
    """The documents one entry touches, read once and changed in place."""

    def __init__(self, entry: Entry, views: Views) -> None:
        self.entry = entry
        self._views = views
        self._bodies: dict[tuple[str, str], dict[str, Any]] = {}

    async def body(self, kind: str, id: str) -> dict[str, Any]:
        """Return the body to change; an empty one for a document that is not there yet."""
        if (kind, id) not in self._bodies:
            stored = await self._views.get(kind, id)
            self._bodies[kind, id] = {} if stored is None else dict(stored.body)
        return self._bodies[kind, id]

    def documents(self) -> list[Document]:
        """Return all touched documents at this entry's version."""
        entry = self.entry
        return [
            Document(kind, id, entry.seq, body, entry.stream)
            for (kind, id), body in self._bodies.items()
        ]


async def _candidate(page: _Page, event: Event, _: int) -> None:
    body = await page.body("candidate", event.data["session"])
    body |= {**event.data, "status": "waiting", "at": page.entry.at}


async def _concluded(page: _Page, event: Event, _: int) -> None:
    body = await page.body("candidate", event.data["session"])
    body |= {**event.data, "at": page.entry.at}


async def _registered(page: _Page, event: Event, _: int) -> None:
    data = event.data
    version = await page.body("version", f"{data['name']}:{data['version']}")
    version |= {key: data[key] for key in _OF_VERSION}
    version |= {"registered_at": page.entry.at, "deleted": None, "pins": []}
    model = await page.body("model", data["name"])
    model.setdefault("name", data["name"])
    model.setdefault("team", data["team"])
    model.setdefault("aliases", {})
    short = {key: data[key] for key in _IN_SHORT}
    parents = {role: data["lineage"].get(role) for role in manifest.PARENTS}
    short |= {"registered_at": page.entry.at, "is_deleted": False, "lineage": parents}
    model["versions"] = [*model.get("versions", []), short]
    model["latest"] = _latest(model["versions"])


def _latest(short: Sequence[dict[str, Any]]) -> str | None:
    numbers = [versions.parse(one["version"]) for one in short if not one["is_deleted"]]
    highest = max((number for number in numbers if number is not None), default=None)
    return None if highest is None else str(highest)


async def _refused(page: _Page, event: Event, _: int) -> None:
    body = await page.body("refusal", f"{event.data['name']}/{event.data['session']}")
    body |= {**event.data, "at": page.entry.at}


async def _moved(page: _Page, event: Event, index: int) -> None:
    data, entry = event.data, page.entry
    kind = "rollback" if event.kind == "model.rolled_back" else "promote"
    move = {
        "kind": kind,
        **{key: data[key] for key in ("name", "alias", "to", "from", "actor", "reason")},
        "at": entry.at,
    }
    id = f"{data['name']}@{data['alias']}/{entry.seq:012d}-{index:03d}"
    (await page.body("alias_move", id)).update(move)
    model = await page.body("model", data["name"])
    now = {"version": data["to"], "since": entry.at, "actor": data["actor"]}
    model["aliases"] = {**model["aliases"], data["alias"]: {**now, "reason": data["reason"]}}


async def _deleted(page: _Page, event: Event, _: int) -> None:
    data = event.data
    version = await page.body("version", f"{data['name']}:{data['version']}")
    version["deleted"] = {"at": page.entry.at, "actor": data["actor"], "reason": data["reason"]}
    version["pins"] = []
    model = await page.body("model", data["name"])
    model["versions"] = [
        {**one, "is_deleted": one["is_deleted"] or one["version"] == data["version"]}
        for one in model["versions"]
    ]
    model["latest"] = _latest(model["versions"])


async def _pinned(page: _Page, event: Event, _: int) -> None:
    data = event.data
    version = await page.body("version", f"{data['name']}:{data['version']}")
    others = [pin for pin in version["pins"] if pin["pin"] != data["pin"]]
    if event.kind == models.PINNED:
        others.append({key: data[key] for key in ("pin", "actor", "reason")})
    version["pins"] = others


_DRAW: dict[str, Callable[[_Page, Event, int], Awaitable[None]]] = {
    models.CANDIDATE: _candidate,
    models.CONCLUDED: _concluded,
    models.PINNED: _pinned,
    models.UNPINNED: _pinned,
    "model.registered": _registered,
    "model.refused": _refused,
    "model.alias_moved": _moved,
    "model.rolled_back": _moved,
    "model.deleted": _deleted,
}
