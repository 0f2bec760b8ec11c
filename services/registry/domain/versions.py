"""Semantic versions as a function of two manifests.

A *facet* is what of a manifest the rule looks at; it travels in ``model.registered``, so that
the rule never needs the manifest of an earlier version again. Pure: no store, no clock.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from lineshaft.contracts import ids

Facet = Mapping[str, Any]

_VERSION = re.compile(r"v?(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")


class Version(NamedTuple):
    """A semantic version; versions of one model compare by their order."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        """Return it without the ``v``."""
        return f"{self.major}.{self.minor}.{self.patch}"


FIRST = Version(1, 0, 0)


def parse(text: str) -> Version | None:
    """Read ``1.2.0`` or ``v1.2.0``; None for anything else (leading zeros, spaces, suffixes)."""
    match = _VERSION.fullmatch(text)
    return None if match is None else Version(*(int(part) for part in match.groups()))


class Level(IntEnum):
    """What a change means to those who use the model."""

    PATCH = 1  # the same tensors in other packaging
    MINOR = 2  # other weights, type or quantisation
    MAJOR = 3  # breaks a consumer


@dataclass(frozen=True, slots=True)
class Change:
    """A level and the reasons for it, in the order of the rules; empty for packaging alone."""

    level: Level
    reasons: tuple[str, ...]


def facet_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rule compares of ``manifest`` (checked, see ``contracts.manifest``)."""
    model = manifest["model"]
    base = manifest["lineage"].get("base") or {}
    weights = sorted(f["digest"] for f in manifest["files"] if f["role"] == "weights")
    facet: dict[str, Any] = {"kind": manifest["kind"]}
    for name in (*_MAJOR_WHEN_OTHER, "context", "parameters", "tensors", *_MINOR_WHEN_OTHER):
        facet[name] = model.get(name)
    facet["weights"] = model.get("weights")
    facet["weightFiles"] = ids.digest_of("\n".join(weights).encode())
    facet["base"] = base.get("manifest") or base.get("name")
    return facet


_MAJOR_WHEN_OTHER: dict[str, str] = {
    "architecture": "the architecture",
    "vocabSize": "the vocabulary",
    "tokenizer": "the tokenizer",
    "chatTemplate": "the chat template",
}
_MINOR_WHEN_OTHER: dict[str, str] = {
    "dtype": "the type of the weights",
    "quantization": "the quantisation",
}


def _said(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 24 else text[:24] + "..."


def _differs(name: str, words: str) -> Callable[[Facet, Facet], str | None]:
    def rule(old: Facet, new: Facet) -> str | None:
        if old.get(name) == new.get(name):
            return None
        return f"{words}: {_said(old.get(name))} -> {_said(new.get(name))}"

    return rule


def _smaller_context(old: Facet, new: Facet) -> str | None:
    before, after = old.get("context"), new.get("context")
    if not isinstance(before, int) or (isinstance(after, int) and after >= before):
        return None
    return f"a smaller context: {before} -> {_said(after)}"


def _larger_context(old: Facet, new: Facet) -> str | None:
    before, after = old.get("context"), new.get("context")
    if not isinstance(after, int) or (isinstance(before, int) and after <= before):
        return None
    return f"a larger context: {_said(before)} -> {after}"


def _other_base(old: Facet, new: Facet) -> str | None:
    if new.get("kind") != "adapter" or old.get("base") == new.get("base"):
        return None
    return f"another base of the adapter: {_said(old.get('base'))} -> {_said(new.get('base'))}"


def _other_layout(old: Facet, new: Facet) -> str | None:
    """Names or shapes differ: what the tensors' digest tells once the type is the same."""
    if any(old.get(name) != new.get(name) for name in _MINOR_WHEN_OTHER):
        return None
    if old.get("parameters") != new.get("parameters"):
        return f"the parameters: {_said(old.get('parameters'))} -> {_said(new.get('parameters'))}"
    if old.get("tensors") != new.get("tensors"):
        return "the names or shapes of the tensors"
    return None


def _other_weights(old: Facet, new: Facet) -> str | None:
    by_content = old.get("weights") is not None and old.get("weights") == new.get("weights")
    if by_content or old.get("weightFiles") == new.get("weightFiles"):
        return None
    return "other weights"


_RULES: tuple[tuple[Level, Callable[[Facet, Facet], str | None]], ...] = (
    (Level.MAJOR, _differs("kind", "the kind")),
    *((Level.MAJOR, _differs(name, words)) for name, words in _MAJOR_WHEN_OTHER.items()),
    (Level.MAJOR, _smaller_context),
    (Level.MAJOR, _other_base),
    (Level.MAJOR, _other_layout),
    *((Level.MINOR, _differs(name, words)) for name, words in _MINOR_WHEN_OTHER.items()),
    (Level.MINOR, _larger_context),
    (Level.MINOR, _other_weights),
)


def compare(old: Facet, new: Facet) -> Change:
    """Return what it means to go from ``old`` to ``new``, with every reason that applies."""
    found = [(level, reason) for level, rule in _RULES if (reason := rule(old, new)) is not None]
    level = max((level for level, _ in found), default=Level.PATCH)
    return Change(level, tuple(reason for _, reason in found))


def successor(version: Version, level: Level) -> Version:
    """Return the version that follows ``version`` after a change of ``level``."""
    if level is Level.MAJOR:
        return Version(version.major + 1, 0, 0)
    if level is Level.MINOR:
        return Version(version.major, version.minor + 1, 0)
    return Version(version.major, version.minor, version.patch + 1)
