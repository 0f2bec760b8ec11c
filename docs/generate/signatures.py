"""The page of log signatures: what the monitor recognises in a line, and what follows."""

from docs.generate.text import notice, table
from services.monitor import signature_file
from services.monitor.domain.signatures import Signature

_HEAD = """\
# Log signatures

{notice}

A line of a run's log that has one of these forms is evidence: the first match counts inside a
line, and over all lines a root goes before a precursor, a precursor before a cascade, then the
earliest. The class decides which budget pays for another attempt; `retry` is how it may be made.

- **root**: a cause. **precursor**: a fault announces itself. **cascade**: follows from a cause
  elsewhere.
- Classes: `infrastructure` and `transient` (the platform tries again), `user_code`, `data` and
  `config` (a person has to change something first).

"""


def markdown() -> str:
    """Return the page, by the part of the id before the dot."""
    families: dict[str, list[Signature]] = {}
    for one in signature_file.load().ordered:
        families.setdefault(one.id.partition(".")[0], []).append(one)
    text = _HEAD.format(notice=notice("`services/monitor/signatures.yaml`"))
    titles = ("signature", "role", "class", "retry", "cause", "what to do")
    for family, found in families.items():
        rows = [
            (f"`{s.id}`", s.role, s.failure_class, f"`{s.retry}`", s.cause, s.action) for s in found
        ]
        text += f"## {family}\n\n{table(titles, rows)}\n"
    return text.rstrip("\n") + "\n"
