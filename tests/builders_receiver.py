"""A real HTTP server on the loopback that takes what webhooks post, and misbehaves when asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Post:
    """One request as it arrived."""

    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass(slots=True)
class Receiver:
    """Keeps every post; ``answer`` gives the status for the n-th (from 0), None: never answers."""

    answer: Callable[[int], int | None] = lambda _: 200
    posts: list[Post] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """Where to post."""
        return f"http://127.0.0.1:{self.port}/hook"

    def ids(self) -> list[str]:
        """Return the ids of deliveries in the order in which they came."""
        return [post.headers["lineshaft-delivery"] for post in self.posts]

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(": ") for line in head[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        status = self.answer(len(self.posts))
        self.posts.append(Post(headers, body))
        if status is None:
            await asyncio.sleep(3600)
        writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        return True


@asynccontextmanager
async def a_receiver(
    answer: Callable[[int], int | None] = lambda _: 200,
) -> AsyncIterator[Receiver]:
    """A receiver that listens while the block runs."""
    receiver = Receiver(answer)
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(receiver.take(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
