"""How many appends a second the SQLite journal makes durable, beside a bare sync.

Run with ``python -m benchmarks.journal_appends [folder]``. Both are measured in the same run on
the same disk; the ratios are what counts, not the numbers of one machine.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from lineshaft.adapters.journal.sqlite import SqliteJournal
from lineshaft.contracts.events import Event
from lineshaft.ports import Entry

ROUNDS = 300
BODY = {"state": "queued", "reason": "waits for a node", "actor": "scheduler", "note": "x" * 400}


def an_entry(stream: str, seq: int) -> Entry:
    """One decision about one job."""
    event = Event("job.queued", BODY, subject="j-1", pool="default", team="research")
    return Entry(stream, seq, f"{stream}:{seq}", seq, (f"cause:{stream}:{seq}",), (event,))


def bare_sync_ms(folder: Path) -> list[float]:
    """Overwrite 4 KiB of a file that has its size already, and sync: the least a commit costs."""
    spent = []
    with (folder / "bare").open("wb", buffering=0) as file:
        file.write(b"\0" * 4096 * ROUNDS)
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(ROUNDS):
            file.write(b"x" * 4096)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            spent.append((time.perf_counter() - begun) * 1000)
    return spent


async def alone_ms(journal: SqliteJournal) -> list[float]:
    """One append after the other."""
    spent = []
    for seq in range(1, ROUNDS + 1):
        begun = time.perf_counter()
        await journal.append([an_entry("alone", seq)])
        spent.append((time.perf_counter() - begun) * 1000)
    return spent


async def together_per_s(journal: SqliteJournal, writers: int) -> float:
    """As many callers as ``writers``, each on a stream of its own."""

    async def write(stream: str) -> None:
        for seq in range(1, 41):
            await journal.append([an_entry(stream, seq)])

    begun = time.perf_counter()
    await asyncio.gather(*(write(f"{writers}/{n}") for n in range(writers)))
    return writers * 40 / (time.perf_counter() - begun)


async def main(folder: Path) -> None:
    """Measure and print."""
    bare = bare_sync_ms(folder)
    journal = SqliteJournal(folder / "bench.journal.db")
    await journal.append([an_entry("warm", 1)])
    spent = sorted(await alone_ms(journal))
    # Half before and half after, for a disk's mood changes.
    sync = statistics.median(bare + bare_sync_ms(folder))
    p50, p99 = statistics.median(spent), spent[int(len(spent) * 0.99)]
    print(f"bare sync             {sync:8.3f} ms")
    print(f"append alone, p50     {p50:8.3f} ms   {p50 / sync:6.2f} x sync")
    print(f"append alone, p99     {p99:8.3f} ms   {p99 / sync:6.2f} x sync")
    for writers in (1, 8, 64, 256):
        rate = await together_per_s(journal, writers)
        print(f"{writers:4d} writers          {rate:8.0f} /s   {rate * sync / 1000:6.2f} per sync")
    await journal.aclose()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory(dir=".") as made:
            asyncio.run(main(Path(made)))
