"""What a key of an object is, and what byte ranges mean. No store is touched here.

Standard library only: the agent imports this module.
"""

import unicodedata

KEY_CHARS_MAX = 1024
PART_BYTES_MAX = 255
PARTS_MAX = 64
RESERVED = ".partial"
CHUNK_BYTES = 1024 * 1024


def checked(key: str) -> tuple[str, ...]:
    """Return the parts of ``key``. Raises ``ValueError`` that says what is wrong with it.

    A key has 1 to 1,024 characters in at most 64 parts between slashes; a part has 1 to 255
    bytes, is not ``.`` or ``..``, and holds neither backslashes nor control characters.
    """
    if not isinstance(key, str) or not key:
        raise ValueError("a key is a text, not empty")
    if len(key) > KEY_CHARS_MAX:
        raise ValueError(f"a key of {len(key)} characters; {KEY_CHARS_MAX} are allowed")
    parts = tuple(key.split("/"))
    if len(parts) > PARTS_MAX:
        raise ValueError(f"a key of {len(parts)} parts; {PARTS_MAX} are allowed")
    for part in parts:
        fault = _fault(part)
        if fault:
            raise ValueError(f"{key!r} is no key: {fault}")
    if parts[0] == RESERVED:
        raise ValueError(f"{key!r} is no key: '{RESERVED}' is the store's own")
    return parts


def is_key(key: str) -> bool:
    """Whether ``checked`` would accept ``key``."""
    try:
        checked(key)
    except ValueError:
        return False
    return True


def check_range(start: int, end: int | None) -> None:
    """Raise ``ValueError`` unless ``start`` and ``end`` are positions in an object."""
    if start < 0 or (end is not None and end < 0):
        raise ValueError(f"{start} to {end} is no range of bytes; both count from the beginning")


def occupied(key: str) -> ValueError:
    """Return the error for a key whose place is, or lies behind, another object's key."""
    return ValueError(
        f"{key!r} cannot be stored: an object's key may not continue another object's key with '/'"
    )


def _fault(part: str) -> str:
    if not part:
        return "it begins or ends with '/', or has two in a row"
    if part in (".", ".."):
        return f"it has a part '{part}'"
    if "\\" in part or any(unicodedata.category(char) == "Cc" for char in part):
        return "it has a backslash or a control character"
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return "it is not whole Unicode"
    return f"a part has more than {PART_BYTES_MAX} bytes" if size > PART_BYTES_MAX else ""
