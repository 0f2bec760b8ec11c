"""Properties of episodes: any verdicts in any order give openings, rises and endings in turn."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.contracts.alerts import SEVERITY_RANK, Severity
from services.monitor.domain.observations import Episodes, Observation, Phase, Verdict

COOL_DOWN_MS = 1_000

verdicts = st.builds(
    Verdict,
    kind=st.sampled_from(["hang", "straggler"]),
    subject=st.sampled_from(["run", "rank-1"]),
    phase=st.sampled_from(list(Phase)),
    severity=st.sampled_from(list(Severity)),
    is_urgent=st.booleans(),
)
stories = st.lists(st.tuples(verdicts, st.integers(0, 900)), min_size=5, max_size=60)


def _check(before: Observation | None, seen: Observation, *, is_urgent: bool) -> None:
    if seen.phase is Phase.OPENED:
        assert before is None or before.phase is Phase.CLEARED
        assert seen.episode == (1 if before is None else before.episode + 1)
        assert before is None or is_urgent or seen.at - before.at >= COOL_DOWN_MS
        assert seen.severity is Severity.NOTICE
        return
    assert before is not None
    assert before.phase is not Phase.CLEARED
    assert seen.episode == before.episode
    if seen.phase is Phase.CONFIRMED and before.phase is Phase.CONFIRMED:
        assert SEVERITY_RANK[seen.severity] > SEVERITY_RANK[before.severity]


@settings(max_examples=150, deadline=None)
@given(stories)
def test_an_episode_opens_rises_and_clears_and_cools_down(
    story: list[tuple[Verdict, int]],
) -> None:
    """Nothing is told twice, nothing opens during the cool-down, numbers rise by one."""
    episodes, now = Episodes(), 0
    newest: dict[tuple[str, str], Observation] = {}
    for verdict, passed in story:
        now += passed
        for seen in episodes.apply(verdict, now, COOL_DOWN_MS):
            key = (seen.kind, seen.subject)
            _check(newest.get(key), seen, is_urgent=verdict.is_urgent)
            newest[key] = seen
        is_open = episodes.is_open(verdict.kind, verdict.subject)
        last = newest.get((verdict.kind, verdict.subject))
        assert is_open == (last is not None and last.phase is not Phase.CLEARED)
        assert not episodes.apply(verdict, now, COOL_DOWN_MS), "the same word again says nothing"
