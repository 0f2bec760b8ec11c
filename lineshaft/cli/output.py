"""What the CLI prints: tables and lines for people, JSON for programs, errors for both."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from lineshaft.sdk.errors import EXIT_INTERRUPTED, EXIT_USAGE, PlatformError

STYLE_OF_STATE = {
    "Succeeded": "green",
    "Running": "cyan",
    "Scheduled": "cyan",
    "Retrying": "yellow",
    "Suspended": "yellow",
    "Failed": "red",
    "Cancelled": "dim",
}


class Format(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"


def console(*, errors: bool = False) -> Console:
    """Return a console for now's standard output or error."""
    return Console(stderr=errors, highlight=False, soft_wrap=True)


def wide_console() -> Console:
    """Return a console for what is no terminal: lines are long and not cut."""
    return Console(width=200, highlight=False)


def json_text(value: Any) -> str:
    """Return one JSON document as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json_text(value))


def print_json_line(value: Any) -> None:
    """Print one JSON value on one line, for streams of them."""
    print_line(json.dumps(value, ensure_ascii=False, default=str))


def print_line(text: str) -> None:
    """Print one plain line; never interprets markup, for it may hold what users wrote."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(titles: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """Print rows under titles, or ``empty`` when there are none."""
    if not rows:
        print_line(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    out = console()
    if not out.is_terminal:
        out = wide_console()
    out.print(table)


def _cell(value: Any) -> str:
    text = "-" if value is None or value == "" else str(value)
    style = STYLE_OF_STATE.get(text.partition("/")[0])
    clean = text.replace("[", "\\[")
    return f"[{style}]{clean}[/]" if style else clean


def clock(at: int | None) -> str:
    """Return a time of day for people, in their time zone."""
    if not at:
        return "-"
    return datetime.fromtimestamp(at / 1000, UTC).astimezone().strftime("%H:%M:%S")


def span(milliseconds: float) -> str:
    """Return a duration for people."""
    seconds = max(0, round(milliseconds / 1000))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def fail(error: PlatformError, output: Format = Format.TABLE) -> NoReturn:
    """Print an error (what is wrong, what to do next) and end with its exit code."""
    if output is Format.JSON:
        print_json({"error": error.as_object()})
    else:
        sys.stderr.write(f"lineshaft: {error.message}\n")
        for reason in _reasons(error.details):
            sys.stderr.write(f"  {reason}\n")
        if error.hint:
            sys.stderr.write(f"  next: {error.hint}\n")
    raise typer.Exit(error.exit_code)


def _reasons(details: Any) -> list[str]:
    if not isinstance(details, list):
        return []
    return [reason_line(item) if isinstance(item, dict) else str(item) for item in details]


def reason_line(reason: dict[str, Any]) -> str:
    """Return one fault of a job file: where, what, the nearest name, what to do."""
    path, line = reason.get("path"), reason.get("line")
    where = f"{path} (line {line})" if path and line else path or (f"line {line}" if line else "")
    text = f"{where}: {reason.get('message', '')}" if where else str(reason.get("message", ""))
    for extra in ("nearest", "hint"):
        value = reason.get(extra)
        if value and str(value) not in text:
            text += f" - did you mean '{value}'?" if extra == "nearest" else f" - {value}"
    return text


def go(work: Callable[[], Awaitable[int | None]], output: Format = Format.TABLE) -> None:
    """Run ``work``; turn its errors into messages and its number into the exit code."""
    try:
        code = asyncio.run(_awaited(work))
    except PlatformError as error:
        fail(error, output)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None
    if code:
        raise typer.Exit(code)


async def _awaited(work: Callable[[], Awaitable[int | None]]) -> int | None:
    return await work()


def usage(message: str, hint: str | None = None) -> NoReturn:
    """End with exit code 2 and a message."""
    sys.stderr.write(f"lineshaft: {message}\n" + (f"  next: {hint}\n" if hint else ""))
    raise typer.Exit(EXIT_USAGE)
