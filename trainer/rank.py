"""The entry point of every rank, whatever launcher starts it.

It forks before anything heavy is imported. The parent watches: it leaves the pids and the end
(exit code or signal) in files and on the agent's socket, then ends the same way, so that the
launcher sees it too. The child is the rank: our own loop, or the user's command. This module
imports no training framework before the fork and knows nothing of training.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lineshaft.contracts.failures import EXIT_OF_CLASS
from lineshaft.report import SOCKET_VARIABLE, rank_of

STACKS_VARIABLE = "LINESHAFT_STACKS_FILE"
STACKS_SIGNAL = signal.SIGUSR1
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_PTRACER_ANY = ctypes.c_ulong(-1)


def main() -> NoReturn:
    """Fork, then be the rank or its watcher. Never returns."""
    parser = argparse.ArgumentParser(prog="trainer.rank")
    parser.add_argument("--order", type=Path, required=True)
    path = parser.parse_args().order
    order = json.loads(path.read_bytes())
    rank = rank_of(os.environ)
    folder = path.parent / "ranks"
    folder.mkdir(exist_ok=True)
    os.environ["LINESHAFT_RANK"] = str(rank)
    os.environ[STACKS_VARIABLE] = str(folder / f"rank-{rank}.stacks")
    watcher = os.getpid()
    pid = os.fork()
    if pid:
        _watch(folder, rank, pid)
    _be_the_rank(order, folder, rank=rank, watcher=watcher)


# ---------------------------------------------------------------------------------------------
# The watcher: standard library only, to the end.


def _watch(folder: Path, rank: int, pid: int) -> NoReturn:
    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for passed in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(passed, pass_on)
    pids = {"rank": rank, "pid": pid, "supervisor_pid": os.getpid()}
    times = {"start_time": _start_time(pid), "supervisor_start_time": _start_time(os.getpid())}
    _leave(folder / f"rank-{rank}.pids", {**pids, **times})
    _, status = os.waitpid(pid, 0)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if number is None else None
    end = {"rank": rank, "exit_code": code, "signal": number, "at": time.time_ns() // 1_000_000}
    _leave(folder / f"rank-{rank}.exit", end)
    _tell(end)
    if number is None:
        os._exit(code or 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own core is enough
    with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP have no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _start_time(pid: int) -> int:
    try:
        raw = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(raw.rpartition(")")[2].split()[19])


def _leave(path: Path, body: Mapping[str, Any]) -> None:
    """Write a small file so that a reader sees all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(body), encoding="utf-8")
    draft.replace(path)


def _tell(end: Mapping[str, Any]) -> None:
    """Nudge the agent; the file is what counts."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(1.0)
        line.connect(os.environ.get(SOCKET_VARIABLE, ""))
        hello = {"op": "hello", "rank": end["rank"], "role": "supervisor", "pid": os.getpid()}
        line.sendall(b"".join(json.dumps(m).encode() + b"\n" for m in (hello, {"op": "exit"})))


# ---------------------------------------------------------------------------------------------
# The rank.


def _be_the_rank(order: Mapping[str, Any], folder: Path, *, rank: int, watcher: int) -> NoReturn:
    os.setpgid(0, 0)  # so that what the rank starts can be ended with it
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:  # it died before the line above
        os._exit(1)
    _prctl(_PR_SET_PTRACER, _PTRACER_ANY)
    for stream, number in (("out", 1), ("err", 2)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(folder / f"rank-{rank}.{stream}", flags, 0o600), number)
    command = order.get("command")
    if command:
        _become(order, [str(word) for word in command])
    os._exit(_train(order, folder / f"rank-{rank}.error"))


def _prctl(option: int, value: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):  # macOS has none
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(order: Mapping[str, Any], command: list[str]) -> NoReturn:
    """Turn into the user's command."""
    spec = order.get("spec") or {}
    try:
        os.chdir(spec.get("workingDir") or ".")
        os.execvp(command[0], command)  # noqa: S606 - it is the user's, and no shell reads it
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError)
        sys.stderr.write(f"the command cannot be started: {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND if is_absent else NOT_EXECUTABLE)


def _train(order: Mapping[str, Any], error_file: Path) -> int:
    """Run our own loop; return the exit code that names the class of what ended it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stacks = Path(os.environ[STACKS_VARIABLE]).open("a", encoding="utf-8")  # noqa: SIM115
    faulthandler.enable(file=sys.stderr, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    os.environ.pop("LOCAL_SIZE", None)
    code = 0
    try:
        _without_shared_memory_op(order)
        from trainer.link import Link  # noqa: PLC0415 - nothing of ours before the fork
        from trainer.loop import run  # noqa: PLC0415 - imports torch

        link = Link.connect()
        try:
            run(order, link)
        except BaseException as error:
            code = _record(error, error_file)
            _tell_error(link, error_file)
        link.close()
    except BaseException as error:
        code = _record(error, error_file)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Without the interpreter's own end: threads of a framework may hang in it.
    return code


def _without_shared_memory_op(order: Mapping[str, Any]) -> None:
    """Switch off the op that needs a compiler and leaves segments in /dev/shm behind."""
    if (order.get("resolved") or {}).get("zero_stage") is None:
        return
    from deepspeed.ops import __compatible_ops__  # noqa: PLC0415 - heavy

    __compatible_ops__["deepspeed_shm_comm"] = False


def _record(error: BaseException, path: Path) -> int:
    """Keep what ended the rank beside its end; return its exit code."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return 0
    failure = getattr(error, "failure_class", None)
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    body = {
        "type": type(error).__name__,
        "kind": getattr(error, "kind", "exception"),
        "message": str(error)[:4000],
        "traceback": text[-16_000:],
        "class": None if failure is None else str(failure),
    }
    with contextlib.suppress(OSError):
        _leave(path, body)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF
    return EXIT_OF_CLASS.get(failure, 1) if failure is not None else 1


def _tell_error(link: Any, path: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        body = json.loads(path.read_text(encoding="utf-8"))
        link.error(body["kind"], body["message"], body["traceback"], body["class"])


if __name__ == "__main__":
    main()
