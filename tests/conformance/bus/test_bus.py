"""What every bus promises, and what ours need of one that is not durable."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lineshaft.ports import BusUnavailable, Message, NobodyAnswers, Request
from tests.builders_runtime import eventually
from tests.conformance.bus.conftest import Rig

JOB = "lineshaft.job.queued.p.t.j-1"
OTHER = "lineshaft.job.placed.p.t.j-1"
QUEUED = ["lineshaft.job.queued.>"]


async def some(source: AsyncIterator[list[Message]], count: int) -> list[Message]:
    """The next ``count`` messages."""
    made: list[Message] = []
    async with asyncio.timeout(15):
        while len(made) < count:
            made += await anext(source)
    return made


async def close(source: Any) -> None:
    await source.aclose()


async def test_sequences_rise_and_an_id_is_stored_once(rig: Rig) -> None:
    """A repeated publication with the same id changes nothing and gets the same sequence."""
    first = await rig.bus.publish(JOB, b"a", message_id="a")
    second = await rig.bus.publish(JOB, b"b", message_id="b")
    again = await rig.bus.publish(JOB, b"a", message_id="a")
    assert (second - first, again) == (1, first)
    state = await rig.bus.state("job")
    assert state is not None
    assert (state.messages, state.last_sequence) == (2, second)


async def test_publications_side_by_side_are_all_stored(rig: Rig) -> None:
    """Pipelining loses and doubles nothing."""
    sequences = await asyncio.gather(*(rig.bus.publish(JOB, b"x") for _ in range(500)))
    assert sorted(sequences) == list(range(1, 501))


async def test_a_subject_that_no_stream_holds_is_an_error(rig: Rig) -> None:
    """A publication that nobody stores is never silent."""
    with pytest.raises(BusUnavailable):
        await rig.bus.publish("lineshaft.nowhere.x", b"a")


async def test_a_durable_consumer_gets_what_was_there_before_and_what_it_asked_for(
    rig: Rig,
) -> None:
    """Position and filter belong to the consumer; an acknowledged message never comes again."""
    await rig.bus.publish(JOB, b"1")
    await rig.bus.publish(OTHER, b"-")
    await rig.bus.publish(JOB, b"2")
    source = rig.bus.pull("job", "svc-job", QUEUED)
    got = await some(source, 2)
    assert [(m.data, m.subject, m.deliveries) for m in got] == [(b"1", JOB, 1), (b"2", JOB, 1)]
    for message in got:
        await message.ack()
    await close(source)
    await rig.bus.publish(JOB, b"3")
    source = rig.bus.pull("job", "svc-job", QUEUED)
    assert [m.data for m in await some(source, 1)] == [b"3"]
    await close(source)


async def test_asked_again_it_comes_again_and_terminated_it_does_not(rig: Rig) -> None:
    """A negative acknowledgement counts a delivery; a termination ends them."""
    await rig.bus.publish(JOB, b"again")
    await rig.bus.publish(JOB, b"never")
    source = rig.bus.pull("job", "svc-job", QUEUED)
    again, never = await some(source, 2)
    await never.term()
    await again.nack(20)
    (second,) = await some(source, 1)
    assert (second.data, second.deliveries) == (b"again", 2)
    await second.nack(0)
    (third,) = await some(source, 1)
    assert (third.data, third.deliveries) == (b"again", 3)
    await third.ack()
    await close(source)


async def test_what_was_fetched_and_not_handed_out_is_given_back(rig: Rig) -> None:
    """Closing a pull orphans no message: the next one gets them without waiting."""
    for number in range(20):
        await rig.bus.publish(JOB, str(number).encode())
    source = rig.bus.pull("job", "svc-job", QUEUED, batch=4)
    first = await some(source, 4)
    for message in first:
        await message.ack()
    await close(source)
    source = rig.bus.pull("job", "svc-job", QUEUED)
    async with asyncio.timeout(5):
        rest = await some(source, 16)
    assert {int(m.data) for m in [*first, *rest]} == set(range(20))
    await close(source)


async def test_two_pullers_of_one_consumer_share_its_messages(rig: Rig) -> None:
    """Replicas of a service divide the work; none of it is done twice."""
    sources = [rig.bus.pull("job", "svc-job", QUEUED, batch=8) for _ in range(2)]
    got: list[bytes] = []

    async def take(source: AsyncIterator[list[Message]]) -> None:
        async for batch in source:
            for message in batch:
                got.append(message.data)
                await message.ack()

    tasks = [asyncio.create_task(take(source)) for source in sources]
    for number in range(100):
        await rig.bus.publish(JOB, str(number).encode())
    await eventually(lambda: len(got) >= 100)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(map(int, got)) == list(range(100))


async def test_the_work_queue_keeps_nothing_that_is_done(rig: Rig) -> None:
    """An acknowledged command leaves the stream ``in``."""
    await rig.bus.publish("lineshaft.in.submit", b"{}")
    source = rig.bus.pull("in", "admission-in", ["lineshaft.in.>"])
    (message,) = await some(source, 1)
    await message.ack()

    async def is_empty() -> bool:
        state = await rig.bus.state("in")
        return state is not None and state.messages == 0

    await eventually(is_empty)
    await close(source)


async def test_an_ephemeral_consumer_says_when_it_stands_and_begins_there(rig: Rig) -> None:
    """Its first batch is empty; then comes all that is published later, nothing earlier."""
    await rig.bus.publish(JOB, b"before")
    source = rig.bus.pull("job", None, QUEUED)
    assert await anext(source) == []
    await rig.bus.publish(JOB, b"after")
    assert [m.data for m in await some(source, 1)] == [b"after"]
    await close(source)


async def test_beats_keep_the_last_one_of_each_subject(rig: Rig) -> None:
    """The stream of beats is bounded by the nodes that live."""
    for number in range(5):
        await rig.bus.publish("lineshaft.beat.0.p.t.j-1.1.n1", str(number).encode())
    state = await rig.bus.state("beat")
    assert state is not None
    assert (state.messages, state.last_sequence) == (1, 5)


async def test_requests_go_to_one_of_a_group_and_nobody_is_told_apart(rig: Rig) -> None:
    """One member answers; when all have left, the asker learns it at once."""

    async def shout(request: Request) -> bytes:
        return request.data.upper()

    with pytest.raises(NobodyAnswers):
        await rig.bus.request("lineshaft.rpc.svc.shout", b"a")
    ends = [await rig.bus.serve("lineshaft.rpc.svc.shout", "svc", shout) for _ in range(2)]
    for word in (b"a", b"b", b"c"):
        assert await rig.bus.request("lineshaft.rpc.svc.shout", word) == word.upper()
    for end in ends:
        await end()
    with pytest.raises(NobodyAnswers):
        await rig.bus.request("lineshaft.rpc.svc.shout", b"a")


async def test_a_slow_request_holds_no_other_one_up(rig: Rig) -> None:
    """Requests to one subject are answered side by side."""
    gate = asyncio.Event()

    async def answer(request: Request) -> bytes:
        if request.data == b"slow":
            await gate.wait()
        return request.data

    end = await rig.bus.serve("lineshaft.rpc.svc.x", "svc", answer)
    slow = asyncio.create_task(rig.bus.request("lineshaft.rpc.svc.x", b"slow"))
    assert await rig.bus.request("lineshaft.rpc.svc.x", b"quick", timeout_ms=3000) == b"quick"
    gate.set()
    assert await slow == b"slow"
    await end()


async def test_a_request_that_nobody_finishes_ends_in_time(rig: Rig) -> None:
    """The asker's time-out holds."""

    async def never(request: Request) -> bytes:
        await asyncio.sleep(30)
        return b""

    end = await rig.bus.serve("lineshaft.rpc.svc.x", "svc", never)
    with pytest.raises(BusUnavailable):
        await rig.bus.request("lineshaft.rpc.svc.x", b"", timeout_ms=100)
    del end  # the handler still sleeps; the bus is closed by the fixture


