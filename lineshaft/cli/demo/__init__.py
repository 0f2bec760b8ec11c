"""The command ``demo``: the whole line on this machine, by public commands and the SDK."""

from typing import Annotated

import typer

from lineshaft.cli import options, output
from lineshaft.cli.demo import story
from lineshaft.sdk.errors import EXIT_INTERRUPTED


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: lineshaft demo --state /tmp/one-demo")(demo)


def demo(
    state: options.State = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the platform running at the end.")
    ] = False,
    processes: options.Processes = False,
) -> None:
    """Show the line end to end: data, a pretrained base, a fine-tune that loses a rank, a model.

    Everything is made in a fresh state folder; nothing is downloaded. Ctrl-C stops what it started.
    """
    folder = (state or story.fresh_folder()).absolute()
    try:
        code = story.tell(folder, keep=keep, processes=processes)
    except KeyboardInterrupt:
        output.print_line("\ninterrupted; everything that the demo started is stopped")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    raise typer.Exit(code)
