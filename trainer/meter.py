"""Where a step's time went, told to the agent after every step.

A step's time runs from the end of the step before; a save in between is in it, told apart as
``checkpoint_ms``. Evaluation is not a step's time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainer.datasets.loader import Batch
from trainer.engines.timing import CollectiveClock
from trainer.link import Link


@dataclass(frozen=True, slots=True)
class Done:
    """What one optimiser step of this rank computed."""

    loss: float
    grad_norm: float
    learning_rate: float
    samples: int
    tokens: int


class Meter:
    """Measures the steps of one rank."""

    def __init__(self, link: Link, clock: CollectiveClock) -> None:
        self._link = link
        self._clock = clock
        self._steps = 0
        self._tokens = 0
        self._spent_ms = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin the next step's time now."""
        self._clock.take_ms()
        self._data_ns = 0
        self._checkpoint_ns = 0
        self._began_ns = time.monotonic_ns()
        self._cpu_ns = time.process_time_ns()

    def fetched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches, counting the time until each is there."""
        while True:
            began = time.monotonic_ns()
            batch = next(batches, None)
            self._data_ns += time.monotonic_ns() - began
            if batch is None:
                return
            yield batch

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Count what happens inside as time for a checkpoint, of the step that follows."""
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._clock.take_ms()  # the save's own waiting is not the step's
            self._checkpoint_ns += time.monotonic_ns() - began

    def report(self, step: int, done: Done) -> None:
        """Tell the step, and begin the next."""
        whole = (time.monotonic_ns() - self._began_ns) / 1e6
        data, saving = self._data_ns / 1e6, self._checkpoint_ns / 1e6
        collective = self._clock.take_ms()
        self._link.step(
            step,
            samples=done.samples,
            tokens=done.tokens,
            loss=done.loss,
            grad_norm=done.grad_norm,
            learning_rate=done.learning_rate,
            step_ms=whole,
            compute_ms=max(0.0, whole - data - saving - collective),
            collective_ms=collective,
            data_ms=data,
            checkpoint_ms=saving,
            cpu_ms=(time.process_time_ns() - self._cpu_ns) / 1e6,
        )
        self._steps += 1
        self._tokens += done.tokens
        self._spent_ms += whole
        self.restart()

    @property
    def numbers(self) -> dict[str, float]:
        """Return what the steps of this attempt came to, on this rank."""
        seconds = self._spent_ms / 1000
        if not self._steps or not seconds:
            return {}
        per_second = self._tokens / seconds
        return {"step_ms": self._spent_ms / self._steps, "tokens_per_second": per_second}
