"""The HTTP server inside the service's process: started and stopped like any other part of it."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

_START_WAIT_S = 10.0
_GRACE_S = 3


class HttpServer:
    """Serves one application on a host and port; port 0 lets the system choose."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; return the URL. Raises ``OSError`` when the address cannot be had."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
            listener.listen(256)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Quiet(config)
        self._task = asyncio.create_task(self._server.serve([listener]), name="registry.http")
        await self._wait_started()
        port = listener.getsockname()[1]
        host = f"[{self._host}]" if family == socket.AF_INET6 else self._host
        return f"http://{host}:{port}"

    async def _wait_started(self) -> None:
        assert self._server is not None
        assert self._task is not None
        async with asyncio.timeout(_START_WAIT_S):
            while not self._server.started:
                if self._task.done():
                    self._task.result()
                    raise OSError("the HTTP server ended at its start")
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Finish what is being answered, a few seconds at most, then close."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
        self._server = self._task = None


class _Quiet(uvicorn.Server):
    """A server that leaves the process's signals alone: the service's shell owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
