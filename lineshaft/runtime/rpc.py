"""Requests and replies: the envelope, its error codes, and the error that handlers raise.

Pure; the service that serves requests is in ``service.py``, clients are in the SDK.
"""

import json
from collections.abc import Mapping
from typing import Any

CODES = ("usage", "refused", "not_found", "conflict", "not_leader", "unavailable")


class RpcError(Exception):
    """A request that cannot be answered as asked.

    ``code`` is one of ``CODES``; ``message`` says what is wrong, ``hint`` what to do next;
    ``details`` are JSON values for programs.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        if code not in CODES:
            raise ValueError(f"unknown code {code!r}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = dict(details or {})


def encode_result(result: Mapping[str, Any], epoch: int) -> bytes:
    """Return the reply that carries ``result``."""
    return _dump({"ok": True, "result": dict(result), "epoch": epoch})


def encode_error(error: RpcError) -> bytes:
    """Return the reply that carries ``error``."""
    body = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "details": error.details,
    }
    return _dump({"ok": False, "error": body})


def decode_request(raw: bytes) -> dict[str, Any]:
    """Read a request's parameters (an empty body is none). Raises ``RpcError`` (usage)."""
    if not raw.strip():
        return {}
    try:
        params = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RpcError("usage", f"the request is not JSON: {error}") from None
    if not isinstance(params, dict):
        raise RpcError("usage", "the request must be a JSON object")
    return params


def decode_reply(raw: bytes) -> dict[str, Any]:
    """Return a reply's result, or raise the ``RpcError`` that it carries."""
    try:
        reply = json.loads(raw)
        if reply["ok"]:
            return dict(reply["result"])
        error = reply["error"]
        code = error["code"] if error["code"] in CODES else "unavailable"
        raise RpcError(code, error["message"], error.get("hint"), error.get("details"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RpcError("unavailable", f"the reply cannot be read: {error!r}") from None


def text(params: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a text parameter; raise ``RpcError`` (usage) when it is absent or no text."""
    value = params.get(name, default)
    if not isinstance(value, str) or not value:
        raise RpcError("usage", f"the parameter '{name}' must be a text")
    return value


def whole(params: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a whole-number parameter; raise ``RpcError`` (usage) when it is none."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RpcError("usage", f"the parameter '{name}' must be a whole number")
    return value


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
