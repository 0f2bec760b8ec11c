"""From a recipe to its engine; each is imported only when it is chosen."""

from torch import nn

from trainer.engines.port import Engine
from trainer.recipe import Recipe


def engine(asked: Recipe, module: nn.Module, total_steps: int) -> Engine:
    """Return plain torch when the order names no ZeRO stage, else DeepSpeed."""
    if asked.zero_stage is None:
        from trainer.engines.plain import PlainEngine  # noqa: PLC0415

        return PlainEngine(asked, module, total_steps)
    from trainer.engines.zero import ZeroEngine  # noqa: PLC0415 - seconds to import

    return ZeroEngine(asked, module, total_steps)
