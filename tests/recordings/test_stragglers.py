"""The straggler rule on recorded production traces: the bad rank, and nobody else."""

from collections import defaultdict
from typing import Any

import pytest

from services.monitor.domain.observations import Observation
from tests.builders_monitor import a_watch, gang, recordings

TRACES = recordings("straggler/bytedance")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is needed to read these traces")

COMPUTE = {"forward-compute", "backward-compute"}


def _watched(name: str, *, ranks_per_node: int) -> list[Observation]:
    table: dict[str, list[Any]] = parquet.read_table(TRACES / f"trace-{name}.parquet").to_pydict()
    totals: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    stage_of: dict[int, int] = {}
    seen: dict[tuple[int, int], int] = {}
    for dp, stage, step, kind, duration in zip(
        table["dp_rank"],
        table["stage"],
        table["step"],
        table["optype"],
        table["duration"],
        strict=True,
    ):
        rank = seen.setdefault((stage, dp), len(seen))
        stage_of[rank] = stage
        if kind in COMPUTE:
            totals[step][rank] += duration * 1000
    watch = a_watch()
    watch.stage_of = stage_of
    nodes = {f"r{rank}": f"n{rank // ranks_per_node}" for rank in stage_of}
    steps = [
        (step, {r: {"compute_ms": ms} for r, ms in sorted(totals[step].items())})
        for step in sorted(totals)
    ]
    made = gang(watch, steps, **nodes)
    _watched.rank_of = seen  # type: ignore[attr-defined]
    return made


def test_the_one_bad_rank_is_named_and_no_other() -> None:
    """A trace with one slow rank (2.35 times its peers): it alone is found, as critical."""
    seen = [o for o in _watched("AR", ranks_per_node=4) if o.kind == "straggler"]
    bad = _watched.rank_of[0, 0]  # type: ignore[attr-defined]
    assert {o.subject for o in seen} == {f"rank-{bad}"}
    assert seen[-1].phase == "confirmed"
    assert seen[-1].severity == "critical"


def test_a_heavy_last_stage_is_no_straggler() -> None:
    """A trace whose last pipeline stage is slower by design: nobody is blamed."""
    assert not [o for o in _watched("ST", ranks_per_node=2) if o.kind == "straggler"]
