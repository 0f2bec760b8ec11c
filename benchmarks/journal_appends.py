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


async def in_turns_ms(journal: SqliteJournal, file: Path) -> tuple[list[float], list[float]]:
    """Appends, one after the other, and bare syncs between them, for a disk's mood changes.

    A bare sync is the least a commit costs: 4 KiB over what is there, in a file of that size.
    """
    appends, syncs = [], []
    with file.open("wb", buffering=0) as bare:
        bare.write(b"\0" * 4096 * ROUNDS)
        os.fsync(bare.fileno())
        bare.seek(0)
        for seq in range(1, ROUNDS + 1):
            begun = time.perf_counter()
            await journal.append([an_entry("alone", seq)])
            appended = time.perf_counter()
            bare.write(b"x" * 4096)
            os.fdatasync(bare.fileno())
            appends.append((appended - begun) * 1000)
            syncs.append((time.perf_counter() - appended) * 1000)
    return sorted(appends), sorted(syncs)


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
    journal = SqliteJournal(folder / "bench.journal.db")
    await journal.append([an_entry("warm", 1)])
    spent, syncs = await in_turns_ms(journal, folder / "bare")
    p50, p99, sync = statistics.median(spent), spent[int(ROUNDS * 0.99)], statistics.median(syncs)
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
