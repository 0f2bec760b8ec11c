"""Reading the URLs that select an adapter. No adapter is imported here.

Standard library only: the agent imports this module.
"""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def scheme_of(url: str) -> str:
    """Return the scheme of ``url``, in lower case, or an empty text."""
    return url.partition("://")[0].lower() if "://" in url else ""


def folder_of(url: str) -> Path:
    """Return the absolute folder that ``scheme:///folder`` names; ``%xx`` is decoded.

    Raises ``ValueError`` when the URL names a host, no absolute folder, or has a query.
    """
    scheme = scheme_of(url)
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError(f"{url}: no '?' or '#' here; write them as %3F and %23")
    folder = "/" + unquote(parts.path).lstrip("/")
    if parts.netloc or folder == "/" or "\0" in folder:
        raise ValueError(f"{url}: name an absolute folder, as in {scheme}:///var/lib/lineshaft")
    return Path(folder)


def memory_name(url: str) -> str:
    """Return the name behind ``memory://``: the same name means the same store in a process.

    Without a name every selection makes a store of its own. Raises ``ValueError``.
    """
    name = url.partition("://")[2].strip("/")
    if name and not _NAME.match(name):
        raise ValueError(f"{url}: a memory store is named by letters, digits, '_' and '-'")
    return name


def service_name(service: str) -> str:
    """Return ``service`` when it can be part of a file's name. Raises ``ValueError``."""
    if not _NAME.match(service):
        raise ValueError(f"{service!r}: a service is named by letters, digits, '_' and '-'")
    return service


def unknown(url: str, known: tuple[str, ...]) -> ValueError:
    """Return the error for a URL that no adapter answers to."""
    return ValueError(f"{url!r} selects no adapter; known are {', '.join(known)}")
