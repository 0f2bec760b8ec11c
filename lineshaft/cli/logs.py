"""The command ``logs``."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.log_filter import FilterError, Level, LogFilter, moment_of, pattern_of
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client
from lineshaft.sdk.watch import TERMINAL

_POLL_S = 0.5
_PAGE = 500


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Examples: lineshaft logs domain-chat -f --rank 1;  "
        "lineshaft logs domain-chat --level error --since 10m;  "
        "lineshaft logs domain-chat --grep 'loss nan|overflow' --tail 20",
        no_args_is_help=True,
    )(logs)


def logs(
    job: options.Job,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this attempt's.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank's.")] = None,
    level: Annotated[
        Level | None,
        typer.Option("--level", help="Only lines that look like warnings (and errors), or errors."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only later ones: 10m, 2h, 14:30, or a date.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", help="Only lines in which this expression occurs.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=1, max=100_000, help="Only the last lines.")
    ] = None,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Print a job's log, of all attempts and ranks, in the order of time.

    With -o json each line is one JSON object on a line of its own.
    """
    wanted = _filter(level, since, grep)

    async def work() -> None:
        async with Client.connect(url) as client:
            found = await client.job(job)
            reader = Reader(client, found["job"], {"attempt": attempt, "rank": rank})
            await _show(reader, wanted, form, tail=tail)
            while follow:
                state = await client.job(found["job"])
                seen = await _show(reader, wanted, form)
                if state["state"] in TERMINAL and not seen:
                    return
                await asyncio.sleep(_POLL_S)

    try:
        output.go(work, form)
    except FilterError as error:
        output.usage(str(error))


async def _show(
    reader: "Reader", wanted: LogFilter, form: Format, *, tail: int | None = None
) -> int:
    """Print what is there now, or its last ``tail`` lines; return how many lines were read."""
    kept: deque[dict[str, Any]] = deque(maxlen=tail)
    seen = 0
    async for page in reader.pages():
        seen += len(page)
        chosen = wanted.chosen(page)
        if tail:
            kept.extend(chosen)
            continue
        for line in chosen:
            _print(line, form)
    for line in kept:
        _print(line, form)
    return seen


def _filter(level: Level | None, since: str | None, grep: str | None) -> LogFilter:
    try:
        return LogFilter(
            level,
            None if since is None else moment_of(since, datetime.now().astimezone()),
            None if grep is None else pattern_of(grep),
        )
    except FilterError as error:
        output.usage(str(error))


class Reader:
    """Reads a job's log page by page and remembers how far it came."""

    def __init__(self, client: Client, job: str, where: dict[str, Any]) -> None:
        self._client = client
        self._job = job
        self._where = where
        self._after: str | None = None

    async def pages(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the pages that are there now; called again, what came since."""
        while True:
            page = await self._client.logs(self._job, after=self._after, limit=_PAGE, **self._where)
            moved = page.get("next")
            if page["lines"]:
                yield page["lines"]
            is_last = moved in (None, self._after)
            self._after = moved or self._after
            if is_last:
                return


def _print(line: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        output.print_json_line(line)
        return
    who = "agent" if line.get("rank", -1) < 0 else f"rank {line['rank']}"
    output.print_line(
        f"{output.clock(line.get('at'))} #{line.get('attempt')} {who}  {line['text']}"
    )
