"""References to a version, as people and other systems write them. Pure and strict.

``name`` (its latest), ``name@alias``, ``name@latest``, ``name:1.2.0``, ``name:v1.2.0``,
``name@sha256:<hex>`` (a manifest's digest). Nothing is trimmed, folded or guessed.
"""

from dataclasses import dataclass

from lineshaft.contracts import ids, manifest
from services.registry.domain import versions

LATEST = "latest"
_REF_CHARS_MAX = 200
_NOT_ALIASES = frozenset({LATEST, "sha256"})
_FORMS = "name, name@alias, name@latest, name:1.2.0 or name@sha256:<64 hex digits>"


class RefError(ValueError):
    """A text that is no reference; its message says how one is written."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference: exactly one of ``alias``, ``version`` and ``manifest`` is set."""

    name: str
    alias: str | None = None
    version: versions.Version | None = None
    manifest: str | None = None


def is_alias(text: str) -> bool:
    """Tell whether an alias may have this name: a name, and not one with a meaning of its own."""
    return ids.is_name(text) and text not in _NOT_ALIASES


def parse(text: str) -> Ref:
    """Read a reference. Raises ``RefError``."""
    if not isinstance(text, str) or not 0 < len(text) <= _REF_CHARS_MAX:
        raise RefError(f"a reference has 1 to {_REF_CHARS_MAX} characters: {_FORMS}")
    places = [at for at in (text.find("@"), text.find(":")) if at >= 0]
    cut = min(places, default=len(text))
    name, rest = text[:cut], text[cut:]
    if not ids.is_name(name):
        raise RefError(f"{name!r} is no model's name; a reference is {_FORMS}")
    if not rest:
        return Ref(name, alias=LATEST)
    if rest[0] == "@":
        return _after_at(name, rest[1:])
    version = versions.parse(rest[1:])
    if version is None:
        raise RefError(f"{rest[1:]!r} is no version; write three whole numbers, as in {name}:1.2.0")
    return Ref(name, version=version)


def _after_at(name: str, rest: str) -> Ref:
    if manifest.is_digest(rest):
        return Ref(name, manifest=rest)
    if rest == LATEST or is_alias(rest):
        return Ref(name, alias=rest)
    raise RefError(f"{rest!r} is neither an alias nor a digest; a reference is {_FORMS}")
