"""Deciding what becomes of a candidate: a version, or a refusal that says why. Pure.

``job.succeeded`` with a manifest makes a *candidate*, kept in the stream of its job. A doer
examines it (completion record, manifest, files; it publishes the files by their digests) and
hands in ``registry.examined``, decided here in the stream of the model. A version made from
others first takes a *hold* on each of them, in the streams where they live, so that none can be
deleted meanwhile. ``registry.concluded`` then closes the candidate.
"""

from collections.abc import Mapping
from typing import Any

from lineshaft.contracts import ids, limits
from lineshaft.contracts.events import Event, Fact
from services.registry.domain import models, versions
from services.registry.domain.models import Shelf

HOLD = "registry.hold"
RELEASE = "registry.release"
EXAMINED = "registry.examined"
CONCLUDED = "registry.concluded"
HOLD_REFUSED = "registry.hold_refused"


class CandidateRefused(Exception):
    """A candidate that can never become a version; its text is the reason, for people."""


def take(shelf: Shelf, fact: Fact) -> list[Event]:
    """Decide ``job.succeeded``: a candidate, unless the run has been one already."""
    session = ids.run_name(fact.subject, fact.data["attempt"])
    if fact.data.get("manifest") is None or session in shelf.sessions:
        return []
    data = {
        "session": session,
        "job": fact.subject,
        "attempt": fact.data["attempt"],
        "manifest": fact.data["manifest"],
        "model_name": fact.data.get("model_name"),
        "job_name": fact.data["name"],
        "team": fact.team,
    }
    return [Event(models.CANDIDATE, data, subject=fact.subject, team=fact.team)]


def conclude(shelf: Shelf, fact: Fact) -> list[Event]:
    """Decide that a candidate has become a version or a refusal."""
    if fact.data["session"] not in shelf.candidates:
        return []
    return [Event(models.CONCLUDED, dict(fact.data), subject=fact.subject, team=fact.team)]


def register(shelf: Shelf, fact: Fact) -> list[Event]:
    """Decide an examined candidate.

    The same manifest is the same version: a candidate that is registered (or was, and has been
    deleted) changes nothing.
    """
    seen: Mapping[str, Any] = fact.data
    model = shelf.models.get(seen["name"])
    if model is not None and seen["manifest"] in model.numbers:
        return []
    try:
        kind, data = "model.registered", _version(shelf, seen)
    except CandidateRefused as error:
        kind, data = "model.refused", _refusal(seen, str(error))
    return [Event(kind, data, subject=seen["name"], team=seen["team"])]


def _refusal(seen: Mapping[str, Any], reason: str) -> dict[str, Any]:
    kept = {name: seen[name] for name in ("name", "manifest", "job", "attempt", "team", "session")}
    return {**kept, "reason": reason[: limits.REASON_CHARS_MAX]}


def _version(shelf: Shelf, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of ``model.registered``. Raises ``CandidateRefused``."""
    if seen["refused"] is not None:
        raise CandidateRefused(seen["refused"])
    model = shelf.models.get(seen["name"])
    if model is not None and model.team != seen["team"]:
        raise CandidateRefused(f"the name {seen['name']!r} belongs to the team {model.team!r}")
    parents = check_lineage(seen["kind"], seen["parents"])
    highest = None if model is None else model.highest()
    if model is None or highest is None:
        number, change = versions.FIRST, versions.Change(versions.Level.MAJOR, ("the first",))
    else:
        change = versions.compare(model.releases[highest].facet, seen["facet"])
        number = versions.successor(highest, change.level)
    return {
        "name": seen["name"],
        "version": str(number),
        "manifest": seen["manifest"],
        "lineage": dict(seen["lineage"]),
        "kind": seen["kind"],
        "team": seen["team"],
        "job": seen["job"],
        "attempt": seen["attempt"],
        "session": seen["session"],
        "change": change.level.name.lower(),
        "reasons": list(change.reasons),
        "after": None if highest is None else str(highest),
        "facet": dict(seen["facet"]),
        "base": next((p["manifest"] for p in parents if p["role"] == "base"), None),
        "parents": [{key: p[key] for key in ("role", "name", "manifest")} for p in parents],
        "depth": 1 + max((p["depth"] for p in parents), default=-1),
        "files": seen["files"],
        "bytes": seen["bytes"],
        "metrics": dict(seen["metrics"]),
    }


def check_lineage(kind: str, parents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``parents`` if a version of ``kind`` may come from them.

    A parent is {role, name, manifest, external, refused, base, depth}: ``manifest`` None and
    ``external`` true when it is outside the registry; ``refused`` why no hold was given. A held
    parent was registered before its child and never changes, so the graph has no cycle as long
    as no version is its own parent; a digest over the parent's digest cannot be. Raises
    ``CandidateRefused``.
    """
    roles = {parent["role"]: parent for parent in parents}
    for parent in parents:
        if parent["refused"] is not None:
            raise CandidateRefused(f"its {parent['role']}: {parent['refused']}")
    if kind == "merged" and "base" not in roles:
        raise CandidateRefused("a merged model must name the base it was merged into")
    if kind == "merged" and "adapter" in roles:
        _check_same_base(roles["base"], roles["adapter"])
    held = [parent for parent in parents if not parent["external"]]
    if any(parent["depth"] + 1 > limits.LINEAGE_DEPTH_MAX for parent in held):
        raise CandidateRefused(f"its lineage is deeper than {limits.LINEAGE_DEPTH_MAX} versions")
    return held


def _check_same_base(base: Mapping[str, Any], adapter: Mapping[str, Any]) -> None:
    if adapter["external"] or adapter["base"] is None:
        return
    if adapter["kind"] != "adapter":
        raise CandidateRefused(f"{adapter['name']} is no adapter but a {adapter['kind']}")
    if base["manifest"] != adapter["base"]:
        raise CandidateRefused("the adapter was trained on another base than it was merged into")


def hold(shelf: Shelf, fact: Fact) -> list[Event]:
    """Decide a child's wish to hold a version: ``registry.held``, or why not."""
    name, manifest = fact.data["name"], fact.data["manifest"]
    model = shelf.models.get(name)
    number = None if model is None else model.numbers.get(manifest)
    if model is None or number is None:
        return [_no_hold(fact, f"the registry has no version of {name!r} with {manifest}")]
    release = model.releases[number]
    if release.is_deleted:
        return [_no_hold(fact, f"{name}:{number} was deleted")]
    said = fact.data.get("version")
    if said is not None and versions.parse(str(said)) != number:
        return [_no_hold(fact, f"{manifest} is {name}:{number}, not {said}")]
    data = {
        "name": name,
        "version": str(number),
        "manifest": manifest,
        "holder": fact.data["holder"],
        "kind": release.facet["kind"],
        "base": release.base,
        "depth": release.depth,
    }
    return [Event(models.HELD, data, subject=name)]


def _no_hold(fact: Fact, reason: str) -> Event:
    data = {"name": fact.data["name"], "holder": fact.data["holder"], "reason": reason}
    return Event(HOLD_REFUSED, data, subject=fact.data["name"])


def release(shelf: Shelf, fact: Fact) -> list[Event]:
    """Decide that a child no longer needs a version: it was refused, or deleted."""
    name, manifest, holder = (fact.data[key] for key in ("name", "manifest", "holder"))
    model = shelf.models.get(name)
    number = None if model is None else model.numbers.get(manifest)
    if model is None or number is None or holder not in model.releases[number].holders:
        return []
    data = {"name": name, "version": str(number), "holder": holder}
    return [Event(models.RELEASED, data, subject=name)]
