"""From a URL to objects: ``memory://[name]`` or ``file:///folder``.

Standard library only: the agent imports this module.
"""

from typing import Protocol

from lineshaft.adapters import urls
from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.ports import Objects

_named: dict[str, MemoryObjects] = {}


class ClosableObjects(Objects, Protocol):
    """Objects that hold something until they are closed."""

    async def aclose(self) -> None:
        """Let go of files and threads."""
        ...


def objects(url: str) -> ClosableObjects:
    """Return the objects at ``url``.

    ``file:///folder`` keeps each in a file of its key's name. ``memory://name`` is the same
    at every call of this process, ``memory://`` is new. Nothing is opened before the first
    use. Raises ``ValueError`` for a URL that is none.
    """
    match urls.scheme_of(url):
        case "memory":
            name = urls.memory_name(url)
            return _named.setdefault(name, MemoryObjects()) if name else MemoryObjects()
        case "file":
            return FolderObjects(urls.folder_of(url))
    raise urls.unknown(url, ("memory://", "file:///folder"))
