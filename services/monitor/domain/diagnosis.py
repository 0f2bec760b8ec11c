"""From evidence to a diagnosis: what happened, who, of which class, and what to do about it.

Pure functions over what was noted; no state of the journal is changed here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts.alerts import Action, diagnosis_id
from lineshaft.contracts.failures import EXIT_OF_CLASS, FailureClass
from services.monitor.domain.observations import Observation
from services.monitor.domain.policy import Policy
from services.monitor.domain.signatures import Role, strongest

SIGTERM, SIGKILL = 15, 9
OUT_OF_MEMORY = frozenset({"host.oom_kill", "k8s.oomkilled", "slurm.oom_step"})
_SIGNAL_NAMES = {4: "illegal instruction", 6: "abort", 7: "bus error", 11: "segmentation fault"}
_READ = "Read the last lines of its log; the same code would end the same way."
_CLASS_OF_EXIT = {code: cls for cls, code in EXIT_OF_CLASS.items()}
_EXCEPTION = re.compile(
    r"^(?:\[[^\]]{0,40}\]:? ?)?[\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Fault)(?::|$)"
)


@dataclass(frozen=True, slots=True)
class Exit:
    """One rank's end, as the agent recorded it, with what was observed beside it.

    ``failure_class`` is what the rank said of itself, ``agent_class`` what its agent made of it.
    ``hits`` are signature matches (as told) in this rank's last lines and error record;
    ``around`` are those in the attempt's live log lately; ``host_memory`` is the share in use.
    """

    at: int
    node: str
    rank: int
    exit_code: int | None
    signal: int | None
    hits: tuple[Mapping[str, Any], ...] = ()
    around: tuple[Mapping[str, Any], ...] = ()
    host_memory: float | None = None
    failure_class: FailureClass | None = None
    agent_class: FailureClass | None = None
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What happened to a run. ``subject`` and ``what`` make it one of its attempt."""

    what: str
    subject: str
    failure_class: FailureClass | None
    action: Action
    summary: str
    advice: str
    evidence: Mapping[str, Any]
    node: str | None = None
    rank: int | None = None
    is_cascade: bool = False

    def told(self, job: str, attempt: int) -> dict[str, Any]:
        """Return the data of its ``run.diagnosed``."""
        return {
            "job": job,
            "diagnosis": diagnosis_id(job, attempt, self.what, self.subject),
            "what": self.what,
            "subject": self.subject,
            "node": self.node,
            "rank": self.rank,
            "class": None if self.failure_class is None else str(self.failure_class),
            "action": str(self.action),
            "evidence": dict(self.evidence),
            "summary": self.summary,
            "advice": self.advice,
            "is_cascade": self.is_cascade,
        }


@dataclass(frozen=True, slots=True)
class _Reason:
    failure_class: FailureClass
    action: Action
    text: str
    advice: str
    signature: str | None = None
    is_cascade: bool = False


def explain_exit(exit_: Exit, policy: Policy) -> Diagnosis:
    """Return why a rank ended, as far as its own evidence goes.

    Signals first (a killed process cannot explain itself), then signatures of its last words,
    then what the rank said of itself, then its exit code.
    """
    number = signal_of(exit_)
    reason = _of_signal(exit_, number, policy) if number else _of_words(exit_)
    evidence = {
        "exit_code": exit_.exit_code,
        "signal": number or None,
        "signature": reason.signature,
        "hits": [dict(hit) for hit in exit_.hits[:8]],
        "host_memory": exit_.host_memory,
        "last_line": exit_.last_line[:300],
        "at": exit_.at,
    }
    return Diagnosis(
        what="rank_exited",
        subject=f"rank-{exit_.rank}",
        failure_class=reason.failure_class,
        action=reason.action,
        summary=f"Rank {exit_.rank} on node {exit_.node} {reason.text}.",
        advice=reason.advice,
        evidence=evidence,
        node=exit_.node,
        rank=exit_.rank,
        is_cascade=reason.is_cascade,
    )


