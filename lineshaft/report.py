"""Reporting from user code: ``report`` and ``phase``, and the line to the node's agent.

A report never blocks a step, never raises, and drops the oldest when the agent is away. Outside
of a run everything here does nothing. No training framework and no third-party package here: it
is imported into programs that are not ours.
"""

import atexit
import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

from lineshaft.contracts import limits
from lineshaft.contracts.telemetry import reported

SOCKET_VARIABLE = "LINESHAFT_AGENT_SOCKET"
RANK_VARIABLES = ("LINESHAFT_RANK", "RANK")
_ROW = ("loss", "grad_norm", "learning_rate", "samples", "tokens")
_PHASE_FIELD = {"data": "data_ms", "compute": "compute_ms", "save": "checkpoint_ms"}
_RECONNECT_S = 0.5


def rank_of(environ: Mapping[str, str]) -> int:
    """Return this process's rank by its environment; 0 where nothing says."""
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0


class Channel:
    """A rank's line to its agent: JSON lines over a Unix socket, written by a thread of its own.

    ``send`` queues and returns; ``ask`` waits for the agent's answer. While the agent is away
    the queue is bounded: the oldest reports go first, with a count. Questions are never dropped.
    """

    def __init__(self, path: str, *, rank: int, role: str = "rank") -> None:
        self._path = path
        self._hello = {"op": "hello", "rank": rank, "role": role, "pid": os.getpid()}
        self._urgent: deque[bytes] = deque()
        self._reports: deque[bytes] = deque(maxlen=limits.REPORT_QUEUE_MAX)
        self._wake = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._numbers = 0
        self._idle = True
        self._closed = False
        self._socket: socket.socket | None = None
        self.dropped = 0
        self.stop: dict[str, Any] | None = None
        threading.Thread(target=self._write, name="lineshaft-report", daemon=True).start()

    def send(self, message: Mapping[str, Any], *, urgent: bool = False) -> None:
        """Queue a message; the oldest report gives way when there are too many."""
        raw = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        if len(raw) > limits.REPORT_BYTES_MAX and not urgent:
            self.dropped += 1
            return
        with self._wake:
            if urgent:
                self._urgent.append(raw)
            else:
                self.dropped += len(self._reports) == self._reports.maxlen
                self._reports.append(raw)
            self._idle = False
            self._wake.notify_all()

    def ask(self, message: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any] | None:
        """Send a question and return the agent's answer, or None when none came in time."""
        with self._answered:
            self._numbers += 1
            number = self._numbers
        self.send({**message, "id": number}, urgent=True)
        with self._answered:
            self._answered.wait_for(lambda: number in self._answers, timeout_s)
            return self._answers.pop(number, None)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until everything queued was handed to the agent; False when it was not."""
        with self._wake:
            return self._wake.wait_for(lambda: self._idle, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Flush, then end the line."""
        self.flush(timeout_s)
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._socket is not None:
            _end(self._socket)

    def _write(self) -> None:
        while not self._closed:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                    line.connect(self._path)
                    self._socket = line
                    line.sendall(json.dumps(self._hello).encode() + b"\n")
                    reader = threading.Thread(target=self._read, args=(line,), daemon=True)
                    reader.start()
                    self._write_to(line)
            except OSError:
                pass
            with self._wake:
                if not self._closed:
                    self._wake.wait(_RECONNECT_S)

    def _write_to(self, line: socket.socket) -> None:
        while True:
            with self._wake:
                if not self._urgent and not self._reports:
                    self._idle = True
                    self._wake.notify_all()
                self._wake.wait_for(lambda: self._urgent or self._reports or self._closed)
                if self._closed:
                    return
                reports, urgent, dropped = list(self._reports), list(self._urgent), self.dropped
                self._reports.clear()
                self._urgent.clear()
            note = json.dumps({"op": "dropped", "count": dropped}).encode() + b"\n"
            try:
                line.sendall(b"".join([*reports, *urgent, note if dropped else b""]))
            except OSError:
                with self._wake:
                    self.dropped += len(reports)
                    self._urgent.extendleft(reversed(urgent))
                raise
            self.dropped -= dropped

    def _read(self, line: socket.socket) -> None:
        try:
            with line.makefile("rb") as lines:
                for raw in lines:
                    self._take(raw)
        except (OSError, ValueError):
            pass
        _end(line)

    def _take(self, raw: bytes) -> None:
        message = json.loads(raw)
        if message.get("op") == "stop":
            self.stop = message
        elif message.get("op") == "answer":
            with self._answered:
                self._answers[int(message["id"])] = message
                self._answered.notify_all()


