"""The journals under test, each with a way to open the same content again."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.journal.select import ClosableJournal
from lineshaft.adapters.journal.sqlite import SqliteJournal

Open = Callable[[], ClosableJournal]


@pytest.fixture(params=["memory", "sqlite"])
async def open_journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Each call opens the same journal once more; all are closed at the end."""
    opened: list[ClosableJournal] = []
    first = MemoryJournal()

    def open_one() -> ClosableJournal:
        if request.param == "memory":
            opened.append(first.reopen())
        else:
            opened.append(SqliteJournal(tmp_path / "x.journal.db"))
        return opened[-1]

    yield open_one
    for journal in opened:
        await journal.aclose()


@pytest.fixture
def journal(open_journal: Open) -> ClosableJournal:
    return open_journal()
