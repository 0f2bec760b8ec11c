"""The command ``compare``: two jobs or versions side by side."""

from typing import Annotated, Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk import comparing
from lineshaft.sdk.client import Client

_Ref = "A job (id, beginning, name) or a version (name:1.0.0, name@alias)."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Examples: lineshaft compare domain-chat:1.0.0 domain-chat@latest;  "
        "lineshaft compare first-try second-try -o json",
        no_args_is_help=True,
    )(compare)


def compare(
    a: Annotated[str, typer.Argument(help=f"The one to compare with. {_Ref}")],
    b: Annotated[str, typer.Argument(help="The other.")],
    url: options.Url = None,
    form: options.Output = Format.TABLE,
) -> None:
    """Show what differs between two jobs or versions: metrics, data, settings, batch and rate."""

    async def work() -> None:
        async with Client.connect(url) as client:
            left, right = await comparing.side(client, a), await comparing.side(client, b)
        made = comparing.compare(left, right)
        if form is Format.JSON:
            output.print_json(made)
        else:
            _print(made)

    output.go(work, form)


def _print(made: dict[str, Any]) -> None:
    for name in ("a", "b"):
        one = made[name]
        base = f", base {one['base']}" if one["base"] else ""
        version = f", version {one['version']}" if one["version"] else ""
        output.print_line(f"{name}: {one['label']}{version}{base}")
    output.print_line("")
    metrics = [
        (m["metric"], *map(_number, (m["a"], m["b"], m["difference"]))) for m in made["metrics"]
    ]
    output.print_table(("metric", "a", "b", "b - a"), metrics, empty="no metrics are known")
    output.print_line("")
    data = [
        (d["name"], _digest(d["a"]), _digest(d["b"]), "same" if d["is_same"] else "differs")
        for d in made["datasets"]
    ]
    output.print_table(("data", "a", "b", ""), data, empty="no data is known")
    output.print_line("")
    settings = [(s["field"], _shown(s["a"]), _shown(s["b"])) for s in made["settings"]]
    output.print_table(("setting", "a", "b"), settings, empty="no setting differs")
    for line in _coupling(made["batch"]):
        output.print_line(line)


def _coupling(batch: dict[str, Any] | None) -> list[str]:
    if batch is None:
        return []
    lines = [
        "",
        f"global batch {batch['global_a']} and {batch['global_b']}, "
        f"learning rate {batch['learning_rate_a']:g} and {batch['learning_rate_b']:g}",
    ]
    suggestion = batch["suggestion"]
    if suggestion:
        lines.append(
            f"  the batch of b is {suggestion['factor']:g} times a's: linear scaling of a's rate "
            f"gives {suggestion['linear']:.3g},"
        )
        lines.append(
            f"  the square root, often closer for Adam, {suggestion['square_root']:.3g}; "
            "nothing is changed by itself"
        )
    return lines


def _number(value: Any) -> str | None:
    return None if value is None else f"{value:.6g}"


def _digest(value: Any) -> str | None:
    return None if value is None else str(value)[:19]


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
