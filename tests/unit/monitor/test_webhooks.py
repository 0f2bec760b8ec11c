"""Alerts posted to a real HTTP server: signed, retried, once each, also across restarts."""

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts.alerts import Severity
from lineshaft.contracts.events import Fact, decode
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Secret, SettingsError, load
from lineshaft.runtime.wiring import Ports
from services.monitor import handlers
from services.monitor.domain.decider import MonitorDecider
from services.monitor.domain.observations import Observation, Phase
from services.monitor.domain.observing import observed
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import stream_of
from services.monitor.projector import MonitorProjector
from services.monitor.sinks.delivery import Delivery, worth_telling
from services.monitor.sinks.port import NotTaken
from services.monitor.sinks.webhook import Webhook, WebhookSink, webhooks
from tests.builders_monitor import JOB, NOW, running
from tests.builders_receiver import Receiver, a_receiver
from tests.builders_runtime import eventually, memory_ports, some_settings

SECRET = "a secret of the receiver"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def _notice(**values: Any) -> Fact:
    data = {"alert": "a1-x", "kind": "hang", "severity": "critical", "summary": "No step."}
    return Fact("watch/1:7:0", "alert.firing", {**data, **values}, NOW, "monitor", JOB, 1)


def _sink(receiver: Receiver, timeout_s: float = 5.0) -> WebhookSink:
    hook = Webhook("on-call", receiver.url, Secret(SECRET))
    return WebhookSink(hook, lambda: NOW, timeout_s)


