"""The bus on NATS JetStream, through nats-py and nothing else: the agent imports this module.

A confirmation of the server is not a promise to keep: the bus may lose whatever it stores.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from lineshaft.adapters.bus import provision
from lineshaft.adapters.bus.connection import Connection
from lineshaft.adapters.bus.pulling import Puller
from lineshaft.ports import (
    BusUnavailable,
    Handler,
    Message,
    NobodyAnswers,
    Request,
    StreamState,
)

PUBLISH_TIMEOUT_S = 3.0
JETSTREAM_TIMEOUT_S = 2.0
REQUESTS_AT_ONCE_MAX = 64
FINISH_WAIT_S = 5.0


@dataclass(slots=True, eq=False)
class _Served:
    """One subject that is answered, and what belongs to the present subscription."""

    subject: str
    queue: str
    handler: Handler
    limit: asyncio.Semaphore
    running: set[asyncio.Task[None]]
    subscription: Subscription | None = None

    async def subscribe(self, client: Client) -> None:
        self.subscription = await client.subscribe(self.subject, queue=self.queue, cb=self._on)

    async def _on(self, msg: Msg) -> None:
        # nats-py awaits one call-back after the other; each request gets a task of its own.
        await self.limit.acquire()
        task = asyncio.create_task(self._answer(msg))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _answer(self, msg: Msg) -> None:
        try:
            request = Request(msg.subject, bytes(msg.data), dict(msg.headers or {}))
            reply = await self.handler(request)
            if msg.reply:
                await msg.respond(reply)
        except (nats.errors.Error, OSError):
            return  # nobody waits any more, or asks again
        finally:
            self.limit.release()

    async def end(self) -> None:
        """Take no more, finish what runs."""
        if self.subscription is not None:
            with suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self.subscription.drain(), 2)
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=FINISH_WAIT_S)
            for task in late:
                task.cancel()


class NatsBus:
    """Subjects and streams of one NATS server or cluster. It belongs to one event loop."""

    def __init__(self, url: str, token: str | None = None, *, name: str = "lineshaft") -> None:
        self._connection = Connection(url, token, name)
        self._connection.when_renewed(self._serve_again)
        self._served: list[_Served] = []
        self._pullers: dict[str, Puller] = {}

    @property
    def is_connected(self) -> bool:
        """Whether the connection stood a moment ago."""
        return self._connection.is_connected

    @property
    def generation(self) -> int:
        """A number that changes with each connect and reconnect."""
        return self._connection.generation

    async def publish(self, subject: str, data: bytes, *, message_id: str | None = None) -> int:
        """Publish into the stream that holds ``subject``; return its sequence there.

        Calls may be made side by side; they share one connection and wait for one another in
        nothing. Raises ``BusUnavailable`` unless the stream confirmed; then it may be stored all
        the same, and a repetition with the same ``message_id`` is harmless.
        """
        if not self._connection.is_connected:
            await self._connection.client(wait_s=1.0)  # a late send of a buffered one helps nobody
        client = await self._connection.client()
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        try:
            msg = await client.request(subject, data, timeout=PUBLISH_TIMEOUT_S, headers=headers)
            answer = json.loads(msg.data)
        except nats.errors.NoRespondersError:
            raise BusUnavailable(f"no stream holds {subject} now") from None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusUnavailable(f"{subject}: {error!r}") from None
        except ValueError:
            raise BusUnavailable(f"{subject}: not the confirmation of a stream") from None
        if "error" in answer or "seq" not in answer:
            raise BusUnavailable(f"{subject}: {answer.get('error', answer)}")
        return int(answer["seq"])

    def pull(
        self, stream: str, durable: str | None, subjects: Sequence[str], *, batch: int = 256
    ) -> AsyncIterator[list[Message]]:
        """Yield batches for a durable consumer, or from now on for an ephemeral one (None).

        An ephemeral consumer's first batch is empty and tells that it stands. Closing the
        iterator gives back what was fetched and not handed out.
        """
        puller = Puller(self._connection, stream, durable, filters=subjects, batch=batch)
        if durable is not None:
            self._pullers[durable] = puller
        return puller.batches()

    def heard_ms(self, durable: str) -> int | None:
        """Return how long ago a consumer pulled here delivered or beat; None: never.

        The server beats each second for a consumer that exists and is asked; silence means that
        the consumer, its stream or the server is gone, or that nobody asks it any more.
        """
        puller = self._pullers.get(durable)
        return None if puller is None else puller.heard_ms()

    async def request(self, subject: str, data: bytes, *, timeout_ms: int = 10_000) -> bytes:
        """Ask and wait. Raises ``NobodyAnswers`` or ``BusUnavailable``."""
        client = await self._connection.client(min(5.0, timeout_ms / 1000))
        try:
            reply = await client.request(subject, data, timeout=timeout_ms / 1000)
        except nats.errors.NoRespondersError:
            raise NobodyAnswers(f"nobody answers {subject} now") from None
        except nats.errors.TimeoutError:
            raise BusUnavailable(f"{subject}: no answer within {timeout_ms} ms") from None
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"{subject}: {error!r}") from None
        return bytes(reply.data)

    async def serve(
        self, subject: str, queue: str, handler: Handler
    ) -> Callable[[], Awaitable[None]]:
        """Answer requests in a queue group; returns what ends it.

        A handler answers faults itself; one that raises leaves its request unanswered.
        """
        client = await self._connection.client()
        limit = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)
        served = _Served(subject, queue, handler, limit, set())
        try:
            await served.subscribe(client)
            await client.flush()  # the server knows of it when we return
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusUnavailable(f"{subject}: {error!r}") from None
        self._served.append(served)

        async def end() -> None:
            if served in self._served:
                self._served.remove(served)
                await served.end()

        return end

    async def _serve_again(self, client: Client) -> None:
        for served in self._served:
            await served.subscribe(client)

    async def state(self, stream: str) -> StreamState | None:
        """Return a stream's state, or None when it does not exist."""
        client = await self._connection.client()
        try:
            info = await client.jetstream(timeout=JETSTREAM_TIMEOUT_S).stream_info(
                provision.stream_name(stream)
            )
        except nats.js.errors.NotFoundError:
            return None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusUnavailable(f"{stream}: {error!r}") from None
        return StreamState(
            created=str(info.created),
            first_sequence=info.state.first_seq,
            last_sequence=info.state.last_seq,
            messages=info.state.messages,
        )

    async def provision(self, lost: Sequence[str] = ()) -> None:
        """Make or grow the platform's streams. Raises ``BusUnavailable``.

        The durable consumers of streams in ``lost`` are deleted: a stream that was shortened and
        has grown again since would otherwise skip what stands at their old positions. Whoever
        pulls makes its consumer again, from the start.
        """
        client = await self._connection.client()
        context = client.jetstream(timeout=JETSTREAM_TIMEOUT_S)
        try:
            await provision.ensure_streams(context)
            for stream in lost:
                await provision.drop_durables(context, stream)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusUnavailable(f"streams: {error!r}") from None

    async def aclose(self) -> None:
        """Flush and let go of the connection."""
        for served in list(self._served):
            await served.end()
        self._served.clear()
        await self._connection.aclose()