def signal_of(exit_: Exit) -> int:
    """Return the signal that ended a rank, 0 when none did; 128 + n and -n count as n."""
    if exit_.signal:
        return exit_.signal
    code = exit_.exit_code
    if code is None:
        return 0
    if -64 <= code < 0:
        return -code
    return code - 128 if 128 < code <= 192 else 0


def _of_signal(exit_: Exit, number: int, policy: Policy) -> _Reason:
    memory = _memory_evidence(exit_, policy)
    if number == SIGKILL and memory:
        return _Reason(
            FailureClass.CONFIG,
            Action.HOLD,
            f"was killed for want of memory (signal 9; {memory})",
            "Ask for more host memory, or use fewer loader workers and smaller batches.",
            "host.oom_kill",
        )
    if number in (SIGKILL, SIGTERM):
        return _Reason(
            FailureClass.INFRASTRUCTURE,
            Action.RESTART,
            f"was killed from outside (signal {number})",
            "The job can be started again from its last checkpoint.",
        )
    found = strongest([*exit_.hits, *exit_.around])
    if found is not None and found["role"] == Role.ROOT:
        return _of_signature(found, f"ended by signal {number}")
    name = _SIGNAL_NAMES.get(number, "no Python exception was seen")
    return _Reason(
        FailureClass.INFRASTRUCTURE,
        Action.RESTART,
        f"ended by signal {number} ({name})",
        "Start it again once; if it ends there again, look at native libraries and the node.",
    )


def _memory_evidence(exit_: Exit, policy: Policy) -> str:
    if any(hit["signature"] in OUT_OF_MEMORY for hit in (*exit_.hits, *exit_.around)):
        return "the log says out of memory"
    if exit_.host_memory is not None and exit_.host_memory > policy.host_memory_full:
        return f"host memory was {exit_.host_memory:.0%} full"
    return ""


def _of_words(exit_: Exit) -> _Reason:
    code = exit_.exit_code
    if code is None:
        return _Reason(
            FailureClass.INFRASTRUCTURE,
            Action.RESTART,
            "vanished without an exit code",
            "The job can be started again from its last checkpoint.",
        )
    if code == 0:
        text = "ended with exit code 0 before its work was complete"
        return _Reason(FailureClass.USER_CODE, Action.FAIL, text, _READ)
    found = strongest(exit_.hits)
    said = exit_.failure_class or _CLASS_OF_EXIT.get(code)
    if found is not None and found["role"] == Role.CASCADE and said is None:
        return _cascade(found, code)
    if found is not None and found["role"] != Role.CASCADE:
        return _of_signature({**found, "class": said or found["class"]}, _ended(exit_))
    if said is not None:
        return _Reason(said, action_of(said), _ended(exit_), _advice(said))
    mine = exit_.agent_class or FailureClass.USER_CODE
    advice = _READ if mine is FailureClass.USER_CODE else _advice(mine)
    return _Reason(mine, action_of(mine), _ended(exit_), advice)


def _cascade(found: Mapping[str, Any], code: int) -> _Reason:
    return _Reason(
        FailureClass.TRANSIENT,
        Action.RESTART,
        f"ended with exit code {code} because a peer went away ({found['signature']})",
        "Look for the rank or node that went first; the job can be started again.",
        found["signature"],
        is_cascade=True,
    )


def _of_signature(found: Mapping[str, Any], ended: str) -> _Reason:
    failure_class = FailureClass(found["class"])
    return _Reason(
        failure_class,
        action_of(failure_class, retry=found["retry"], retriable=found["retriable"]),
        f"{ended} ({found['signature']}: {found['cause']})",
        f"{found['action'][:1].upper()}{found['action'][1:]}.",
        found["signature"],
    )


def _ended(exit_: Exit) -> str:
    line = f": {exit_.last_line[:160]}" if exit_.last_line else ""
    return f"ended with exit code {exit_.exit_code}{line}"


