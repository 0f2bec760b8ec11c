"""Background work that is started again when it ends, later and later, until it is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable

from lineshaft.ports import Clock

RESTART_MS_MIN = 200
RESTART_MS_MAX = 30_000
STEADY_MS = 60_000
"""Work that ran this long before it ended starts again without the delay it had earned."""


class Supervisor:
    """Keeps named work running. ``alarm`` is told of each crash: kind, subject, summary."""

    def __init__(self, clock: Clock, alarm: Callable[[str, str, str], None]) -> None:
        self._clock = clock
        self._alarm = alarm
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` until ``stop``."""
        self._tasks.append(asyncio.create_task(self._keep(name, work), name=name))

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        delay = RESTART_MS_MIN
        while True:
            began = self._clock.monotonic()
            try:
                await work()
            except Exception as error:
                self._alarm("work_crashed", name, _story(error))
            if self._clock.monotonic() - began >= STEADY_MS:
                delay = RESTART_MS_MIN
            await self._clock.sleep(delay)
            delay = min(delay * 2, RESTART_MS_MAX)

    async def stop(self) -> None:
        """Cancel all work and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []


def _story(error: BaseException) -> str:
    """Return an error with where it was raised, short enough for a finding."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = ""
    if frame is not None:
        where = f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
    return f"{error!r}{where}"
