"""Pulling from JetStream: batches at once when something is there, and a consumer that heals.

Requests are kept outstanding at the server, so a message arrives without being asked for again;
heartbeats tell a quiet stream from a lost request. Standard library and nats-py only.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from lineshaft.adapters.bus import provision
from lineshaft.adapters.bus.connection import Connection
from lineshaft.ports import BusUnavailable, Message

EXPIRES_S = 10.0
HEARTBEAT_S = 1.0
SILENCE_S = 3.0
REOPEN_WAIT_S = 0.3
_NO_MORE = ("404", "408")


class _Reopen(Exception):
    """The consumer has to be looked at again."""


class Puller:
    """One consumer's loop. ``durable`` None: ephemeral, unacknowledged, from now on."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        durable: str | None,
        *,
        filters: Sequence[str],
        batch: int,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._durable = durable
        self._filters = filters
        self._batch = batch
        self._arrived: deque[Msg] = deque()
        self._woken = asyncio.Event()
        self._outstanding = 0
        self._position: int | None = None
        self._heard_at: float | None = None

    def heard_ms(self) -> int | None:
        """Return how long ago the consumer delivered or beat; None: never."""
        if self._heard_at is None:
            return None
        return int((time.monotonic() - self._heard_at) * 1000)

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Yield batches for ever. An ephemeral consumer's first one is empty: it stands now."""
        is_told = self._durable is not None
        while True:
            try:
                client = await self._connection.client()
                generation = self._connection.generation
                consumer = await self._consumer(client)
                inbox = client.new_inbox()
                subscription = await client.subscribe(inbox, cb=self._on_message)
                try:
                    if not is_told:
                        is_told = True
                        yield []
                    self._outstanding = 0
                    while self._connection.generation == generation:
                        await self._request(client, consumer, inbox)
                        messages = await self._next()
                        if messages:
                            yield messages
                finally:
                    await self._leave(subscription)
            except (_Reopen, BusUnavailable, nats.errors.Error, TimeoutError, OSError):
                # Unknown stream, unknown consumer, no connection: all of it heals or is healed.
                await asyncio.sleep(REOPEN_WAIT_S)

    async def _consumer(self, client: Client) -> str:
        context = client.jetstream(timeout=2)
        if self._durable is not None:
            await provision.ensure_durable(context, self._stream, self._durable, self._filters)
            return self._durable
        name, self._position = await provision.make_ephemeral(
            context, self._stream, self._filters, self._position
        )
        return name

    async def _on_message(self, msg: Msg) -> None:
        self._arrived.append(msg)
        self._heard_at = time.monotonic()
        self._woken.set()

    async def _request(self, client: Client, consumer: str, inbox: str) -> None:
        if self._outstanding > self._batch // 2:
            return
        body = {
            "batch": self._batch,
            "expires": int(EXPIRES_S * 1e9),
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        }
        stream = provision.stream_name(self._stream)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        await client.publish(subject, json.dumps(body).encode(), reply=inbox)
        self._outstanding += self._batch

    async def _next(self) -> list[Message]:
        """Return what arrived, waiting for the first; empty on a heartbeat."""
        if not self._arrived:
            self._woken.clear()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._woken.wait()
            except TimeoutError:
                raise _Reopen("neither messages nor heartbeats") from None
        messages: list[Message] = []
        while self._arrived and len(messages) < self._batch:
            msg = self._arrived.popleft()
            status = (msg.headers or {}).get("Status")
            if status is None or msg.reply:
                messages.append(self._message(msg))
            else:
                self._note(status, msg)
        return messages

    def _note(self, status: str, msg: Msg) -> None:
        headers = msg.headers or {}
        text = headers.get("Description", "").lower()
        if status in _NO_MORE or (status == "409" and "batch completed" in text):
            left = headers.get("Nats-Pending-Messages", "")
            self._outstanding -= int(left) if left.isdigit() else self._batch
            self._outstanding = max(0, self._outstanding)
        elif status != "100":
            raise _Reopen(f"{status} {text}")

    def _message(self, msg: Msg) -> Message:
        self._outstanding -= 1
        made = message_of(msg)
        self._position = made.sequence
        return made

    async def _leave(self, subscription: Subscription) -> None:
        """Give the messages back that arrived and were not handed out, so that none waits."""
        with suppress(nats.errors.Error, TimeoutError, OSError):
            # A drain lets what the server sent already arrive before the subscription ends.
            await asyncio.wait_for(subscription.drain(), 2)
        while self._arrived:
            msg = self._arrived.popleft()
            if self._durable is not None and msg.reply:
                try:
                    await msg.nak()
                except (nats.errors.Error, OSError):
                    return


def message_of(msg: Msg) -> Message:
    """Return a JetStream message of nats-py as ours; acknowledging it waits for no answer."""

    async def ack() -> None:
        await _told(msg, msg.ack())

    async def nack(delay_ms: int) -> None:
        await _told(msg, msg.nak(delay=delay_ms / 1000 if delay_ms > 0 else None))

    async def term() -> None:
        await _told(msg, msg.term())

    place = msg.metadata
    return Message(
        subject=msg.subject,
        data=bytes(msg.data),
        headers=dict(msg.headers or {}),
        sequence=place.sequence.stream,
        deliveries=place.num_delivered,
        ack=ack,
        nack=nack,
        term=term,
    )


async def _told(msg: Msg, telling: Awaitable[None]) -> None:
    try:
        await telling
    except (nats.errors.Error, OSError) as error:
        # An acknowledgement that is lost means a redelivery, which changes nothing twice.
        raise BusUnavailable(f"{msg.subject}: {error!r}") from None
