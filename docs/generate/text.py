"""Pieces of Markdown that the pages share: notices, tables, cells."""

from collections.abc import Iterable, Sequence


def notice(source: str) -> str:
    """Return the line that says where a page comes from."""
    return f"Made from {source} by `make docs`; do not edit."


def cell(value: object) -> str:
    """Return a value as the text of a table's cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells that are empty stay empty."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
