"""Commands in the documents exist, with the options that they are shown with."""

import difflib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import cli
from tests.repository import source

PAGES = sorted({*source.ROOT.glob("*.md"), *(source.ROOT / "docs").rglob("*.md")})
COMMANDS = cli.commands()
GROUP_OPTIONS = {"-h", "--help", "--version", "--install-completion", "--show-completion"}
_ENDS = {";", "&&", "||", "|", "&", ">", ">>"}
_PLACEHOLDERS = {"COMMAND", "...", "--help"}


def shown(page: Path) -> Iterator[str]:
    """Yield each command that a page shows: lines of code blocks, and inline code."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```\w*\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if re.match(r"(?:\$ )?lineshaft [a-z-]", line.strip()):
                yield line.strip().removeprefix("$ ")
    without = re.sub(r"```.*?```", "", text, flags=re.S)
    yield from re.findall(r"`(lineshaft [a-z-][^`]*)`", without)


def fault_of(line: str) -> str | None:
    """Return what is wrong with a command, or None."""
    words = shlex.split(re.sub(r"\s+", " ", line), comments=True)[1:]
    ends = [n for n, word in enumerate(words) if word in _ENDS]
    words = [word.removesuffix(";") for word in words[: ends[0] if ends else None]]
    if not words or words[0] in _PLACEHOLDERS | GROUP_OPTIONS:
        return None
    name = words[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        return f"there is no command {name!r} {near}"
    known = cli.options_of(COMMANDS[name])
    given = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
    unknown = given - known
    return f"{name} has no option {sorted(unknown)}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=source.name_of)
def test_commands_of_a_page_exist(page: Path) -> None:
    """What a reader copies is understood by the command line."""
    faults = [f"{line}: {fault}" for line in shown(page) if (fault := fault_of(line))]
    assert not faults, faults


def test_the_check_sees_what_is_wrong() -> None:
    """A command or an option that is none is found."""
    assert fault_of("lineshaft jobs --state Running -o json") is None
    assert fault_of("lineshaft top; lineshaft down") is None
    assert "no command" in (fault_of("lineshaft job") or "")
    assert "--follw" in (fault_of("lineshaft logs JOB --follw") or "")


def test_the_tutorial_shows_the_whole_way() -> None:
    """From the installation to a version that is in use."""
    commands = {line.split()[1] for line in shown(source.ROOT / "docs" / "tutorial" / "README.md")}
    way = {"doctor", "up", "init", "plan", "submit", "logs", "artifacts", "compare", "pull"}
    assert way | {"promote", "rollback", "down", "explain-field", "top"} <= commands


def test_the_index_names_every_how_to() -> None:
    """A page that nobody links is not found."""
    index = (source.ROOT / "docs" / "README.md").read_text()
    for page in sorted((source.ROOT / "docs" / "how-to").glob("*.md")):
        assert f"(how-to/{page.name})" in index
