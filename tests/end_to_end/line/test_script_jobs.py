"""A job from submit to its end, through bus, journal, launcher and agent, seen by the CLI alone."""

import os
import signal

from tests.builders_line import Line, pids


def test_a_two_rank_script_succeeds(any_line: Line) -> None:
    """The smallest whole line: one command submits, watches, and ends with 0."""
    file = any_line.a_job("two-ranks", ranks=2)
    done = any_line.cli("submit", str(file), "--watch")
    assert "Succeeded" in done.stdout
    whole = any_line.ask("status", "two-ranks")
    states = [(at["state"], at["substate"]) for at in whole["timeline"]]
    assert next(s for s, _ in states) == "Pending"
    assert states[-1][0] == "Succeeded"
    assert all(at["reason"] and at["at"] and at["actor"] for at in whole["timeline"])
    text = any_line.cli("logs", "two-ranks").stdout
    assert "rank 0 says hello" in text
    assert "rank 1 says hello" in text


def test_every_command_has_a_json_form(line: Line) -> None:
    """Programs read what people read."""
    job = line.submit(line.a_job("json-forms"))
    line.ended(job)
    assert any(j["job"] == job for j in line.ask("jobs")["jobs"])
    assert line.ask("explain", job)["text"]
    assert line.ask("nodes")["nodes"][0]["slots"] == 4
    assert "alerts" in line.ask("alerts")
    assert "models" in line.ask("models")


def test_the_same_key_makes_one_job(line: Line) -> None:
    """A submission that is repeated, by impatience or by a network, changes nothing."""
    file = line.a_job("one-key")
    first = line.submit(file, "--key", "k1")
    assert line.submit(file, "--key", "k1") == first
    line.ended(first)
    other = line.a_job("one-key-other")
    refused = line.cli("submit", str(other), "--key", "k1", check=3)
    assert "key" in refused.stdout + refused.stderr


def test_a_failing_script_fails_with_its_words(line: Line) -> None:
    """The first message a user reads names the cause; the exit code says it to programs."""
    file = line.a_job("broken", end="raise ValueError('the answer was 41')")
    done = line.cli("submit", str(file), "--watch", check=1)
    assert "Failed" in done.stdout
    assert "the answer was 41" in line.cli("status", "broken").stdout
    assert "the answer was 41" in line.cli("logs", "broken").stdout
    alerts = line.ask("alerts", "--job", "broken")["alerts"]
    assert [a for a in alerts if a["kind"] == "rank_exited"]


def test_a_killed_rank_is_retried(any_line: Line) -> None:
    """SIGKILL from outside is nobody's bug: the attempt is recorded, diagnosed and repeated."""
    job = any_line.submit(any_line.a_job("killed", ranks=2, waits=True))
    whole = any_line.wait(job, lambda s: s["state"] == "Running" and len(pids(s)) == 2)
    os.kill(pids(whole)[1], signal.SIGKILL)
    any_line.wait(job, lambda s: s["attempt"] == 2)
    any_line.open_gate("killed")
    whole = any_line.ended(job)
    retrying = [at for at in whole["timeline"] if at["state"] == "Retrying"]
    assert retrying
    assert "signal 9" in " ".join(at["reason"] for at in retrying) or "SIGKILL" in str(retrying)


def test_suspend_resume_cancel(line: Line) -> None:
    """A suspended job keeps its place, goes on when resumed, and a cancel ends it for good."""
    job = line.submit(line.a_job("paused", waits=True))
    line.wait(job, lambda s: s["state"] == "Running" and pids(s))
    line.cli("suspend", job, "--reason", "lunch")
    whole = line.wait(job, lambda s: s["state"] == "Suspended")
    assert "lunch" in whole["reason"]
    line.cli("resume", job)
    line.wait(job, lambda s: s["state"] == "Running" and s["attempt"] == 2)
    line.cli("cancel", job, "--reason", "enough")
    whole = line.ended(job, "Cancelled")
    assert "enough" in " ".join(at["reason"] for at in whole["timeline"])


def test_what_can_never_fit_says_so(line: Line) -> None:
    """Nobody waits for hours for a machine that does not exist."""
    file = line.a_job("too-large", ranks=64)
    done = line.cli("plan", str(file), check=3)
    assert "64" in done.stdout
    assert "4" in done.stdout


def test_an_unknown_job_is_a_clear_error(line: Line) -> None:
    """What was asked, that it is not there, and what to do; exit code 2."""
    done = line.cli("status", "no-such-job", check=2)
    assert "no-such-job" in done.stderr
    assert "Traceback" not in done.stderr
