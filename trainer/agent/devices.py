"""Samples of the accelerators, by ``nvidia-smi`` where it is; nothing elsewhere.

The slowest reading of a node, so it has a task and a pace of its own.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Sequence

from lineshaft.ports import Clock
from trainer.agent.order import Order

_EVERY_MS = 10_000
_ANSWER_S = 8.0
_QUERY = "utilization.gpu,power.draw,memory.used,temperature.gpu,memory.total"
_MEBIBYTE = 1024 * 1024


class DeviceSampler:
    """Keeps the latest sample of a node's accelerators in ``latest``."""

    def __init__(self, order: Order, clock: Clock) -> None:
        gpu_type = (order.spec.get("resources") or {}).get("gpuType", "cpu")
        self._program = None if gpu_type == "cpu" else shutil.which("nvidia-smi")
        self._slots = ",".join(str(slot) for slot in order.slots)
        self._clock = clock
        self.latest: dict[str, float] = {}

    async def run(self) -> None:
        """Sample until cancelled; without accelerators there is nothing to do."""
        while self._program is not None:
            with contextlib.suppress(OSError, ValueError, TimeoutError):
                self.latest = summary(await self._ask(self._program))
            await self._clock.sleep(_EVERY_MS)

    async def _ask(self, program: str) -> str:
        child = await asyncio.create_subprocess_exec(
            program,
            *(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", self._slots),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_ANSWER_S):
                output, _ = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
        return output.decode(errors="replace")


def summary(output: str) -> dict[str, float]:
    """Return a node's values out of one line per device: means, memory's sum, the hottest.

    Beside the mean stands each device's utilisation, in the order of the node's ranks; the whole
    memory only where every device tells it. Raises ``ValueError`` for what is no such table.
    """
    rows = [_numbers(line.split(",")) for line in output.splitlines() if line.strip()]
    if not rows:
        return {}
    utilisation, power, memory, temperature, total = zip(*rows, strict=True)
    return {
        "gpu_utilisation": sum(utilisation) / len(rows),
        "gpu_power_w": sum(power) / len(rows),
        "gpu_memory_bytes": sum(memory) * _MEBIBYTE,
        **({"gpu_memory_total_bytes": sum(total) * _MEBIBYTE} if min(total) > 0 else {}),
        "gpu_temperature_c": max(temperature),
        **{f"gpu_utilisation_{place}": each for place, each in enumerate(utilisation)},
    }


def _numbers(cells: Sequence[str]) -> tuple[float, ...]:
    """Read one device's cells; what a device does not tell (``[N/A]``) counts as 0."""
    if len(cells) != len(_QUERY.split(",")):
        raise ValueError(f"{len(cells)} values of a device")
    return tuple(_number(cell.strip()) for cell in cells)


def _number(cell: str) -> float:
    return 0.0 if cell.startswith("[") else float(cell)
