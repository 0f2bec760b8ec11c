"""Clocks."""

import asyncio
import time

import pytest

from lineshaft.adapters.clock import SystemClock, VirtualClock


async def test_the_system_clock_tells_milliseconds():
    """Since the epoch, and on a clock that never goes back."""
    clock = SystemClock()
    assert abs(clock.now() - time.time() * 1000) < 5000
    before = clock.monotonic()
    await clock.sleep(5)
    assert 4 <= clock.monotonic() - before < 5000
    await clock.sleep(-5)


async def test_virtual_time_stands_still_until_it_is_moved():
    """Nobody wakes early, and sleeping for nothing only lets others run."""
    clock = VirtualClock(1000)
    sleeper = asyncio.create_task(clock.sleep(10))
    await clock.advance(9)
    assert (clock.now(), clock.monotonic(), sleeper.done()) == (1009, 9, False)
    assert clock.next_wake == 1010
    await clock.advance(1)
    assert (clock.now(), sleeper.done(), clock.next_wake) == (1010, True, None)
    await clock.sleep(0)
    await clock.sleep(-1)
    with pytest.raises(ValueError, match="back"):
        await clock.advance(-1)


async def test_sleepers_wake_in_the_order_of_their_deadlines_at_their_own_time():
    """Equal deadlines wake in the order in which they were set; repeated sleeps are repeated."""
    clock = VirtualClock()
    seen: list[tuple[str, int]] = []

    async def beat(name: str, every: int, times: int) -> None:
        for _ in range(times):
            await clock.sleep(every)
            seen.append((name, clock.now()))

    tasks = [asyncio.create_task(beat(*how)) for how in (("b", 30, 2), ("a", 20, 3), ("c", 60, 1))]
    await clock.advance(100)
    assert seen == [("a", 20), ("b", 30), ("a", 40), ("c", 60), ("b", 60), ("a", 60)]
    assert clock.now() == 100
    await asyncio.gather(*tasks)


async def test_a_cancelled_sleeper_is_forgotten():
    """It neither wakes nor counts as the next one."""
    clock = VirtualClock()
    gone, stays = asyncio.create_task(clock.sleep(5)), asyncio.create_task(clock.sleep(8))
    await clock.advance(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert clock.next_wake == 8
    await clock.advance(10)
    assert stays.done()
    assert not stays.cancelled()


async def test_a_chain_of_awaits_runs_before_time_moves_on():
    """What a woken task starts sees the time at which it was woken."""
    clock = VirtualClock()
    seen = []

    async def deep(level: int) -> None:
        await asyncio.sleep(0)
        if level:
            await asyncio.create_task(deep(level - 1))
        else:
            seen.append(clock.now())

    async def sleeper() -> None:
        await clock.sleep(10)
        await deep(5)

    task = asyncio.create_task(sleeper())
    await clock.advance(50)
    assert seen == [10]
    await task
