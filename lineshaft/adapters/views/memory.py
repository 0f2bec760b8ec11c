"""Views in memory, for the tests of this project and of its users."""

import asyncio
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lineshaft.adapters.views import matching
from lineshaft.ports import Document


@dataclass(frozen=True, slots=True)
class _Held:
    version: int
    stream: str
    body: str
    tokens: dict[str, str]

    def document(self, kind: str, id: str) -> Document:
        return Document(kind, id, self.version, json.loads(self.body), self.stream)


@dataclass(slots=True)
class _Kind:
    held: dict[str, _Held] = field(default_factory=dict)
    order: list[str] | None = None  # the ids, sorted; None after a change of the set

    def sorted_ids(self) -> list[str]:
        if self.order is None:
            self.order = sorted(self.held)
        return self.order


class MemoryViews:
    """Documents of one process; they are kept as JSON, as the durable views keep them."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    async def put(self, documents: Sequence[Document]) -> None:
        """Store each document unless one of its stream is stored in this or a higher version.

        A document from another stream replaces: versions of two streams do not compare.
        Raises ``ValueError``, with nothing stored, for what no store can hold.
        """
        bodies = [matching.stored(document) for document in documents]
        await asyncio.sleep(0)
        for document, body in zip(documents, bodies, strict=True):
            kind = self._kinds.setdefault(document.kind, _Kind())
            held = kind.held.get(document.id)
            is_known = held is not None and held.stream == document.stream
            if is_known and held is not None and held.version >= document.version:
                continue
            if held is None:
                kind.order = None
            tokens = matching.tokens(document.body)
            kind.held[document.id] = _Held(document.version, document.stream, body, tokens)

    async def get(self, kind: str, id: str) -> Document | None:
        """Return one document."""
        held = self._kinds.get(kind, _Kind()).held.get(id)
        return None if held is None else held.document(kind, id)

    async def find(
        self,
        kind: str,
        where: Mapping[str, Any] | None = None,
        *,
        limit: int = 1000,
        after: str = "",
    ) -> list[Document]:
        """Return documents by id, higher than ``after``, whose top-level fields equal ``where``.

        Raises ``ValueError`` for a field or a value that nothing is found by.
        """
        wanted = matching.wanted(where)
        of_kind = self._kinds.get(kind, _Kind())
        ids = of_kind.sorted_ids()
        found: list[Document] = []
        for place in range(bisect_right(ids, after), len(ids)):
            if len(found) >= limit:
                break
            held = of_kind.held[ids[place]]
            if all(held.tokens.get(name) == token for name, token in wanted.items()):
                found.append(held.document(kind, ids[place]))
        return found

    async def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Forget documents; those that are absent are no error."""
        await asyncio.sleep(0)
        of_kind = self._kinds.get(kind)
        for id in ids:
            if of_kind is not None and of_kind.held.pop(id, None) is not None:
                of_kind.order = None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to let go of."""
