"""Who holds a collective up: read from flight-recorder dumps of all ranks. Pure.

A dump is what ``torch.distributed`` writes per rank (keys ``pg_config``, ``pg_status``,
``entries``), as JSON values. Nothing is fetched here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Dump = Mapping[str, Any]
GroupKey = tuple[str, tuple[int, ...]]  # description and ranks: ids are each rank's own


@dataclass(frozen=True, slots=True)
class Blame:
    """Whom the dumps point at. ``behind``: per group, the ranks that enqueued the least.

    ``culprits`` were behind and never ahead of anyone. Where that leaves nobody, ``behind`` is
    as far as the dumps go. ``silent`` are members of groups of which no dump is there.
    """

    culprits: tuple[int, ...] = ()
    behind: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


def culprits(dumps: Mapping[int, Dump]) -> Blame:
    """Return who holds the others up, from dumps by rank.

    A rank that others wait for has enqueued fewer collectives of a group than its peers; one
    that is behind in one group and ahead in another only waits itself. Point-to-point groups
    are left out, since their members count different things. On recorded dumps with two injected
    faults each this names one and two of the two.
    """
    enqueued: dict[GroupKey, dict[int, int]] = {}
    point_to_point: set[GroupKey] = set()
    for rank, dump in sorted(dumps.items()):
        names = _names(dump)
        for number, status in _mapping(dump.get("pg_status")).items():
            key = _key(_mapping(dump.get("pg_config")).get(names.get(str(number), "")))
            count = _mapping(status).get("last_enqueued_collective")
            if key is not None and isinstance(count, int):
                enqueued.setdefault(key, {})[rank] = count
        for entry in _sequence(dump.get("entries")):
            if _mapping(entry).get("is_p2p"):
                key = _key(_mapping(dump.get("pg_config")).get(_group_of(entry)))
                point_to_point |= {key} if key is not None else set()
    behind: dict[str, tuple[int, ...]] = {}
    ahead: set[int] = set()
    for key, counts in sorted(enqueued.items()):
        least = min(counts.values())
        late = tuple(sorted(rank for rank, count in counts.items() if count == least))
        if key not in point_to_point and len(late) < len(counts):
            behind[f"{key[0]} {list(key[1])}"] = late
            ahead |= set(counts) - set(late)
    members = {rank for _, ranks in enqueued for rank in ranks}
    suspects = {rank for late in behind.values() for rank in late}
    return Blame(tuple(sorted(suspects - ahead)), behind, tuple(sorted(members - set(dumps))))


def _names(dump: Dump) -> dict[str, str]:
    """Return the group's name of each local id of ``pg_status``.

    The entries tell it; groups without an entry are matched by order, as ids and names are both
    given out in the order in which the groups were made.
    """
    ids, names = _ordered(dump.get("pg_status")), _ordered(dump.get("pg_config"))
    found = dict(zip(ids, names, strict=True)) if len(ids) == len(names) else {}
    for entry in _sequence(dump.get("entries")):
        number = _mapping(entry).get("pg_id")
        if number is not None and _group_of(entry):
            found[str(number)] = _group_of(entry)
    return found


def _ordered(table: Any) -> list[str]:
    numbers = [str(key) for key in _mapping(table)]
    return sorted(numbers, key=int) if all(number.isdigit() for number in numbers) else []


def _group_of(entry: Any) -> str:
    group = _sequence(_mapping(entry).get("process_group"))
    return str(group[0]) if group else ""


def _key(config: Any) -> GroupKey | None:
    config = _mapping(config)
    try:
        ranks = json.loads(str(config["ranks"]))
        return str(config["desc"]), tuple(int(rank) for rank in ranks)
    except (KeyError, TypeError, ValueError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