async def test_an_unknown_stream_has_no_state(rig: Rig) -> None:
    """None, not an error."""
    assert await rig.bus.state("nowhere") is None


async def test_a_bus_that_lost_everything_is_made_again_and_heals_who_waits(rig: Rig) -> None:
    """A re-made stream says so, and a consumer beyond its end receives again by itself."""
    for number in range(10):
        await rig.bus.publish(JOB, str(number).encode())
    source = rig.bus.pull("job", "svc-job", QUEUED)
    for message in await some(source, 10):
        await message.ack()
    before = await rig.bus.state("job")
    waiting = asyncio.create_task(some(source, 1))
    await rig.lose_everything()

    async def provisioned() -> bool:
        try:
            await rig.bus.provision()
        except BusUnavailable:
            return False
        return True

    await eventually(provisioned)
    after = await rig.bus.state("job")
    assert before is not None
    assert after is not None
    assert after.created != before.created
    assert after.last_sequence == 0
    await rig.bus.publish(JOB, b"new")
    (message,) = await waiting
    assert message.data == b"new"
    await message.ack()
    await close(source)


async def test_consumers_of_a_lost_stream_begin_again(rig: Rig) -> None:
    """Provisioning after a loss lets nobody skip what stands at an old position."""
    await rig.bus.publish(JOB, b"1")
    source = rig.bus.pull("job", "svc-job", QUEUED)
    (first,) = await some(source, 1)
    await first.ack()
    await rig.bus.state("job")  # behind the acknowledgement on the same connection
    waiting = asyncio.create_task(some(source, 1))
    await asyncio.sleep(0)
    await rig.bus.provision(["job"])
    (again,) = await waiting
    assert (again.data, again.deliveries) == (b"1", 1)
    await again.ack()
    await close(source)
