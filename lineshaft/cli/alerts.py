"""Commands about alerts."""

import re
from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client

_SPAN = re.compile(r"(\d{1,6})([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN_MS_MAX = 366 * 86_400_000

Alert = Annotated[str, typer.Argument(help="The alert's id, as `lineshaft alerts` shows it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: lineshaft alerts --open")(alerts)
    app.command(epilog="Example: lineshaft acknowledge a-1x2y", no_args_is_help=True)(acknowledge)
    app.command(epilog="Example: lineshaft resolve a-1x2y", no_args_is_help=True)(resolve)
    app.command(epilog="Example: lineshaft silence a-1x2y --for 90m", no_args_is_help=True)(silence)


def alerts(
    job: Annotated[str | None, typer.Option("--job", help="Only this job's.")] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only those not resolved.")] = False,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """List alerts, newest first."""

    async def work() -> None:
        async with Client.connect(url) as client:
            wanted = (await client.job(job))["job"] if job else None
            found = await client.alerts(job=wanted, open_only=open_only)
        if form is Format.JSON:
            output.print_json({"alerts": found})
            return
        titles = ("alert", "since", "state", "severity", "kind", "job", "summary")
        output.print_table(titles, [_row(alert) for alert in found], empty="no alerts")

    output.go(work, form)


def _row(alert: dict[str, Any]) -> tuple[Any, ...]:
    return (
        alert["alert"],
        output.clock(alert.get("opened_at")),
        alert["status"],
        alert["severity"],
        alert["kind"],
        alert.get("job"),
        alert["summary"],
    )


def acknowledge(
    alert: Alert,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Say that you took an alert."""
    _command("acknowledge", alert, reason, url, form)


def resolve(
    alert: Alert,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Close an alert by hand."""
    _command("resolve", alert, reason, url, form)


def silence(
    alert: Alert,
    span: Annotated[str, typer.Option("--for", help="How long: 30s, 90m, 8h, 7d.")] = "24h",
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Keep an alert, and its kind for this subject of the job, from being sent for a while."""
    _command("silence", alert, reason, url, form, for_ms=milliseconds(span))


def milliseconds(span: str) -> int:
    """Read a length of time such as ``90m``. Raises ``typer.BadParameter``."""
    match = _SPAN.fullmatch(span.strip())
    number = int(match[1]) if match else 0
    if match is None or not 0 < number * _UNIT_MS[match[2]] <= _SPAN_MS_MAX:
        raise typer.BadParameter(f"'{span}' is no length of time up to a year, such as 90m or 8h")
    return number * _UNIT_MS[match[2]]


def _command(
    verb: str, alert: str, reason: str, url: str | None, form: Format, **more: Any
) -> None:
    async def work() -> None:
        async with Client.connect(url) as client:
            answer = await client.alert_command(verb, alert, reason=reason, **more)
        if form is Format.JSON:
            output.print_json(answer)
        else:
            output.print_line(f"{verb} of {alert} is recorded")

    output.go(work, form)
