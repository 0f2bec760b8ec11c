"""FastStream's place: the subscribers of one service, declared on a broker, fed in batches.

The only module besides the services' entry points that imports FastStream. It gives the
declaration (subjects, consumer, stream, one handler each, later AsyncAPI), dispatch and
lifespan. Three things it is not given, each for a reason found in its source (0.7.8):

- Streams and consumers: made by ours alone (``declare=False``); it would change a stream's limits.
- The fetch: its batch subscriber waits until a batch is full or the time is over, spins while a
  consumer is missing, and drops what it fetched when it stops. A ``_Subscription`` of ours stands
  in its place: it hands a batch over at once and gives back what is not handed out.
- Acknowledging: ``MANUAL``, by ``delivery.py``; its own policies terminate or hot-loop.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nats.errors
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.nats.security import NatsToken
from nats.js.api import ConsumerConfig

from lineshaft.adapters import urls
from lineshaft.adapters.bus import connection, provision
from lineshaft.contracts import limits
from lineshaft.ports import Message
from lineshaft.runtime.delivery import Consumption
from lineshaft.runtime.driving import Driver, Feed, IsReady, PortDriver, Take

if TYPE_CHECKING:
    from lineshaft.runtime.service import Service

FETCH_WAIT_S = 5.0
STOP_WAIT_S = 30.0


class _Subscription:
    """Stands where FastStream keeps the JetStream subscription that it fetches from."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._has_handed = False
        self.is_idle = asyncio.Event()

    async def fetch(self, batch: int, timeout: float | None = None) -> list[Message]:
        """Return what is there. Asked again to fill the batch up, say that there is no more."""
        if self._has_handed:
            self._has_handed = False
            raise nats.errors.TimeoutError
        self.is_idle.set()
        messages = await self._feed.take(timeout or FETCH_WAIT_S)
        if messages is None:
            await asyncio.sleep(0.05)  # ended: the loop stops at its next look
        if not messages:
            raise nats.errors.TimeoutError
        self.is_idle.clear()
        self._has_handed = len(messages) < batch
        return messages

    async def unsubscribe(self) -> None:
        """Do nothing: the driver ends the feed after the batch in hand."""


class FastStreamDriver:
    """Runs one service's consumptions on a FastStream broker."""

    def __init__(self, broker: NatsBroker, feeds: Sequence[Feed], take: Take) -> None:
        self.broker = broker
        self._take = take
        self._feeds = {feed.which.durable: feed for feed in feeds}
        self._subscriptions: dict[str, _Subscription] = {}
        for feed in feeds:
            self._declare(feed.which)

    def _declare(self, which: Consumption) -> None:
        subscriber = self.broker.subscriber(
            config=ConsumerConfig(filter_subjects=list(which.subjects)),
            durable=which.durable,
            stream=JStream(provision.stream_name(which.stream), declare=False),
            pull_sub=PullSub(limits.BATCH_FACTS_MAX, timeout=FETCH_WAIT_S, batch=True),
            ack_policy=AckPolicy.MANUAL,
            decoder=_as_they_are,
            title=which.durable,
            description=f"Facts of the stream {which.stream}",
        )

        async def take(batch: list[Any]) -> None:
            await self._take(batch, which)

        subscriber(take)

    async def start(self) -> None:
        """Connect; when FastStream subscribes, it gets our subscriptions."""
        await self.broker.connect()
        self.broker.config.connection_state.stream.pull_subscribe = self._subscribe
        await self.broker.start()

    async def _subscribe(self, *, durable: str, **_: Any) -> _Subscription:
        made = self._subscriptions[durable] = _Subscription(self._feeds[durable])
        return made

    async def stop(self) -> None:
        """Finish the batches in hand, give back what is not handed out, end."""
        for feed in self._feeds.values():
            feed.end()
        for subscription in self._subscriptions.values():
            with suppress(TimeoutError):
                await asyncio.wait_for(subscription.is_idle.wait(), STOP_WAIT_S)
        await self.broker.stop()
        for feed in self._feeds.values():
            await feed.aclose()

    def is_running(self) -> bool:
        """Tell whether every consumption is being pulled."""
        return len(self._subscriptions) == len(self._feeds)


async def _as_they_are(message: Any) -> Any:
    """Decode nothing: the handler gets the batch of messages itself."""
    return message.raw_message


def bind(service: "Service", take: Take, is_ready: IsReady) -> Driver:
    """Return the driver that the service's bus URL selects."""
    settings, consumptions = service.settings, service.consumptions
    if urls.scheme_of(settings.bus_url) not in ("nats", "tls"):
        return PortDriver(
            consumptions, take, bus=service.bus, clock=service.clock, is_ready=is_ready
        )
    token = settings.token()
    broker = NatsBroker(
        settings.bus_url,
        security=NatsToken(token) if token else None,
        name=f"lineshaft-{service.name}",
        max_reconnect_attempts=-1,
        reconnect_time_wait=connection.RECONNECT_WAIT_S,
        graceful_timeout=30,
        apply_types=False,
        logger=None,
    )
    feeds = [Feed(service.bus, which, service.clock, is_ready) for which in consumptions]
    return FastStreamDriver(broker, feeds, take)
