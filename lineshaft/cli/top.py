"""The command ``top``: nodes, running jobs with their numbers, what waits."""

import asyncio
import contextlib
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lineshaft.cli import chart, options, output
from lineshaft.cli.listing import place, runs_on
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError
from lineshaft.sdk.watch import progress_of

ACTIVE: Final = ("Running", "Scheduled", "Retrying", "Suspended")
JOBS_SHOWN_MAX: Final = 30
_SPARK: Final = 20
_QUEUE_SHOWN: Final = 8


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples: lineshaft top;  lineshaft top --once;  lineshaft top -o json")(
        top
    )


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.5, max=60.0, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Show nodes, running jobs with step, throughput and loss, and the queue. Ctrl-C ends it."""
    is_live = sys.stdout.isatty() and form is Format.TABLE and not once

    async def work() -> None:
        async with Client.connect(url) as client:
            if is_live:
                with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how one leaves
                    await _live(client, every)
                return
            found = await look(client)
        if form is Format.JSON:
            output.print_json(found)
        else:
            screen = output.console() if sys.stdout.isatty() else output.wide_console()
            screen.print(view(found))

    output.go(work, form)


async def _live(client: Client, every: float) -> None:
    with Live(console=output.console(), auto_refresh=False, screen=True) as live:
        while True:
            try:
                live.update(view(await look(client)), refresh=True)
            except PlatformError as error:
                if error.code not in ("unreachable", "unavailable", "not_leader"):
                    raise
                text = f"the platform does not answer ({error.message}); looking again"
                live.update(Text(text, style="yellow"), refresh=True)
            await asyncio.sleep(every)


async def look(client: Client) -> dict[str, Any]:
    """Return nodes, active jobs with their newest numbers, the queue, open alerts."""
    nodes, queue = await client.nodes(), await client.queue()
    jobs = [job for job in await client.all_jobs() if job["state"] in ACTIVE]
    shown = jobs[:JOBS_SHOWN_MAX]
    numbers = await asyncio.gather(*(_numbers(client, job["job"]) for job in shown))
    alerts: list[dict[str, Any]] = []
    with contextlib.suppress(PlatformError):  # the monitor may be away; the rest still counts
        alerts = await client.alerts(open_only=True)
    return {
        "nodes": nodes,
        "jobs": [{**_short(job), **known} for job, known in zip(shown, numbers, strict=True)],
        "jobs_active": len(jobs),
        "queue": queue,
        "alerts": alerts,
    }


def _short(job: dict[str, Any]) -> dict[str, Any]:
    names = ("job", "name", "team", "state", "substate", "attempt", "since", "nodes", "reason")
    return {name: job.get(name) for name in names}


async def _numbers(client: Client, job: str) -> dict[str, Any]:
    try:
        curves = await client.curves(job, points=2 * _SPARK)
    except PlatformError:  # a job that does not run yet has none
        return {"progress": {}, "losses": []}
    series = curves.get("series") or {}
    return {"progress": progress_of(curves), "losses": chart.values_of(series.get("loss", []))}


def view(found: dict[str, Any]) -> RenderableType:
    """Return what was found as something to print."""
    parts: list[RenderableType] = [Text(_headline(found), style="bold"), _nodes(found["nodes"])]
    parts += [Text(""), _jobs(found["jobs"])]
    hidden = found["jobs_active"] - len(found["jobs"])
    if hidden:
        parts.append(Text(f"and {hidden} more", style="dim"))
    if found["queue"]:
        parts += [Text(""), _queue(found["queue"])]
    parts += [
        Text(f"ALERT [{a['severity']}] {a['kind']}: {a['summary']}", style="yellow")
        for a in found["alerts"][:_QUEUE_SHOWN]
    ]
    return Group(*parts)


def _headline(found: dict[str, Any]) -> str:
    slots = sum(node.get("slots") or 0 for node in found["nodes"])
    free = sum(node.get("free") or 0 for node in found["nodes"])
    return (
        f"{slots - free} of {slots} slots in use, {found['jobs_active']} active jobs, "
        f"{len(found['queue'])} waiting, {len(found['alerts'])} open alerts"
    )


def _nodes(nodes: list[dict[str, Any]]) -> RenderableType:
    rows = []
    for node in nodes:
        used = (node.get("slots") or 0) - (node.get("free") or 0)
        share = used / node["slots"] if node.get("slots") else 0.0
        rows.append(
            (
                node["node"],
                node.get("status"),
                node.get("gpu_type"),
                f"{chart.bar(share, 10)} {used}/{node.get('slots')}",
                ", ".join(runs_on(node)),
            )
        )
    return _table(("node", "status", "type", "slots", "runs"), rows)


def _jobs(jobs: list[dict[str, Any]]) -> RenderableType:
    if not jobs:
        return Text("nothing runs", style="dim")
    rows = []
    for job in jobs:
        now = job["progress"]
        step, planned = now.get("step"), now.get("planned_steps")
        rows.append(
            (
                job["job"],
                job["name"],
                place(job),
                job.get("attempt"),
                f"{step}/{planned}" if planned else step,
                _rate(now),
                f"{now['loss']:.4f}" if isinstance(now.get("loss"), int | float) else None,
                chart.spark(job["losses"], _SPARK),
                output.span(now["eta_s"] * 1000) if now.get("eta_s") is not None else None,
            )
        )
    titles = ("job", "name", "state", "attempt", "step", "throughput", "loss", "", "left")
    return _table(titles, rows)


def _rate(now: dict[str, Any]) -> str | None:
    for name, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s")):
        if isinstance(now.get(name), int | float):
            return f"{now[name]:,.0f} {unit}"
    return None


def _queue(queue: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            f"{j.get('position')}.",
            j["job"],
            j.get("name"),
            j.get("team"),
            j.get("slots"),
            j.get("why"),
        )
        for j in queue[:_QUEUE_SHOWN]
    ]
    return _table(("waits", "job", "name", "team", "slots", "why"), rows)


def _table(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if value in (None, "") else str(value)) for value in row))
    return table
