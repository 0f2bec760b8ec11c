"""The registry's state: the models of one stream, as its events made them. Pure.

``evolve`` here is the only code that changes the state. What the state does not hold (the whole
history of an alias, metrics, lists of files) is in the events and the manifests.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.events import Event
from services.registry.domain import versions
from services.registry.domain.versions import Version

HELD = "registry.held"
RELEASED = "registry.released"
PINNED = "registry.pinned"
UNPINNED = "registry.unpinned"
CANDIDATE = "registry.candidate"
CONCLUDED = "registry.candidate_concluded"


@dataclass(slots=True)
class Release:
    """One version. It stays known after its deletion, so that no number is given twice."""

    manifest: str
    team: str
    facet: dict[str, Any]
    base: str | None  # digest of the base's manifest, where that is in the registry
    parents: list[dict[str, str]] = field(default_factory=list)  # {role, name, manifest}
    depth: int = 0  # versions on the longest way to a root of the lineage
    holders: list[str] = field(default_factory=list)  # digests of versions made from this one
    pins: dict[str, str] = field(default_factory=dict)  # pin -> who set it
    is_deleted: bool = False


@dataclass(slots=True)
class Alias:
    """Where an alias points and the way back: its earlier targets, the latest last."""

    current: Version
    past: list[Version] = field(default_factory=list)


@dataclass(slots=True)
class Model:
    """One model: its versions by number and by manifest, and its aliases."""

    team: str
    releases: dict[Version, Release] = field(default_factory=dict)
    numbers: dict[str, Version] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def highest(self) -> Version | None:
        """Return the highest version ever given, deleted or not."""
        return max(self.releases, default=None)

    def latest(self) -> Version | None:
        """Return the highest version that exists."""
        return max((v for v, r in self.releases.items() if not r.is_deleted), default=None)

    def holding(self, version: Version) -> list[str]:
        """Return the aliases that point at ``version`` or would go back to it next."""
        return sorted(
            name
            for name, alias in self.aliases.items()
            if version == alias.current or alias.past[-1:] == [version]
        )


@dataclass(slots=True)
class Shelf:
    """What one stream holds: models (of its shard of names), candidates (of its shard of jobs).

    ``sessions`` are the runs that were ever candidates; ``candidates`` are those still open.
    """

    models: dict[str, Model] = field(default_factory=dict)
    candidates: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)


def evolve(shelf: Shelf, event: Event) -> Shelf:
    """Apply one event to ``shelf`` (changed in place) and return it; unknown kinds pass."""
    apply = _APPLY.get(event.kind)
    if apply is not None:
        apply(shelf, event.data)
    return shelf


def number_of(text: str) -> Version:
    """Read a version out of one of our own events."""
    version = versions.parse(text)
    if version is None:
        raise ValueError(f"an event holds {text!r} for a version")
    return version


def _registered(shelf: Shelf, data: dict[str, Any]) -> None:
    model = shelf.models.setdefault(data["name"], Model(team=data["team"]))
    number = number_of(data["version"])
    model.releases[number] = Release(
        manifest=data["manifest"],
        team=data["team"],
        facet=dict(data["facet"]),
        base=data["base"],
        parents=[dict(parent) for parent in data["parents"]],
        depth=data["depth"],
    )
    model.numbers[data["manifest"]] = number


def _deleted(shelf: Shelf, data: dict[str, Any]) -> None:
    model = shelf.models[data["name"]]
    number = number_of(data["version"])
    release = model.releases[number]
    release.is_deleted = True
    release.pins = {}
    for alias in model.aliases.values():
        alias.past = _way_back(alias.current, [past for past in alias.past if past != number])


def _way_back(current: Version, past: list[Version]) -> list[Version]:
    """Drop steps that lead nowhere, and the oldest beyond the bound."""
    kept: list[Version] = []
    for number in past:
        if kept[-1:] != [number]:
            kept.append(number)
    while kept and kept[-1] == current:
        kept.pop()
    return kept[-limits.ALIAS_STEPS_BACK_MAX :]


def _moved(shelf: Shelf, data: dict[str, Any]) -> None:
    model = shelf.models[data["name"]]
    target = number_of(data["to"])
    alias = model.aliases.get(data["alias"])
    if alias is None:
        model.aliases[data["alias"]] = Alias(target)
        return
    alias.past = _way_back(target, [*alias.past, alias.current])
    alias.current = target


def _rolled_back(shelf: Shelf, data: dict[str, Any]) -> None:
    alias = shelf.models[data["name"]].aliases[data["alias"]]
    target = number_of(data["to"])
    last = len(alias.past) - 1 - alias.past[::-1].index(target)
    alias.past = _way_back(target, alias.past[:last])
    alias.current = target


def _release_of(shelf: Shelf, data: dict[str, Any]) -> Release:
    return shelf.models[data["name"]].releases[number_of(data["version"])]


def _held(shelf: Shelf, data: dict[str, Any]) -> None:
    holders = _release_of(shelf, data).holders
    if data["holder"] not in holders:
        holders.append(data["holder"])


def _released(shelf: Shelf, data: dict[str, Any]) -> None:
    release = _release_of(shelf, data)
    release.holders = [holder for holder in release.holders if holder != data["holder"]]


def _pinned(shelf: Shelf, data: dict[str, Any]) -> None:
    _release_of(shelf, data).pins[data["pin"]] = data["actor"]


def _unpinned(shelf: Shelf, data: dict[str, Any]) -> None:
    _release_of(shelf, data).pins.pop(data["pin"], None)


def _candidate(shelf: Shelf, data: dict[str, Any]) -> None:
    shelf.sessions.add(data["session"])
    shelf.candidates[data["session"]] = dict(data)


def _concluded(shelf: Shelf, data: dict[str, Any]) -> None:
    shelf.candidates.pop(data["session"], None)


_APPLY = {
    "model.registered": _registered,
    "model.deleted": _deleted,
    "model.alias_moved": _moved,
    "model.rolled_back": _rolled_back,
    HELD: _held,
    RELEASED: _released,
    PINNED: _pinned,
    UNPINNED: _unpinned,
    CANDIDATE: _candidate,
    CONCLUDED: _concluded,
}


def dump(shelf: Shelf) -> dict[str, Any]:
    """Return the shelf as JSON values."""
    return {
        "models": {name: _dump_model(model) for name, model in shelf.models.items()},
        "candidates": copy.deepcopy(shelf.candidates),
        "sessions": sorted(shelf.sessions),
    }


def _dump_model(model: Model) -> dict[str, Any]:
    return {
        "team": model.team,
        "releases": {
            str(number): {name: copy.deepcopy(getattr(release, name)) for name in Release.__slots__}
            for number, release in model.releases.items()
        },
        "aliases": {
            name: {"current": str(alias.current), "past": [str(past) for past in alias.past]}
            for name, alias in model.aliases.items()
        },
    }


def load(dumped: dict[str, Any]) -> Shelf:
    """Read a dump back."""
    models = {name: _load_model(model) for name, model in dumped["models"].items()}
    return Shelf(models, copy.deepcopy(dumped["candidates"]), set(dumped["sessions"]))


def _load_model(dumped: dict[str, Any]) -> Model:
    releases = {number_of(text): Release(**parts) for text, parts in dumped["releases"].items()}
    return Model(
        team=dumped["team"],
        releases=releases,
        numbers={release.manifest: number for number, release in releases.items()},
        aliases={
            name: Alias(number_of(alias["current"]), [number_of(past) for past in alias["past"]])
            for name, alias in dumped["aliases"].items()
        },
    )
