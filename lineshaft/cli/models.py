"""Commands about models: models, pull, promote, rollback."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk.client import Client

Ref = Annotated[str, typer.Argument(help="name, name@alias, name:1.0.0 or name@sha256:<digest>.")]
Name = Annotated[str, typer.Argument(help="The model's name.")]
Alias = Annotated[str, typer.Option("--alias", help="Which alias to move.")]
Expected = Annotated[
    str | None,
    typer.Option("--expected-current", help="Refuse unless the alias points here now ('none')."),
]

_NONE_YET = (
    "no models yet; a job that succeeds makes one, a script's job of what it writes into the "
    "folder LINESHAFT_OUTPUT_DIR"
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Examples: lineshaft models;  lineshaft models domain-chat -o json")(models)
    app.command(
        epilog="Example: lineshaft pull domain-chat@production --to ./model", no_args_is_help=True
    )(pull)
    app.command(
        epilog="Example: lineshaft promote domain-chat 1.0.0 --alias production",
        no_args_is_help=True,
    )(promote)
    app.command(
        epilog="Example: lineshaft rollback domain-chat --alias production", no_args_is_help=True
    )(rollback)


def models(
    name: Annotated[str | None, typer.Argument(help="One model, with its versions.")] = None,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """List models, or one model's versions and aliases."""

    async def work() -> None:
        async with Client.connect(url) as client:
            answer = await client.model(name) if name else {"models": await client.models()}
        if form is Format.JSON:
            output.print_json(answer)
        elif name:
            _print_model(answer)
        else:
            rows = [
                (m["name"], m.get("latest"), m.get("versions_count"), _aliases(m), m.get("team"))
                for m in answer["models"]
            ]
            titles = ("model", "latest", "versions", "aliases", "team")
            output.print_table(titles, rows, empty=_NONE_YET)

    output.go(work, form)


def _aliases(model: dict[str, Any]) -> str:
    aliases = model.get("aliases") or {}
    return ", ".join(
        f"{alias}={where.get('version') if isinstance(where, dict) else where}"
        for alias, where in sorted(aliases.items())
    )


def _print_model(model: dict[str, Any]) -> None:
    output.print_line(f"{model['name']}  latest {model.get('latest')}  {_aliases(model)}")
    rows = [
        (
            version["version"],
            output.clock(version.get("registered_at")),
            _base(version),
            version.get("job"),
            str(version["manifest"])[:19],
        )
        for version in model.get("versions", [])
    ]
    output.print_table(("version", "at", "base", "job", "manifest"), rows, empty="no versions")
    for move in model.get("alias_history", []):
        output.print_line(
            f"  {output.clock(move.get('at'))}  {move['alias']}: {move.get('from') or '-'} -> "
            f"{move['to']} by {move['actor']} {move.get('reason', '')}"
        )


def _base(version: dict[str, Any]) -> str | None:
    base = (version.get("lineage") or {}).get("base")
    return f"{base['name']}:{base['version']}" if base else None


def pull(
    ref: Ref,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to make (default: the model's name).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace other content.")] = False,
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Download a version: resumes, runs in parallel, verifies every digest."""
    target = to or Path(ref.partition("@")[0].partition(":")[0])

    async def work() -> None:
        progress = None if form is Format.JSON else Progress()
        async with Client.connect(url) as client:
            report = await client.pull(ref, target, replace=replace, progress=progress)
        if progress:
            progress.close()
        done = report.as_object()
        if form is Format.JSON:
            output.print_json(done)
        else:
            output.print_line(
                f"{done['name']}:{done['version']} is in {target}: {done['files']} files, "
                f"{output.size(done['bytes'])}, every digest verified"
            )

    output.go(work, form)


class Progress:
    """Shows the bytes of a transfer on one line of a terminal; silent elsewhere."""

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty()
        self.has_open_line = False

    def __call__(self, done: int, total: int, file: str) -> None:
        """Show that ``done`` of ``total`` bytes are here."""
        if self.is_live:
            share = 100 * done // max(1, total)
            text = f"{share:3d} %  {output.size(done)} of {output.size(total)}  {file}"
            sys.stdout.write("\r\x1b[2K" + text[:100])
            sys.stdout.flush()
            self.has_open_line = True

    def close(self) -> None:
        """End the line."""
        if self.has_open_line:
            sys.stdout.write("\r\x1b[2K")


def promote(
    name: Name,
    version: Annotated[str, typer.Argument(help="The version, as 1.0.0.")],
    alias: Alias = "production",
    expected: Expected = None,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Point an alias at a version; the history keeps who, when and why."""
    more = {"version": version, "expected_current": expected, "reason": reason, "actor": "user"}
    _move("promote", name, alias, more, url, form)


def rollback(
    name: Name,
    alias: Alias = "production",
    version: Annotated[
        str | None, typer.Option("--to-version", help="Where to (default: the one before).")
    ] = None,
    expected: Expected = None,
    reason: options.Reason = "",
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Move an alias back to the version it pointed at before."""
    more = {"version": version, "expected_current": expected, "reason": reason, "actor": "user"}
    _move("rollback", name, alias, more, url, form)


def _move(
    verb: str, name: str, alias: str, more: dict[str, Any], url: str | None, form: Format
) -> None:
    async def work() -> None:
        async with Client.connect(url) as client:
            answer = await client.move_alias(verb, name, alias, **more)
        if form is Format.JSON:
            output.print_json(answer)
        else:
            output.print_line(f"{name}@{alias} is now {answer.get('to') or more['version']}")

    output.go(work, form)
