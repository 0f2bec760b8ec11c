"""What a Python file does, as far as its syntax tells: calls, their constants, names. Runs nothing.

The patterns are those of ``python`` tests of preflight checks; ``services.admission.checking``
reads them.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILE_BYTES_MAX = 1 << 20
FILES_MAX = 16
# Where a call takes by position what a pattern names.
_POSITIONS: Mapping[str, int] = {"init_method": 1, "device": 0, "num_workers": 5}


@dataclass(frozen=True, slots=True)
class Pattern:
    """One thing to look for; every part that is set must hold.

    ``calls``: last parts of the called names. ``where``: arguments whose constant matches.
    ``lacks``: an argument that is not given. ``sets_environment``: variables that are assigned.
    ``unless_named``: names of which none may occur anywhere in the program.
    """

    calls: tuple[str, ...] = ()
    where: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    lacks: str | None = None
    sets_environment: re.Pattern[str] | None = None
    unless_named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file of a program."""

    path: Path
    tree: ast.Module

    def names(self) -> Iterator[str]:
        """Yield every name, attribute and keyword that the file uses."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.keyword) and node.arg:
                yield node.arg
            elif isinstance(node, ast.alias):
                yield node.name.rpartition(".")[2]


def program(script: Path) -> list[Source]:
    """Return a script and the modules beside it that it imports, bounded; unreadable ones not."""
    found: dict[Path, Source] = {}
    waiting = [script]
    while waiting and len(found) < FILES_MAX:
        path = waiting.pop()
        source = _parsed(path) if path not in found else None
        if source is None:
            continue
        found[path] = source
        waiting += [path.parent / f"{name}.py" for name in sorted(_imported(source.tree))]
    return list(found.values())


def _parsed(path: Path) -> Source | None:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
            return None
        return Source(path, ast.parse(path.read_bytes(), filename=path.name))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def matches(sources: Sequence[Source], pattern: Pattern) -> Iterator[tuple[Path, int]]:
    """Yield file and line of everything that a pattern finds in a program."""
    if pattern.unless_named:
        named = {name for source in sources for name in source.names()}
        if named & pattern.unless_named:
            return
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                is_found = _is_called(node, pattern)
            elif isinstance(node, ast.Assign):
                is_found = _sets(node, pattern)
            else:
                continue
            if is_found:
                yield source.path, node.lineno


def _is_called(node: ast.Call, pattern: Pattern) -> bool:
    if pattern.sets_environment is not None:
        return _sets_default(node, pattern.sets_environment)
    if _last(node.func) not in pattern.calls:
        return False
    given = _constants(node)
    if pattern.lacks is not None:
        is_open = any(keyword.arg is None for keyword in node.keywords)  # **options
        return pattern.lacks not in given and not is_open
    return all(
        name in given and rule.fullmatch(given[name]) for name, rule in pattern.where.items()
    )


def _sets_default(node: ast.Call, names: re.Pattern[str]) -> bool:
    is_setting = _last(node.func) in ("setdefault", "putenv") and bool(node.args)
    return is_setting and _is_named(node.args[0], names)


def _sets(node: ast.Assign, pattern: Pattern) -> bool:
    names = pattern.sets_environment
    return names is not None and any(
        isinstance(target, ast.Subscript)
        and _last(target.value) == "environ"
        and _is_named(target.slice, names)
        for target in node.targets
    )


def _is_named(node: ast.expr, names: re.Pattern[str]) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and names.fullmatch(value) is not None


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _constants(node: ast.Call) -> dict[str, str]:
    """Return the arguments of a call by name, a constant as its text, another as nothing."""
    made = {keyword.arg: _text(keyword.value) for keyword in node.keywords if keyword.arg}
    for name, position in _POSITIONS.items():
        if position < len(node.args):
            made.setdefault(name, _text(node.args[position]))
    return made


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call) and node.args:  # torch.device("cuda:0")
        return _text(node.args[0])
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return ""
