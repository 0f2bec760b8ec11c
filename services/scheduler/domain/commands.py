"""What people's commands do: cancel, suspend, resume, priority, and the two of operators.

Each command leaves an event, also when it changes nothing, so that its repetition is known.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.events import Event, Fact
from lineshaft.contracts.failures import StopIntent
from lineshaft.contracts.lifecycle import Happening, Place
from lineshaft.runtime.decider import FactRefused
from services.scheduler.domain.endings import Gone, gone, stop_for
from services.scheduler.domain.state import Job
from services.scheduler.domain.work import Work

Command = Mapping[str, Any]


def command_accepted(work: Work, fact: Fact) -> None:
    """Apply an accepted command, or park it until its job's admission arrives."""
    job = work.state.jobs.get(fact.data["job"])
    if job is None:
        _park(work, fact)
    else:
        apply_command(work, job, fact.data)


def _park(work: Work, fact: Fact) -> None:
    _drop_old(work)
    if sum(map(len, work.state.parked.values())) >= limits.PARKED_COMMANDS_MAX:
        raise FactRefused(f"{fact.data['job']} is unknown, and no more commands can wait for jobs")
    data = {"fact_id": fact.id, "command": dict(fact.data)}
    work.add(Event("pool.parked", data, fact.data["job"], pool=work.state.pool))


def _drop_old(work: Work) -> None:
    oldest = work.now - limits.PARKED_COMMAND_TTL_S * 1000
    for job_id, waiting in sorted(work.state.parked.items()):
        if waiting[-1].at < oldest:
            data = {"reason": "its job was never admitted"}
            work.add(Event("pool.unparked", data, job_id, pool=work.state.pool))


def apply_parked(work: Work, job: Job) -> None:
    """Apply the commands that came before the job's admission, in the order of their coming."""
    waiting = work.state.parked.get(job.id, ())
    if not waiting:
        return
    work.add(Event("pool.unparked", {"reason": "admitted"}, job.id, pool=work.state.pool))
    for parked in waiting:
        apply_command(work, work.job(job), parked.data)


def apply_command(work: Work, job: Job, command: Command) -> None:
    """Apply one command to a known job; one that was sent before the last one was seen is void.

    A cancel is never void for its age.
    """
    verb = command["verb"]
    act = _VERBS.get(verb)
    if act is None:
        raise FactRefused(f"{job.id}: no command is called {verb!r}")
    based_on = command.get("based_on")
    if verb != "cancel" and isinstance(based_on, int) and based_on < job.command_floor:
        _note(work, job, command, note=f"it was based on version {based_on} and came too late")
        return
    act(work, job, command)


def _note(work: Work, job: Job, command: Command, *, note: str = "", **traces: Any) -> None:
    work.emit(
        "pool.command",
        {
            "verb": command["verb"],
            "actor": command["actor"],
            "reason": command["reason"],
            "is_applied": not note,
            "note": note,
            "job_version": work.job(job).version + 1,
            **traces,
        },
        job=work.job(job),
    )


def _why(command: Command) -> str:
    said = str(command["reason"]).strip()
    return said or f"{command['verb']} by {command['actor']}"


def _refused(work: Work, job: Job, happening: Happening) -> str:
    """Return why the table lets nothing happen, or an empty text."""
    if work.allows(job, happening) is not None:
        return ""
    return f"nothing to do: the job is {job.place}"


def _cancel(work: Work, job: Job, command: Command) -> None:
    _stop(work, job, command, happening=Happening.CANCEL, intent=StopIntent.CANCEL)


def _suspend(work: Work, job: Job, command: Command) -> None:
    _stop(work, job, command, happening=Happening.SUSPEND, intent=StopIntent.SUSPEND)


def _stop(
    work: Work, job: Job, command: Command, *, happening: Happening, intent: StopIntent
) -> None:
    note = _refused(work, job, happening)
    _note(work, job, command, note=note, **({} if note else {"is_resume_wanted": False}))
    if not note:
        stop_for(work, job, happening, intent, reason=_why(command), actor=command["actor"])


def _resume(work: Work, job: Job, command: Command) -> None:
    note = _refused(work, job, Happening.RESUME)
    if note:
        _note(work, job, command, note=note)
        return
    is_at_rest = job.place in (Place.SUSPENDED, Place.HELD)
    _note(work, job, command, is_resume_wanted=not is_at_rest, is_renewed=is_at_rest)
    if is_at_rest:
        work.clear_timers(job)
        work.move(
            job, Happening.RESUME, Place.PENDING, reason=_why(command), actor=command["actor"]
        )


def _priority(work: Work, job: Job, command: Command) -> None:
    value = command.get("value", command.get("priority"))
    if isinstance(value, bool) or not isinstance(value, int):
        raise FactRefused(f"{job.id}: a priority is a whole number, not {value!r}")
    note = _refused(work, job, Happening.PRIORITY)
    if note:
        _note(work, job, command, note=note)
    else:
        _note(work, job, command, priority=value)


_VERBS: dict[str, Callable[[Work, Job, Command], None]] = {
    "cancel": _cancel,
    "suspend": _suspend,
    "resume": _resume,
    "priority": _priority,
}


def confirm_gone(work: Work, fact: Fact) -> None:
    """Take a person's word that no process of a run lives any more."""
    data = fact.data
    job = work.state.jobs.get(data["job"])
    if job is None:
        raise FactRefused(f"no job is called {data['job']}")
    if job.run is None or job.run.attempt != data["attempt"]:
        raise FactRefused(f"{job.id}: attempt {data['attempt']} is not the current one")
    if job.run.is_gone:
        raise FactRefused(f"{job.id}: attempt {data['attempt']} is known to be gone already")
    if job.run.stop is None:
        raise FactRefused(f"{job.id}: attempt {data['attempt']} is not being stopped")
    gone(work, job, Gone(f"the word of {data['actor']}"))


def release_node(work: Work, fact: Fact) -> None:
    """Take a person's word that a lost node's processes are gone, on that node."""
    data = fact.data
    node = work.state.nodes.get(data["node"])
    if node is None:
        raise FactRefused(f"no node is called {data['node']}")
    if node.is_ready:
        raise FactRefused(f"the node {node.name} is ready; only a lost one is released")
    for job_id in sorted(set(node.leases.values())):
        job = work.state.jobs[job_id]
        run = work.run(job)
        if node.name not in run.gone:
            gone_here = {"node": node.name, "outcome": "released"}
            work.emit("pool.node_gone", gone_here, job=job)
        if work.run(job).gone.keys() >= run.node_names:
            gone(work, job, Gone(f"the word of {data['actor']}"))
    work.emit("pool.released", {"node": node.name, "actor": data["actor"]})