def action_of(
    failure_class: FailureClass, *, retry: str | None = None, retriable: bool = True
) -> Action:
    """Return what is proposed for a class, or for a signature's word on retrying.

    Where something has to change, a person may change it while the job is held; code cannot
    change under a job that was submitted, so a fault of the user's code ends it.
    """
    if retry == "after_change":
        return Action.FAIL if failure_class is FailureClass.USER_CODE else Action.HOLD
    if retry is not None:
        return Action.RESTART if retriable else Action.FAIL
    if failure_class in (FailureClass.INFRASTRUCTURE, FailureClass.TRANSIENT):
        return Action.RESTART
    return Action.FAIL


def _advice(failure_class: FailureClass) -> str:
    if action_of(failure_class) is Action.RESTART:
        return "The job can be started again from its last checkpoint."
    return "Something of the job has to change; starting it again would end the same way."


def last_words(lines: Sequence[str]) -> str:
    """Return the line that says most of how a program ended: its exception, else the last one."""
    told = [line.strip() for line in lines if line.strip()]
    exceptions = [line for line in told if _EXCEPTION.match(line)]
    chosen = exceptions[-1] if exceptions else (told[-1] if told else "")
    return chosen[:300]


_OF_OBSERVATION: dict[str, tuple[FailureClass | None, Action, str]] = {
    "non_finite": (
        FailureClass.DATA,
        Action.RESTART,
        "Go back to the last good checkpoint and leave out the data that led here.",
    ),
    "loss_spike": (None, Action.NOTE, "Roll back when the loss has not returned in 100 steps."),
    "grad_norm": (None, Action.NOTE, "Watch the loss; have a checkpoint ready."),
    "straggler": (
        None,
        Action.NOTE,
        "Check the node; move the job when it stays slow.",
    ),
    "hang": (
        FailureClass.TRANSIENT,
        Action.RESTART,
        "Take the stacks of all ranks, then start again from the last checkpoint.",
    ),
    "data_starvation": (None, Action.NOTE, "Use more loader workers or a packed format."),
    "checkpoint_overdue": (None, Action.NOTE, "Check space and permissions of the checkpoints."),
    "checkpoint_failing": (None, Action.NOTE, "Read why in rank 0's log; free some space."),
    "loss_not_falling": (None, Action.NOTE, "Look at learning rate, labels and data."),
    "job_slow": (None, Action.NOTE, "Look at what changed at that step."),
    "zero_utilisation": (
        FailureClass.TRANSIENT,
        Action.RESTART,
        "Take the stacks of the idle ranks, then start again from the last checkpoint.",
    ),
    "low_utilisation": (None, Action.NOTE, "More workers, packed data or a larger micro-batch."),
    "below_plan": (None, Action.NOTE, "Close the largest of the gaps that are named."),
    "resume_check": (None, Action.NOTE, "Stop the run and compare it with its checkpoint."),
    "out_of_memory_soon": (None, Action.NOTE, "Use fewer loader workers and less prefetch."),
    "storage_filling": (None, Action.NOTE, "Remove old checkpoints, or suspend the job."),
    "not_joined": (
        FailureClass.INFRASTRUCTURE,
        Action.NOTE,
        "Check that MASTER_ADDR resolves and its port answers.",
    ),
    "node_lost": (FailureClass.INFRASTRUCTURE, Action.NOTE, "Look at the node and its network."),
}


def explain_observation(seen: Observation) -> Diagnosis | None:
    """Return the diagnosis that a confirmed observation amounts to, or None."""
    known = _OF_OBSERVATION.get(seen.kind)
    if known is None:
        return None
    failure_class, action, advice = known
    if seen.kind == "non_finite" and seen.subject != "run":
        failure_class, action = None, Action.NOTE  # suspicious, not proved
    state = (seen.evidence.get("culprit") or {}).get("state")
    if seen.kind == "hang" and state:
        failure_class = FailureClass.INFRASTRUCTURE
    return Diagnosis(
        what=seen.kind,
        subject=seen.subject,
        failure_class=failure_class,
        action=action,
        summary=seen.summary,
        advice=advice,
        evidence=seen.evidence,
        node=seen.node,
        rank=seen.rank,
    )
