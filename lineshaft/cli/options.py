"""Options that many commands share."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lineshaft.cli import output
from lineshaft.contracts.job_sources import compose

Url = Annotated[
    str | None,
    typer.Option("--url", help="The platform's bus: nats://token@host:port.", show_default=False),
]
Output = Annotated[
    output.Format, typer.Option("-o", "--output", help="A table for people or json for programs.")
]
Job = Annotated[str, typer.Argument(help="A job's id, a unique beginning of it, or its name.")]
JobFile = Annotated[Path, typer.Argument(help="The job file (YAML); - reads standard input.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the job's timeline.")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="The state folder (default: .lineshaft here).", show_default=False
    ),
]
Processes = Annotated[
    bool,
    typer.Option("--processes", help="Each service in a process of its own, kept running."),
]

More = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", help="Another job file, laid over the first; may be repeated."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="path=value, as in hyperparameters.learningRate=1e-5."),
]
Variables = Annotated[
    list[str] | None, typer.Option("--var", help="NAME=value of a variable ${NAME}.")
]

BYTES_MAX = 16 * 1024 * 1024


def read_text(path: Path) -> str:
    """Read a job file or standard input; usage errors say what is wrong with it."""
    try:
        if str(path) == "-":
            raw = typer.get_binary_stream("stdin").read(BYTES_MAX)
        else:
            if path.is_dir():
                output.usage(f"{path} is a folder; name the job file in it")
            with path.open("rb") as file:
                raw = file.read(BYTES_MAX)
    except FileNotFoundError:
        output.usage(f"{path} does not exist", "name a job file; examples/ has some")
    except OSError as error:
        output.usage(f"{path} cannot be read: {error.strerror}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        output.usage(f"{path} is not UTF-8 text (byte {error.start})")


def read_job(
    first: Path, more: list[Path] | None, sets: list[str] | None, variables: list[str] | None
) -> str:
    """Return the text of a job file; of several, or with values set, their one document as JSON.

    Raises ``JobFileError`` for files that cannot be put together.
    """
    files = [(str(path), read_text(path)) for path in (first, *(more or []))]
    if len(files) == 1 and not sets and not variables:
        return files[0][1]
    document, _ = compose(files, sets or (), variables or ())
    return json.dumps(document, ensure_ascii=False, indent=1)
