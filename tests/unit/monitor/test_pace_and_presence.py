"""Waiting for data, overdue checkpoints, ranks that never joined, nodes that fell silent."""

from services.monitor.domain.observations import Observation, RunFact, Tick
from services.monitor.domain.watch import Watch
from tests.builders_monitor import NOW, a_watch, beat, phases, see, told

ORDER = {
    "epoch": 1,
    "not_after": 0,
    "nodes": [{"node": "n0", "slots": [0, 1]}, {"node": "n1", "slots": [0, 1]}],
    "order": {"spec": {"spec": {"checkpoint": {"everySteps": 100}}}},
}


def _times(count: int, data_ms: float, start: int = 1) -> list[dict[str, float]]:
    return [
        {"step": start + n, "rank": 0, "step_ms": 100.0, "data_ms": data_ms} for n in range(count)
    ]


def test_waiting_for_data_is_told_against_the_runs_own_beginning() -> None:
    """Ten points above its baseline and more than a fifth of the step: warning, then critical."""
    watch = a_watch()
    assert not told(watch, _times(60, 15.0))
    seen = told(watch, _times(30, 40.0, start=61))
    assert phases(seen)[-1] == ("data_starvation", "run", "confirmed")
    assert str(told(watch, _times(30, 70.0, start=91))[-1].severity) == "critical"
    assert str(told(watch, _times(30, 10.0, start=121))[-1].phase) == "cleared"


def test_a_run_that_always_waits_is_left_alone() -> None:
    """A small model on a slow disk starts that way; a person chose it."""
    assert not told(a_watch(), _times(300, 60.0))


def test_an_overdue_checkpoint_is_told_and_a_commit_clears_it() -> None:
    """A plan of 100 steps: warning behind 150, critical behind 300, over after a commit."""
    watch = a_watch()
    see(watch, RunFact("run.launch_ordered", ORDER, NOW), NOW)
    seen = told(watch, [{"step": s, "rank": 0, "step_ms": 1.0} for s in range(1, 320)])
    assert [str(o.severity) for o in seen] == ["notice", "warning", "critical"]
    see(watch, RunFact("run.checkpoint_committed", {"step": 319}, NOW), NOW)
    assert str(told(watch, [{"step": 320, "rank": 0, "step_ms": 1.0}])[-1].phase) == "cleared"


def _gang() -> Watch:
    watch = a_watch()
    see(watch, RunFact("run.launch_ordered", ORDER, NOW), NOW)
    see(watch, RunFact("run.launched", {}, NOW), NOW)
    return watch


def test_ranks_that_never_joined_are_named() -> None:
    """Fifteen minutes after the launch the missing node is told; its start ends the alarm."""
    watch = _gang()
    see(watch, RunFact("run.started", {"node": "n0", "ranks": []}, NOW), NOW)
    assert not see(watch, Tick(path_proved=True), NOW + 14 * 60_000)
    seen = see(watch, Tick(path_proved=True), NOW + 16 * 60_000)
    assert seen[-1].evidence["nodes"] == ["n1"]
    see(watch, RunFact("run.started", {"node": "n1", "ranks": []}, NOW), NOW)
    assert phases(see(watch, Tick(path_proved=True), NOW + 16 * 60_000)) == [
        ("not_joined", "run", "cleared")
    ]


def _silent(
    watch: Watch, peer_age: int, *, seconds: int = 90, proved: bool = True
) -> list[Observation]:
    made: list[Observation] = []
    see(watch, beat(NOW, node="n1"), NOW)
    for second in range(seconds):
        now = NOW + second * 1_000
        if second % 5 == 0:
            age = min(peer_age, second * 1_000)
            made += see(watch, beat(now, node="n0", age=age), now)
        made += see(watch, Tick(path_proved=proved), now)
    return [o for o in made if o.kind == "node_lost"]


def test_silence_alone_opens_and_never_confirms() -> None:
    """Three missed beats: unobserved. Peers that go on stepping: not lost."""
    assert phases(_silent(a_watch(), 100, seconds=600)) == [("node_lost", "node-n1", "opened")]


def test_silence_with_a_second_channel_is_a_loss_within_a_minute() -> None:
    """Peers that beat and make no step agree: lost, by the 61st second."""
    seen = _silent(a_watch(), 1_000_000)
    assert phases(seen)[-1] == ("node_lost", "node-n1", "confirmed")
    assert seen[-1].evidence["silence_ms"] <= 61_000


def test_without_a_proved_path_silence_says_nothing() -> None:
    """When our own canary does not come through, the bus is the suspect."""
    assert not _silent(a_watch(), 1_000_000, proved=False)


def test_a_crowd_that_falls_silent_together_is_not_blamed() -> None:
    """More than a fifth of ten nodes at once: the network, not the nodes."""
    watch = a_watch()
    for number in range(10):
        see(watch, beat(NOW, node=f"n{number}"), NOW)
    for number in range(7):
        see(watch, beat(NOW + 20_000, node=f"n{number}"), NOW + 20_000)
    assert not see(watch, Tick(path_proved=True), NOW + 21_000)


def test_a_node_that_ended_is_not_missed() -> None:
    """After its end record no beat is expected."""
    watch = a_watch()
    see(watch, beat(NOW), NOW)
    see(watch, RunFact("run.ended", {"node": "n0", "outcome": "completed"}, NOW), NOW)
    assert not see(watch, Tick(path_proved=True), NOW + 100_000)
