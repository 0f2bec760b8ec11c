"""The bundled ``nats-server`` on loopback: found, configured, started, watched, stopped.

For one machine. Port and token are kept in the folder, so that whoever knew them reconnects
after a restart of the server or of the platform. The token is in a file of mode 0600, never on
a command line. Standard library only.
"""

import asyncio
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lineshaft.contracts import limits

HOST = "127.0.0.1"
READY_WAIT_S = 15.0
STOP_WAIT_S = 10.0
VERSION_MIN = (2, 12)
MEMORY_STORE_BYTES_MAX = 1 << 30
_RESTART_MS_MAX = 5_000
_PR_SET_PDEATHSIG = 1  # prctl(2)


class ServerFailed(Exception):
    """The server cannot be started; the message says why and what to do."""


def find_binary() -> Path:
    """Return the ``nats-server`` of this environment, or the one on PATH. Raises."""
    beside = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    for folder in beside:
        if (folder / "nats-server").is_file():
            return folder / "nats-server"
    found = shutil.which("nats-server")
    if found is None:
        raise ServerFailed("nats-server is not installed; install lineshaft[server]")
    return Path(found)


class NatsServer:
    """One server process over ``folder``, which holds its configuration, log and store.

    ``port`` None: the one it had before, else one that is free.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        on_event: Callable[[str, str], None] | None = None,
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.log = folder / "nats-server.log"
        self._config = folder / "nats-server.conf"
        self._complaints = folder / "nats-server.err"  # what it says before it has its log
        self._pid_file = folder / "nats-server.pid"
        self._on_event = on_event or (lambda what, detail: None)
        self._port_wanted = port
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self.token = ""
        self.port = 0

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://{HOST}:{self.port}"

    @property
    def token_file(self) -> Path:
        """Where the token is kept, mode 0600."""
        return self.folder / "token"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def start(self) -> None:
        """Start and wait until the server takes connections; watch over it from then on."""
        binary = find_binary()
        await _check_version(binary)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._end_former()
        self.token = self._kept_token() or secrets.token_urlsafe(32)
        self.port = self._choose_port()
        await self._launch(binary)
        self._watch = asyncio.create_task(self._keep_alive(binary), name="nats-server.watch")

    async def stop(self) -> None:
        """Stop the server cleanly; kill it when it does not end in time."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_WAIT_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._pid_file.unlink(missing_ok=True)

    # -- one start ----------------------------------------------------------------------------

    def _kept_token(self) -> str:
        if not self.token_file.is_file():
            return ""
        return self.token_file.read_text(encoding="ascii").strip()

    def _choose_port(self) -> int:
        if self._port_wanted is not None:
            if not _is_free(self._port_wanted):
                raise ServerFailed(f"port {self._port_wanted} of {HOST} is taken; choose another")
            return self._port_wanted
        kept = self.folder / "port"
        text = kept.read_text(encoding="ascii").strip() if kept.is_file() else ""
        port = int(text) if text.isdigit() else 0
        if not 0 < port < 65536 or not _is_free(port):
            port = _free_port()
        return port

    def _write_files(self) -> None:
        """Write everything that a start needs: somebody may have deleted the whole folder."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.token_file, self.token + "\n")
        (self.folder / "port").write_text(f"{self.port}\n", encoding="ascii")
        # JSON is a subset of the configuration's language but for \u: letters stay as they are.
        config = {
            "server_name": "lineshaft",
            "host": HOST,
            "port": self.port,
            "pid_file": str(self._pid_file),
            "log_file": str(self.log),
            "logfile_size_limit": 16 * 1024 * 1024,
            "max_payload": limits.BUS_PAYLOAD_BYTES_MAX,
            "authorization": {"token": self.token},
            "jetstream": {
                "store_dir": str(self.store),
                "max_memory_store": MEMORY_STORE_BYTES_MAX,
            },
        }
        write_private(self._config, json.dumps(config, indent=1, ensure_ascii=False))

    async def _launch(self, binary: Path) -> None:
        self._write_files()
        with self._complaints.open("wb") as complaints:
            self._process = await asyncio.create_subprocess_exec(
                str(binary),
                "-c",
                str(self._config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                start_new_session=True,  # Ctrl-C is for us: the bus ends last
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        await self._wait_ready(self._process)

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_WAIT_S
        while loop.time() < deadline:
            if process.returncode is not None:
                raise ServerFailed(f"nats-server ended at once: {self._last_complaint()}")
            if await _greets(self.port):
                return
            await asyncio.sleep(0.02)
        process.kill()
        raise ServerFailed(f"nats-server took no connection in {READY_WAIT_S:.0f} s: {self.log}")

    def _last_complaint(self) -> str:
        for file in (self._complaints, self.log):
            with suppress(OSError):
                lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
                said = [line.strip() for line in lines if line.strip()]
                if said:
                    return f"{said[-1]} (see {file})"
        return f"it said nothing (see {self.folder})"

    async def _keep_alive(self, binary: Path) -> None:
        delay_ms = 50
        while True:
            assert self._process is not None
            code = await self._process.wait()
            self._on_event("bus_ended", f"nats-server ended with {code}; it is started again")
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(delay_ms * 2, _RESTART_MS_MAX)
            try:
                await self._launch(binary)
            except (ServerFailed, OSError) as error:
                self._on_event("bus_failed", str(error))
            else:
                self._on_event("bus_restarted", self.url)
                delay_ms = 50

    async def _end_former(self) -> None:
        """End a server of ours that outlived its platform (where no parent's death ends it)."""
        text = self._pid_file.read_text(encoding="ascii") if self._pid_file.is_file() else ""
        pid = int(text) if text.strip().isdigit() else 0
        if not pid or not _runs_config(pid, self._config):
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        for _ in range(int(STOP_WAIT_S / 0.05)):
            if not _runs_config(pid, self._config):
                return
            await asyncio.sleep(0.05)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server itself does: connections of a former one may linger in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


async def _greets(port: int) -> bool:
    """Tell whether a server at ``port`` greets and has JetStream on."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(HOST, port), 1)
    except (OSError, TimeoutError):
        return False
    try:
        greeting = await asyncio.wait_for(reader.readline(), 1)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
    return greeting.startswith(b"INFO ") and b'"jetstream":true' in greeting


async def _check_version(binary: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        str(binary), "--version", stdout=asyncio.subprocess.PIPE
    )
    text = (await process.communicate())[0].decode(errors="replace")
    numbers = text.rpartition("v")[2].strip().split(".")[:2]
    if not all(number.isdigit() for number in numbers) or len(numbers) < 2:
        raise ServerFailed(f"{binary}: not a nats-server: {text.strip()!r}")
    if tuple(map(int, numbers)) < VERSION_MIN:
        needed = ".".join(map(str, VERSION_MIN))
        raise ServerFailed(f"{binary} is {text.strip()}; at least {needed} is needed")


def _runs_config(pid: int, config: Path) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return str(config).encode() in line.split(b"\0")


def die_with_parent() -> None:
    """Run this in a child: it gets SIGTERM when its parent dies, however that dies (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
