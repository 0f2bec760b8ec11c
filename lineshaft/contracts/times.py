"""RFC 3339 times and milliseconds since the epoch, both ways, without a clock.

Standard library only.
"""

import re
from typing import Any


class TimeError(ValueError):
    """A text that is no RFC 3339 time."""


def rfc3339(at: int) -> str:
    """Return milliseconds since the epoch as an RFC 3339 time in UTC."""
    days, rest = divmod(at, 86_400_000)
    year, month, day = _civil(days)
    hour, rest = divmod(rest, 3_600_000)
    minute, rest = divmod(rest, 60_000)
    second, milli = divmod(rest, 1000)
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{milli:03d}Z"


_TIME = re.compile(
    r"^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))$"
)


def milliseconds(value: Any) -> int:
    """Read an RFC 3339 time (or nothing: 0) as milliseconds since the epoch."""
    if value is None:
        return 0
    match = _TIME.match(value) if isinstance(value, str) else None
    if match is None:
        raise TimeError("'time' must be an RFC 3339 time")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        raise TimeError("'time' must be an RFC 3339 time")
    milli = int((match[7] or "0").ljust(3, "0")[:3])
    at = ((_days(year, month, day) * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + milli
    if match[8]:
        offset = (int(match[9]) * 60 + int(match[10])) * 60_000
        at += offset if match[8] == "-" else -offset
    return at


# Days from the civil calendar and back: Hinnant, "chrono-Compatible Low-Level Date Algorithms".
def _days(year: int, month: int, day: int) -> int:
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return year + era * 400 + (month <= 2), month, day
