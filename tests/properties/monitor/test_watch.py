"""Properties of the watchers: any measurements, any order; garbage never crashes anything."""

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.contracts.telemetry import (
    DTYPE,
    Beat,
    LogLine,
    TelemetryError,
    pack,
    unpack,
    unpack_beat,
    unpack_lines,
)
from services.monitor.domain.curves import Curves, Series, points_of, thinned
from services.monitor.domain.observations import (
    BeatSeen,
    LinesSeen,
    Observation,
    Phase,
    RunFact,
    StepRows,
    Tick,
)
from services.monitor.domain.observing import observed, plain
from services.monitor.domain.policy import Policy
from services.monitor.domain.signatures import bounded
from services.monitor.domain.watch import observe
from services.monitor.domain.windows import MedianWindow
from tests.builders_monitor import JOB, NOW, a_watch, rows, signatures

numbers = st.one_of(st.floats(), st.floats(0, 1e4), st.just(math.nan))
row = st.fixed_dictionaries(
    {"step": st.integers(0, 2**32 - 1) | st.integers(0, 60), "rank": st.integers(0, 6)},
    optional={name: numbers for name, _ in DTYPE[2:]},
)
ranks = st.lists(
    st.dictionaries(
        st.sampled_from(["rank", "pid", "state", "cpu_ms", "x"]),
        st.one_of(st.integers(-5, 99), st.text(max_size=3), st.none(), st.floats()),
    ),
    max_size=4,
)
beats = st.builds(
    Beat,
    job=st.just(JOB),
    attempt=st.just(1),
    node=st.sampled_from(["n0", "n1"]),
    at=st.integers(0, 2**60),
    phase=st.sampled_from(["training", "saving", "evaluating", "", "x"]),
    last_step=st.integers(-5, 2**40),
    last_step_age_ms=st.integers(-5, 2**40),
    dropped_blocks=st.integers(0, 9),
    ranks=ranks.map(tuple),
)
samples = st.one_of(
    st.builds(
        lambda made, node: StepRows(node, rows(made)),
        st.lists(row, max_size=12),
        st.sampled_from(["n0", "n1"]),
    ),
    st.builds(BeatSeen, beats),
    st.builds(
        lambda texts: LinesSeen("n0", tuple(LogLine(NOW, 0, "stderr", t) for t in texts)),
        st.lists(
            st.one_of(
                st.text(max_size=50),
                st.sampled_from(
                    ["OSError: [Errno 28] No space left on device", "CUDA out of memory"]
                ),
            ),
            max_size=4,
        ),
    ),
    st.builds(Tick, st.booleans()),
    st.builds(
        RunFact,
        st.sampled_from(["run.launched", "run.launch_ordered", "run.stop_ordered"]),
        st.fixed_dictionaries({}, optional={"order": st.none(), "nodes": st.just([1, {}])}),
        st.just(NOW),
    ),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(samples, st.integers(0, 100_000)), max_size=25))
def test_episodes_alternate_whatever_is_measured(story: list[tuple[Any, int]]) -> None:
    """Per (kind, subject): opened, confirmed, cleared, then the next number; all as plain JSON."""
    watch, policy, now = a_watch(), Policy(), NOW
    newest: dict[tuple[str, str], Observation] = {}
    for sample, passed in story:
        now += passed
        for seen in observe(watch, sample, now, policy):
            before = newest.get((seen.kind, seen.subject))
            if seen.phase is Phase.OPENED:
                assert before is None or before.phase is Phase.CLEARED
                assert seen.episode == (1 if before is None else before.episode + 1)
            else:
                assert before is not None
                assert before.phase is not Phase.CLEARED
                assert seen.episode == before.episode
            newest[seen.kind, seen.subject] = seen
            assert plain(observed(seen, JOB, 1, ("p", "t")).data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=2_000))
def test_garbage_is_told_and_never_crashes(raw: bytes) -> None:
    """Bytes of strangers are read, or refused with the one error that says so."""
    for read in (unpack, unpack_beat):
        try:
            read(raw)  # type: ignore[operator]
        except TelemetryError:
            continue
    assert isinstance(unpack_lines(raw), list)


@settings(max_examples=80, deadline=None)
@given(st.lists(row, max_size=20), st.integers(0, 300), st.binary(min_size=1, max_size=8))
def test_a_damaged_block_is_read_or_refused(
    made: list[dict[str, float]], place: int, patch: bytes
) -> None:
    """A real block with some bytes changed never crashes a rule."""
    raw = bytearray(pack((JOB, 1, "n0"), made, sample={"gpu_utilisation": 1.0}))
    raw[place : place + len(patch)] = patch
    try:
        block = unpack(bytes(raw))
    except TelemetryError:
        return
    records = np.frombuffer(block.records, np.dtype(DTYPE))
    observe(a_watch(), StepRows("n0", records, block.metrics, block.sample), NOW, Policy())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), max_size=80))
def test_a_step_is_closed_once_and_in_order(reports: list[tuple[int, int]]) -> None:
    """However rows are repeated, late or out of order, closed steps only rise."""
    watch = a_watch()
    closed: list[int] = []
    for step, rank in reports:
        observe(watch, StepRows("n0", rows([{"step": step, "rank": rank}])), NOW, Policy())
        closed += [c.step for c in watch.closed]
    closed += [c.step for c in watch.table.rest()]
    assert closed == sorted(set(closed))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 20))
def test_the_running_median_is_the_median(values: list[float], size: int) -> None:
    """The window agrees with the plain definition at every moment."""
    window = MedianWindow(size)
    for n, value in enumerate(values):
        window.accept(value)
        kept = values[max(0, n + 1 - size) : n + 1]
        assert window.median() == np.median(kept)
        assert window.mad() == np.median(np.abs(np.array(kept) - np.median(kept)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=400), st.integers(2, 20))
def test_a_curve_is_bounded_and_keeps_its_ends(gaps: list[int], most: int) -> None:
    """Never more points than allowed; last value, least and greatest survive the joining."""
    series, step = Series(most), 0
    values = []
    for number, gap in enumerate(gaps):
        step += gap
        values.append(float(number % 17))
        series.add((step, values[-1], values[-1], values[-1]))
        assert len(series.points) <= most
    assert series.points[-1][:2] == (step, values[-1])
    assert min(p[2] for p in series.points) == min(values)
    assert max(p[3] for p in series.points) == max(values)
    assert thinned(series.points, 3)[-1] == series.points[-1]


@settings(max_examples=50, deadline=None)
@given(st.lists(row, max_size=30), st.integers(1, 29))
def test_curves_in_parts_are_the_curves(made: list[dict[str, float]], cut: int) -> None:
    """What was stored in parts and read back is what was drawn in one go."""
    whole, parts = Curves(1_000), [Curves(1_000), Curves(1_000)]
    watch = a_watch()
    for number, record in enumerate(sorted(made, key=lambda r: r["step"])):
        observe(watch, StepRows("n0", rows([record])), NOW, Policy())
        for closed in watch.closed:
            for name, point in points_of(closed):
                whole.add(name, point)
                parts[number >= cut].add(name, point)
    read = Curves(1_000)
    for part in parts:
        read.merge(part.dump())
    assert read.dump()["series"] == whole.dump()["series"]


@settings(deadline=None)
@given(st.text(max_size=5_000))
def test_a_line_is_matched_on_a_bounded_text(text: str) -> None:
    """No line costs more than a bounded one, and none raises."""
    assert len(bounded(text)) <= 1_100
    signatures().match(text)
