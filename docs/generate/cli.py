"""The page of the command line, read from the commands themselves."""

from typing import Any

import typer

from docs.generate.text import notice, table
from lineshaft.cli.main import app
from lineshaft.sdk import errors

_HEAD = """\
# The command line

{notice}

`lineshaft COMMAND --help` says the same. A command finds the platform by `--url`, `LINESHAFT_URL`,
`LINESHAFT_STATE_DIR`, the nearest `.lineshaft` folder upwards from here, or the only one that this
user runs, in this order. `lineshaft --install-completion` sets up completion for bash, zsh or fish;
`--show-completion` prints it.

## Exit codes

{codes}
"""
_CODES = (
    (0, "fine"),
    (errors.EXIT_JOB_FAILED, "the job failed (commands that wait for it)"),
    (errors.EXIT_USAGE, "usage: an option, a file or a name is wrong"),
    (errors.EXIT_REFUSED, "refused: the job file or the command, with reasons"),
    (errors.EXIT_UNREACHABLE, "no platform answers"),
    (errors.EXIT_FAULT, "a fault of the program itself; LINESHAFT_DEBUG=1 shows where"),
    (errors.EXIT_INTERRUPTED, "interrupted; the job goes on"),
)


def commands() -> dict[str, Any]:
    """Return every command by its full name (``demo``, ``top``), groups flattened."""
    found: dict[str, Any] = {}
    _gather(typer.main.get_command(app), "", found)
    return dict(sorted(found.items()))


def options_of(command: Any) -> set[str]:
    """Return every option that a command knows, in all spellings."""
    given = {"-h", "--help"}
    for one in command.params:
        if one.param_type_name == "option":
            given |= {*one.opts, *one.secondary_opts}
    return given


def markdown() -> str:
    """Return the page: exit codes, an overview, then each command."""
    found = {name: one for name, one in commands().items() if not one.hidden}
    codes = table(("code", "meaning"), _CODES)
    overview = table(
        ("command", "what it does"),
        ((f"[`{name}`](#{name.replace(' ', '-')})", _first(one)) for name, one in found.items()),
    )
    head = _HEAD.format(notice=notice("the commands in `lineshaft/cli/`"), codes=codes)
    parts = [f"{head}\n## Commands\n\n{overview}"]
    parts += [_section(name, one) for name, one in found.items()]
    return "\n".join(parts)


def _gather(command: Any, before: str, found: dict[str, Any]) -> None:
    for name, one in command.commands.items():
        full = f"{before} {name}".strip()
        if hasattr(one, "commands"):
            _gather(one, full, found)
        else:
            found[full] = one


def _first(command: Any) -> str:
    return str(command.help or "").strip().partition("\n\n")[0]


def _section(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [o for o in command.params if o.param_type_name == "option" and not o.hidden]
    usage = " ".join(["lineshaft", name, "[OPTIONS]" if options else "", *map(_usage, arguments)])
    text = (
        f"## {name}\n\n{str(command.help or '').strip()}\n\n```\n{' '.join(usage.split())}\n```\n"
    )
    if arguments:
        rows = [(f"`{_usage(one)}`", one.help or "") for one in arguments]
        text += "\n" + table(("argument", "meaning"), rows)
    if options:
        listed = [(_spelled(one), one.help or "", _default(one)) for one in options]
        text += "\n" + table(("option", "meaning", "default"), listed)
    return text + (f"\n{_examples(command.epilog)}\n" if command.epilog else "")


def _usage(argument: Any) -> str:
    name = str(argument.name).upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _spelled(option: Any) -> str:
    names = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
    return f"{names} {_value(option)}".strip()


def _value(option: Any) -> str:
    if getattr(option, "is_flag", False):
        return ""
    annotation = option.type_descriptor.annotation
    if hasattr(annotation, "__members__"):
        return " or ".join(f"`{member.value}`" for member in annotation)
    word = option.metavar or {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}.get(
        getattr(annotation, "__name__", ""), "TEXT"
    )
    bounds = [str(limit) for limit in (option.min, option.max) if limit is not None]
    return f"{word} ({' to '.join(bounds)})" if len(bounds) == 2 else str(word)


def _default(option: Any) -> str:
    value = option.default
    if option.required:
        return "required"
    if value in (None, False, "", ()) or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _examples(epilog: str) -> str:
    _, _, listed = epilog.partition(":")
    lines = [one.strip() for one in listed.split(";  ")]
    return "```\n" + "\n".join(lines) + "\n```"
