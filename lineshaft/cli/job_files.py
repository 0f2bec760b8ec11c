"""Commands about job files that need no platform: schema, explain-field, init."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lineshaft.cli import field_help, job_draft, options, output
from lineshaft.cli.job_draft import Answers
from lineshaft.cli.output import Format
from lineshaft.contracts import job as contract

_Text = str | None


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: lineshaft schema --out job-file.schema.json")(schema)
    app.command(
        "explain-field",
        epilog="Examples: lineshaft explain-field learningRate;  "
        "lineshaft explain-field 'spec.datasets[].path' -o json",
        no_args_is_help=True,
    )(explain_field)
    app.command(
        epilog="Examples: lineshaft init;  "
        "lineshaft init chat.yaml --yes --type full-finetune --name domain-chat "
        "--model qwen-tiny-base@latest --data qa.jsonl"
    )(init)


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON Schema of a job file; editors complete and check with it."""
    made = contract.json_schema()
    if out is None:
        output.print_json(made)
        return
    _write(out, output.json_text(made), is_forced=True)
    output.print_line(f"{out} is written; put this first in a job file for most editors:")
    output.print_line(f"# yaml-language-server: $schema={out}")


def explain_field(
    path: Annotated[
        str, typer.Argument(help="The field: spec.hyperparameters.learningRate, or its last part.")
    ],
    form: options.Output = Format.TABLE,
) -> None:
    """Say what a field of a job file means: type, default, example, honoured or not."""
    try:
        found = field_help.explain(path)
    except field_help.UnknownFieldError as error:
        hint = f"did you mean {' or '.join(error.near)}?" if error.near else None
        output.usage(str(error), hint or "docs/reference/job-file.md lists all fields")
    if form is Format.JSON:
        output.print_json(found.as_object())
        return
    output.print_line(found.path)
    if not found.is_honoured:
        output.print_line("  known, and not honoured by this platform yet: a job that has it")
        output.print_line("  is refused by name")
        return
    rows = (
        ("means", found.meaning),
        ("takes", found.type),
        ("default", found.default),
        ("refused", ", ".join(found.refused_values)),
        ("below", ", ".join(p.removeprefix(found.path).strip("[].") for p in found.below)),
    )
    for name, text in rows:
        if text:
            output.print_line(f"  {name:8}{text}")
    output.print_line("  example")
    for line in found.example.splitlines():
        output.print_line(f"    {line}")


def init(
    file: Annotated[Path, typer.Argument(help="The job file to write.")] = Path("train-job.yaml"),
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: take options and defaults.")
    ] = False,
    kind: Annotated[
        job_draft.Kind | None, typer.Option("--type", help="What kind of job it is.")
    ] = None,
    name: Annotated[_Text, typer.Option("--name", help="The job's name.")] = None,
    model: Annotated[
        _Text, typer.Option("--model", help="What to start from: a registered model or a folder.")
    ] = None,
    data: Annotated[_Text, typer.Option("--data", help="The training data.")] = None,
    tokenizer: Annotated[
        _Text, typer.Option("--tokenizer", help="The tokenizer's folder (pretraining).")
    ] = None,
    command: Annotated[
        _Text, typer.Option("--command", help="What a script job runs, as in a shell.")
    ] = None,
    gpu_type: Annotated[
        _Text, typer.Option("--gpu-type", help="cpu, or a device type such as a100-80g.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="Devices of all nodes together.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="How many nodes.")] = None,
    save: Annotated[
        _Text, typer.Option("--save", help="The folder that the model is saved to.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Ask what a job needs and write a commented job file that passes validate."""
    if file.exists() and not force:
        output.usage(f"{file} exists", "name another file, or --force to replace it")
    given = Answers(kind, name, model, data, tokenizer, command, gpu_type, gpus, nodes, save)
    if yes:
        answers = job_draft.filled(given)
    elif _is_terminal():
        answers = _asked(given)
    else:
        output.usage("there is no terminal to ask on", "lineshaft init --yes with its options")
    missing = job_draft.missing(answers)
    if missing:
        output.usage(f"this job needs {', '.join(missing)}", "lineshaft init --help")
    text = job_draft.text(answers)
    report = contract.validate(text, name=str(file))
    if not report.is_valid:
        output.usage("\n".join(report.lines()), "change the answer that a line names")
    _write(file, text, is_forced=force)
    output.print_line(f"{file} is written")
    output.print_line(f"next: lineshaft plan {file}; lineshaft submit {file} --watch")


def _asked(given: Answers) -> Answers:
    """Ask for whatever was not given, in order; a wrong answer is asked again."""
    answers = given
    for one in fields(Answers):
        question = job_draft.QUESTIONS[one.name]
        if getattr(answers, one.name) is not None or not question.applies(answers):
            continue
        value = typer.prompt(
            question.text,
            default=question.default(answers),
            value_proc=_reader(question.read),
        )
        answers = replace(answers, **{one.name: value})
    return answers


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def proc(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return proc


def _write(file: Path, text: str, *, is_forced: bool) -> None:
    """Write a whole file or none; never replaces one unless told to."""
    try:
        if not is_forced:
            with file.open("x", encoding="utf-8") as made:
                made.write(text)
            return
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, prefix=f".{file.name}.", delete=False, encoding="utf-8"
        ) as draft:
            draft.write(text)
        Path(draft.name).replace(file)
    except FileExistsError:
        output.usage(f"{file} exists", "name another file, or --force to replace it")
    except OSError as error:
        output.usage(f"{file} cannot be written: {error.strerror}")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
