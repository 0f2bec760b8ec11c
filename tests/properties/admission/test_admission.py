"""Properties of admission: whatever comes, in whatever order, how often, it is right."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.contracts import events, ids, job, jobfile, limits
from lineshaft.contracts.events import Event, Fact
from lineshaft.contracts.job import JobFileError
from lineshaft.runtime.decider import CLOCK_DUE, FactRefused
from services.admission.domain import estimate, reading, shapes
from services.admission.domain.decider import AdmissionDecider
from services.admission.domain.estimate import Load
from services.admission.domain.policy import AdmissionPolicy
from services.admission.domain.state import SubmissionState
from tests.builders_admission import (
    FOUNDING,
    QWEN_7B,
    a_command,
    a_document,
    a_script,
    a_submission,
    with_value,
)

DECIDER, POLICY = AdmissionDecider(), AdmissionPolicy()
KEYS = ["k1", "k2", "k3"]
JOBS = [ids.job_id("default", key) for key in KEYS]
CONTENTS: list[Any] = [
    a_document(),
    a_script(),
    a_document(priority=7),
    {},
    "a: [",
    FOUNDING.read_text(),
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1e-5", "auto", "16", "yes", "\ud800", "a\x00b", "x" * 5_000])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def faults(error: JobFileError) -> tuple[job.Fault, ...]:
    """Return an error's faults, each of which can be shown on one line; there is at least one."""
    assert error.faults
    for fault in error.faults:
        assert fault.message
        assert "\n" not in fault.text()
        assert fault.text().encode()
    return error.faults


known_paths = st.sampled_from(
    sorted(p.removeprefix("spec.") for p in job.statuses() if p.startswith("spec."))
)


@given(values)
def test_any_document_is_a_job_or_an_error_of_ours(document: Any) -> None:
    """``parse`` raises ``JobFileError`` with at least one fault, never anything else."""
    try:
        job.parse(document)
    except JobFileError as error:
        faults(error)


@settings(max_examples=300)
@given(st.lists(st.tuples(known_paths, values), min_size=1, max_size=3), st.booleans())
def test_any_value_in_any_field_is_read_or_refused(
    changes: list[tuple[str, Any]], is_script: bool
) -> None:
    """What is accepted is canonical JSON that means the same when it is read again."""
    document = a_script() if is_script else a_document()
    for path, value in changes:
        try:
            document = with_value(document, path, value)
        except (KeyError, TypeError, AttributeError, IndexError):
            continue  # an earlier change put something else in the way
    before = copy.deepcopy(document)
    try:
        made = job.parse(document)
    except JobFileError as error:
        faults(error)
        return
    finally:
        assert repr(document) == repr(before)
    text = json.dumps(made.canonical(), allow_nan=False)
    assert job.parse(json.loads(json.dumps(document))).canonical() == json.loads(text)


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_a_file_or_an_error_of_ours(text: bytes | str) -> None:
    """``read`` and ``validate`` never crash, and every fault can be shown."""
    try:
        document, _ = jobfile.read(text)
        assert isinstance(document, dict)
    except JobFileError as error:
        faults(error)
    assert job.validate(text).lines() is not None


@settings(max_examples=300)
@given(
    st.integers(0, 2_000),
    st.sampled_from(
        ["", "\t", "&a ", "*a", "!!x ", "{", "]", "\x07", "'", "---\n", "? ", "\ud800"]
    ),
)
def test_a_damaged_job_file_is_read_or_refused(position: int, inserted: str) -> None:
    """One odd character anywhere in a good file."""
    text = FOUNDING.read_text()
    position %= len(text)
    report = job.validate(text[:position] + inserted + text[position:])
    assert report.is_valid or report.faults
    last = text.count("\n") + 2
    assert all(fault.line is None or 1 <= fault.line <= last for fault in report.faults)


facts = st.one_of(
    st.builds(
        lambda key, content, copy: a_submission(content, key=key, copy=copy),
        st.sampled_from(KEYS),
        st.sampled_from(CONTENTS),
        st.integers(0, 1),
    ),
    st.builds(
        lambda verb, name, number, seen: a_command(
            verb, name, id=f"c{number}", priority=5, based_on=seen
        ),
        st.sampled_from(["cancel", "suspend", "resume", "priority"]),
        st.sampled_from([*JOBS, "nonsense"]),
        st.integers(0, 6),
        st.none() | st.integers(0, 4),
    ),
    st.just(Fact("due", CLOCK_DUE, {}, 0, "host")),
)


