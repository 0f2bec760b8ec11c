"""The probes of a service over HTTP: ``GET /livez`` and ``GET /readyz``, for whoever runs it.

200 when all checks hold, 503 when not; the body is JSON {ok, checks: [{name, ok, detail}]}. No
token is asked for and nothing is changed by asking. Nothing else is served here.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lineshaft.runtime.readiness import Check, as_json

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_WAIT_S = 5.0
Ask = Callable[[], Awaitable[Sequence[Check]]]
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class Probes:
    """Answers probes on one address. ``asked`` maps a path to what is checked then."""

    def __init__(self, host: str, port: int, asked: dict[str, Ask]) -> None:
        self._host = host
        self._port = port
        self._asked = asked
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; return the URL. Raises ``OSError`` when the address cannot be had."""
        self._server = await asyncio.start_server(
            self._take, self._host, self._port, limit=REQUEST_BYTES_MAX
        )
        port = self._server.sockets[0].getsockname()[1]
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}"

    async def stop(self) -> None:
        """Listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            try:
                async with asyncio.timeout(REQUEST_WAIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                status, body = await self._answer(head)
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                status, body = 400, {"error": "not a request"}
            raw = json.dumps(body).encode()
            lines = [
                f"HTTP/1.1 {status} {_PHRASES[status]}",
                "Content-Type: application/json",
                f"Content-Length: {len(raw)}",
                "Cache-Control: no-store",
                "Connection: close",
            ]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
            await writer.drain()
        writer.close()

    async def _answer(self, head: bytes) -> tuple[int, dict[str, object]]:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        ask = self._asked.get(rest.partition(" ")[0].partition("?")[0])
        if ask is None:
            return 404, {"error": f"only {', '.join(self._asked)} are here"}
        if method != "GET":
            return 405, {"error": "only GET"}
        checks = await ask()
        is_ok = all(check.is_ok for check in checks)
        return (200 if is_ok else 503), {"ok": is_ok, "checks": as_json(checks)}
