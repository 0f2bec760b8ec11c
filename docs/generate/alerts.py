"""The page of alerts: kinds with severity, meaning and runbook."""

from docs.generate.text import notice, table
from lineshaft.contracts import alerts

_HEAD = """\
# Alerts

{notice}

An alert opens as a `notice` when a rule first sees something, is confirmed with the severity below
when the evidence holds, may be acknowledged or silenced, and is resolved by the platform or by a
person. At most one is open per job, kind and subject. `lineshaft alerts` lists them. The rules are
explained on each kind's page; thresholds are settings: `[policy.monitor]` in
[settings.md](settings.md).

"""


def markdown() -> str:
    """Return the page."""
    rows = [
        (f"[`{name}`](../runbooks/{name}.md)", kind.severity.value, kind.title, kind.advice)
        for name, kind in alerts.KINDS.items()
    ]
    titles = ("kind", "severity once confirmed", "what it says", "what to do first")
    severities = table(
        ("severity", "meaning"),
        (
            ("notice", "look when you have time; nothing is proved yet"),
            ("warning", "look today"),
            ("critical", "the run is stopped, lost or ruined"),
        ),
    )
    head = _HEAD.format(notice=notice("`lineshaft/contracts/alerts.py`"))
    life = [
        (f"`{status}`", ", ".join(f"`{one}`" for one in after) or "none: it is final")
        for status, after in alerts.NEXT.items()
    ]
    return (
        f"{head}{table(titles, rows)}\n## Severities\n\n{severities}\n"
        f"## Life of an alert\n\n{table(('status', 'may become'), life)}"
    )
