"""A process that writes into a SQLite journal and says what was acknowledged.

``child.py contend FILE NAME COUNT`` appends to one stream against others until the stream has
COUNT entries. ``child.py pour FILE NAME`` appends to eight streams until it is killed.
``child.py fill FILE NAME COUNT`` appends COUNT entries. Each line: stream, seq, entry id.
"""

import asyncio
import sys
from pathlib import Path

from lineshaft.adapters.journal.sqlite import SqliteJournal
from lineshaft.ports import AppendStatus
from tests.builders_stores import an_entry


async def last_seq(journal: SqliteJournal, stream: str) -> int:
    seqs = [entry.seq async for entry in journal.read(stream, 0)]
    return seqs[-1] if seqs else 0


async def append(journal: SqliteJournal, stream: str, seq: int, name: str) -> bool:
    entry_id = f"{name}:{stream}:{seq}"
    entry = an_entry(stream, seq, entry_id, entry_id=entry_id, filler="x" * 3000)
    [told] = await journal.append([entry])
    if told.status is AppendStatus.OK:
        sys.stdout.write(f"{stream} {seq} {entry_id}\n")
        sys.stdout.flush()
    return told.status is AppendStatus.OK


async def contend(journal: SqliteJournal, name: str, count: int) -> None:
    seq = 0
    while seq < count:
        seq = (
            seq + 1
            if await append(journal, "one", seq + 1, name)
            else (await last_seq(journal, "one"))
        )


async def pour(journal: SqliteJournal, name: str, stream: str) -> None:
    seq = await last_seq(journal, stream)
    while True:
        seq += 1
        await append(journal, stream, seq, name)


async def main(mode: str, file: str, name: str, count: int = 0) -> None:
    journal = SqliteJournal(Path(file))
    if mode == "contend":
        await contend(journal, name, count)
    elif mode == "fill":
        for seq in range(1, count + 1):
            await append(journal, "one", seq, name)
    else:
        await asyncio.gather(*(pour(journal, name, f"s{n}") for n in range(8)))
    await journal.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:])))
