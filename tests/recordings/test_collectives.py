"""The culprit of a stuck collective on recorded dumps with injected faults."""

import json
import re
from typing import Any

import pytest

from services.monitor.domain.collectives import culprits
from tests.builders_monitor import recordings

CASES = recordings("hang") / "flight_recorder"


def _dumps(case: str) -> dict[int, dict[str, Any]]:
    return {
        int(path.stem.removeprefix("rank_")): json.loads(path.read_text(encoding="utf-8"))
        for path in (CASES / case).glob("rank_*.json")
    }


def _injected(case: str) -> set[int]:
    text = (CASES / case / "fault_injection.log").read_text(encoding="utf-8")
    return {int(rank) for rank in re.findall(r"Rank (\d+), fault_type", text)}


@pytest.mark.parametrize("case", ["gpu_error_1st", "lock_gil_1st"])
def test_whoever_is_named_was_made_faulty(case: str) -> None:
    """At least one of the injected ranks is named, and no rank without a fault."""
    named = set(culprits(_dumps(case)).culprits)
    assert named
    assert named <= _injected(case)


def test_a_rank_whose_dump_is_missing_is_told_apart() -> None:
    """Its groups name it, and nobody else is blamed instead of it."""
    dumps = _dumps("lock_gil_1st")
    del dumps[9]
    blame = culprits(dumps)
    assert blame.silent == (9,)
    assert set(blame.culprits) <= _injected("lock_gil_1st")
