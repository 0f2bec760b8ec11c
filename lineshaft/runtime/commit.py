"""What an append's answer means: committed, known, unknown, or somebody else's place.

An answer is believed only where it is proof. For any other, the entry is looked for where it
would stand, and its id tells whose it is.
"""

from collections.abc import Sequence
from enum import StrEnum

from lineshaft.ports import Appended, AppendStatus, Entry, Journal, StoreUnavailable


class Verdict(StrEnum):
    """What became of one entry."""

    COMMITTED = "committed"
    KNOWN = "known"  # a cause was recorded before: decide the others again
    TAKEN = "taken"  # another entry stands at this place
    UNDECIDED = "undecided"  # the store does not answer, or nothing stands there (yet)


async def append(journal: Journal, entries: Sequence[Entry]) -> list[tuple[Verdict, Appended]]:
    """Append ``entries`` (one per stream) in one commit and find out what became of each."""
    try:
        answers = await journal.append(entries)
    except StoreUnavailable:
        answers = [Appended(AppendStatus.UNKNOWN)] * len(entries)
    return [
        (await _judge(journal, entry, answer), answer)
        for entry, answer in zip(entries, answers, strict=True)
    ]


async def _judge(journal: Journal, entry: Entry, answer: Appended) -> Verdict:
    if answer.status is AppendStatus.OK:
        return Verdict.COMMITTED
    try:
        found = await entry_at(journal, entry.stream, entry.seq)
    except StoreUnavailable:
        return Verdict.UNDECIDED
    if found is not None and found.entry_id == entry.entry_id:
        return Verdict.COMMITTED
    if answer.status is AppendStatus.DUPLICATE_CAUSE:
        return Verdict.KNOWN
    if found is not None or answer.status is AppendStatus.SEQ_CONFLICT:
        return Verdict.TAKEN
    return Verdict.UNDECIDED


async def entry_at(journal: Journal, stream: str, seq: int) -> Entry | None:
    """Return the entry at (stream, seq), or None."""
    async for entry in journal.read(stream, seq - 1, limit=1):
        return entry if entry.seq == seq else None
    return None
