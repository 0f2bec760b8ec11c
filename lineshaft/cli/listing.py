"""Commands that list: jobs, nodes, queue."""

import fnmatch
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client

_STATES = ("Pending", *output.STYLE_OF_STATE)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="Examples: lineshaft jobs --state Running -o json;  "
        "lineshaft jobs --name 'domain-*' --label project=chat --page 2"
    )(jobs)
    app.command(epilog="Example: lineshaft nodes")(nodes)
    app.command(epilog="Example: lineshaft queue")(queue)


def jobs(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only these states; may be repeated.")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", help="Only this team's.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Only these names; * and ? stand for anything.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="Only with this label: key or key=value; may be repeated."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="How many on a page.")
    ] = 50,
    page: Annotated[int, typer.Option("--page", min=1, help="Which page.")] = 1,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    states = [_state_of(one) for one in state or ()]

    async def work() -> None:
        async with Client.connect(url) as client:
            everything = await client.all_jobs(
                state=states[0] if len(states) == 1 else None, team=team
            )
        found = [
            job
            for job in everything
            if (not states or job["state"] in states)
            and fnmatch.fnmatchcase(job["name"], name or "*")
            and all(_has_label(job, one) for one in label or ())
        ]
        shown = found[(page - 1) * limit : page * limit]
        if form is Format.JSON:
            more = page + 1 if len(found) > page * limit else None
            output.print_json({"jobs": shown, "total": len(found), "next_page": more})
            return
        _print_jobs(shown, is_narrowed=bool(states or team or name or label))
        if len(found) > len(shown):
            output.print_line(f"page {page}: {len(shown)} of {len(found)}; --page shows another")

    output.go(work, form)


def _state_of(text: str) -> str:
    meant = {one.lower(): one for one in _STATES}.get(text.lower())
    if meant is None:
        output.usage(f"there is no state '{text}'", f"states are {', '.join(_STATES)}")
    return meant


def _has_label(job: dict[str, Any], wanted: str) -> bool:
    key, equals, value = wanted.partition("=")
    labels = job.get("labels") or {}
    return labels.get(key) == value if equals else key in labels


def _print_jobs(shown: Sequence[dict[str, Any]], *, is_narrowed: bool) -> None:
    now = time.time() * 1000
    rows = [
        (
            job["job"],
            job["name"],
            job.get("job_type"),
            place(job),
            job.get("attempt"),
            output.span(now - job["since"]) if job.get("since") else None,
            job.get("reason"),
        )
        for job in shown
    ]
    nothing = "no jobs; submit one: lineshaft submit FILE"
    titles = ("job", "name", "type", "state", "attempt", "since", "reason")
    output.print_table(titles, rows, empty="no such jobs" if is_narrowed else nothing)


def place(job: dict[str, Any]) -> str:
    """Return state and sub-state as people read them."""
    return str(job["state"]) + (f"/{job['substate']}" if job.get("substate") else "")


def nodes(url: options.Url = None, form: options.Output = Format.TABLE) -> None:
    """List the nodes, their slots and what runs on them."""

    async def work() -> None:
        async with Client.connect(url) as client:
            found = await client.nodes()
        if form is Format.JSON:
            output.print_json({"nodes": found})
        else:
            print_nodes(found)

    output.go(work, form)


def print_nodes(found: Sequence[dict[str, Any]]) -> None:
    """Print nodes as a table."""
    rows = [
        (
            node["node"],
            node.get("status"),
            node.get("gpu_type"),
            node.get("slots"),
            node.get("free"),
            ", ".join(runs_on(node)),
        )
        for node in found
    ]
    titles = ("node", "status", "type", "slots", "free", "runs")
    output.print_table(titles, rows, empty="no nodes")


def runs_on(node: dict[str, Any]) -> list[str]:
    """Return what holds a node's slots, as ``job#attempt (slots)``."""
    held: dict[str, int] = {}
    for lease in node.get("leases", []):
        run = f"{lease['job']}#{lease['attempt']}"
        held[run] = held.get(run, 0) + 1
    return [f"{run} ({slots})" for run, slots in held.items()]


def queue(url: options.Url = None, form: options.Output = Format.TABLE) -> None:
    """List the jobs that wait, in the order in which they will be placed, and why they wait."""

    async def work() -> None:
        async with Client.connect(url) as client:
            found = await client.queue()
        if form is Format.JSON:
            output.print_json({"jobs": found})
        else:
            print_queue(found)

    output.go(work, form)


def print_queue(found: Sequence[dict[str, Any]]) -> None:
    """Print waiting jobs as a table."""
    now = time.time() * 1000
    rows = [
        (
            job.get("position"),
            job["job"],
            job.get("name"),
            job.get("team"),
            job.get("priority"),
            f"{job.get('slots')} x {job.get('gpu_type')}",
            output.span(now - job["submitted_at"]) if job.get("submitted_at") else None,
            job.get("why"),
        )
        for job in found
    ]
    titles = ("place", "job", "name", "team", "priority", "needs", "waits", "why")
    output.print_table(titles, rows, empty="nothing waits")
