"""`logs`: what the filters let through, and what a bad filter says."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lineshaft.cli import log_filter
from lineshaft.cli.log_filter import FilterError, Level, LogFilter, level_of, moment_of, pattern_of
from tests.builders_terminal import JOB, a_job, a_line, runs

LINES = [
    a_line("step 1 loss 2.0", at=1_000),
    a_line("WARNING: the loss is high", at=2_000),
    a_line("ERROR: out of memory", at=3_000, rank=1),
    a_line("step 2 loss 1.9", at=4_000),
]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2026-05-01 ERROR something", Level.ERROR),
        ("Traceback (most recent call last):", Level.ERROR),
        ("torch.OutOfMemoryError: CUDA out of memory", Level.ERROR),
        ("ValueError: no", Level.ERROR),
        ("KeyboardInterrupt", Level.ERROR),
        ("fatal: not a repository", Level.ERROR),
        ("UserWarning: this is slow", Level.WARNING),
        ("[WARN] slow", Level.WARNING),
        ("step 3 error_rate 0.1", None),
        ("forewarned", None),
        ("", None),
    ],
)
def test_a_line_says_how_severe_it_is(text: str, level: Level | None) -> None:
    """Words in capitals, exceptions and tracebacks count; parts of words do not."""
    assert level_of(text) is level


def test_filters_are_combined() -> None:
    """What passes has the level, is late enough and holds the pattern."""
    assert [x["at"] for x in LogFilter(level=Level.WARNING).chosen(LINES)] == [2_000, 3_000]
    assert [x["at"] for x in LogFilter(level=Level.ERROR).chosen(LINES)] == [3_000]
    assert [x["at"] for x in LogFilter(since=3_000).chosen(LINES)] == [3_000, 4_000]
    both = LogFilter(since=2_000, pattern=pattern_of(r"loss \d"))
    assert [x["at"] for x in both.chosen(LINES)] == [4_000]


NOW = datetime(2026, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=8)))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10m", NOW - timedelta(minutes=10)),
        ("10 min", NOW - timedelta(minutes=10)),
        ("2h", NOW - timedelta(hours=2)),
        ("90s", NOW - timedelta(seconds=90)),
        ("11:30", NOW.replace(hour=11, minute=30)),
        ("23:00", NOW.replace(hour=23) - timedelta(days=1)),
        ("2026-05-01T02:00:00+00:00", datetime(2026, 5, 1, 2, tzinfo=UTC)),
        ("2026-05-01 09:15", NOW.replace(hour=9, minute=15)),
    ],
)
def test_times_are_read_as_people_write_them(text: str, meant: datetime) -> None:
    """Spans, times of day and dates, in the terminal's time zone."""
    assert moment_of(text, NOW) == round(meant.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "10 parsecs", "-5m"])
def test_a_time_that_is_none_is_refused_with_the_spelling(text: str) -> None:
    """The message says what would be understood."""
    with pytest.raises(FilterError, match="write 10m"):
        moment_of(text, NOW)


def test_a_pattern_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that backtracks for ever costs a moment and says so."""
    monkeypatch.setattr(log_filter, "PAGE_SECONDS_MAX", 0.05)
    slow = LogFilter(pattern=pattern_of(r"(a+)+$"))
    with pytest.raises(FilterError, match="takes too long"):
        slow.chosen([a_line("a" * 60 + "!")])


def paged(params: dict[str, Any]) -> dict[str, Any]:
    """Give two lines a page, and nothing at the end; the place stays where it is."""
    start = int(params.get("after", "0"))
    return {"lines": LINES[start : start + 2], "next": str(min(len(LINES), start + 2))}


def test_the_command_reads_all_pages_and_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also lines behind an end of page are seen; JSON is one object a line."""
    answers = {("scheduler", "job"): a_job(), ("monitor", "logs"): paged}
    run = runs(monkeypatch, answers)
    shown = run("logs", "chat")
    assert shown.exit_code == 0
    assert [line.split("  ")[-1] for line in shown.output.splitlines()] == [
        x["text"] for x in LINES
    ]
    tailed = run("logs", "chat", "--tail", "1", "--grep", "loss", "-o", "json")
    assert [json.loads(line)["at"] for line in tailed.output.splitlines()] == [4_000]
    run("logs", "chat", "--rank", "1", "--attempt", "2")
    _, _, asked = run.client.asked[-1]  # type: ignore[attr-defined]
    assert (asked["job"], asked["rank"], asked["attempt"]) == (JOB, 1, 2)


def test_following_ends_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-f` ends when the job is over and everything was shown, each line once."""
    answers = {("scheduler", "job"): a_job(state="Succeeded"), ("monitor", "logs"): paged}
    shown = runs(monkeypatch, answers)("logs", "chat", "-f")
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) == len(LINES)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--grep", "(", "is no regular expression"),
        ("--grep", "a" * 501, "at most 500"),
        ("--since", "soon", "write 10m"),
    ],
)
def test_a_bad_filter_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str, message: str
) -> None:
    """Exit code 2 and a message, before anything is asked."""
    shown = runs(monkeypatch, {})("logs", "chat", option, value)
    assert shown.exit_code == 2
    assert message in shown.output
