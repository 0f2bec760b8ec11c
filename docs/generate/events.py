"""The page of events: kinds, fields, subjects, streams of the bus."""

from docs.generate.text import notice, table
from lineshaft.contracts import events, kinds, limits, subjects

_HEAD = """\
# Events

{notice}

Every event is a CloudEvent 1.0 in JSON (`{content_type}`), structured or with its attributes in
`ce-` headers. `type` is `{prefix}<kind>`; `id` identifies the fact, a repeated id changes nothing;
`subject` is the job's id, the model's name, or `-`; `time` is the publisher's clock. Extensions:
`pool`, `team`, `attempt`, `stream`, `sequence` and `index` (the place in the publisher's journal),
`replay` (published again after the bus lost something), `correlationid` (the id of the command that
it answers), `traceparent`. Fields beyond those below may appear at any time; ignore what you do not
know. An event has at most {bytes} bytes. The same in AsyncAPI 3: [asyncapi.json](asyncapi.json).

A subject is `{root}.<family>.<kind>.<pool>.<team>.<subject>`, of the family `run` with `.<attempt>`
behind it; `-` stands where a part does not apply. Commands go to `{root}.in.<verb>`.
"""
_FAMILIES = {
    "in": "Commands",
    "job": "Life of a job",
    "run": "Runs",
    "alert": "Alerts",
    "audit": "Findings of the platform about itself",
    "model": "Models",
}
_TYPES = {str: "text", int: "whole number", bool: "true or false", list: "list", dict: "object"}
_PLACES = ("pool", "team", "subject")


def markdown() -> str:
    """Return the page."""
    head = _HEAD.format(
        notice=notice("`lineshaft/contracts/kinds.py` and `lineshaft/contracts/subjects.py`"),
        content_type=events.CONTENT_TYPE,
        prefix=events.TYPE_PREFIX,
        bytes=limits.EVENT_BYTES_MAX,
        root=subjects.ROOT,
    )
    return "\n".join([head, *map(_family, families()), _streams(), _reports()])


def families() -> list[str]:
    """Return the families of kinds in the order of the table."""
    return list(dict.fromkeys(name.partition(".")[0] for name in kinds.KINDS))


def address(kind: str) -> str:
    """Return the subject of ``kind``, its variable parts in braces."""
    family, _, rest = kind.partition(".")
    if family == "in":
        return subjects.command(rest)
    marks = {name: "{" + name + "}" for name in _PLACES}
    made = f"{subjects.ROOT}.{family}.{rest}.{marks['pool']}.{marks['team']}.{marks['subject']}"
    return made + ".{attempt}" if family == "run" else made


def type_words(wanted: type | tuple[type, ...]) -> str:
    """Return a field's type in words."""
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    words = [_TYPES[one] for one in several if one is not type(None)]
    return " or ".join(words) + (", or null" if type(None) in several else "")


def _family(family: str) -> str:
    text = f"## {_FAMILIES[family]}\n"
    for name, kind in kinds.KINDS.items():
        if name.partition(".")[0] != family:
            continue
        where = f"Published by {kind.publisher} on\n`{address(name)}`."
        text += f"\n### `{name}`\n\n{kind.summary} {where}\n"
        rows = [(f"`{field}`", type_words(wanted)) for field, wanted in kind.fields.items()]
        text += "\n" + table(("field of `data`", "type"), rows) if rows else ""
    return text


def _streams() -> str:
    rows = [
        (
            f"`{plan.name}`",
            ", ".join(f"`{subject}`" for subject in plan.subjects),
            plan.retention,
            plan.storage,
            _age(plan.age_max_s),
            _bounds(plan),
        )
        for plan in subjects.STREAMS
    ]
    titles = ("stream", "subjects", "retention", "storage", "kept for", "bounds")
    return (
        "## Streams\n\nThe bus is a window; the journals are the record. What a stream lost is "
        f"published again with the same ids.\n\n{table(titles, rows)}"
    )


def _age(seconds: int | None) -> str:
    if seconds is None:
        return "no limit"
    if seconds % 86_400 == 0:
        return f"{seconds // 86_400} days"
    return f"{seconds // 60} minutes"


def _bounds(plan: subjects.StreamPlan) -> str:
    bounds = []
    if plan.messages_max is not None:
        bounds.append(f"{plan.messages_max} messages")
    if plan.messages_max_per_subject is not None:
        bounds.append(f"{plan.messages_max_per_subject} per subject")
    if plan.bytes_max is not None:
        bounds.append(f"{plan.bytes_max >> 20} MiB")
    return ", ".join(bounds)


def _reports() -> str:
    where = "{partition}.{pool}.{team}.{job}.{attempt}.{node}"
    return (
        "## Reports of runs\n\nAgents report on "
        f"`{subjects.ROOT}.beat.{where}`,\n`{subjects.ROOT}.telemetry.{where}` and\n"
        f"`{subjects.ROOT}.logs.{where}`: blocks in msgpack behind a JSON header, for the monitor. "
        "Other systems read curves and logs by request.\n\n"
        f"What a service could not handle is on `{subjects.ROOT}.dead.<service>` with the reason.\n"
    )
