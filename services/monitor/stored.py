"""Small reads of JSON objects out of Objects, for those who answer questions about runs."""

import json
from typing import Any

from lineshaft.ports import ObjectMissing, Objects, ObjectStat


async def read_bytes(objects: Objects, key: str, most: int) -> bytes | None:
    """Return an object's content, or None when it is absent or larger than ``most`` bytes."""
    made = bytearray()
    try:
        async for chunk in objects.open(key):
            made += chunk
            if len(made) > most:
                return None
    except ObjectMissing:
        return None
    return bytes(made)


async def read_json(objects: Objects, key: str, most: int) -> dict[str, Any] | None:
    """Return a JSON object, or None when it is absent, too large, or none."""
    raw = await read_bytes(objects, key, most)
    try:
        body = None if raw is None else json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


async def first(objects: Objects, prefix: str, after: str = "") -> ObjectStat | None:
    """Return the first object under ``prefix`` whose key is behind ``after``."""
    async for stat in objects.list(prefix, after):
        return stat
    return None
