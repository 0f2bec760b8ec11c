"""The command ``logs``."""

import asyncio
from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client
from lineshaft.sdk.watch import TERMINAL

_POLL_S = 0.5
_PAGE = 500


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: lineshaft logs domain-chat -f --rank 1", no_args_is_help=True)(
        logs
    )


def logs(
    job: options.Job,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1)] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0)] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only the last lines.")] = None,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Print a job's log, of all attempts and ranks, in the order of time."""

    async def work() -> None:
        async with Client.connect(url) as client:
            found = await client.job(job)
            where = {"attempt": attempt, "rank": rank, "limit": _PAGE}
            shown, after = await _all(client, found["job"], where)
            for line in shown[-tail:] if tail else shown:
                _print(line, form)
            while follow:
                state = await client.job(found["job"])
                more, after = await _all(client, found["job"], where, after)
                for line in more:
                    _print(line, form)
                if state["state"] in TERMINAL and not more:
                    return
                await asyncio.sleep(_POLL_S)

    output.go(work, form)


async def _all(
    client: Client, job: str, where: dict[str, Any], after: Any = None
) -> tuple[list[dict[str, Any]], Any]:
    """Read pages until one is not full; return the lines and where to go on."""
    lines: list[dict[str, Any]] = []
    while True:
        page = await client.logs(job, after=after, **where)
        lines += page["lines"]
        moved = page.get("next")
        is_done = len(page["lines"]) < _PAGE or moved == after
        after = moved or after
        if is_done:
            return lines, after


def _print(line: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        output.print_json(line)
        return
    who = "agent" if line.get("rank", -1) < 0 else f"rank {line['rank']}"
    output.print_line(
        f"{output.clock(line.get('at'))} #{line.get('attempt')} {who}  {line['text']}"
    )
