"""The life of alerts: opened, confirmed, acknowledged, silenced, resolved, one at a time."""

from typing import Any

import pytest

from lineshaft.contracts import alerts, ids
from lineshaft.contracts.events import Fact, check
from lineshaft.runtime.decider import FactRefused
from services.monitor.domain import commands
from services.monitor.domain.observations import Observation, Phase
from services.monitor.domain.observing import observed
from tests.builders_monitor import JOB, NOW, Line, a_fact, an_exit, running

STATE = {"state": "-", "substate": None, "reason": "-", "actor": "-"}


def _seen(phase: Phase, *, kind: str = "loss_spike", subject: str = "run", **values: Any) -> Fact:
    observation = Observation(
        kind,
        subject,
        values.get("episode", 1),
        phase,
        alerts.Severity(values.get("severity", "warning")),
        "The loss rose.",
        {"step": 7},
        NOW,
    )
    return observed(observation, values.get("job", JOB), values.get("attempt", 1), ("p", "t"))


def _line() -> Line:
    line = Line()
    line.take(*running())
    return line


def _command(kind: str, alert: str, **values: Any) -> Fact:
    data = {"alert": alert, "actor": "ada", "reason": "mine", **values}
    return Fact(f"{kind}/{alert}/{values}", kind, data, NOW, "rpc")


def test_opened_is_a_notice_and_confirmed_keeps_the_id() -> None:
    """Two ``alert.firing`` of one id; the diagnosis comes with the confirmation."""
    line = _line()
    line.take(_seen(Phase.OPENED), _seen(Phase.CONFIRMED))
    first, second = line.of("alert.firing")
    assert (first["status"], first["severity"]) == ("opened", "notice")
    assert (second["status"], second["severity"]) == ("confirmed", "warning")
    assert first["alert"] == second["alert"]
    assert alerts.partition_of(first["alert"]) == ids.partition(JOB)
    assert [d["what"] for d in line.of("run.diagnosed")] == ["loss_spike"]
    for event in line.events:
        if event.is_public:
            check(event.kind, event.data)


def test_a_rising_severity_is_told_under_the_same_id() -> None:
    """Warning to critical is told; critical to warning is not."""
    line = _line()
    line.take(_seen(Phase.CONFIRMED), _seen(Phase.CONFIRMED, severity="critical"))
    line.take(_seen(Phase.CONFIRMED, severity="warning", subject="run"))
    assert [a["severity"] for a in line.of("alert.firing")] == ["warning", "critical"]
    assert len({a["alert"] for a in line.of("alert.firing")}) == 1
    assert len(line.of("run.diagnosed")) == 1


def test_cleared_resolves_and_the_next_episode_is_another_alert() -> None:
    """After an end, only a later episode opens again, under its own id."""
    line = _line()
    line.take(_seen(Phase.CONFIRMED), _seen(Phase.CLEARED))
    assert [a["status"] for a in line.of("alert.resolved")] == ["resolved"]
    assert not line.take(Fact("late", **_parts(_seen(Phase.OPENED)))), "the old episode"
    line.take(_seen(Phase.OPENED, episode=2))
    assert len({a["alert"] for a in line.of("alert.firing")}) == 2


def _parts(fact: Fact) -> dict[str, Any]:
    names = ("kind", "data", "at", "source", "subject", "attempt")
    return {name: getattr(fact, name) for name in names}


def test_stale_attempts_say_nothing() -> None:
    """What an older attempt's watcher saw changes nothing once a newer one began."""
    line = _line()
    line.take(*running(attempt=2, at=NOW + 1)[1:])
    assert not line.take(_seen(Phase.CONFIRMED, attempt=1))


def test_a_new_attempt_ends_the_alerts_of_the_old_one() -> None:
    """The rank that was killed is history once attempt 2 runs."""
    line = _line()
    line.take(an_exit(1, signal=9))
    line.take(*running(attempt=2, at=NOW + 1)[1:])
    (ended,) = line.of("alert.resolved")
    assert "attempt 2" in ended["reason"]
    assert line.take(_seen(Phase.CONFIRMED, attempt=2))


@pytest.mark.parametrize("kind", ["job.succeeded", "job.failed", "job.cancelled", "job.suspended"])
def test_the_jobs_end_ends_its_alerts(kind: str) -> None:
    """Nothing stays open of a job that is over, and a terminal job is never judged again."""
    line = _line()
    line.take(_seen(Phase.CONFIRMED))
    extra = {"attempt": 1, "manifest": None, "name": "x", "class": "user_code"}
    line.take(a_fact(kind, {**STATE, **extra}))
    assert len(line.of("alert.resolved")) == 1
    again = line.take(_seen(Phase.CONFIRMED, kind="hang", severity="critical"))
    assert bool(again) is (kind == "job.suspended")


