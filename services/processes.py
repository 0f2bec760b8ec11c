"""The whole platform as processes: the bundled bus, and each service in an interpreter of its own.

This one supervises: it starts them all at once, starts again what ends, later and later, says
where everything is in the same state file as ever, and stops them in order. It imports no
service. ``python -m services.processes --state DIR [--config FILE]``.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lineshaft.adapters.bus.nats import NatsBus
from lineshaft.adapters.bus.nats_server import die_with_parent
from lineshaft.contracts import subjects
from lineshaft.ports import BusUnavailable
from lineshaft.runtime import observability, premises, rpc
from lineshaft.runtime.premises import PlatformRefused, Premises
from lineshaft.runtime.process import EXIT_SETTINGS, SETTINGS_HEAD
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.settings import Settings, SettingsError
from lineshaft.runtime.supervision import RESTART_MS_MAX, RESTART_MS_MIN, STEADY_MS

# Stopped in this order: whoever asks ends before whoever answers. They start in any.
SERVICES = ("admission", "scheduler", "monitor", "registry")
READY_WAIT_S = 75.0
STOP_WAIT_S = 300.0
"""A scheduler that ends its runs at a stop gives each the grace of its job."""
LAST_WORDS_WAIT_S = 20.0
_ENDS_AT_START_MAX = 3
_LOOK_S = 0.1


class ServiceProcess:
    """The process of one service, started again whenever it ends, until it is stopped."""

    def __init__(
        self, name: str, options: list[str], env: dict[str, str], on_change: Callable[[], None]
    ) -> None:
        self.name = name
        self.ends: list[int] = []
        self._command = [sys.executable, "-m", f"services.{name}", *options]
        self._env = env
        self._on_change = on_change
        self._log = observability.logger("platform", service=name)
        self._process: asyncio.subprocess.Process | None = None
        self._told = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        """Begin to keep it running."""
        self._keeping = asyncio.create_task(self._keep(), name=f"process.{self.name}")

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        delay_ms = RESTART_MS_MIN
        while not self._told.is_set():
            began = loop.time()
            code = await self._run_once()
            if self._told.is_set():
                return
            self.ends.append(code)
            if (loop.time() - began) * 1000 >= STEADY_MS:
                delay_ms = RESTART_MS_MIN
            self._log.warning("service_ended", code=code, started_again_in_ms=delay_ms)
            self._on_change()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), delay_ms / 1000)
            delay_ms = min(delay_ms * 2, RESTART_MS_MAX)

    async def _launch(self, stderr: int | None = None) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for us: the order of the stop is ours
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )

    async def _run_once(self) -> int:
        try:
            self._process = await self._launch()
        except OSError as error:
            self._log.warning("service_not_started", detail=str(error))
            return -1
        if self._told.is_set():
            self._process.terminate()
        self._on_change()
        return await self._process.wait()

    async def last_words(self) -> list[str]:
        """Start it once more to hear why it cannot be started; it is not kept running any more.

        Its error output is the terminal's or the log's otherwise, which cannot be read back.
        """
        self._told.set()
        process = await self._launch(asyncio.subprocess.PIPE)
        said = b""
        with suppress(TimeoutError):
            said = (await asyncio.wait_for(process.communicate(), LAST_WORDS_WAIT_S))[1]
        if process.returncode is None:
            process.kill()
            await process.wait()
        lines = said.decode(errors="replace").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("{")]

    async def stop(self) -> None:
        """Let it drain; kill it when it does not end in time."""
        self._told.set()
        if self._keeping is None:
            return
        if self.pid is not None and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        _, late = await asyncio.wait({self._keeping}, timeout=STOP_WAIT_S)
        if late and self._process is not None:
            self._log.warning("service_killed", waited_s=STOP_WAIT_S)
            with suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.gather(self._keeping, return_exceptions=True)


class SupervisedPlatform:
    """One running platform over one state folder, which the caller holds locked."""

    def __init__(self, settings: Settings, config: Path | None) -> None:
        self._settings = settings
        self._config = config
        self._premises = Premises(settings)
        self._parts: dict[str, ServiceProcess] = {}
        self._bus: NatsBus | None = None
        self._registry_pid: int | None = None
        self._finding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start everything; once all services are ready, write the state file."""
        settings = await self._premises.open()
        self._bus = NatsBus(settings.bus_url, settings.token(), name="lineshaft-processes")
        options, env = self._options(), self._environment(settings)
        for name in SERVICES:
            part = self._parts[name] = ServiceProcess(name, options, env, self._changed)
            part.start()
        try:
            async with asyncio.timeout(READY_WAIT_S):
                await asyncio.gather(*(self._ready(part) for part in self._parts.values()))
                self._registry_pid = self._parts["registry"].pid
                address = await self._address()
        except TimeoutError:
            raise PlatformRefused(
                f"not all services were ready after {READY_WAIT_S:.0f} s; the log tells why"
            ) from None
        self._premises.announce(http_url=address, processes=self._pids())

    def _options(self) -> list[str]:
        options = ["--state", str(self._settings.state_dir)]
        return [*options, "--config", str(self._config.absolute())] if self._config else options

    def _environment(self, settings: Settings) -> dict[str, str]:
        """Return what leads a service to the bundled bus, whatever its settings file says."""
        env = {**os.environ, "LINESHAFT_BUS_URL": settings.bus_url}
        env["LINESHAFT_BUS_TOKEN_FILE"] = str(settings.bus_token_file)
        env.pop("LINESHAFT_BUS_TOKEN", None)
        if self._settings.bus_token is not None:  # a token itself goes before a file of one
            env["LINESHAFT_BUS_TOKEN"] = settings.token() or ""
        if settings.origins().get("mounts") == premises.FOLDER_OF_THE_START:
            env["LINESHAFT_MOUNTS"] = os.pathsep.join(str(mount) for mount in settings.mounts)
        return env

    def _pids(self) -> dict[str, int | None]:
        return {name: self._parts[name].pid for name in sorted(self._parts)}

    async def _ready(self, part: ServiceProcess) -> None:
        """Wait until the service says that it is ready; raise when it keeps ending."""
        while True:
            if EXIT_SETTINGS in part.ends:
                words = await part.last_words()
                raise SettingsError([line for line in words if line != SETTINGS_HEAD])
            if len(part.ends) >= _ENDS_AT_START_MAX:
                words = await part.last_words()
                why = words[-1] if words else f"exit code {part.ends[-1]}"
                raise PlatformRefused(f"{part.name} ends again and again: {why}")
            answer = await self._asked(part.name, "health")
            if answer is not None and answer["ready"]:
                return
            await asyncio.sleep(_LOOK_S)

    async def _asked(self, service: str, verb: str) -> dict[str, Any] | None:
        assert self._bus is not None
        subject = subjects.rpc(service, verb)
        try:
            raw = await self._bus.request(subject, json.dumps({}).encode(), timeout_ms=5_000)
            return rpc.decode_reply(raw)
        except (BusUnavailable, RpcError):
            return None

    async def _address(self) -> str:
        while True:
            answer = await self._asked("registry", "address")
            if answer is not None and answer.get("url"):
                return str(answer["url"])
            await asyncio.sleep(_LOOK_S)

    def _changed(self) -> None:
        """A process began or ended: tell it; a new registry has a new address."""
        self._premises.tell(processes=self._pids())
        pid = self._parts["registry"].pid if "registry" in self._parts else None
        if pid == self._registry_pid or self._registry_pid is None:
            return
        self._premises.tell(http_url=None)
        if pid is not None:
            self._registry_pid = pid
            if self._finding is not None:
                self._finding.cancel()
            self._finding = asyncio.create_task(self._find_address())

    async def _find_address(self) -> None:
        self._premises.tell(http_url=await self._address())

    async def stop(self) -> None:
        """Stop the services, each after those that ask it, then the bus."""
        self._premises.withdraw()
        if self._finding is not None:
            self._finding.cancel()
        steps: list[Callable[[], Awaitable[None]]] = [p.stop for p in self._parts.values()]
        steps += [] if self._bus is None else [self._bus.aclose]
        for step in [*steps, self._premises.close]:
            try:
                await step()
            except Exception as error:
                self._premises.log.warning("stop_failed", detail=repr(error))


def main() -> None:
    """Run from a terminal or as the child of ``lineshaft up``. Exit codes: 0, 2, 3."""

    def make(settings: Settings, given: argparse.Namespace) -> SupervisedPlatform:
        return SupervisedPlatform(settings, given.config)

    premises.main(premises.parser("services.processes", __doc__), make)


if __name__ == "__main__":
    main()
