"""Snapshots of a lane's state: parts in Objects, a mark that points at the last whole one.

A snapshot is never the truth: whatever is wrong with one, the state is replayed from the journal.
"""

import json
from typing import Any

from lineshaft.contracts import limits, records
from lineshaft.contracts.ids import digest_of
from lineshaft.ports import Journal, ObjectExists, ObjectMissing, Objects, StoreUnavailable


class SnapshotDamaged(Exception):
    """A snapshot cannot be used; its message says why."""


def mark_of(stream: str) -> str:
    """Return the name of the mark that points at a stream's last whole snapshot."""
    return f"snapshot/{stream}"


class Snapshots:
    """Keeps and finds the snapshots of one service's streams."""

    def __init__(self, service: str, journal: Journal, objects: Objects) -> None:
        self._service = service
        self._journal = journal
        self._objects = objects

    async def keep(self, dumped: dict[str, Any], raw: bytes) -> None:
        """Store ``raw`` (``dumped`` as JSON), then move the pointer. Raises what the stores raise.

        The one before is kept until the next; older parts are deleted.
        """
        stream, seq = dumped["stream"], dumped["seq"]
        name = mark_of(stream)
        old = (await self._journal.marks(name)).get(name)
        if old is not None and old.value["seq"] >= seq:
            return
        pieces = [raw[at : at + limits.PART_BYTES] for at in range(0, len(raw), limits.PART_BYTES)]
        for number, piece in enumerate(pieces):
            key = records.snapshot(self._service, stream, seq, number)
            try:
                await self._objects.put(key, piece)
            except ObjectExists:  # an earlier try that did not reach its mark
                await self._objects.put(key, piece, replace=True)
        value = {
            "seq": seq,
            "digest": digest_of(raw),
            "parts": len(pieces),
            "before": None if old is None else [old.value["seq"], old.value["parts"]],
        }
        set_now = await self._journal.mark(name, value, 0 if old is None else old.version)
        if set_now is not None and old is not None and old.value.get("before"):
            seq_before, parts = old.value["before"]
            await self._objects.delete(
                [records.snapshot(self._service, stream, seq_before, n) for n in range(parts)]
            )

    async def find(self, stream: str) -> dict[str, Any] | None:
        """Return the last whole snapshot of ``stream``, or None when there is none.

        Raises ``SnapshotDamaged``, or ``StoreUnavailable`` when a store does not answer.
        """
        name = mark_of(stream)
        mark = (await self._journal.marks(name)).get(name)
        if mark is None:
            return None
        try:
            raw = b"".join(
                [
                    piece
                    for number in range(mark.value["parts"])
                    async for piece in self._objects.open(
                        records.snapshot(self._service, stream, mark.value["seq"], number)
                    )
                ]
            )
            if digest_of(raw) != mark.value["digest"]:
                raise SnapshotDamaged("its digest differs")
            dumped: dict[str, Any] = json.loads(raw)
        except (ObjectMissing, ValueError, KeyError, TypeError) as error:
            raise SnapshotDamaged(repr(error)) from error
        except StoreUnavailable as error:
            # The journal answered and holds everything: Objects may be away.
            raise SnapshotDamaged(f"objects do not answer: {error}") from error
        if dumped.get("stream") != stream or dumped.get("seq") != mark.value["seq"]:
            raise SnapshotDamaged("it is of another stream or place")
        return dumped