def test_commands_acknowledge_silence_and_resolve() -> None:
    """Each leaves an entry, also when it changes nothing; an unknown alert is refused."""
    line = _line()
    line.take(_seen(Phase.CONFIRMED))
    alert = line.of("alert.firing")[0]["alert"]
    taken = line.take(_command(commands.ACKNOWLEDGE, alert))
    assert taken[0].data["acknowledged_by"] == "ada"
    assert line.take(_command(commands.ACKNOWLEDGE, alert, again=True)), "a note of the repetition"
    line.take(_command(commands.SILENCE, alert, for_ms=1_000))
    assert line.state.alert(alert)["silenced_until"] == NOW + 1_000  # type: ignore[index]
    assert line.take(_command(commands.RESOLVE, alert))[0].kind == "alert.resolved"
    with pytest.raises(FactRefused):
        line.take(_command(commands.RESOLVE, alert, again=True))


def test_a_silence_outlives_its_alert() -> None:
    """The next alert about the same thing is silent too, until the silence ends."""
    line = _line()
    line.take(_seen(Phase.CONFIRMED))
    alert = line.of("alert.firing")[0]["alert"]
    line.take(_command(commands.SILENCE, alert, for_ms=60_000), _seen(Phase.CLEARED))
    line.take(_seen(Phase.CONFIRMED, episode=2))
    assert line.of("alert.firing")[-1]["silenced_until"] == NOW + 60_000


def test_one_broken_node_is_one_alarm() -> None:
    """A second job's alert about the same node names the first as its inhibitor."""
    line = _line()
    other = next(
        j for n in range(100) if ids.partition(j := ids.job_id("t", str(n))) == ids.partition(JOB)
    )
    lost = {"kind": "node_lost", "subject": "node-n7", "severity": "critical"}
    line.take(_seen(Phase.CONFIRMED, **lost), _seen(Phase.CONFIRMED, job=other, **lost))
    first, second = line.of("alert.firing")
    assert first["inhibited_by"] is None
    assert second["inhibited_by"] == first["alert"]


def test_a_node_out_of_sight_is_told_to_the_scheduler_and_so_is_its_return() -> None:
    """Unobserved and observed are diagnoses without an action, once per episode."""
    line = _line()
    lost = {"kind": "node_lost", "subject": "node-n0"}
    line.take(_seen(Phase.OPENED, **lost), _seen(Phase.CLEARED, **lost))
    line.take(_seen(Phase.OPENED, episode=2, **lost))
    told = [(d["what"], d["action"], d["node"]) for d in line.of("run.diagnosed")]
    assert told == [
        ("unobserved", "note", "n0"),
        ("observed", "note", "n0"),
        ("unobserved", "note", "n0"),
    ]


def test_a_services_finding_becomes_an_alert_and_its_closing_ends_it() -> None:
    """Other services never publish alerts; they tell what they found."""
    line = Line()
    data = {"kind": "registry.copy", "subject": "m", "status": "open", "summary": "differs"}
    fact = Fact("f1", "audit.finding", data, NOW, "registry")
    made = line.take(fact)
    assert made[0].data["kind"] == "platform_finding"
    assert not line.take(Fact("f2", "audit.finding", data, NOW, "registry")), "still the same"
    closed = {**data, "status": "closed"}
    assert line.take(Fact("f3", "audit.finding", closed, NOW, "registry"))[0].kind == (
        "alert.resolved"
    )


def test_every_kind_has_a_runbook_and_every_alert_names_it() -> None:
    """A page per kind, in the repository."""
    from pathlib import Path

    root = Path(__file__).parents[3]
    pages = {p.stem for p in (root / "docs" / "runbooks").glob("*.md")} - {"README"}
    assert pages == set(alerts.KINDS)
    for kind in alerts.KINDS:
        assert (root / alerts.runbook(kind)).is_file()


def test_the_table_of_alert_states_is_closed() -> None:
    """Resolved is final; everything else can be resolved."""
    assert not alerts.NEXT[alerts.AlertStatus.RESOLVED]
    for status in (alerts.AlertStatus.OPENED, alerts.AlertStatus.CONFIRMED):
        assert alerts.may_become(status, "resolved")
    assert not alerts.may_become("confirmed", "opened")


def test_an_id_that_is_none_has_no_partition() -> None:
    """User text never chooses a stream."""
    for text in ("", "a9-aaaaaaaaaaaaaaaa", "a0-short", "a0-aaaaaaaaaaaaaaaa\n", "x"):
        assert alerts.partition_of(text) is None


def test_a_consequence_is_not_told_beside_its_cause() -> None:
    """Slow steps and missed plans under a confirmed straggler name it and stay silent."""
    line = _line()
    line.take(_seen(Phase.OPENED, kind="straggler", subject="rank-1"))
    line.take(_seen(Phase.CONFIRMED, kind="job_slow"))
    line.take(_seen(Phase.CONFIRMED, kind="straggler", subject="rank-1"))
    line.take(_seen(Phase.CONFIRMED, kind="below_plan"))
    told = {alert["kind"]: alert for alert in line.of("alert.firing")}
    assert told["job_slow"]["inhibited_by"] is None, "a notice is no cause yet"
    assert told["below_plan"]["inhibited_by"] == told["straggler"]["alert"]
