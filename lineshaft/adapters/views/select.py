"""From a URL to views: ``memory://[name]`` or ``sqlite:///folder``."""

from typing import Protocol

from lineshaft.adapters import urls
from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.adapters.views.sqlite import SqliteViews
from lineshaft.ports import Views

_named: dict[tuple[str, str], MemoryViews] = {}


class ClosableViews(Views, Protocol):
    """Views that hold something until they are closed."""

    async def aclose(self) -> None:
        """Let go of files and threads."""
        ...


def views(url: str, service: str) -> ClosableViews:
    """Return the views of ``service`` at ``url``.

    ``sqlite:///folder`` keeps them in ``folder/<service>.views.db``. ``memory://name`` is the
    same at every call of this process, ``memory://`` is new. Nothing is opened before the
    first use. Raises ``ValueError`` for a URL or name that is none.
    """
    urls.service_name(service)
    match urls.scheme_of(url):
        case "memory":
            name = urls.memory_name(url)
            return _named.setdefault((name, service), MemoryViews()) if name else MemoryViews()
        case "sqlite":
            return SqliteViews(urls.folder_of(url) / f"{service}.views.db")
    raise urls.unknown(url, ("memory://", "sqlite:///folder"))
