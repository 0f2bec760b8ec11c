"""The life of a job: its places, what can happen in each, and one total table of both.

``TABLE`` answers for every place of a job and every thing that can happen to its *current*
attempt: a transition, a reason to ignore it, or the story of why it can never be. What concerns
an older attempt is stale before it comes here. The scheduler moves jobs by this table alone;
``docs/reference/lifecycle.md`` is made from it. Standard library only; nothing here decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What everyone sees of a job's life."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    RETRYING = "Retrying"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Place(StrEnum):
    """A state with its sub-state, written ``State/substate``."""

    PENDING = "Pending"
    PREPARING = "Pending/preparing"
    HELD = "Pending/held"
    LAUNCHING = "Scheduled/launching"
    WITHDRAWING = "Scheduled/withdrawing"
    RUNNING = "Running"
    UNOBSERVED = "Running/unobserved"
    DRAINING = "Running/draining"
    FINISHING = "Running/finishing"
    SUSPENDED = "Suspended"
    AWAITING_GONE = "Retrying/awaiting_gone"
    BACKING_OFF = "Retrying/backing_off"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def state(self) -> State:
        """The public state."""
        return State(self.partition("/")[0])

    @property
    def substate(self) -> str | None:
        """The sub-state, if there is one."""
        return self.partition("/")[2] or None

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can change any more."""
        return self.state in TERMINAL


def place_of(state: str, substate: str | None) -> Place:
    """Return the place that an event's ``state`` and ``substate`` name; ``ValueError`` if none."""
    return Place(f"{state}/{substate}" if substate else state)


class Happening(StrEnum):
    """What can happen to a job's current attempt, or to the job itself."""

    ADMITTED = "admitted"
    PLACED = "placed"
    LAUNCHED = "launched"
    LAUNCH_FAILED = "launch failed"
    STARTED = "started"
    RANK_EXITED = "rank exited"
    NODE_ENDED = "node ended well"
    NODE_FAILED = "node ended badly"
    GONE = "all processes gone"
    COMPLETED = "completed"
    CHECKPOINT = "checkpoint committed"
    NOTED = "diagnosed: note"
    FAULT = "diagnosed: restart"
    HOLD = "diagnosed: hold"
    FATAL = "diagnosed: fail"
    UNSEEN = "no longer observed"
    SEEN = "observed again"
    NODE_LOST = "node lost"
    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"
    PRIORITY = "priority"
    START_OVERDUE = "start overdue"
    STOP_OVERDUE = "stop overdue"
    COMPLETION_OVERDUE = "completion record overdue"
    FINISH_OVERDUE = "finish overdue"
    DIAGNOSIS_WAITED = "diagnosis waited for"
    BACKED_OFF = "back-off over"
    RUNTIME_SPENT = "run time spent"


@dataclass(frozen=True, slots=True)
class Transition:
    """The job may go to one of ``to``; ``how`` says which, when there are several."""

    to: tuple[Place, ...]
    how: str = ""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing changes; the fact is counted under ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """It can never be; the fact goes to the dead stream with this story."""

    story: str


Rule = Transition | Ignore | Impossible

_P, _H = Place, Happening
_ENDINGS = (_P.BACKING_OFF, _P.HELD, _P.FAILED, _P.CANCELLED, _P.SUSPENDED, _P.PENDING)
_FAULT = Transition(
    (_P.AWAITING_GONE, _P.DRAINING),
    "awaiting_gone while a budget is left for it, else draining towards Failed",
)
_NO_LAUNCH = Transition(
    (_P.BACKING_OFF, _P.HELD, _P.FAILED), "by its class and budget; nothing of it lives"
)
_EVERY_TIMER = (
    _H.START_OVERDUE,
    _H.STOP_OVERDUE,
    _H.COMPLETION_OVERDUE,
    _H.FINISH_OVERDUE,
    _H.DIAGNOSIS_WAITED,
    _H.BACKED_OFF,
    _H.RUNTIME_SPENT,
)
_OF_A_LIVE_RUN = (
    _H.LAUNCHED,
    _H.LAUNCH_FAILED,
    _H.STARTED,
    _H.RANK_EXITED,
    _H.NODE_ENDED,
    _H.NODE_FAILED,
    _H.GONE,
    _H.UNSEEN,
    _H.SEEN,
    _H.NODE_LOST,
)
_EVIDENCE = (_H.NOTED, _H.FAULT, _H.HOLD, _H.FATAL)


