"""Commands that take a job file: validate, plan, submit."""

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import yaml

from lineshaft.cli import following, options, output
from lineshaft.cli.output import Format
from lineshaft.contracts import job as contract
from lineshaft.contracts.job_sources import compose
from lineshaft.contracts.jobfile import JobFileError
from lineshaft.sdk.client import Client, submission_key
from lineshaft.sdk.errors import EXIT_REFUSED


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="Example: lineshaft validate train-job.yaml && echo fine", no_args_is_help=True
    )(validate)
    app.command(
        epilog="Example: lineshaft plan train-job.yaml --inventory two-nodes.yaml",
        no_args_is_help=True,
    )(plan)
    app.command(
        epilog="Examples: lineshaft submit train-job.yaml --watch;  "
        "lineshaft submit job.yaml --key nightly-2026-11-30 -o json",
        no_args_is_help=True,
    )(submit)


def validate(
    file: options.JobFile,
    more: options.More = None,
    sets: options.Sets = None,
    variables: options.Variables = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Check a job file by itself: every fault at once, with its line. Needs no platform."""
    sources = (
        [(str(path), options.read_text(path)) for path in (file, *(more or []))],
        sets or (),
        variables or (),
    )
    try:
        job = contract.parse(*compose(*sources))
    except JobFileError as error:
        _refuse(file, error, form)
    canonical = job.canonical()
    if form is Format.JSON:
        output.print_json({"valid": True, "job": canonical})
    else:
        output.print_line(
            f"{file}: a valid {canonical['jobType']} job named {canonical['name']}. "
            "Whether it can run here: lineshaft plan"
        )


def plan(
    file: options.JobFile,
    more: options.More = None,
    sets: options.Sets = None,
    variables: options.Variables = None,
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", help="Plan for the nodes of this YAML or JSON file."),
    ] = None,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Say what a job would need and whether it can run, without submitting it."""
    text = _text(file, more, sets, variables)
    nodes = _inventory(inventory)

    async def work() -> int | None:
        async with Client.connect(url) as client:
            answer = await client.plan(text, nodes)
        if form is Format.JSON:
            output.print_json(answer)
        else:
            _print_plan(str(file), answer)
        return None if answer.get("fits") else EXIT_REFUSED

    output.go(work, form)


def submit(
    file: options.JobFile,
    more: options.More = None,
    sets: options.Sets = None,
    variables: options.Variables = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="Submitting twice with one key makes one job.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="The same file, submitted again, is the same job.")
    ] = False,
    team: Annotated[str | None, typer.Option("--team", help="Whose job this is.")] = None,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Hand in a job. It runs on when this command ends; Ctrl-C in --watch leaves it running.

    With -o json: the receipt; with --watch too, one JSON object a line, the receipt first.
    """
    text = _text(file, more, sets, variables)
    chosen = key or (submission_key(text, team or "") if once else None)

    async def work() -> int | None:
        async with Client.connect(url) as client:
            receipt = await client.submit(text, key=chosen, team=team)
            if not receipt.get("admitted"):
                _print_refusal(str(file), receipt.get("reasons", []), form)
                return EXIT_REFUSED
            if form is Format.TABLE:
                _print_receipt(receipt)
            elif watch:
                output.print_json_line({"kind": "receipt", "data": receipt})
            else:
                output.print_json(receipt)
            return await following.follow(client, receipt["job"], form) if watch else None

    output.go(work, form)


def _refuse(file: Path, error: JobFileError, form: Format) -> NoReturn:
    _print_refusal(str(file), [fault.to_dict() for fault in error.faults], form)
    raise typer.Exit(EXIT_REFUSED) from None


def _text(
    file: Path, more: list[Path] | None, sets: list[str] | None, variables: list[str] | None
) -> str:
    try:
        return options.read_job(file, more, sets, variables)
    except JobFileError as error:
        _refuse(file, error, Format.TABLE)


def _print_receipt(receipt: dict[str, Any]) -> None:
    output.print_line(f"admitted: {receipt['job']}")
    for warning in receipt.get("warnings", []):
        text = output.reason_line(warning) if isinstance(warning, dict) else str(warning)
        output.print_line(f"  note: {text}")
    output.print_line(f"  watch it: lineshaft status {receipt['job']} --watch")


def _print_refusal(name: str, reasons: list[dict[str, Any]], form: Format) -> None:
    if form is Format.JSON:
        output.print_json({"valid": False, "admitted": False, "reasons": reasons})
        return
    faults = f"{len(reasons)} fault{'s' if len(reasons) != 1 else ''}"
    output.print_line(f"{name}: refused, {faults}")
    for reason in reasons:
        output.print_line(f"  - {output.reason_line(reason)}")


def _print_plan(name: str, answer: dict[str, Any]) -> None:
    output.print_line(f"{name}: {'fits' if answer.get('fits') else 'cannot run here'}")
    for reason in answer.get("reasons", []):
        output.print_line(f"  - {output.reason_line(reason)}")
    estimate = answer.get("estimate") or {}
    rows = [
        (term, *(_amount(term, value.get(which)) for which in ("low", "likely", "high")))
        for term, value in estimate.items()
        if isinstance(value, dict) and "likely" in value
    ]
    if rows:
        output.print_table(("estimate", "low", "likely", "high"), rows, empty="")
    if estimate.get("by_nodes"):
        output.print_table(_BY_NODES, [_node_row(row) for row in estimate["by_nodes"]], empty="")
    for extra in ("memory_from", "pace", "dominating", "what_to_change", "advice"):
        value = estimate.get(extra)
        for line in value if isinstance(value, list) else [value] if value else []:
            output.print_line(f"  {extra}: {line}")


_BY_NODES = ("nodes", "ranks", "memory", "step", "exchange", "efficiency", "hours", "cost", "fits")


def _node_row(row: dict[str, Any]) -> tuple[str, ...]:
    """Return one row of the table by node counts; what is not known is a dash."""
    words = {
        "memory": output.size(row["memory_bytes"]),
        "step": _amount("compute_s", row["compute_s"]),
        "exchange": _amount("communication_s", row["communication_s"]),
        "efficiency": "-" if row["efficiency"] is None else f"{row['efficiency']:.0%}",
        "fits": "yes" if row["fits"] else "no",
    }
    plain = {name: _amount(name, row[name]) for name in ("nodes", "ranks", "hours", "cost")}
    return tuple((words | plain)[name] for name in _BY_NODES)


def _amount(term: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return "-"
    if term.endswith("bytes"):
        return output.size(value)
    if term.endswith("_s"):
        return output.span(value * 1000)
    return f"{value:g}"


def _inventory(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    text = options.read_text(path)
    try:
        loaded = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        output.usage(f"{path} is neither YAML nor JSON: {error}")
    if not isinstance(loaded, dict):
        output.usage(f"{path}: an inventory is a mapping with 'nodes'")
    return loaded
