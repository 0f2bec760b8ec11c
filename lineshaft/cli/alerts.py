"""Commands about alerts."""

from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client

Alert = Annotated[str, typer.Argument(help="The alert's id, as `lineshaft alerts` shows it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: lineshaft alerts --open")(alerts)
    app.command(epilog="Example: lineshaft acknowledge a-1x2y", no_args_is_help=True)(acknowledge)
    app.command(epilog="Example: lineshaft resolve a-1x2y", no_args_is_help=True)(resolve)


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


def _command(verb: str, alert: str, reason: str, url: str | None, form: Format) -> None:
    async def work() -> None:
        async with Client.connect(url) as client:
            answer = await client.alert_command(verb, alert, reason=reason)
        if form is Format.JSON:
            output.print_json(answer)
        else:
            output.print_line(f"{verb} of {alert} is recorded")

    output.go(work, form)
