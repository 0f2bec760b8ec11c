"""The sink that posts alerts to an HTTP address, signed.

One POST per alert event: the event as CloudEvents 1.0 JSON, with the headers named below. What
stands in the settings is read here too; nothing of the alerts is decided here.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from lineshaft.contracts.alerts import SEVERITY_RANK, Severity
from lineshaft.contracts.events import CONTENT_TYPE, Fact, encode
from lineshaft.contracts.ids import is_name
from lineshaft.runtime.settings import Secret, SettingsError
from services.monitor.sinks.port import NotTaken

DELIVERY = "Lineshaft-Delivery"
"""Header: the event's id, the same on every try, so that a receiver can drop a repetition."""
TIMESTAMP = "Lineshaft-Timestamp"
"""Header: seconds since the epoch of this try; a receiver refuses one that is far from now."""
SIGNATURE = "Lineshaft-Signature"
"""Header: ``v1=`` and the HMAC-SHA256, in hexadecimal, of the timestamp, a dot, and the body."""

TIMEOUT_S = 10.0
SECRET_CHARS_MIN = 16
_AGAIN = frozenset({408, 425, 429})
_KEYS = frozenset({"name", "url", "secret_file", "severity"})


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where alerts of at least ``severity`` are posted."""

    name: str
    url: str
    secret: Secret
    severity: Severity = Severity.WARNING


def webhooks(rows: Sequence[Mapping[str, Any]]) -> list[Webhook]:
    """Read the setting ``webhooks``. Raises ``SettingsError`` with every fault."""
    made, faults = [], []
    for number, row in enumerate(rows):
        try:
            made.append(_webhook(row))
        except (ValueError, OSError) as error:
            faults.append(f"webhooks[{number}]: {error}")
    names = [one.name for one in made]
    faults += [f"webhooks: the name '{n}' is given twice" for n in set(names) if names.count(n) > 1]
    if faults:
        raise SettingsError(faults)
    return made


def _webhook(row: Mapping[str, Any]) -> Webhook:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'; known are {', '.join(sorted(_KEYS))}")
    name, url = str(row.get("name", "")), str(row.get("url", ""))
    if not is_name(name):
        raise ValueError("'name' must be a name of a-z, 0-9 and '-'; deliveries are kept by it")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError("'url' must be an http or https address")
    if "secret_file" not in row:
        raise ValueError("'secret_file' must name a file that holds the secret for signatures")
    secret = Path(str(row["secret_file"])).read_text(encoding="utf-8").strip()
    if len(secret) < SECRET_CHARS_MIN:
        raise ValueError(f"the secret has fewer than {SECRET_CHARS_MIN} characters")
    severity = str(row.get("severity", Severity.WARNING))
    if severity not in SEVERITY_RANK:
        raise ValueError(f"'severity' must be one of {', '.join(SEVERITY_RANK)}")
    return Webhook(name, url, Secret(secret), Severity(severity))


class WebhookSink:
    """Posts each alert event; ``now`` gives milliseconds since the epoch."""

    def __init__(self, hook: Webhook, now: Callable[[], int], timeout_s: float = TIMEOUT_S) -> None:
        self.name = f"webhook-{hook.name}"
        self._hook = hook
        self._now = now
        self._client = httpx.AsyncClient(timeout=timeout_s, follow_redirects=False)

    async def deliver(self, notice: Fact) -> None:
        """Post the event.

        Raises ``NotTaken`` when the receiver did not answer with 2xx, or not in time; a refusal
        for good (4xx other than 408, 425 and 429, or a redirection) is marked as final.
        """
        rank = SEVERITY_RANK[str(notice.data["severity"])]
        if rank < SEVERITY_RANK[self._hook.severity]:
            return
        body = encode(notice)
        seconds = str(self._now() // 1000)
        headers = {
            "Content-Type": CONTENT_TYPE,
            "User-Agent": "lineshaft-monitor",
            DELIVERY: notice.id,
            TIMESTAMP: seconds,
            SIGNATURE: sign(self._hook.secret, seconds, body),
        }
        try:
            answer = await self._client.post(self._hook.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise NotTaken(f"{type(error).__name__}: {error}") from error
        if answer.is_success:
            return
        is_final = 300 <= answer.status_code < 500 and answer.status_code not in _AGAIN
        raise NotTaken(f"the receiver answered {answer.status_code}", is_final=is_final)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def sign(secret: Secret, timestamp: str, body: bytes) -> str:
    """Return the value of the signature's header."""
    signed = timestamp.encode() + b"." + body
    return "v1=" + hmac.new(secret.reveal().encode(), signed, hashlib.sha256).hexdigest()
