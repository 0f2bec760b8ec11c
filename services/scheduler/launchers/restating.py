"""Facts of the agents, said again from their records in Objects.

A fact that the bus lost, or that an agent could not publish any more, is in its record; it is
told again with the agent's own id and source, so that nobody takes it for a second one.
"""

import json
from collections.abc import AsyncIterator

from lineshaft.contracts import limits, records
from lineshaft.contracts.events import Fact
from lineshaft.ports import ObjectMissing, Objects
from services.scheduler.launchers.claims import Claim

SOURCE = "agent"
_KINDS = (
    ("started-", "run.started"),
    ("checkpoints/", "run.checkpoint_committed"),
    ("rank-exit-", "run.rank_exited"),
    ("complete", "run.completed"),
    ("ended-", "run.ended"),
)


async def facts_of(claim: Claim, objects: Objects) -> AsyncIterator[Fact]:
    """Yield the facts of a run's records, in the order of a run's life.

    Raises ``StoreUnavailable`` when the store does not answer; what cannot be read is passed over.
    """
    prefix = records.run(claim.job, claim.attempt)
    found: list[tuple[int, str, str]] = []
    async for stat in objects.list(prefix):
        name = stat.key.removeprefix(prefix)
        for place, (start, kind) in enumerate(_KINDS):
            if name.startswith(start) and stat.size <= limits.RECORD_BYTES_MAX:
                found.append((place, stat.key, kind))
    for _, key, kind in sorted(found):
        fact = await _fact(claim, key, kind, objects)
        if fact is not None:
            yield fact


async def _fact(claim: Claim, key: str, kind: str, objects: Objects) -> Fact | None:
    try:
        body = json.loads(b"".join([part async for part in objects.open(key)]))
    except (ObjectMissing, ValueError):
        return None
    if not isinstance(body, dict):
        return None
    return Fact(
        id=key,
        kind=kind,
        data=body,
        at=int(body.get("at", 0)),
        source=SOURCE,
        subject=claim.job,
        attempt=claim.attempt,
        pool=claim.pool,
        team=claim.team,
    )
