"""Logs: human lines on a terminal, JSON elsewhere, secrets never.

The one place that configures logging. Whoever logs asks ``logger`` for a bound logger and gives
values by name: ``log.info("appended", stream=..., job=...)``.
"""

import logging
import re
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, cast

import structlog

from lineshaft.runtime.settings import Secret

REDACTED = "***"
_SECRET_KEY = re.compile(r"(token|secret|password|authorization|credential)s?$", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace secrets in a log event: by type, by the name of the value, in URLs."""
    for name, value in event.items():
        if isinstance(value, Secret) or (_SECRET_KEY.search(name) and value):
            event[name] = REDACTED
        elif isinstance(value, str) and "@" in value:
            event[name] = _SECRET_IN_URL.sub(REDACTED, value)
    return event


def configure(level: str = "info", *, as_json: bool | None = None) -> None:
    """Set logging up for this process. ``as_json`` None: JSON unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if as_json is None else as_json
    ending: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=True)]
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact,
    ]
    numeric = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # as it is at the time
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard module: the same form, warnings and worse only.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(numeric, logging.WARNING), force=True)


def logger(part: str, **bound: Any) -> structlog.typing.FilteringBoundLogger:
    """Return a logger for ``part`` (a service, or a part of one) with values bound to it."""
    made = structlog.get_logger(part=part, **bound)
    return cast("structlog.typing.FilteringBoundLogger", made)


@contextmanager
def bound(**values: Any) -> Iterator[None]:
    """Bind values (job, attempt, cause) to every line logged inside, also by callees."""
    with structlog.contextvars.bound_contextvars(**values):
        yield
