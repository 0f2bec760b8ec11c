"""The self-audit: what must hold of a pool's state, counted anew from its jobs."""

from collections import Counter

from services.scheduler.domain.state import PoolState


def differences(state: PoolState) -> list[str]:
    """Return what does not agree: leases, slots held per team, the queue; empty when all does."""
    expected: dict[tuple[str, int], str] = {}
    held: Counter[str] = Counter()
    found = []
    for _, job in sorted(state.jobs.items()):
        run = job.live_run
        if run is None:
            continue
        if job.place.is_terminal:
            found.append(f"{job.id} is {job.place} and holds slots")
        for share in run.nodes:
            held[job.team] += len(share.slots)
            for slot in share.slots:
                other = expected.setdefault((share.node, slot), job.id)
                if other != job.id:
                    found.append(f"slot {slot} of {share.node} is held by {other} and {job.id}")
    leased = {(n.name, slot): who for n in state.nodes.values() for slot, who in n.leases.items()}
    if leased != expected:
        wrong = sorted(set(leased.items()) ^ set(expected.items()))
        found.append(f"leases differ from runs: {wrong[:5]}")
    if {team: count for team, count in state.used.items() if count} != dict(held):
        found.append(f"slots held per team are {dict(held)}, on record {dict(state.used)}")
    if state.queue != sorted(job.queue_key for job in state.jobs.values() if job.is_waiting):
        found.append("the queue differs from the jobs that wait")
    return found
