"""Documents stay true: both languages alike, links that lead somewhere, targets that exist."""

import re
from pathlib import Path

import pytest

from tests.repository import source

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"```(?:\w*)\n(.*?)```", page.read_text(), re.S)


def heading_levels(page: Path) -> list[int]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return [len(match) for match in re.findall(r"^(#+) ", text, re.M)]


def test_both_readmes_have_the_same_headings_and_commands() -> None:
    """Who reads Chinese learns the same."""
    english, chinese = source.ROOT / "README.md", source.ROOT / "README.zh-CN.md"
    assert heading_levels(english) == heading_levels(chinese)
    assert code_blocks(english) == code_blocks(chinese)


@pytest.mark.parametrize(
    "page",
    [p for p in sorted(source.ROOT.glob("*.md")) + sorted((source.ROOT / "docs").rglob("*.md"))],
    ids=source.name_of,
)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of this repository."""
    broken = [
        link
        for link in LINK.findall(page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken, broken


def test_commands_of_the_readme_are_make_targets() -> None:
    """`make X` in a document works."""
    targets = set(re.findall(r"^([a-z-]+):", (source.ROOT / "Makefile").read_text(), re.M))
    for page in source.ROOT.glob("*.md"):
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text()))
        named |= set(re.findall(r"^make ([a-z-]+)", page.read_text(), re.M))
        assert named <= targets, f"{page.name}: {named - targets}"


def test_every_target_is_explained() -> None:
    """`make help` lists every target."""
    makefile = (source.ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split())
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    assert phony == explained


def test_decisions_are_numbered_once() -> None:
    """Each ADR has a number of its own and the four parts."""
    numbers: dict[str, str] = {}
    for page in sorted((source.ROOT / "docs" / "adr").glob("[0-9]*.md")):
        number = page.name[:4]
        assert number not in numbers, f"{page.name} and {numbers[number]}"
        numbers[number] = page.name
        text = page.read_text().lower()
        for part in ("context", "decision", "consequences"):
            assert part in text, f"{page.name} lacks '{part}'"
