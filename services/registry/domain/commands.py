"""Deciding what people and systems ask of a model: promote, roll back, pin, unpin, delete. Pure.

Every command is settled by an event, also when it is refused or changes nothing, so that its
redelivery gets the same answer and never acts later.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lineshaft.contracts.events import Event, Fact
from services.registry.domain import models, refs, versions
from services.registry.domain.models import Alias, Model, Shelf
from services.registry.domain.versions import Version

PREFIX = "registry.command."
SETTLED = "registry.settled"
NONE = "none"
"""As ``expected_current``: the alias must not exist yet."""


class CommandRefused(Exception):
    """A command that is not carried out, with a code of the requests and a hint."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


Decided = tuple[list[Event], dict[str, Any]]


def decide(shelf: Shelf, fact: Fact) -> list[Event]:
    """Decide a command; the last event is always ``registry.settled`` with the answer."""
    verb = fact.kind.removeprefix(PREFIX)
    settled: dict[str, Any] = {
        "verb": verb,
        "name": fact.data["name"],
        "actor": fact.data["actor"],
        "fingerprint": fact.data["fingerprint"],
    }
    try:
        events, result = _VERBS[verb](shelf, fact)
    except CommandRefused as error:
        settled |= {"code": error.code, "message": error.message, "hint": error.hint}
        events = []
    else:
        settled |= {"code": "ok", "result": result}
    return [*events, Event(SETTLED, settled, subject=fact.data["name"])]


def _model(shelf: Shelf, data: Mapping[str, Any]) -> Model:
    model = shelf.models.get(data["name"])
    if model is None:
        raise CommandRefused("not_found", f"there is no model {data['name']!r}", "lineshaft models")
    return model


def _number(model: Model, data: Mapping[str, Any]) -> Version:
    """Return the version that ``data`` names by number or by its manifest's digest."""
    text = str(data["version"])
    number = model.numbers.get(text) or versions.parse(text)
    if number is None or number not in model.releases:
        latest = model.latest()
        known = f"its latest version is {latest}" if latest else "it has no version"
        raise CommandRefused("not_found", f"{data['name']} has no version {text!r}; {known}")
    if model.releases[number].is_deleted:
        raise CommandRefused("not_found", f"{data['name']}:{number} was deleted")
    return number


def _alias(model: Model, data: Mapping[str, Any]) -> Alias | None:
    if not refs.is_alias(data["alias"]):
        hint = "'latest' is computed and never moved; an alias is a name such as 'production'"
        raise CommandRefused("usage", f"{data['alias']!r} cannot be an alias", hint)
    alias = model.aliases.get(data["alias"])
    expected = data.get("expected_current")
    current = NONE if alias is None else str(alias.current)
    if expected is not None and _plain(expected) != current:
        raise CommandRefused(
            "conflict",
            f"{data['name']}@{data['alias']} is {current}, not {expected}",
            "look at the model again, then decide anew",
        )
    return alias


def _plain(expected: str) -> str:
    number = versions.parse(expected)
    return expected if number is None else str(number)


def _move(kind: str, fact: Fact, alias: Alias | None, target: Version) -> Decided:
    data = fact.data
    model_name = data["name"]
    event = Event(
        kind,
        {
            "name": model_name,
            "alias": data["alias"],
            "to": str(target),
            "from": None if alias is None else str(alias.current),
            "actor": data["actor"],
            "reason": data["reason"],
        },
        subject=model_name,
    )
    return [event], {**event.data, "changed": True}


def _promote(shelf: Shelf, fact: Fact) -> Decided:
    model = _model(shelf, fact.data)
    alias = _alias(model, fact.data)
    target = _number(model, fact.data)
    if alias is not None and alias.current == target:
        return [], _unchanged(fact, target)
    return _move("model.alias_moved", fact, alias, target)


def _unchanged(fact: Fact, target: Version) -> dict[str, Any]:
    data = fact.data
    return {
        "name": data["name"],
        "alias": data["alias"],
        "to": str(target),
        "from": str(target),
        "actor": data["actor"],
        "reason": data["reason"],
        "changed": False,
    }


def _roll_back(shelf: Shelf, fact: Fact) -> Decided:
    model = _model(shelf, fact.data)
    alias = _alias(model, fact.data)
    if alias is None:
        place = f"{fact.data['name']}@{fact.data['alias']}"
        raise CommandRefused("not_found", f"there is no {place}", "promote a version first")
    if fact.data.get("version") is None:
        if not alias.past:
            raise CommandRefused("refused", "there is no earlier version to go back to")
        target = alias.past[-1]
    else:
        target = _number(model, fact.data)
        if target == alias.current:
            return [], _unchanged(fact, target)
        if target not in alias.past:
            ways = ", ".join(str(past) for past in reversed(alias.past)) or "none"
            raise CommandRefused(
                "refused",
                f"{target} is not on the way back of {fact.data['alias']} (there are: {ways})",
                "promote goes to any version",
            )
    return _move("model.rolled_back", fact, alias, target)


def _pin(shelf: Shelf, fact: Fact) -> Decided:
    return _pinning(shelf, fact, models.PINNED)


def _unpin(shelf: Shelf, fact: Fact) -> Decided:
    return _pinning(shelf, fact, models.UNPINNED)


def _pinning(shelf: Shelf, fact: Fact, kind: str) -> Decided:
    data = fact.data
    model = _model(shelf, data)
    number = _number(model, data)
    is_pinned = data["pin"] in model.releases[number].pins
    result = {"name": data["name"], "version": str(number), "pin": data["pin"]}
    if is_pinned == (kind == models.PINNED):
        return [], {**result, "changed": False}
    event = {**result, "actor": data["actor"], "reason": data["reason"]}
    return [Event(kind, event, subject=data["name"])], {**result, "changed": True}


def _delete(shelf: Shelf, fact: Fact) -> Decided:
    """Delete a version; its deletion asked for again answers the same (holds are released anew)."""
    data = fact.data
    model = _model(shelf, data)
    number = model.numbers.get(str(data["version"])) or versions.parse(str(data["version"]))
    release = None if number is None else model.releases.get(number)
    if number is None or release is None:
        number = _number(model, data)  # says what there is
        release = model.releases[number]
    result = {
        "name": data["name"],
        "version": str(number),
        "manifest": release.manifest,
        "parents": [dict(parent) for parent in release.parents],
        "changed": not release.is_deleted,
    }
    if release.is_deleted:
        return [], result
    _check_free(data["name"], model, number)
    event = {**result, "actor": data["actor"], "reason": data["reason"]}
    return [Event("model.deleted", event, subject=data["name"])], result


def _check_free(name: str, model: Model, number: Version) -> None:
    release = model.releases[number]
    held_by = model.holding(number)
    if held_by:
        raise CommandRefused(
            "refused",
            f"{name}:{number} is where {', '.join(held_by)} points or would go back to",
            "promote twice, or choose another version",
        )
    if release.pins:
        raise CommandRefused(
            "refused", f"{name}:{number} is pinned: {', '.join(sorted(release.pins))}", "unpin it"
        )
    if release.holders:
        raise CommandRefused(
            "refused",
            f"{len(release.holders)} version(s) were made from {name}:{number}",
            "delete them first: " + ", ".join(release.holders[:5]),
        )


_VERBS: dict[str, Callable[[Shelf, Fact], Decided]] = {
    "promote": _promote,
    "rollback": _roll_back,
    "pin": _pin,
    "unpin": _unpin,
    "delete": _delete,
}
VERBS = frozenset(_VERBS)
