"""Which log lines are shown: by severity, by time, by pattern. Asks nobody, prints nothing."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import FrameType
from typing import Any, Final

PATTERN_CHARS_MAX: Final = 500
PAGE_SECONDS_MAX: Final = 2.0
"""The longest that a user's pattern may work on one page of lines."""

_ERROR: Final = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|\b(?:error|fatal):|^Traceback \(most recent|"
    r"^\s*(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b"
)
_WARNING: Final = re.compile(r"\bWARN(?:ING)?\b|\bwarn(?:ing)?:|\b[A-Z]\w*Warning\b")
_SPAN: Final = re.compile(r"(\d{1,9})\s*(s|m|min|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


class Level(StrEnum):
    """The least severity of a line, as its text tells it."""

    WARNING = "warning"
    ERROR = "error"


class FilterError(ValueError):
    """A filter that cannot be used; its message says why and what is meant."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines are shown. ``since``: milliseconds since the epoch."""

    level: Level | None = None
    since: int | None = None
    pattern: re.Pattern[str] | None = None

    def chosen(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the lines that pass, in order.

        Raises ``FilterError`` when the pattern works for more than ``PAGE_SECONDS_MAX``.
        """
        found = [line for line in lines if self._passes(line)]
        if self.pattern is None:
            return found
        with _bounded(f"the pattern {self.pattern.pattern!r} takes too long; write a simpler one"):
            return [line for line in found if self.pattern.search(line["text"])]

    def _passes(self, line: dict[str, Any]) -> bool:
        if self.since is not None and line["at"] < self.since:
            return False
        if self.level is None:
            return True
        level = level_of(line["text"])
        return level is Level.ERROR or (level is Level.WARNING and self.level is Level.WARNING)


def level_of(text: str) -> Level | None:
    """Return how severe a line says it is; None when it does not say."""
    if _ERROR.search(text):
        return Level.ERROR
    return Level.WARNING if _WARNING.search(text) else None


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile a user's pattern. Raises ``FilterError``."""
    if len(text) > PATTERN_CHARS_MAX:
        raise FilterError(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise FilterError(f"{text!r} is no regular expression: {error}") from None


def moment_of(text: str, now: datetime) -> int:
    """Read ``10m``, ``2h``, ``14:30``, or a date and time; return milliseconds since the epoch.

    ``now`` has a time zone, which counts where the text has none; a time of day that is still to
    come means yesterday's. Raises ``FilterError``.
    """
    stripped = text.strip()
    if span := _SPAN.fullmatch(stripped):
        seconds = int(span[1]) * _SECONDS[span[2]]
        return round(now.timestamp() * 1000) - seconds * 1000
    if clock := _CLOCK.fullmatch(stripped):
        hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        at = at if at <= now else at - timedelta(days=1)
    else:
        try:
            at = datetime.fromisoformat(stripped)
        except ValueError:
            hint = "write 10m, 2h, 14:30 or 2026-05-01T14:30"
            raise FilterError(f"{text!r} is no time: {hint}") from None
    return round((at if at.tzinfo else at.replace(tzinfo=now.tzinfo)).timestamp() * 1000)


@contextmanager
def _bounded(message: str) -> Iterator[None]:
    """Raise ``FilterError`` after a while; the regular expression engine looks for signals."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise FilterError(message)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, PAGE_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
