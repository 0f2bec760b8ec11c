"""Commands about one job: status, explain, cancel, suspend, resume."""

from typing import Annotated, Any

import typer

from lineshaft.cli import following, options, output, watching
from lineshaft.cli.listing import place
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError
from lineshaft.sdk.watch import TERMINAL


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: lineshaft status domain-chat --watch", no_args_is_help=True)(
        status
    )
    app.command(epilog="Example: lineshaft explain domain-chat", no_args_is_help=True)(explain)
    for verb in (cancel, suspend, resume):
        app.command(
            epilog=f"Example: lineshaft {verb.__name__} domain-chat --reason 'wrong data'",
            no_args_is_help=True,
        )(verb)


def status(
    job: options.Job,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Show a job whole: state and reason, timeline, ranks with process ids, progress, alerts."""

    async def work() -> int | None:
        async with Client.connect(url) as client:
            if watch:
                found = await client.job(job)
                return await following.follow(client, found["job"], form)
            whole = await whole_status(client, job)
        if form is Format.JSON:
            output.print_json(whole)
        else:
            _print_status(whole)
        return None

    output.go(work, form)


async def whole_status(client: Client, job: str) -> dict[str, Any]:
    """Put together what scheduler and monitor know; a service that is away is named as such."""
    whole = await client.job(job)
    missing: list[str] = []
    for name, ask in (("run", client.run), ("curves", client.curves)):
        try:
            whole[name] = await ask(whole["job"])
        except PlatformError as error:
            whole[name] = None
            if error.code != "not_found":
                missing.append(f"{name}: {error.message}")
    try:
        whole["model"] = await client.version_of(whole) or whole.get("model")
    except PlatformError as error:
        missing.append(f"model: {error.message}")
    try:
        whole["alerts"] = await client.alerts(job=whole["job"])
    except PlatformError as error:
        whole["alerts"] = []
        missing.append(f"alerts: {error.message}")
    whole["missing"] = missing
    return whole


def _print_status(whole: dict[str, Any]) -> None:
    output.print_line(f"{whole['name']}  {whole['job']}  team {whole['team']}")
    output.print_line(f"{place(whole)}: {whole.get('reason')}")
    curves = whole.get("curves") or {}
    from_curves = watching.progress_line_of(curves)
    if from_curves:
        output.print_line(from_curves)
    output.print_line("timeline")
    for line in whole.get("timeline", []):
        where = place(line)
        output.print_line(
            f"  {output.clock(line['at'])}  {where}"
            f"{' #' + str(line['attempt']) if line.get('attempt') else ''}  {line['reason']}"
        )
    for row in _ranks(whole):
        output.print_line(
            f"  rank {row.get('rank')} on {row.get('node')}: pid {row.get('pid')}, "
            f"{row.get('state', '?')}"
        )
    if whole.get("checkpoints"):
        steps = ", ".join(f"{c['step']} (#{c['attempt']})" for c in whole["checkpoints"])
        output.print_line(f"checkpoints  {steps}")
    for alert in whole.get("alerts", []):
        output.print_line(
            f"alert  {alert['status']} [{alert['severity']}] {alert['kind']}: {alert['summary']}"
        )
    if (whole.get("model") or {}).get("version"):
        output.print_line(f"model  {whole['model']['name']}:{whole['model']['version']}")
    for text in whole["missing"]:
        output.print_line(f"not known now - {text}")


def _ranks(whole: dict[str, Any]) -> list[dict[str, Any]]:
    run = whole.get("run") or {}
    attempts = run.get("attempts", [])
    current = [a for a in attempts if a.get("attempt") == whole.get("attempt")]
    rows = []
    for attempt in current:
        for node in attempt.get("nodes", []):
            rows += [{**rank, "node": node.get("node")} for rank in node.get("ranks", [])]
    return rows


def explain(job: options.Job, url: options.Url = None, form: options.Output = Format.TABLE) -> None:
    """Say why a job is where it is, and what would move it."""

    async def work() -> None:
        async with Client.connect(url) as client:
            answer = await client.explain(job)
        if form is Format.JSON:
            output.print_json(answer)
            return
        output.print_line(str(answer.get("text")))
        for name in ("reason", "position", "ahead", "needs", "free"):
            if answer.get(name) is not None:
                output.print_line(f"  {name}: {answer[name]}")

    output.go(work, form)


def _command(verb: str, job: str, reason: str, url: str | None, form: Format) -> None:
    async def work() -> None:
        async with Client.connect(url) as client:
            found = await client.job(job)
            if found["state"] in TERMINAL:
                raise PlatformError(
                    "refused",
                    f"{found['name']} ({found['job']}) is {found['state']}: there is nothing left "
                    f"to {verb}",
                    "a job that is over never changes; submit it again",
                )
            answer = await client.command(verb, found["job"], reason=reason)
        if form is Format.JSON:
            output.print_json(answer)
        else:
            output.print_line(f"{verb} of {answer['job']} is recorded: lineshaft status {job}")

    output.go(work, form)


def cancel(
    job: options.Job,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """End a job for good; what it committed stays."""
    _command("cancel", job, reason, url, form)


def suspend(
    job: options.Job,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Save, stop and keep a job; resume goes on from the saved checkpoint."""
    _command("suspend", job, reason, url, form)


def resume(
    job: options.Job,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Queue a suspended or held job again."""
    _command("resume", job, reason, url, form)
