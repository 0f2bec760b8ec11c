"""Time inside collectives, the only way to tell a slow rank from those that wait for it.

The entry points of ``torch.distributed`` and ``deepspeed.comm`` and ``Work.wait`` are wrapped;
nested calls count once. Communication that overlaps computation shows as the time it is waited
for. For a process that runs one training loop; nothing is ever unwrapped.
"""

import functools
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch.distributed

NAMES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_gather_object",
    "allgather_fn",
    "all_to_all_single",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_fn",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
)


class CollectiveClock:
    """Adds up the time that this process spends in or waits for collectives."""

    def __init__(self) -> None:
        self._spent_ns = 0
        self._depth = 0

    def install(self) -> None:
        """Wrap what is imported by now; DeepSpeed's names only where it is used."""
        for module in (torch.distributed, sys.modules.get("deepspeed.comm")):
            if module is not None:
                self._wrap_all(module)
        work = torch.distributed.Work
        work.wait = self._timed(work.wait)

    def take_ms(self) -> float:
        """Return the milliseconds since the last call."""
        taken, self._spent_ns = self._spent_ns, 0
        return taken / 1e6

    def _wrap_all(self, module: ModuleType) -> None:
        for name in NAMES:
            found = getattr(module, name, None)
            if callable(found):
                setattr(module, name, self._timed(found))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return call(*args, **kwargs)
            self._depth += 1
            began = time.monotonic_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                self._spent_ns += time.monotonic_ns() - began

        return timed
