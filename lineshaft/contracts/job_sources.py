"""Where a job file's values come from: several files, ``--set path=value``, declared variables.

``compose`` lays files over one another and sets single values; ``filled`` puts the values of
declared variables into texts. Nothing is ever taken from an environment. Pure; what the fields
mean is the business of ``lineshaft.contracts.job``.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lineshaft.contracts import jobfile, limits
from lineshaft.contracts.job_faults import (
    Fault,
    FaultList,
    JobFileError,
    Locations,
    Path,
    nearest,
    shown,
)

VARIABLES: Final = "variables"
TOPS: Final = ("apiVersion", "kind", "metadata", "spec", VARIABLES)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_USE: Final = re.compile(r"\$(\$?)\{([^{}]*)\}")
_STEP: Final = re.compile(r"([^.\[\]=\s]+)((?:\[\d{1,4}\])*)(?:\.|$)")
_TEXT_CHARS_MAX: Final = limits.JOB_FILE_BYTES_MAX


def compose(
    files: Sequence[tuple[str, str | bytes]],
    sets: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> tuple[dict[str, Any], Locations]:
    """Return one document of several files, (name, text) each; a later file wins.

    Mappings are laid over one another, lists and single values are replaced; null takes a value
    away. ``sets`` are ``path=value``, ``variables`` are ``NAME=value``. With several files a
    fault has no line, since it may come from two. Raises ``JobFileError``.
    """
    document: dict[str, Any] = {}
    places = Locations()
    for name, text in files:
        read, places = jobfile.read(text, name=name)
        document = merged(document, read)
    marks = dict(places.marks) if len(files) == 1 else {}
    faults: list[Fault] = []
    for setting in sets:
        try:
            path, value = _setting(setting)
            _put(document, path, value)
        except ValueError as error:
            faults.append(Fault("", None, None, f"--set {shown(setting)}: {error}"))
        else:
            marks = {at: mark for at, mark in marks.items() if at[: len(path)] != path}
    for given in variables:
        name, is_given, value = given.partition("=")
        if not is_given or not _NAME.fullmatch(name):
            faults.append(Fault("", None, None, f"--var {shown(given)}: must be NAME=value"))
        elif isinstance(document.setdefault(VARIABLES, {}), dict):
            document[VARIABLES][name] = value
    if faults:
        raise JobFileError(faults, files[0][0])
    return document, Locations(marks)


def merged(under: Any, over: Any) -> Any:
    """Return ``over`` laid over ``under``, mapping by mapping."""
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    made = dict(under)
    for key, value in over.items():
        made[key] = merged(made[key], value) if key in made else value
    return made


def _setting(text: str) -> tuple[Path, Any]:
    left, is_given, right = text.partition("=")
    path: list[str | int] = []
    position = 0
    while position < len(left):
        step = _STEP.match(left, position)
        if step is None:
            raise ValueError("must be path=value, as in spec.hyperparameters.learningRate=1e-5")
        path.append(step[1])
        path += [int(index) for index in re.findall(r"\d+", step[2])]
        position = step.end()
    if not is_given or not path or left.endswith("."):
        raise ValueError("must be path=value, as in spec.hyperparameters.learningRate=1e-5")
    if path[0] not in TOPS:
        path.insert(0, "spec")
    return tuple(path), _value(right)


def _value(text: str) -> Any:
    try:
        document, _ = jobfile.read(f"value: {text}")
    except JobFileError as error:
        raise ValueError(error.faults[0].message) from None
    if set(document) != {"value"}:
        raise ValueError("the value must be one value, on one line")
    return document["value"]


def _put(document: dict[str, Any], path: Path, value: Any) -> None:
    there: Any = document
    for step, after in itertools.pairwise(path):
        there = _into(there, step, [] if isinstance(after, int) else {})
    _into(there, path[-1], None)
    there[path[-1]] = value


def _into(there: Any, step: str | int, blank: Any) -> Any:
    """Return what stands at a step, made where it is not there yet; a list grows by one."""
    if isinstance(step, int):
        if not isinstance(there, list) or step > len(there):
            count = len(there) if isinstance(there, list) else 0
            raise ValueError(f"there are {count} items, so [{step}] is no place")
        if step == len(there):
            there.append(blank)
    elif not isinstance(there, dict):
        raise ValueError(f"'{step}' is below a value that is no mapping")
    elif there.get(step) is None:
        there[step] = blank
    return there[step]


# ---------------------------------------------------------------------------------------------
# Variables


def filled(document: Any, faults: FaultList) -> Any:
    """Return the document with ``${NAME}`` replaced in its texts; ``$${`` stands for ``${``.

    Only what ``variables`` declares has a value. A text that is nothing but ``${NAME}`` becomes
    the value itself, a number stays one. Without ``variables`` the document stays as it is, but
    a use of ``${NAME}`` is a fault: nothing is left to be wondered at in a path.
    """
    if not isinstance(document, dict):
        return document
    declared = document.get(VARIABLES)
    known = _declared(declared, faults)
    return {
        key: value if key == VARIABLES else _fill(value, (key,), known, faults)
        for key, value in document.items()
    }


def _declared(declared: Any, faults: FaultList) -> dict[str, Any]:
    if declared is None:
        return {}
    if not isinstance(declared, dict):
        faults.add((VARIABLES,), "must be a mapping of names to values")
        return {}
    for name, value in declared.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            faults.add(
                (VARIABLES, str(name)), "is no name: letters, digits and '_', a letter first"
            )
        elif isinstance(value, dict | list):
            faults.add((VARIABLES, name), "must be a single value")
    return {name: value for name, value in declared.items() if isinstance(name, str)}


def _fill(value: Any, path: Path, known: Mapping[str, Any], faults: FaultList) -> Any:
    if isinstance(value, dict):
        return {k: _fill(each, (*path, k), known, faults) for k, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, (*path, i), known, faults) for i, each in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _USE.fullmatch(value)
    if whole is not None and not whole[1]:
        return _known(whole[2], path, known, faults)

    def text(use: re.Match[str]) -> str:
        if use[1]:
            return "${" + use[2] + "}"
        found = _known(use[2], path, known, faults)
        return str(found).lower() if isinstance(found, bool) else str(found)

    made = _USE.sub(text, value)
    if len(made) > _TEXT_CHARS_MAX:
        faults.add(path, "is too long with its variables filled in")
        return None
    return made


def _known(name: str, path: Path, known: Mapping[str, Any], faults: FaultList) -> Any:
    """Return a variable's value; on a fault the use as it stands, so that the rest is read too."""
    if name not in known:
        meant = nearest(name, known)
        hint = f"; did you mean '{meant}'?" if meant else ""
        literal = "; write $${" + shown(name) + "} for the text itself"
        faults.add(path, f"the variable '{shown(name)}' is not declared{hint}{literal}", meant)
    elif known[name] is None:
        faults.add(path, f"the variable '{name}' has no value; give one: --var {name}=...")
    elif not isinstance(known[name], dict | list):
        return known[name]
    return "${" + name + "}"
