"""The course of the learning rate: one curve for every engine.

The rate of step 1 is above zero, and the rate depends on the step alone.
"""

import math
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LambdaLR

from trainer.recipe import Optimisation


@dataclass(frozen=True)  # no slots: LambdaLR keeps what is in __dict__
class Course:
    """The factor on the learning rate after ``done`` optimiser steps.

    Warm-up rises linearly to 1 at step ``warmup``; then linear or cosine decay down to
    ``floor`` (a share of the full rate) at ``total``, or constant.
    """

    schedule: str
    warmup: int
    total: int
    floor: float

    def __call__(self, done: int) -> float:
        """Return the factor of step ``done + 1``."""
        step = done + 1
        if step <= self.warmup:
            return step / self.warmup
        if self.schedule == "constant":
            return 1.0
        passed = min(1.0, (done - self.warmup) / max(1, self.total - self.warmup))
        falling = (
            1.0 - passed if self.schedule == "linear" else (1 + math.cos(math.pi * passed)) / 2
        )
        return self.floor + (1.0 - self.floor) * falling


def course(wish: Optimisation, total_steps: int) -> Course:
    """Return the course of a run of ``total_steps``."""
    floor = min(1.0, wish.min_learning_rate / wish.learning_rate)
    return Course(wish.schedule, wish.warmup(total_steps), total_steps, floor)


def optimiser(parameters: list[torch.nn.Parameter], wish: Optimisation) -> torch.optim.AdamW:
    """Return AdamW over the parameters that learn."""
    return torch.optim.AdamW(
        parameters,
        lr=wish.learning_rate,
        betas=(wish.beta1, wish.beta2),
        eps=wish.epsilon,
        weight_decay=wish.weight_decay,
    )


def scheduler(made: torch.optim.Optimizer, wish: Optimisation, total_steps: int) -> LambdaLR:
    """Return the scheduler that walks the course."""
    return LambdaLR(made, course(wish, total_steps))