def _same(place: Place, happenings: Iterable[Happening], how: str) -> dict[Happening, Rule]:
    return dict.fromkeys(happenings, Transition((place,), how))


def _ignored(happenings: Iterable[Happening], reason: str) -> dict[Happening, Rule]:
    return dict.fromkeys(happenings, Ignore(reason))


def _row(place: Place, *layers: Mapping[Happening, Rule]) -> dict[Happening, Rule]:
    row: dict[Happening, Rule] = {
        _H.ADMITTED: Ignore("it was admitted before"),
        _H.PLACED: Impossible(f"a gang was reserved for a job in {place}, which waits for none"),
        **_ignored(_EVERY_TIMER, "this timer no longer counts"),
        **_same(place, (_H.CHECKPOINT,), "remembered as a place to resume from"),
        **_same(place, (_H.PRIORITY,), "only its place in the order changes"),
    }
    for layer in layers:
        row.update(layer)
    return row


def _at_rest(place: Place) -> dict[Happening, Rule]:
    """Return the rules of a place where no process of the current attempt lives."""
    return {
        **_ignored(_OF_A_LIVE_RUN, "late: the attempt is over"),
        **_ignored(_EVIDENCE, "late: the attempt is over"),
        _H.COMPLETED: Transition((_P.SUCCEEDED,), "a whole result beats what ended the attempt"),
        _H.CANCEL: Transition((_P.CANCELLED,)),
        _H.SUSPEND: Transition((_P.SUSPENDED,)),
        _H.RESUME: Ignore("it is on its way already"),
        _H.HOLD: Transition((_P.HELD,), "the evidence asks for a person"),
    }


def _waiting(place: Place) -> dict[Happening, Rule]:
    return _row(place, _at_rest(place), {_H.PLACED: Transition((_P.LAUNCHING,))})


def _running(place: Place) -> dict[Happening, Rule]:
    return _row(
        place,
        {
            _H.LAUNCHED: Ignore("implied: it runs"),
            _H.LAUNCH_FAILED: _NO_LAUNCH,
            **_same(place, (_H.NOTED,), "kept with the job"),
            _H.STARTED: Transition((_P.RUNNING,)),
            _H.CHECKPOINT: Transition((_P.RUNNING,), "remembered as a place to resume from"),
            **dict.fromkeys((_H.RANK_EXITED, _H.NODE_FAILED, _H.FAULT, _H.FATAL, _H.HOLD), _FAULT),
            _H.NODE_ENDED: Transition((place,), "until the other nodes ended"),
            _H.GONE: Transition(
                (place, _P.PENDING, _P.AWAITING_GONE, _P.DRAINING),
                "stays if all ended well (the completion record may be on its way); Pending if "
                "its agents were stopped from outside; else a fault",
            ),
            _H.COMPLETED: Transition((_P.FINISHING, _P.SUCCEEDED), "Succeeded if all are gone"),
            _H.UNSEEN: Transition((_P.UNOBSERVED,)),
            _H.SEEN: Transition((_P.RUNNING,)),
            _H.NODE_LOST: Transition((_P.UNOBSERVED,), "silence alone stops nothing"),
            _H.CANCEL: Transition((_P.DRAINING, _P.CANCELLED), "Cancelled if all are gone"),
            _H.SUSPEND: Transition((_P.DRAINING, _P.SUSPENDED), "Suspended if all are gone"),
            _H.RESUME: Ignore("it runs"),
            _H.START_OVERDUE: _FAULT,
            _H.COMPLETION_OVERDUE: Transition(_ENDINGS, "ended well without a completion record"),
            _H.RUNTIME_SPENT: Transition((_P.DRAINING, _P.CANCELLED), "as cancel"),
        },
    )


