"""What "equal" means when documents are found by their top-level fields.

No store is touched here. Equality is JSON's: ``true`` is not 1, 1 is 1.0, and null equals an
absent field. Every adapter compares the same tokens, so all of them agree.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from lineshaft.ports import Document

_FIELD = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_WHOLE_MAX = (1 << 63) - 1


def wanted(where: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the token that each field of ``where`` must have; None means null or absent.

    Raises ``ValueError`` for a name that is no field, or a value that is no JSON scalar.
    """
    made: dict[str, str | None] = {}
    for name, value in (where or {}).items():
        if not _FIELD.match(name):
            raise ValueError(f"{name!r} is no field that documents are found by")
        token = _token(value)
        if token is None and value is not None:
            raise ValueError(f"'{name}': documents are found by texts, numbers, booleans and null")
        made[name] = token
    return made


def tokens(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the token of each top-level field of ``body`` by which it can be found.

    A list, an object, or a number that is none has a token that equals nothing.
    """
    return {
        name: _token(value) or ""
        for name, value in body.items()
        if isinstance(name, str) and _FIELD.match(name) and value is not None
    }


def stored(document: Document) -> str:
    """Return the body as JSON. Raises ``ValueError`` for what no store can hold."""
    for text in (document.kind, document.id, document.stream):
        text.encode()  # raises a ValueError when it is not whole Unicode
        if "\0" in text:
            raise ValueError("a document's kind, id and stream hold no NUL")
    if not document.kind or not document.id:
        raise ValueError("a document needs a kind and an id")
    if not 0 <= document.version <= _WHOLE_MAX:
        raise ValueError(f"{document.version} is no version of a document")
    try:
        return json.dumps(document.body, separators=(",", ":"))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{document.kind} {document.id}: not JSON: {error}") from None


def _token(value: Any) -> str | None:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) <= _WHOLE_MAX else None
    if isinstance(value, float) and math.isfinite(value):
        is_whole = value.is_integer() and abs(value) <= _WHOLE_MAX
        return str(int(value)) if is_whole else repr(value)
    return None
