"""The reference page of job files, made from the table of fields.

``docs/reference/job-file.md`` is what ``markdown()`` gives. Standard library only.
"""

from collections.abc import Iterator
from typing import Any, Final

from lineshaft.contracts import ids
from lineshaft.contracts.job_fields import API_VERSIONS, FILE, PRIORITIES
from lineshaft.contracts.job_oddities import ODD_FILES, ODD_PATHS, ODDITIES
from lineshaft.contracts.job_records import Field, ListOf, Missing, Record
from lineshaft.contracts.job_types import Type, word_of

_HEAD: Final = f"""\
# The job file

Made from `lineshaft/contracts/job_fields.py`; do not edit.

A job file is one YAML 1.2 document (or JSON) in UTF-8. `apiVersion` is `{API_VERSIONS[0]}`;
`{API_VERSIONS[1]}` is another spelling of the same. `lineshaft validate FILE`
reports every fault at once, with path, line and the nearest known name, and needs no platform.

`lineshaft submit FILE -f MORE --set hyperparameters.learningRate=1e-5 --var DATA=pairs` puts a job
together: a later file lies over the first (mappings are merged, lists replaced, `null` takes
away), `--set` sets single values (`spec.` may be left out), and `${{NAME}}` in a text stands for a
variable that `variables:` declares or `--var` gives. Nothing is taken from the environment;
`$${{NAME}}` is the text `${{NAME}}` itself. `validate` and `plan` take the same options.

Priorities: {", ".join(f"{name} = {value}" for name, value in PRIORITIES.items())}.

## Fields that are honoured

| field | what it holds | default | |
|---|---|---|---|
"""
_ODD: Final = """
## What comes of unusual files

"read as": the file is accepted. Else the message, as it follows the file's name; all faults of a
file are reported together.

| what | written | what comes of it |
|---|---|---|
"""
_REFUSED: Final = """
## Fields that are known and refused

Each of these is refused by name: "is not honoured by this platform yet".

"""


def markdown() -> str:
    """Return the page: the honoured fields with type and default, then the refused ones."""
    rows, refused = [], []
    for path, field in _walk(FILE, ""):
        if field.later:
            refused += [f"{path}.{name}" for name in field.names] or [path]
        else:
            cells = (f"`{path}`", _words(field.type), _default(field), field.summary)
            rows.append(f"| {' | '.join(cells)} |")
    known = ", ".join(f"`{p}`" for p in refused)
    return _HEAD + "\n".join(rows) + "\n" + _REFUSED + known + "\n" + _oddities()


def _oddities() -> str:
    rows = [(odd.what, f"`{_cell(odd.new)}`", odd.said) for odd in ODDITIES]
    rows += [(odd.what, "", odd.said) for odd in ODD_FILES]
    rows += [("a path, the mount is /data", f"`{odd.what}`", odd.said) for odd in ODD_PATHS]
    return _ODD + "".join(f"| {what} | {new} | {_cell(said)} |\n" for what, new, said in rows)


def _cell(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥").replace("|", "\\|")


def _walk(of: Type, before: str) -> Iterator[tuple[str, Field]]:
    if isinstance(of, ListOf):
        yield from _walk(of.item, f"{before}[]")
    if isinstance(of, Record):
        for field in of.fields:
            path = f"{before}.{field.name}" if before else field.name
            yield path, field
            yield from _walk(field.type, path)


def _default(field: Field) -> str:
    if isinstance(field.default, Missing):
        return "required"
    if field.default is None or field.default in ([], {}):
        return ""
    is_number = isinstance(field.default, float)
    return f"`{field.default:g}`" if is_number else f"`{word_of(field.default)}`"


def _words(of: Type) -> str:
    schema = of.schema()
    if isinstance(of, Record):
        return "a mapping"
    if "const" in schema:
        return f"only `{word_of(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{word_of(word)}`" for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_of_schema(each) for each in schema["anyOf"])
    return _of_schema(schema)


def _of_schema(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array":
        return "a list"
    if kind == "object":
        return "a mapping"
    if kind == "string":
        return "a name" if schema.get("pattern") == ids.NAME.pattern else "a text"
    if kind == "boolean":
        return "true or false"
    is_whole = isinstance(kind, list) and "integer" in kind
    return f"{'a whole number' if is_whole else 'a number'}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    words = []
    if low is not None:
        words.append(f"from {low:g}" if isinstance(low, float) else f"from {low}")
    if above is not None:
        words.append(f"above {above:g}")
    if high is not None and high < 1 << 53:
        words.append(f"to {high:g}" if isinstance(high, float) else f"to {high}")
    if below is not None:
        words.append(f"below {below:g}")
    return " " + " ".join(words) if words else ""


def fields() -> dict[str, Field]:
    """Return every field of a job file, honoured or refused, by its path."""
    return dict(_walk(FILE, ""))


def words_of(field: Field) -> str:
    """Return what a field holds, in words."""
    return _words(field.type)


def default_of(field: Field) -> str:
    """Return a field's default as it would be written, ``required``, or nothing."""
    return _default(field).strip("`")
