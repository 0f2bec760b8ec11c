"""The command line: ``lineshaft --help``.

Commands are thin: they find the platform, ask the SDK, and print. Exit codes: 0 fine, 1 the job
failed, 2 usage, 3 refused, 4 unreachable, 70 a fault of our own, 130 interrupted.
"""

import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from lineshaft.cli import (
    alerts,
    compare,
    demo,
    doctor,
    history,
    job_files,
    jobs,
    listing,
    logs,
    models,
    output,
    platform,
    submit,
    top,
)
from lineshaft.sdk.errors import EXIT_FAULT, EXIT_INTERRUPTED

app = typer.Typer(
    name="lineshaft",
    help=(
        "Lineshaft trains models from a job file: it checks, sizes, queues, launches, watches, "
        "heals and registers.\n\nStart here: lineshaft demo, or lineshaft up and lineshaft submit "
        "examples/script.yaml --watch"
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        output.print_line(f"lineshaft {metadata.version('lineshaft')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version."),
    ] = False,
) -> None:
    pass


for part in (
    platform,
    doctor,
    job_files,
    submit,
    listing,
    top,
    jobs,
    history,
    logs,
    alerts,
    models,
    compare,
    demo,
):
    part.register(app)


def run() -> None:
    """Run the command line; whatever happens, people see a message and no stack trace.

    An interrupt ends with 130, a fault of our own with 70; ``LINESHAFT_DEBUG`` shows its traces.
    """
    try:
        app(prog_name="lineshaft")
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Exception as error:
        if os.environ.get("LINESHAFT_DEBUG"):
            raise
        sys.stderr.write(
            f"lineshaft: a fault of the program itself: {type(error).__name__}: {error}\n"
            "  next: set LINESHAFT_DEBUG=1, repeat the command, and report what it prints\n"
        )
        raise SystemExit(EXIT_FAULT) from None
