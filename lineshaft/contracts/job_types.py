"""The simple types of a job file's fields: how a value is checked, read and described.

A type turns a value of a document into its canonical form, or records faults; it never raises.
Lists, mappings and records are in ``job_records``, the table of fields is in ``job_fields``.
Standard library only.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lineshaft.contracts import ids, limits
from lineshaft.contracts.job_faults import FaultList, Path, nearest, shown

NOT_YET: Final = "is not honoured by this platform yet"
_WHOLE = re.compile(r"^[+-]?[0-9]{1,18}$", re.ASCII)
_NUMBER = re.compile(r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?$", re.ASCII)
_DURATION = re.compile(
    r"^(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?$", re.ASCII
)
_TRUE = frozenset(("true", "yes", "on"))
_FALSE = frozenset(("false", "no", "off"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands, and where faults go."""

    path: Path
    faults: FaultList

    def down(self, key: str | int) -> "Place":
        """Return the place of a part of this value."""
        return Place((*self.path, key), self.faults)

    def fault(self, message: str, meant: str | None = None) -> None:
        """Record what is wrong here."""
        self.faults.add(self.path, message, meant)


class Type(Protocol):
    """What a field holds."""

    def read(self, value: Any, place: Place) -> Any:
        """Return the canonical form of ``value``; on a fault, record it and return None."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of this type."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """A text on one line, or on several where ``is_long``."""

    chars_max: int = limits.JOB_TEXT_CHARS_MAX
    pattern: str | None = None
    form: str = ""
    is_long: bool = False

    def read(self, value: Any, place: Place) -> str | None:
        """Accept texts only: a number or a truth value must be quoted."""
        if not isinstance(value, str):
            hint = ": put it in quotes" if isinstance(value, int | float) else ""
            place.fault(f"must be a text, not {kind_of(value)}{hint}")
            return None
        if not value or len(value) > self.chars_max:
            place.fault(f"must have 1 to {self.chars_max} characters")
            return None
        if not self.is_long and not value.isprintable():
            place.fault("must be printable text on one line")
            return None
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            place.fault(f"must be {self.form}, not '{shown(value)}'")
            return None
        return value

    def schema(self) -> dict[str, Any]:
        """Describe the text."""
        made: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": self.chars_max}
        return made | ({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {})


@dataclass(frozen=True, slots=True)
class Name:
    """A checked name: 1 to 63 of a-z, 0-9 and '-', not at either end."""

    def read(self, value: Any, place: Place) -> str | None:
        """Accept a name; suggest one for what is nearly a name."""
        if isinstance(value, str) and ids.is_name(value):
            return value
        if not isinstance(value, str):
            hint = ": put it in quotes" if isinstance(value, int | float) else ""
            place.fault(f"must be a name, not {kind_of(value)}{hint}")
            return None
        made = ids.slug(value[:256])
        meant = made if ids.is_name(made) else None
        hint = f"; '{meant}' would do" if meant else ""
        rule = "1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
        place.fault(f"'{shown(value)}' is no name: {rule}{hint}", meant)
        return None

    def schema(self) -> dict[str, Any]:
        """Describe the name."""
        return {"type": "string", "pattern": ids.NAME.pattern}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``low`` to ``high``."""

    low: int = 0
    high: int = 1 << 53

    def read(self, value: Any, place: Place) -> int | None:
        """Accept whole numbers, also as text (``"16"``) or with a zero fraction (``16.0``)."""
        number = _whole(value)
        if number is None:
            place.fault(f"must be a whole number, not {kind_of(value)}")
        elif not self.low <= number <= self.high:
            place.fault(f"must be {range_of(self.low, self.high)}, not {number}")
        else:
            return number
        return None

    def schema(self) -> dict[str, Any]:
        """Describe the number."""
        return {"type": ["integer", "string"], "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number: ``low`` or ``above`` (without it) up to ``high`` or ``below``."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def read(self, value: Any, place: Place) -> float | None:
        """Accept numbers, also as text (``1e-5`` is one in YAML 1.1)."""
        number = _number(value)
        if number is None:
            place.fault(f"must be a number, not {kind_of(value)}")
            return None
        if not math.isfinite(number) or not self._holds(number):
            place.fault(f"must be a number {self._words()}, not {shown(str(value))}")
            return None
        return number

    def _holds(self, number: float) -> bool:
        return (
            (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def _words(self) -> str:
        words = {
            "of at least": self.low,
            "above": self.above,
            "of at most": self.high,
            "below": self.below,
        }
        said = " and ".join(
            f"{word} {bound:g}" for word, bound in words.items() if bound is not None
        )
        return said or "that is finite"

    def schema(self) -> dict[str, Any]:
        """Describe the number."""
        bounds = {
            "minimum": self.low,
            "maximum": self.high,
            "exclusiveMinimum": self.above,
            "exclusiveMaximum": self.below,
        }
        return {"type": ["number", "string"]} | {k: v for k, v in bounds.items() if v is not None}


@dataclass(frozen=True, slots=True)
class Duration:
    """A time in seconds from ``low`` to ``high``; canonical is a whole number of seconds."""

    low: int = 1
    high: int = 366 * 86_400

    def read(self, value: Any, place: Place) -> int | None:
        """Accept seconds (``90``) or a text with units: ``90s``, ``30m``, ``2h``, ``1d12h``."""
        seconds = _whole(value)
        if seconds is None and isinstance(value, str):
            match = _DURATION.match(value.strip())
            if match is not None and value.strip():
                units = zip(match.groups(), (86_400, 3_600, 60, 1), strict=True)
                seconds = sum(int(count or 0) * unit for count, unit in units)
        if seconds is None:
            place.fault(f"must be seconds, or as in 90s, 30m, 2h, 1d12h, not {kind_of(value)}")
        elif not self.low <= seconds <= self.high:
            place.fault(f"must be {range_of(self.low, self.high)} seconds, not {seconds}")
        else:
            return seconds
        return None

    def schema(self) -> dict[str, Any]:
        """Describe the duration."""
        return {"type": ["integer", "string"], "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def read(self, value: Any, place: Place) -> bool | None:
        """Accept truth values and the words yes, no, on, off, true, false."""
        if isinstance(value, bool):
            return value
        word = value.lower() if isinstance(value, str) else ""
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        place.fault(f"must be true or false, not {kind_of(value)}")
        return None

    def schema(self) -> dict[str, Any]:
        """Describe the flag."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class AutoFlag:
    """True, false, or ``auto``: the platform chooses."""

    def read(self, value: Any, place: Place) -> bool | str | None:
        """Accept ``auto`` and what a flag accepts."""
        return "auto" if value == "auto" else Flag().read(value, place)

    def schema(self) -> dict[str, Any]:
        """Describe the three."""
        return {"enum": [True, False, "auto"]}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words; those in ``later`` are known and refused by name."""

    words: tuple[str, ...]
    later: tuple[str, ...] = ()

    def read(self, value: Any, place: Place) -> str | None:
        """Accept a word of the list, in any letter case; name the nearest for another."""
        word = value.strip() if isinstance(value, str) else ""
        if word in self.words:
            return word
        if word in self.later:
            place.fault(f"'{word}' {NOT_YET}; {listed(self.words)}")
            return None
        meant = nearest(word, self.words) if word else None
        hint = f"; did you mean '{meant}'?" if meant else ""
        place.fault(f"must be {listed(self.words)}, not {kind_of(value)}{hint}", meant)
        return None

    def schema(self) -> dict[str, Any]:
        """Describe the words."""
        return {"enum": list(self.words)}


def kind_of(value: Any) -> str:
    """Return what a value is, as messages say it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"'{shown(word_of(value))}'"


def word_of(value: Any) -> str:
    """Return a value as a job file spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1 << 53 else None
    return int(value) if isinstance(value, str) and _WHOLE.match(value.strip()) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        text = value.strip()
        return float(text) if len(text) <= 64 and _NUMBER.match(text) else None
    return float(value) if isinstance(value, float) or abs(value) < 1 << 63 else None


def range_of(low: int, high: int) -> str:
    """Return bounds in words."""
    return f"at least {low}" if high >= 1 << 53 else f"from {low} to {high}"


def listed(words: tuple[str, ...]) -> str:
    """Return words as ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
