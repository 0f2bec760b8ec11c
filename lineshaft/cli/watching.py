"""What a change of a job looks like as text: one line each, and a progress line on a terminal."""

import asyncio
import sys
from typing import Any

from lineshaft.cli import output
from lineshaft.sdk.client import Client
from lineshaft.sdk.watch import Change, progress_of

_BAR = 24
_REGISTERED_TRIES = 50
_REGISTERED_WAIT_S = 0.2


class Printer:
    """Prints changes as lines; on a terminal the progress rewrites its own line."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.is_live = sys.stdout.isatty()
        self.has_open_line = False
        self.last_step_printed = -1

    def show(self, change: Change) -> None:
        """Print one change."""
        if change.kind == "progress":
            self._progress(change.data)
            return
        self.close()
        for line in lines_of(change):
            output.print_line(self.prefix + line)

    def close(self) -> None:
        """End an open progress line."""
        if self.has_open_line:
            sys.stdout.write("\n")
            self.has_open_line = False

    def _progress(self, now: dict[str, Any]) -> None:
        text = self.prefix + progress_line(now)
        if self.is_live:
            sys.stdout.write("\r\x1b[2K" + text)
            sys.stdout.flush()
            self.has_open_line = True
            return
        step = int(now.get("step", 0))
        planned = int(now.get("planned_steps") or 0)
        if step - self.last_step_printed >= max(25, planned // 8):
            self.last_step_printed = step
            output.print_line(text)


def progress_line(now: dict[str, Any]) -> str:
    """Return step, bar, loss, learning rate, throughput and time left, as far as known."""
    step, planned = int(now.get("step", 0)), int(now.get("planned_steps") or 0)
    parts = [f"step {step}" + (f"/{planned}" if planned else "")]
    if planned:
        full = min(_BAR, _BAR * step // planned)
        parts.append("[" + "#" * full + "." * (_BAR - full) + "]")
    names = (("loss", "loss {:.4f}"), ("learning_rate", "lr {:.2e}"), ("grad_norm", "grad {:.2f}"))
    for name, form in names:
        value = now.get(name)
        if isinstance(value, int | float):
            parts.append(form.format(value))
    for name, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s")):
        if isinstance(now.get(name), int | float):
            parts.append(f"{now[name]:,.1f} {unit}")
            break
    if isinstance(now.get("eta_s"), int | float):
        parts.append(f"{output.span(now['eta_s'] * 1000)} left")
    return "  ".join(parts)


def lines_of(change: Change) -> list[str]:
    """Return a change as lines for people."""
    data = change.data
    if change.kind == "state":
        place = data["state"] + (f"/{data['substate']}" if data.get("substate") else "")
        attempt = f" (attempt {data['attempt']})" if data.get("attempt") else ""
        return [f"{output.clock(data.get('at'))}  {place}{attempt}: {data.get('reason', '')}"]
    if change.kind == "checkpoint":
        size = output.size(data.get("bytes", 0))
        return [
            f"{output.clock(data.get('at'))}  checkpoint at step {data['step']} committed ({size})"
        ]
    if change.kind == "alert":
        state = str(data.get("status", "firing"))
        return [
            f"{output.clock(data.get('changed_at'))}  ALERT {state} [{data.get('severity')}] "
            f"{data.get('kind')}: {data.get('summary')}"
        ]
    if change.kind == "lost":
        return [f"the platform does not answer ({data['message']}); the job is not affected"]
    return ["the platform answers again"]


async def registered(client: Client, state: dict[str, Any]) -> dict[str, Any] | None:
    """Wait a little for the registry to have a job's version; None when it takes longer."""
    for _ in range(_REGISTERED_TRIES):
        version = await client.version_of(state)
        if version:
            return version
        await asyncio.sleep(_REGISTERED_WAIT_S)
    return None


def progress_line_of(curves: dict[str, Any]) -> str:
    """Return the progress line of a job's curves; empty when there are none."""
    now = progress_of(curves)
    return progress_line(now) if now else ""
