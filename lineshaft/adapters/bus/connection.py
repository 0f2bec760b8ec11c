"""One connection to NATS that never gives up: it reconnects for ever, or is made anew.

nats-py closes a client for good on some answers of the server; a closed client is replaced at
the next use. Standard library and nats-py only: the agent imports this module.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.aio.client import Client

from lineshaft.ports import BusUnavailable, TokenRefused

KNOCK_WAIT_S = 2
CONNECT_WAIT_S = 5.0
RECONNECT_WAIT_S = 0.25
PING_INTERVAL_S = 15
PENDING_BYTES_MAX = 8 * 1024 * 1024

Renewed = Callable[[Client], Awaitable[None]]


class Connection:
    """A lazily opened connection. ``generation`` changes with each connect and reconnect."""

    def __init__(self, url: str, token: str | None, name: str) -> None:
        self.url = url
        self.generation = 0
        self._token = token
        self._name = name
        self._client: Client | None = None
        self._opening: asyncio.Task[Client] | None = None
        self._changed = asyncio.Event()
        self._last_error = "no answer yet"
        self._renewed: list[Renewed] = []
        self._is_closed = False

    def when_renewed(self, call: Renewed) -> None:
        """Await ``call`` with each client that replaces another (subscriptions are gone then)."""
        self._renewed.append(call)

    @property
    def is_connected(self) -> bool:
        """Whether the bus could be talked to a moment ago."""
        return self._client is not None and bool(self._client.is_connected)

    async def client(self, wait_s: float = CONNECT_WAIT_S) -> Client:
        """Return a connected client; raise ``BusUnavailable`` after ``wait_s`` seconds."""
        if self._client is not None and self._client.is_connected:
            return self._client
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not self._is_closed:
            self._changed.clear()
            if self._client is None or self._client.is_closed:
                self._open()
            elif self._client.is_connected:
                return self._client
            left = deadline - loop.time()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):  # wait_for may swallow a cancellation on 3.11
                    await self._changed.wait()
            except TimeoutError:
                break
        what = "the connection is closed" if self._is_closed else self._last_error
        raise BusUnavailable(f"{self.url}: {what}")

    def _open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect(), name="bus.connect")

    async def _connect(self) -> Client:
        try:
            client = await nats.connect(
                self.url,
                token=self._token,
                name=self._name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,
                connect_timeout=2,
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=2,
                pending_size=PENDING_BYTES_MAX,
                error_cb=self._on_error,
                disconnected_cb=self._on_change,
                reconnected_cb=self._on_connected,
                closed_cb=self._on_change,
            )
            self._client = client
            await self._on_connected()
            for call in self._renewed:
                await call(client)
            return client
        finally:
            self._opening = None

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or repr(error)

    async def _on_connected(self) -> None:
        self.generation += 1
        self._changed.set()

    async def _on_change(self) -> None:
        self._changed.set()

    async def aclose(self) -> None:
        """Flush and close. Every later use raises ``BusUnavailable``."""
        self._is_closed = True
        self._changed.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._client is not None and not self._client.is_closed:
            if self._client.is_connected:
                try:
                    await self._client.flush(timeout=2)
                except Exception as error:
                    self._last_error = repr(error)
            await self._client.close()


def options(token: str | None) -> dict[str, Any]:
    """Return what any other nats-py client of ours must be told to survive a bus's restart."""
    made: dict[str, Any] = {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": RECONNECT_WAIT_S,
        "ping_interval": PING_INTERVAL_S,
    }
    return made | ({"token": token} if token else {})


async def knock(url: str, token: str | None) -> None:
    """Return when the bus lets us in at the first try.

    For whoever waits at a terminal: a wrong address or token does not get better by waiting.
    Raises ``TokenRefused`` or ``BusUnavailable`` after 2 s at most.
    """
    heard: list[str] = []

    async def note(error: Exception) -> None:
        heard.append(str(error) or repr(error))

    try:
        async with asyncio.timeout(KNOCK_WAIT_S):
            client = await nats.connect(
                url,
                token=token or None,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=note,
            )
    except (nats.errors.Error, TimeoutError, OSError) as error:
        what = heard[0] if heard else str(error) or f"no answer within {KNOCK_WAIT_S} s"
        if "authorization" in f"{what} {error}".lower():
            raise TokenRefused(f"{url} does not take this token") from None
        raise BusUnavailable(f"{url}: {what}") from None
    await client.close()
