"""The code keeps its shape: sizes, names, docstrings, the tree that ARCHITECTURE.md shows."""

import ast
import re
from pathlib import Path

import pytest

from tests.repository import source

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
BANNED = {"utils", "util", "common", "core", "manager", "helper", "helpers", "base", "info", "misc"}


@pytest.mark.parametrize("file", source.files(), ids=source.name_of)
def test_no_giant_file(file: Path) -> None:
    """A file that outgrows a sitting's reading is split."""
    lines = len(file.read_text().splitlines())
    assert lines <= FILE_LINES_MAX, f"{lines} lines"


def test_no_giant_function() -> None:
    """A function fits on a screen."""
    long = [
        f"{source.name_of(file)}:{f.lineno} {f.name} ({f.end_lineno - f.lineno + 1})"
        for file in source.files()
        for f in source.functions(file)
        if f.end_lineno and f.end_lineno - f.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, long


def test_no_empty_names() -> None:
    """Module and class names say a duty in the field's words."""
    bad = [
        source.name_of(file)
        for file in source.files()
        if BANNED & set(re.split(r"[_/.]", source.name_of(file).removesuffix(".py")))
    ]
    for file in source.files():
        for node in ast.walk(source.tree(file)):
            if isinstance(node, ast.ClassDef):
                words = {word.lower() for word in re.findall(r"[A-Z][a-z0-9]*", node.name)}
                if words & {"manager", "helper", "utils", "util", "misc"}:
                    bad.append(f"{source.name_of(file)}: {node.name}")
    assert not bad, bad


@pytest.mark.parametrize("file", source.files(), ids=source.name_of)
def test_every_module_says_what_lives_there(file: Path) -> None:
    """A module begins with a docstring."""
    assert ast.get_docstring(source.tree(file)), "no module docstring"


def test_the_tree_of_the_architecture_page_is_the_tree() -> None:
    """What ARCHITECTURE.md shows exists, and no part of the code is missing from it."""
    page = (source.ROOT / "ARCHITECTURE.md").read_text()
    block = page.split("## Tree", 1)[1].split("```")[1]
    shown: set[str] = set()
    top = ""
    for line in block.splitlines():
        name_part = line[:26]
        if not name_part.strip():
            continue
        if not line.startswith(" "):
            tops = re.findall(r"([\w.-]+)/", name_part)
            top = tops[0] if tops else ""
            shown.update(tops)
            continue
        for name in re.findall(r"[\w./-]+", name_part):
            path = f"{top}/{name}".rstrip("/")
            assert (source.ROOT / path).exists(), f"{path} is shown and does not exist"
            shown.add(path)
    for package in source.PACKAGES:
        for child in (source.ROOT / package).iterdir():
            is_part = child.is_dir() and (child / "__init__.py").exists()
            if is_part and child.name != "__pycache__":
                assert f"{package}/{child.name}" in shown, f"{package}/{child.name} is not shown"
