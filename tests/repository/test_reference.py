"""The reference is what the code gives, and says everything that there is."""

import json
import re

import pytest

from docs.generate import cli, pages
from lineshaft.contracts import alerts, kinds, subjects
from services.monitor import signature_file
from tests.repository import source


@pytest.mark.parametrize("name", sorted(pages.made()))
def test_a_page_is_what_the_code_gives(name: str) -> None:
    """`make docs` changes nothing: run it after a change of a command, a setting or a contract."""
    kept = (pages.FOLDER / name).read_text(encoding="utf-8")
    assert kept == pages.made()[name](), f"docs/reference/{name} is old: run `make docs`"


def test_no_page_is_written_by_hand() -> None:
    """Whatever lies in the folder is made."""
    assert {page.name for page in pages.FOLDER.iterdir()} == set(pages.made())


def test_every_command_has_a_section_with_an_example() -> None:
    """Who looks a command up finds it, with something to copy."""
    page = (pages.FOLDER / "cli.md").read_text()
    for name, command in cli.commands().items():
        assert f"\n## {name}\n" in page
        assert re.match(r"Examples?: ", command.epilog or ""), f"{name} has no example"
        for example in command.epilog.partition(":")[2].split(";  "):
            assert example.strip().startswith(("lineshaft ", "cat ")), example


def test_every_option_says_what_it_does() -> None:
    """`--help` explains each option of each command."""
    silent = [
        f"{name} {option.opts}"
        for name, command in cli.commands().items()
        for option in command.params
        if not option.help
    ]
    assert not silent, silent


def test_every_alert_and_signature_is_listed() -> None:
    """An operator finds what an alarm shows him, and its runbook."""
    page = (pages.FOLDER / "alerts.md").read_text()
    for kind in alerts.KINDS:
        assert f"(../runbooks/{kind}.md)" in page
        assert (source.ROOT / alerts.runbook(kind)).is_file()
    listed = (pages.FOLDER / "signatures.md").read_text()
    assert all(f"`{one.id}`" in listed for one in signature_file.load().ordered)


def test_the_bus_is_described_whole() -> None:
    """Each kind has a channel, an operation and a message; every reference leads somewhere."""
    text = (pages.FOLDER / "asyncapi.json").read_text()
    made = json.loads(text)
    assert set(made["channels"]) == set(made["components"]["messages"]) == set(kinds.KINDS)
    assert len(made["operations"]) == len(kinds.KINDS)
    for where in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found = made
        for part in where.split("/"):
            found = found[part]
        assert found
    for name, channel in made["channels"].items():
        marks = set(re.findall(r"\{(\w+)\}", channel["address"]))
        assert marks == set(channel.get("parameters", {})), name
        assert channel["address"].startswith(f"{subjects.ROOT}.{name}".replace("..", "."))
