"""The command line: ``lineshaft --help``.

Commands are thin: they find the platform, ask the SDK, and print. Exit codes: 0 fine, 1 the job
failed, 2 usage, 3 refused, 4 unreachable, 130 interrupted.
"""

import sys

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
    platform,
    submit,
    top,
)

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
    """Run the command line; an interrupt ends with 130 and without a stack trace."""
    try:
        app(prog_name="lineshaft")
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        raise SystemExit(130) from None
