"""Other systems: a bare client of the bus hands in a job and hears what becomes of it."""

import asyncio
import json
import os
import signal
from typing import Any

import nats

from tests.builders_line import Line, pids


async def heard(bus: Any, subject: str, wanted: Any, within: float = 60) -> dict[str, Any]:
    """Return the first event on ``subject`` that ``wanted`` accepts."""
    found: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def take(message: Any) -> None:
        event = json.loads(message.data)
        if wanted(event) and not found.done():
            found.set_result(event)

    subscription = await bus.subscribe(subject, cb=take)
    try:
        return await asyncio.wait_for(found, within)
    finally:
        await subscription.unsubscribe()


async def test_a_bare_client_submits_and_another_sees_the_alert(any_line: Line) -> None:
    """No SDK of ours: nats-py, a CloudEvent, a correlation id."""
    assert any_line.platform
    options = {"servers": any_line.platform.bus_url, "token": any_line.platform.token}
    one, two = await nats.connect(**options), await nats.connect(**options)
    try:
        file = any_line.a_job("foreign", ranks=2, waits=True)
        event = {
            "specversion": "1.0",
            "id": "nightly-1",
            "source": "another-system",
            "type": "io.lineshaft.in.submit",
            "data": {"job": file.read_text()},
        }
        receipt = asyncio.create_task(
            heard(one, "lineshaft.job.*.>", lambda e: e.get("correlationid") == "nightly-1")
        )
        alert = asyncio.create_task(
            heard(two, "lineshaft.alert.firing.>", lambda e: e["data"]["kind"] == "rank_exited")
        )
        await asyncio.sleep(0)
        await one.flush()
        await one.jetstream().publish("lineshaft.in.submit", json.dumps(event).encode())
        admitted = await receipt
        assert admitted["type"] == "io.lineshaft.job.admitted"
        job = admitted["data"]["job"]
        whole = await asyncio.to_thread(
            any_line.wait, job, lambda s: s["state"] == "Running" and len(pids(s)) == 2
        )
        os.kill(pids(whole)[1], signal.SIGKILL)
        assert job in json.dumps(await alert)
        any_line.open_gate("foreign")
        await asyncio.to_thread(any_line.ended, job)
    finally:
        await one.close()
        await two.close()
