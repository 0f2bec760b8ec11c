"""What the repository tests read: the project's own Python files and their syntax trees."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lineshaft", "services", "trainer")


@functools.cache
def files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files of ``folders`` (default: all packages), sorted."""
    chosen = folders or PACKAGES
    return tuple(sorted(file for folder in chosen for file in (ROOT / folder).rglob("*.py")))


@functools.cache
def tree(file: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(file.read_text(), str(file))


def name_of(file: Path) -> str:
    """Return a file's path below the project's root."""
    return file.relative_to(ROOT).as_posix()


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Yield each imported module with its line."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node.lineno


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield each function and method."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
