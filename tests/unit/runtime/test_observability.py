"""Logs: one JSON object a line, secrets never."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from lineshaft.runtime import observability
from lineshaft.runtime.settings import Secret


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Configuration is the process's: other tests get theirs back."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_secrets_are_redacted_by_type_by_name_and_in_urls(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whichever way a secret comes into a log line, it does not come out."""
    observability.configure("info", as_json=True)
    log = observability.logger("test", bus_token="hush")
    with observability.bound(job="j-1"):
        log.info("connected", key=Secret("hush"), url="nats://hush@127.0.0.1:1", node="n1")
    log.debug("never")
    told = capsys.readouterr().err
    line = json.loads(told)
    assert "hush" not in told
    assert (line["part"], line["job"], line["node"], line["level"]) == ("test", "j-1", "n1", "info")
    assert line["url"] == "nats://***@127.0.0.1:1"