async def test_what_arrives_is_signed_and_is_the_alert() -> None:
    """The signature is over timestamp and body; the body is a CloudEvent; the id is its id."""
    async with a_receiver() as receiver:
        sink = _sink(receiver)
        await sink.deliver(_notice())
        await sink.aclose()
    (post,) = receiver.posts
    signed = post.headers["lineshaft-timestamp"].encode() + b"." + post.body
    wanted = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert post.headers["lineshaft-signature"] == f"v1={wanted}"
    assert post.headers["lineshaft-timestamp"] == str(NOW // 1000)
    assert post.headers["lineshaft-delivery"] == "watch/1:7:0"
    assert decode(post.body).data["summary"] == "No step."


@pytest.mark.parametrize(
    ("status", "is_final"), [(500, False), (429, False), (404, True), (302, True)]
)
async def test_an_answer_that_is_no_2xx_is_a_failure(status: int, is_final: bool) -> None:
    """Faults of the moment are worth another try, refusals are not."""
    async with a_receiver(lambda _: status) as receiver:
        sink = _sink(receiver)
        with pytest.raises(NotTaken) as caught:
            await sink.deliver(_notice())
        await sink.aclose()
    assert caught.value.is_final is is_final


async def test_a_receiver_that_is_silent_or_gone_is_a_failure() -> None:
    """The time-out counts, and so does a connection that is refused."""
    async with a_receiver(lambda _: None) as receiver:
        sink = _sink(receiver, timeout_s=0.2)
        with pytest.raises(NotTaken, match="Timeout"):
            await sink.deliver(_notice())
    with pytest.raises(NotTaken):
        await sink.deliver(_notice())
    await sink.aclose()


async def test_what_matters_less_than_asked_is_not_sent() -> None:
    """A notice stays here when warnings are asked for."""
    async with a_receiver() as receiver:
        sink = _sink(receiver)
        await sink.deliver(_notice(severity="notice"))
        await sink.deliver(_notice(severity="warning"))
        await sink.aclose()
    assert len(receiver.posts) == 1


def test_a_repeated_publication_is_never_told() -> None:
    """Nor what is silenced, nor what another alert tells."""
    assert worth_telling(_notice())
    assert not worth_telling(Fact("i", "alert.firing", {}, NOW, "monitor", replay=True))
    assert not worth_telling(_notice(silenced_until=NOW + 1))
    assert not worth_telling(_notice(inhibited_by="a1-other"))


def test_settings_of_webhooks_are_checked_at_once(tmp_path: Path) -> None:
    """Each fault is named with its place; the secret never appears."""
    good = tmp_path / "secret"
    good.write_text(SECRET)
    row = {"name": "on-call", "url": "https://x.example/hook", "secret_file": good}
    (hook,) = webhooks([row])
    assert (hook.severity, hook.secret.reveal()) == (Severity.WARNING, SECRET)
    assert SECRET not in repr(hook)
    (tmp_path / "short").write_text("abc")
    rows = [
        {**row, "url": "ftp://x"},
        {**row, "name": "A B"},
        {**row, "severity": "loud"},
        {**row, "secret_file": tmp_path / "short"},
        {**row, "secret_file": tmp_path / "absent"},
        {**row, "retries": 3},
    ]
    with pytest.raises(SettingsError) as caught:
        webhooks([*rows, row, row])
    assert len(caught.value.faults) == 7


# ---------------------------------------------------------------------------------------------
# The whole way: facts in, posts out.


class Line:
    """A monitor without the bus's families: facts are handed in, sinks deliver."""

    def __init__(self, folder: Path, ports: Ports, receiver: Receiver) -> None:
        (folder / "secret").write_text(SECRET)
        row = {"name": "on-call", "url": receiver.url, "secret_file": str(folder / "secret")}
        self.service = Service(
            "monitor",
            some_settings(folder, webhooks=[row]),
            ports,
            decider=MonitorDecider(),
            projector=MonitorProjector(),
            policy=Policy(),
        )
        handlers.register(self.service, Policy())

    async def observe(self, kind: str, phase: Phase = Phase.CONFIRMED, episode: int = 1) -> None:
        """Hand in what a watcher saw."""
        seen = Observation(
            kind, "run", episode, phase, Severity.WARNING, f"{kind} {episode}", {}, NOW
        )
        await self.service.host.submit(observed(seen, JOB, 1, ("default", "team")))

    async def command(self, verb: str, **data: Any) -> dict[str, Any]:
        """Do what a request of that verb does, to the one open alert."""
        state = self.service.host.state(stream_of(JOB))
        (alert,) = state.jobs[JOB].alerts
        params = {"alert": alert, "actor": "ada", "key": f"{verb}-{alert}", **data}
        return await handlers.command(self.service, f"watch.{verb}", params)

    async def start(self) -> None:
        """Start, and make the job known."""
        await self.service.start()
        await eventually(lambda: self.service.host.is_leader(stream_of(JOB)))
        await asyncio.sleep(0.05)
        for fact in running():
            await self.service.host.submit(fact)


async def test_a_restart_sends_nothing_twice_and_misses_nothing(tmp_path: Path) -> None:
    """What was posted stays posted; what was raised while nobody listened comes, once."""
    ports = memory_ports()
    async with a_receiver() as receiver:
        line = Line(tmp_path, ports, receiver)
        await line.start()
        await line.observe("hang")
        await eventually(lambda: len(receiver.posts) == 1)
        await line.observe("job_slow")
        await eventually(lambda: len(receiver.posts) == 2)
        await line.service.stop()
        again = Line(tmp_path, ports, receiver)
        await again.start()
        await again.observe("straggler")
        await eventually(lambda: len(receiver.posts) == 3)
        await asyncio.sleep(0.1)
        await again.service.stop()
    assert len(set(receiver.ids())) == len(receiver.ids()) == 3


async def test_a_silence_holds_and_a_resolution_is_told(tmp_path: Path) -> None:
    """Acknowledged and silenced: the end is not posted, and a new episode neither."""
    async with a_receiver() as receiver:
        line = Line(tmp_path, memory_ports(), receiver)
        await line.start()
        await line.observe("hang")
        await eventually(lambda: len(receiver.posts) == 1)
        await line.command("acknowledge", reason="on it")
        state = line.service.host.state(stream_of(JOB))
        (alert,) = state.jobs[JOB].alerts.values()
        assert alert["acknowledged_by"] == "ada"
        await line.command("silence", for_ms=3_600_000)
        await line.command("resolve", reason="a test")
        await line.observe("hang", episode=2)
        await line.observe("job_slow")
        await eventually(lambda: len(receiver.posts) == 2)
        await line.service.stop()
    assert [decode(post.body).data["kind"] for post in receiver.posts] == ["hang", "job_slow"]


async def test_a_receiver_that_fails_for_a_while_gets_each_event_in_the_end(tmp_path: Path) -> None:
    """Two answers of 500, then well: the same id thrice, and the next event after it."""
    ports = memory_ports()
    async with a_receiver(lambda number: 500 if number < 2 else 200) as receiver:
        line = Line(tmp_path, ports, receiver)
        await line.start()
        sink = _sink(receiver)
        sink.name = "webhook-other"
        delivery = Delivery(line.service, [sink], retry_ms=10)
        await delivery._deliver(sink, _notice())
        assert receiver.ids() == ["watch/1:7:0"] * 3
        await line.service.stop()
        await sink.aclose()


def test_the_file_of_settings_names_webhooks_beside_itself(tmp_path: Path) -> None:
    """A relative secret file starts from the folder of the settings file."""
    (tmp_path / "secret").write_text(SECRET)
    file = tmp_path / "lineshaft.toml"
    file.write_text('[[webhooks]]\nname = "a"\nurl = "http://x/"\nsecret_file = "secret"\n')
    (hook,) = webhooks(load(file, environ={}).webhooks)
    assert hook.secret == Secret(SECRET)
    file.write_text('[[webhooks]]\nname = "a"\nurl = "http://x/"\n')
    with pytest.raises(SettingsError, match="secret_file"):
        load(file, environ={})
