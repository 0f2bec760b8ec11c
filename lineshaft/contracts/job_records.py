"""The composed types of a job file: lists, mappings, alternatives, and records of named fields.

A record fills in defaults, refuses unknown fields with the nearest known name, and refuses by
name the fields that are known but not honoured yet. Standard library only.
"""

import functools
import re
from dataclasses import dataclass
from typing import Any, Final

from lineshaft.contracts.job_faults import nearest, shown
from lineshaft.contracts.job_types import NOT_YET, Place, Text, Type, kind_of, range_of, word_of


class Missing:
    """Marks a field without default: it is required."""


MISSING: Final = Missing()
_TEXT: Final = Text()


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of ``least`` to ``most`` values of one type."""

    item: Type
    least: int = 0
    most: int = 256

    def read(self, value: Any, place: Place) -> list[Any] | None:
        """Read every item; a single text where a list of texts is meant is a fault."""
        if not isinstance(value, list):
            place.fault(f"must be a list ('- ...' per line), not {kind_of(value)}")
            return None
        if not self.least <= len(value) <= self.most:
            place.fault(f"must have {range_of(self.least, self.most)} items, not {len(value)}")
            return None
        return [self.item.read(each, place.down(i)) for i, each in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        """Describe the list."""
        bounds = {"minItems": self.least, "maxItems": self.most}
        return {"type": "array", "items": self.item.schema(), **bounds}


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping of free keys that match ``keys`` to values of one type."""

    item: Type
    keys: str = r"[A-Za-z0-9_.\-/]{1,128}"
    most: int = 256

    def read(self, value: Any, place: Place) -> dict[str, Any] | None:
        """Read every value; check every key."""
        if not isinstance(value, dict):
            place.fault(f"must be a mapping, not {kind_of(value)}")
            return None
        if len(value) > self.most:
            place.fault(f"must have at most {self.most} keys, not {len(value)}")
            return None
        for key in value:
            if not re.fullmatch(self.keys, key):
                place.down(key).fault("is not a key that is allowed here")
        return {key: self.item.read(each, place.down(key)) for key, each in value.items()}

    def schema(self) -> dict[str, Any]:
        """Describe the mapping."""
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^{self.keys}$"},
            "additionalProperties": self.item.schema(),
            "maxProperties": self.most,
        }


@dataclass(frozen=True, slots=True)
class Free:
    """A mapping whose keys are another program's business (a model configuration)."""

    def read(self, value: Any, place: Place) -> dict[str, Any] | None:
        """Accept any mapping; its bounds were checked with the whole document."""
        if not isinstance(value, dict):
            place.fault(f"must be a mapping, not {kind_of(value)}")
            return None
        return value

    def schema(self) -> dict[str, Any]:
        """Describe the mapping."""
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class TextOr:
    """A text, or else a value of another type."""

    other: Type

    def read(self, value: Any, place: Place) -> Any:
        """Read by what the value is."""
        chosen: Type = _TEXT if isinstance(value, str) else self.other
        return chosen.read(value, place)

    def schema(self) -> dict[str, Any]:
        """Describe both."""
        return {"anyOf": [_TEXT.schema(), self.other.schema()]}


@dataclass(frozen=True, slots=True)
class Exactly:
    """A field of which only one value is honoured; every other is refused by name."""

    inner: Type
    only: Any

    def read(self, value: Any, place: Place) -> Any:
        """Accept the one value."""
        read = self.inner.read(value, place)
        if read is not None and read != self.only:
            place.fault(f"'{shown(word_of(read))}' {NOT_YET}; only '{word_of(self.only)}' is")
        return self.only

    def schema(self) -> dict[str, Any]:
        """Describe the one value."""
        return {"const": self.only}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, what it holds, its default, and what it is for.

    ``later`` fields are known and refused by name. ``names`` lists the names below a
    refused field, so that the reference is whole.
    """

    name: str
    type: Type
    default: Any = None
    summary: str = ""
    later: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A mapping with known fields."""

    fields: tuple[Field, ...]

    def read(self, value: Any, place: Place) -> dict[str, Any] | None:
        """Read every field, fill in defaults, refuse what is unknown or not honoured yet."""
        if not isinstance(value, dict):
            place.fault(f"must be a mapping, not {kind_of(value)}")
            return None
        blank, known = _blank(self)
        made: dict[str, Any] = copied(blank)
        for key in value:
            if key not in known:
                self._unknown(key, place.down(key))
        for name, field in known.items():
            if field.later:
                if name in value:
                    place.down(name).fault(NOT_YET)
            elif value.get(name) is not None:
                here = place.down(name)
                here.faults.given.add(here.path)
                made[name] = field.type.read(value[name], here)
            elif isinstance(field.default, Missing):
                why = "has no value" if name in value else "is missing"
                place.down(name).fault(f"{why}: {field.summary}" if field.summary else why)
        return made

    def _unknown(self, key: str, place: Place) -> None:
        if place.faults.is_full:
            return
        meant = nearest(key, (field.name for field in self.fields))
        hint = f"; did you mean '{meant}'?" if meant else ""
        place.fault(f"is not a field{hint}", meant)

    def schema(self) -> dict[str, Any]:
        """Describe the fields that are honoured."""
        honoured = [field for field in self.fields if not field.later]
        properties = {f.name: f.type.schema() | _described(f) for f in honoured}
        required = [f.name for f in honoured if isinstance(f.default, Missing)]
        made = {"type": "object", "properties": properties, "additionalProperties": False}
        return made | ({"required": required} if required else {})


@functools.cache
def _blank(record: Record) -> tuple[dict[str, Any], dict[str, Field]]:
    """Return what an empty mapping reads as (None where something is required), and the fields."""
    known = {field.name: field for field in record.fields}
    made: dict[str, Any] = {}
    for field in record.fields:
        if isinstance(field.type, Record) and field.default == {}:
            made[field.name] = _blank(field.type)[0]
        elif not field.later:
            made[field.name] = None if isinstance(field.default, Missing) else field.default
    return made, known


def copied(value: Any) -> Any:
    """Return a copy of JSON values that shares no mapping or list with them."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def _described(field: Field) -> dict[str, Any]:
    made: dict[str, Any] = {"description": field.summary} if field.summary else {}
    if field.default is not None and not isinstance(field.default, Missing) and field.default != {}:
        made["default"] = field.default
    return made