def _stopping(place: Place, ends: tuple[Place, ...]) -> dict[Happening, Rule]:
    """Return the rules of a place where a stop is under way."""
    return _row(
        place,
        {
            **_same(place, (_H.LAUNCHED, _H.STARTED, _H.RANK_EXITED), "part of the stop"),
            **_same(place, (_H.NODE_ENDED, _H.NODE_FAILED), "until the other nodes ended"),
            **_same(place, _EVIDENCE, "weighed when all are gone"),
            **_ignored((_H.UNSEEN, _H.SEEN), "it is being stopped"),
            **_same(place, (_H.NODE_LOST,), "its slots stay leased until it is confirmed gone"),
            _H.CANCEL: Transition((place, _P.CANCELLED), "raises the intent; at once if all gone"),
            _H.SUSPEND: Transition((place, _P.SUSPENDED), "raises the intent; at once if all gone"),
            **_same(place, (_H.RESUME,), "goes on as soon as it is suspended"),
            **_same(place, (_H.STOP_OVERDUE,), "an audit finding; never a second launch"),
            _H.LAUNCH_FAILED: Transition(ends, "by the stop's intent"),
            _H.GONE: Transition(ends, "by the stop's intent; a fault waits for its diagnosis"),
            _H.DIAGNOSIS_WAITED: Transition(ends, "by the failure's class and its budget"),
            _H.COMPLETED: Transition(
                (_P.FINISHING, _P.SUCCEEDED, place),
                "a whole result beats every stop but cancel; Succeeded if all are gone",
            ),
        },
    )


def _ended(place: Place) -> dict[Happening, Rule]:
    return _row(place, _ignored((h for h in Happening if h != _H.PLACED), "the job has ended"))


def _launching() -> dict[Happening, Rule]:
    place = _P.LAUNCHING
    started = Transition((_P.RUNNING,), "implies that it was launched")
    return _row(
        place,
        _running(place),
        {
            **_same(place, (_H.LAUNCHED,), "its agents start"),
            **dict.fromkeys((_H.STARTED, _H.CHECKPOINT, _H.SEEN, _H.NODE_ENDED), started),
            _H.NOTED: Transition((place,), "kept with the job"),
            _H.UNSEEN: Ignore("it has not started"),
            _H.NODE_LOST: Transition((place,), "the start's timer decides"),
            _H.CANCEL: Transition((_P.WITHDRAWING,)),
            _H.SUSPEND: Transition((_P.WITHDRAWING,)),
            _H.RUNTIME_SPENT: Transition((_P.WITHDRAWING,), "as cancel"),
            _H.RESUME: Ignore("it is being launched"),
        },
    )


def _finishing() -> dict[Happening, Rule]:
    place = _P.FINISHING
    late = "its work is whole; only its processes are left"
    return _row(
        place,
        _ignored(_OF_A_LIVE_RUN, late),
        _ignored(_EVIDENCE, late),
        {
            **dict.fromkeys((_H.GONE, _H.LAUNCH_FAILED), Transition((_P.SUCCEEDED,))),
            _H.COMPLETED: Ignore("it was recorded before"),
            **_ignored((_H.CANCEL, _H.SUSPEND, _H.RESUME), late),
            **_same(place, (_H.FINISH_OVERDUE,), "its remaining processes are stopped"),
            **_same(place, (_H.STOP_OVERDUE,), "an audit finding"),
            **_same(place, (_H.NODE_ENDED, _H.NODE_FAILED), "until the other nodes ended"),
        },
    )


