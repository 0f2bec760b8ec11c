"""From a URL to a journal: ``memory://[name]`` or ``sqlite:///folder``."""

from typing import Protocol

from lineshaft.adapters import urls
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.journal.sqlite import SqliteJournal
from lineshaft.ports import Journal

_named: dict[tuple[str, str], MemoryJournal] = {}


class ClosableJournal(Journal, Protocol):
    """A journal that holds something until it is closed."""

    async def aclose(self) -> None:
        """Let go of files and threads."""
        ...


def journal(url: str, service: str) -> ClosableJournal:
    """Return the journal of ``service`` (and pool, where it has one) at ``url``.

    ``sqlite:///folder`` keeps it in ``folder/<service>.journal.db``. ``memory://name`` is the
    same journal at every call of this process, ``memory://`` a new one. Nothing is opened
    before the first use. Raises ``ValueError`` for a URL or name that is none.
    """
    urls.service_name(service)
    match urls.scheme_of(url):
        case "memory":
            return _in_memory(urls.memory_name(url), service)
        case "sqlite":
            return SqliteJournal(urls.folder_of(url) / f"{service}.journal.db")
    raise urls.unknown(url, ("memory://", "sqlite:///folder"))


def _in_memory(name: str, service: str) -> MemoryJournal:
    held = _named.get((name, service))
    if held is None:
        held = MemoryJournal()
    elif held.is_closed:
        held = held.reopen()
    if name:
        _named[name, service] = held
    return held