def _end(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class _Reporter:
    """What this process knows between two reports: its line, and where its time went."""

    def __init__(self) -> None:
        path = os.environ.get(SOCKET_VARIABLE)
        self.pid = os.getpid()
        self.channel = Channel(path, rank=rank_of(os.environ)) if path else None
        self.reported_at: float | None = None
        self.cpu_at = time.process_time()
        self.phase = ""
        self.phase_at = time.monotonic()
        self.spent: dict[str, float] = {}
        if self.channel is not None:
            atexit.register(self.channel.close, 1.0)

    def enter(self, name: str) -> None:
        now = time.monotonic()
        field = _PHASE_FIELD.get(self.phase)
        if field is not None:
            self.spent[field] = self.spent.get(field, 0.0) + (now - self.phase_at) * 1000
        if name != self.phase and self.channel is not None:
            self.channel.send({"op": "phase", "name": name})
        self.phase, self.phase_at = name, now

    def times(self) -> dict[str, float]:
        """Return the milliseconds since the last report, by field, and begin anew."""
        now, cpu = time.monotonic(), time.process_time()
        self.enter(self.phase)
        times = self.spent
        if self.reported_at is not None:
            times["step_ms"] = (now - self.reported_at) * 1000
            times["cpu_ms"] = (cpu - self.cpu_at) * 1000
        self.reported_at, self.cpu_at, self.spent = now, cpu, {}
        return times


_state: list[_Reporter] = []
_guard = threading.Lock()


def _reporter() -> _Reporter:
    with _guard:
        if not _state or _state[-1].pid != os.getpid():  # a forked child has none of our threads
            _state[:] = [_Reporter()]
        return _state[-1]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def report(step: int, loss: float | None = None, **metrics: Any) -> None:
    """Tell the platform where training stands; call it once per optimiser step.

    ``grad_norm``, ``learning_rate``, ``samples`` and ``tokens`` of the step become telemetry like
    ``loss``; any other name becomes a metric of its own. Values are anything that ``float`` takes;
    what it does not take is left out. Never blocks, never raises.
    """
    try:
        reporter = _reporter()
        if reporter.channel is None:
            return
        values = {"loss": loss, **metrics}
        numbers = {name: _number(value) for name, value in values.items() if value is not None}
        row = {
            n: reported(value) for n, value in numbers.items() if n in _ROW and value is not None
        }
        reporter.channel.send({"op": "step", "step": int(step), **row, **reporter.times()})
        for name, value in numbers.items():
            if name not in _ROW and value is not None and not math.isinf(value):
                reporter.channel.send(
                    {"op": "metric", "name": name, "value": value, "step": int(step)}
                )
    except Exception:  # user code must never feel its reporting
        return


def phase(name: str) -> None:
    """Say what this process does from now on: ``data``, ``compute``, ``save``, or a word of yours.

    The time spent in the first three is reported with the next step. Never blocks, never raises.
    """
    try:
        _reporter().enter(str(name))
    except Exception:  # user code must never feel its reporting
        return


def stop_requested() -> bool:
    """Tell whether the platform asked this run to save and end. Never blocks, never raises."""
    try:
        channel = _reporter().channel
        return channel is not None and channel.stop is not None
    except Exception:  # user code must never feel its reporting
        return False


class _Callable(types.ModuleType):
    """``lineshaft.report`` is this module as well as its function, whichever came in first."""

    def __call__(self, step: int, loss: float | None = None, **metrics: Any) -> None:
        report(step, loss, **metrics)


sys.modules[__name__].__class__ = _Callable