def _table() -> dict[Place, dict[Happening, Rule]]:
    asleep: dict[Happening, Rule] = {
        _H.SUSPEND: Ignore("it is suspended"),
        _H.RESUME: Transition((_P.PENDING,)),
        _H.HOLD: Ignore("it waits for a person already"),
    }
    fatal: dict[Happening, Rule] = {_H.FATAL: Transition((_P.FAILED,), "no retry would help")}
    backed_off = _same(_P.BACKING_OFF, (_H.BACKED_OFF,), "it waits for a gang again")
    return {
        _P.PENDING: _waiting(_P.PENDING),
        _P.PREPARING: _row(_P.PREPARING, _at_rest(_P.PREPARING)),
        _P.HELD: _row(
            _P.HELD, _at_rest(_P.HELD), {**asleep, _H.SUSPEND: Transition((_P.SUSPENDED,))}
        ),
        _P.LAUNCHING: _launching(),
        _P.WITHDRAWING: _withdrawing(),
        _P.RUNNING: _running(_P.RUNNING),
        _P.UNOBSERVED: _running(_P.UNOBSERVED),
        _P.DRAINING: _stopping(_P.DRAINING, (*_ENDINGS, _P.DRAINING)),
        _P.FINISHING: _finishing(),
        _P.SUSPENDED: _row(_P.SUSPENDED, _at_rest(_P.SUSPENDED), asleep),
        _P.AWAITING_GONE: _stopping(_P.AWAITING_GONE, (*_ENDINGS, _P.AWAITING_GONE)),
        _P.BACKING_OFF: {**_waiting(_P.BACKING_OFF), **fatal, **backed_off},
        _P.SUCCEEDED: _ended(_P.SUCCEEDED),
        _P.FAILED: _ended(_P.FAILED),
        _P.CANCELLED: _ended(_P.CANCELLED),
    }


def _withdrawing() -> dict[Happening, Rule]:
    row = _stopping(_P.WITHDRAWING, (_P.CANCELLED, _P.SUSPENDED, _P.PENDING))
    drains = Transition((_P.DRAINING,), "it did start; the stop goes on")
    row.update(dict.fromkeys((_H.STARTED, _H.RANK_EXITED, _H.CHECKPOINT), drains))
    return row


TABLE: dict[Place, dict[Happening, Rule]] = _table()


def rule(place: Place, happening: Happening) -> Rule:
    """Return what ``happening`` means for a job in ``place``; every pair has an answer."""
    return TABLE[place][happening]


def mermaid() -> str:
    """Return the figure of all moves between places as a Mermaid state diagram."""
    moves: dict[tuple[Place, Place], list[str]] = {}
    for place, row in TABLE.items():
        for happening, answer in row.items():
            for target in answer.to if isinstance(answer, Transition) else ():
                if target != place:
                    moves.setdefault((place, target), []).append(happening.value)
    named = {place: place.name.lower() for place in Place}
    lines = ["stateDiagram-v2", f"    [*] --> {named[Place.PENDING]}: {Happening.ADMITTED}"]
    lines += [f'    state "{place.value}" as {named[place]}' for place in Place]
    lines += [
        f"    {named[a]} --> {named[b]}: {_short(what)}" for (a, b), what in sorted(moves.items())
    ]
    lines += [f"    {named[place]} --> [*]" for place in Place if place.is_terminal]
    return "\n".join(lines)


def _short(what: list[str]) -> str:
    shown = ", ".join(text.replace(": ", " ") for text in what[:3])
    return shown if len(what) <= 3 else f"{shown}, {len(what) - 3} more"


def markdown() -> str:
    """Return the reference page: the figure, then one table per place."""
    lines = [
        "# The life of a job",
        "",
        "Made from `lineshaft/contracts/lifecycle.py`; do not edit. Each place answers for",
        "everything that can happen to the job's current attempt. What concerns an older attempt",
        "is ignored and counted; what concerns a future one is refused.",
        "",
        "```mermaid",
        mermaid(),
        "```",
    ]
    for place in Place:
        lines += ["", f"## {place.value}", "", "| what happens | what follows |", "|---|---|"]
        lines += [f"| {text} | {answer} |" for text, answer in _grouped(TABLE[place])]
    return "\n".join(lines) + "\n"


def _grouped(row: Mapping[Happening, Rule]) -> list[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for happening in Happening:
        groups.setdefault(_answer(row[happening]), []).append(happening.value)
    return [(", ".join(names), answer) for answer, names in groups.items()]


def _answer(answer: Rule) -> str:
    match answer:
        case Transition(to, how):
            targets = " or ".join(f"**{place.value}**" for place in to)
            return f"{targets}: {how}" if how else targets
        case Ignore(reason):
            return f"ignored: {reason}"
        case Impossible(story):
            return f"impossible: {story}"
