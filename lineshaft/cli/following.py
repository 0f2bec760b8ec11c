"""Following a job to its end, in the form that suits where the output goes."""

import sys
from typing import Any

from lineshaft.cli import live, output, watching
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import EXIT_INTERRUPTED, EXIT_JOB_FAILED
from lineshaft.sdk.watch import watch


async def follow(client: Client, job: str, form: Format) -> int | None:
    """Show changes until the job ends; return the exit code.

    A live view on a terminal, plain lines elsewhere, one JSON object a line for programs.
    """
    try:
        state = await _shown(client, job, form)
    except BaseException as error:
        if type(error).__name__ in ("CancelledError", "KeyboardInterrupt"):
            sys.stderr.write(f"\n{job} goes on without you; come back: lineshaft status {job} -w\n")
            return EXIT_INTERRUPTED
        raise
    version = await watching.registered(client, state) if state.get("manifest") else None
    if version and form is Format.TABLE:
        output.print_line(f"registered: {version['name']}:{version['version']}")
    return None if state.get("state") == "Succeeded" else EXIT_JOB_FAILED


async def _shown(client: Client, job: str, form: Format) -> dict[str, Any]:
    """Show each change; return the job's last state."""
    state: dict[str, Any] = {}
    if form is Format.TABLE and output.console().is_terminal:
        with live.LiveView() as view:
            async with live.fed(view, client, job):
                async for change in watch(client, job):
                    state = change.job or state
                    view.show(change)
        return state
    printer = watching.Printer()
    try:
        async for change in watch(client, job):
            state = change.job or state
            if form is Format.JSON:
                output.print_json_line({"kind": change.kind, "data": change.data})
            else:
                printer.show(change)
    finally:
        printer.close()
    return state
