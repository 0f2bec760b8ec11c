"""Signatures: every example is found, noise is not, hostile lines cost little."""

import time
from pathlib import Path

import pytest
import yaml

from lineshaft.contracts.telemetry import LogLine
from services.monitor import signature_file
from services.monitor.domain.signatures import (
    SignatureError,
    bounded,
    compile_signatures,
    distinct,
    strongest,
)
from tests.builders_monitor import NOW, a_watch, lines, phases, see, signatures

ROWS = yaml.safe_load(
    Path(signature_file.__file__).with_name(signature_file.FILE_NAME).read_text(encoding="utf-8")
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_example_is_found_as_what_it_is(row: dict[str, str]) -> None:
    """A signature's own example line is found under its own id."""
    found = signatures().match(row["example"])
    assert found is not None
    assert found.id == row["id"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 100 loss 2.31 lr 1e-5",
        "Epoch 3/10: 100%|##########| 1000/1000 [00:10<00:00, 99.1it/s]",
        "INFO saved checkpoint step-000000100 in 1.2 s",
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "UserWarning: the output could be caused by a NCCL error: remote process exited",
    ],
)
def test_ordinary_lines_are_no_evidence(text: str) -> None:
    """Progress, warnings and advice have no signature."""
    assert signatures().match(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        " " * 1_000_000 + "x",
        "CUDA error: " * 100_000,
        "NCCL " + "remote " * 100_000,
        ("(" * 50_000) + ("[" * 50_000),
        "No such file or directory: '" + "a/" * 100_000,
        "\\".join("0123456789" for _ in range(50_000)),
        "RuntimeError: " * 50_000,
        "\t \t" * 200_000 + "Killed",
        "loss " + "nan" * 100_000,
        "ncclInternalError " + "x" * 500 + " " * 500 + "Last error:" * 100,
    ],
    ids=range(11),
)
def test_a_hostile_line_costs_little(text: str) -> None:
    """The work of one line is bounded, however long it is and whatever it is made of."""
    assert len(bounded(text)) <= 1_100
    began = time.process_time()
    signatures().match(text)
    assert time.process_time() - began < 0.25


def test_the_end_of_a_long_line_counts_too() -> None:
    """What stands at the end of a very long line is looked at."""
    found = signatures().match("x" * 500_000 + " OSError: [Errno 28] No space left on device")
    assert found is not None


def test_root_comes_before_cascade_and_early_before_late() -> None:
    """Peers' connection errors never outweigh a cause; of two causes the earlier counts."""
    texts = [
        "RuntimeError: Connection closed by peer [127.0.0.1]:2345",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "OSError: [Errno 28] No space left on device",
    ]
    hits = signatures().hits("n0", [LogLine(NOW + n, 0, "stderr", t) for n, t in enumerate(texts)])
    best = strongest(hit.told() for hit in hits)
    assert best is not None
    assert best["signature"] == "cuda.oom"


def test_equal_ids_within_five_seconds_are_one() -> None:
    """A line that every rank prints is told once; one that comes again later is told again."""
    texts = ["OSError: [Errno 28] No space left on device"] * 3
    hits = signatures().hits(
        "n0", [LogLine(NOW + n * 4_000, n, "stderr", t) for n, t in enumerate(texts)]
    )
    assert len(distinct(hits, 5_000)) == 1
    assert len(distinct(hits, 3_000)) == 3


def test_the_alert_opens_confirms_on_return_and_clears() -> None:
    """Once opens, again after five seconds confirms, ten quiet minutes clear; cascades are mute."""
    from services.monitor.domain.observations import Tick

    watch = a_watch()
    text = "OSError: [Errno 28] No space left on device"
    assert phases(see(watch, lines([text, text]), NOW)) == [
        ("log_signature", "fs.enospc", "opened")
    ]
    again = see(watch, lines([text], NOW + 10_000), NOW + 10_000)
    assert phases(again) == [("log_signature", "fs.enospc", "confirmed")]
    assert not see(watch, Tick(path_proved=True), NOW + 300_000)
    cleared = see(watch, Tick(path_proved=True), NOW + 700_000)
    assert phases(cleared) == [("log_signature", "fs.enospc", "cleared")]
    assert not see(a_watch(), lines(["RuntimeError: Connection closed by peer"]), NOW)


def test_a_damaged_signature_is_refused_by_name() -> None:
    """A pattern that does not compile, or an id twice, stops the start with its name."""
    row = dict(ROWS[0])
    with pytest.raises(SignatureError, match=row["id"]):
        compile_signatures([{**row, "pattern": "("}])
    with pytest.raises(SignatureError, match="same id"):
        compile_signatures([row, row])