class Stream:
    """A stream that drops known facts, as the host does."""

    def __init__(self) -> None:
        self.state: SubmissionState = DECIDER.initial("submission/0")
        self.events: list[tuple[int, Event]] = []
        self.causes: dict[str, list[Event]] = {}

    def tell(self, fact: Fact, now: int) -> None:
        if fact.id in self.causes:
            return
        before = DECIDER.dump(self.state)
        try:
            decided = DECIDER.decide(self.state, fact, now=now, policy=POLICY)
        except FactRefused:
            decided = []
        assert DECIDER.dump(self.state) == before, "deciding changed the state"
        if fact.kind != CLOCK_DUE and decided:
            self.causes[fact.id] = decided
        for event in decided:
            if event.is_public:
                events.check(event.kind, event.data)
            json.dumps(event.data, allow_nan=False).encode()
            stored = Event(**{**_fields(event), "data": json.loads(json.dumps(event.data))})
            self.events.append((now, stored))
            self.state = DECIDER.evolve(self.state, stored, at=now)


def _fields(event: Event) -> dict[str, Any]:
    return {n: getattr(event, n) for n in ("kind", "data", "subject", "attempt", "pool", "team")}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(facts, st.integers(0, limits.PARKED_COMMAND_TTL_S * 400)), max_size=25))
def test_facts_repeated_late_and_reordered_change_nothing_twice(
    told: list[tuple[Fact, int]],
) -> None:
    """Each job is answered once, each command once; replay and snapshot give the same state."""
    stream, now = Stream(), 0
    for fact, later in told:
        now += later
        stream.tell(fact, now)
        stream.tell(fact, now)
    admitted = [e.subject for _, e in stream.events if e.kind == "job.admitted"]
    assert len(admitted) == len(set(admitted))
    accepted = [e.data["key"] for _, e in stream.events if e.kind == "job.command_accepted"]
    assert len(accepted) == len(set(accepted))
    for number, (_, event) in enumerate(stream.events):
        if event.kind == "job.command_accepted":
            assert event.subject in [
                e.subject for _, e in stream.events[:number] if e.kind == "job.admitted"
            ]
    again = DECIDER.initial("submission/0")
    for at, event in stream.events:
        again = DECIDER.evolve(again, event, at=at)
    assert DECIDER.dump(again) == DECIDER.dump(stream.state)
    dumped = json.loads(json.dumps(DECIDER.dump(stream.state)))
    assert DECIDER.dump(DECIDER.load("submission/0", dumped)) == DECIDER.dump(stream.state)
    assert not stream.state.parked.keys() & stream.state.jobs.keys()


@settings(max_examples=100, deadline=None)
@given(
    st.permutations(
        [
            a_submission(),
            *(a_command(v, JOBS[0], id=v, priority=5) for v in ("suspend", "cancel", "priority")),
        ]
    )
)
def test_a_command_counts_before_and_after_its_job(order: list[Fact]) -> None:
    """Whatever came first, the scheduler hears of each exactly once."""
    stream = Stream()
    for fact in order:
        stream.tell(fact, 1)
    kinds = [event.kind for _, event in stream.events if event.is_public]
    assert sorted(kinds) == ["job.admitted", *["job.command_accepted"] * 3]
    assert kinds[0] == "job.admitted"
    assert stream.state.parked == {}


@given(st.text(max_size=300) | values)
def test_a_reading_has_a_digest_and_a_job_or_reasons(content: Any) -> None:
    """Whatever is handed in; equal content has an equal digest."""
    one, two = reading.read(content), reading.read(copy.deepcopy(content))
    assert one.digest == two.digest
    assert (one.job is None) == bool(one.reasons())


@given(
    ranks=st.integers(1, 64),
    micro=st.integers(1, 64),
    sequence=st.integers(8, 65_536),
    stage=st.sampled_from([None, 0, 1, 2, 3]),
    half=st.booleans(),
    trained=st.floats(0, 1),
    checkpointing=st.booleans(),
)
def test_an_estimate_is_ordered_and_checkpointing_never_takes_more(
    ranks: int,
    micro: int,
    sequence: int,
    stage: int | None,
    half: bool,
    trained: float,
    checkpointing: bool,
) -> None:
    """Low <= likely <= high for every amount; all are finite and not negative."""
    shape = shapes.read(QWEN_7B)
    load = Load(
        ranks, micro, micro * ranks, sequence, stage, half, True, 1.0, None, 10**6, 2, trained, 1e14
    )
    found = estimate.describe(shape, load, is_checkpointing=checkpointing)
    for name in ("memory_bytes", "storage_bytes", "duration_s"):
        assert 0 <= found[name]["low"] <= found[name]["likely"] <= found[name]["high"]
    with_, without = (
        sum(estimate.memory_terms(shape, load, is_checkpointing=on).values())
        for on in (True, False)
    )
    assert with_ <= without
