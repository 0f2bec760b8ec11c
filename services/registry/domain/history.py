"""The history of an alias and what it answers: what was live, when, and who moved it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any


def at(moves: Iterable[Mapping[str, Any]], when: int) -> Mapping[str, Any] | None:
    """Return the last of ``moves`` ({at, from, to, actor, reason, ...}, oldest first) by ``when``.

    ``when`` is milliseconds since the epoch; a move at that very millisecond counts. None: the
    alias did not exist yet.
    """
    found = None
    for move in moves:
        if move["at"] > when:
            break
        found = move
    return found
