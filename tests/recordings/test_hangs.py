"""The hang rule on recorded step times: slow steps and stalls are no hang; a stuck node is."""

import csv
import itertools
import re
from datetime import datetime

from services.monitor.domain.observations import Observation
from services.monitor.domain.policy import Policy
from tests.builders_monitor import NOW, a_watch, beat, recordings, see, told

BEAT_MS = 5_000


def _watched(gaps_ms: list[float]) -> list[Observation]:
    """Beat every 5 s through steps that took ``gaps_ms``; the clock is virtual."""
    watch, policy = a_watch(), Policy()
    made: list[Observation] = []
    done, now = float(NOW), float(NOW)
    for step, gap in enumerate(gaps_ms, start=1):
        while now + BEAT_MS < done + gap:
            now += BEAT_MS
            sample = beat(int(now), last_step=step - 1, age=int(now - done))
            made += see(watch, sample, int(now), policy)
        done += gap
        told(watch, [{"step": step, "rank": 0, "at": done}], now=int(done))
    return [o for o in made if o.kind == "hang"]


def test_recorded_step_times_give_no_false_hang() -> None:
    """Compilation, validation and stalls inside healthy runs stay under the floor of 60 s."""
    for path in sorted(recordings("loss_curves").glob("modded_nanogpt/*.csv")):
        if path.name == "INDEX.csv":
            continue
        with path.open(encoding="utf-8") as file:
            times = [float(r["train_time_ms"]) for r in csv.DictReader(file) if r["train_time_ms"]]
        gaps = [b - a for a, b in itertools.pairwise(times) if b > a]
        assert not _watched(gaps), path.name


def test_a_recorded_step_of_23_minutes_is_found() -> None:
    """A production job's log: one iteration of 1,374 s among ones of 16 s."""
    path = recordings("hang") / "dlrover_samples" / "training_events" / "events_0.log"
    stamps = []
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\[([^\]]+)\] .*\[#step\] \[(BEGIN|END)\]", line)
        if match:
            stamps.append((match[2], datetime.fromisoformat(match[1]).timestamp() * 1000))
    steps = [b[1] - a[1] for a, b in itertools.pairwise(stamps) if (a[0], b[0]) == ("BEGIN", "END")]
    assert max(steps) > 1_300_000
    ordinary = [gap for gap in steps if gap < 60_000]
    seen = _watched([*(ordinary * 12)[:24], max(steps)])
    assert [o.phase for o in seen] == ["opened", "confirmed"]
    goal = max(120_000, 6 * max(ordinary))
    assert seen[0].evidence["wait_ms"] <= goal, "opened later than two minutes or six steps"
    assert seen[1].evidence["wait_ms"] <= goal + BEAT_MS, "confirmed later than a beat after that"


def test_a_victims_busy_device_does_not_hide_the_culprit() -> None:
    """A hung node: seven devices show 100 %, the culprit's process is stuck in the kernel."""
    path = recordings("hang") / "samples" / "hung_node_gpu.csv"
    with path.open(encoding="utf-8") as file:
        devices = list(csv.DictReader(file))
    watch = a_watch()
    told(watch, [{"step": s, "rank": 0, "at": NOW + s * 1000.0} for s in range(1, 20)])
    made: list[Observation] = []
    for number in range(1, 20):
        now = NOW + 20_000 + number * BEAT_MS
        ranks = [
            {
                "rank": int(d["gpu"]),
                "pid": 1,
                "state": "D" if d["note"].startswith("culprit") else "R",
                "cpu_ms": 0 if d["note"].startswith("culprit") else number * 4_900,
            }
            for d in devices
        ]
        made += see(watch, beat(now, last_step=19, age=number * BEAT_MS, ranks=ranks), now)
    confirmed = [o for o in made if o.phase == "confirmed"]
    assert [o.rank for o in confirmed] == [0]
    assert confirmed[0].evidence["wait_ms"] <= 70_000
