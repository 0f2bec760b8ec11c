"""The live view of one job on a terminal: state, progress, loss, last log lines.

What happened is printed above and stays; the view below is drawn again. Where standard output is
no terminal, ``lineshaft.cli.watching.Printer`` prints plain lines instead.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from lineshaft.cli import chart, output
from lineshaft.cli.logs import Reader
from lineshaft.cli.watching import lines_of, progress_line
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError
from lineshaft.sdk.watch import Change, progress_of

LINES_SHOWN: Final = 6
CHART_ROWS: Final = 5
POINTS: Final = 240
FEED_EVERY_S: Final = 1.5


class LiveView:
    """Draws a job as it changes; use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or output.console()
        is_unicode = (self.console.encoding or "").lower().startswith("utf")
        self._marks = chart.BLOCKS if is_unicode else chart.PLAIN
        self.job: dict[str, Any] = {}
        self.progress: dict[str, Any] = {}
        self.losses: list[float] = []
        self.lines: deque[str] = deque(maxlen=LINES_SHOWN)
        self.is_lost = False
        self._live = Live(console=self.console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveView":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(None, None, None)

    def show(self, change: Change) -> None:
        """Take a change: what happened goes above, numbers into the view."""
        self.job = change.job or self.job
        if change.kind in ("lost", "back"):
            self.is_lost = change.kind == "lost"
        if change.kind == "progress":
            self.progress = change.data
        else:
            for line in lines_of(change):
                self.console.print(Text(line), soft_wrap=True)
        self.draw()

    def take(self, curves: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        """Take the newest curves and log lines."""
        self.progress = progress_of(curves) or self.progress
        self.losses = chart.values_of((curves.get("series") or {}).get("loss", []))
        for line in lines[-LINES_SHOWN:]:
            who = "agent" if line["rank"] < 0 else f"rank {line['rank']}"
            self.lines.append(f"{who}  {line['text']}")
        self.draw()

    def draw(self) -> None:
        """Draw the view again."""
        self._live.update(Group(*self._parts()), refresh=True)

    def _parts(self) -> list[RenderableType]:
        parts: list[RenderableType] = [Rule(style="dim"), self._head()]
        width = max(40, self.console.width)
        if self.progress:
            parts.append(Text(progress_line(self.progress), no_wrap=True, overflow="ellipsis"))
        drawn = chart.chart(self.losses, min(width - 2, 100), CHART_ROWS, self._marks)
        if len(self.losses) > 1 and drawn:
            parts.append(Text("loss", style="dim"))
            parts += [Text(line, no_wrap=True, overflow="crop") for line in drawn]
        if self.lines:
            parts.append(Text("log", style="dim"))
            parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in self.lines]
        parts.append(Text("Ctrl-C leaves the job running", style="dim"))
        return parts

    def _head(self) -> Text:
        if self.is_lost:
            return Text("the platform does not answer; waiting for it", style="yellow")
        state = str(self.job.get("state", "..."))
        head = Text(f"{self.job.get('name', '')}  ", style="bold")
        place = state + (f"/{self.job['substate']}" if self.job.get("substate") else "")
        head.append(place, style=output.STYLE_OF_STATE.get(state, ""))
        if self.job.get("attempt"):
            head.append(f"  attempt {self.job['attempt']}", style="")
        return head


@asynccontextmanager
async def fed(view: LiveView, client: Client, job: str) -> AsyncIterator[None]:
    """Give the view curves and log lines in the background, as long as the block lasts."""
    task = asyncio.create_task(_feed(view, client, job))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _feed(view: LiveView, client: Client, job: str) -> None:
    reader = Reader(client, job, {})
    while True:
        with contextlib.suppress(PlatformError):  # the watch itself says when nobody answers
            curves = await client.curves(job, points=POINTS)
            lines: deque[dict[str, Any]] = deque(maxlen=LINES_SHOWN)
            async for page in reader.pages():
                lines.extend(page)
            view.take(curves, list(lines))
        await asyncio.sleep(FEED_EVERY_S)
