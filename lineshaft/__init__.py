"""Lineshaft: a job file goes in; an evaluated, versioned, downloadable model comes out.

``lineshaft.report`` and ``lineshaft.phase`` are for user code; they are loaded when first used,
so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lineshaft.report import phase, report, stop_requested

__all__ = ["phase", "report", "stop_requested"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module  # noqa: PLC0415 - nothing is loaded before its use

        module = import_module("lineshaft.report")
        for each in __all__:
            globals()[each] = getattr(module, each)
        return globals()[name]
    raise AttributeError(f"module 'lineshaft' has no attribute {name!r}")
