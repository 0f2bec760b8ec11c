"""The training loop's side of the line to its node's agent.

``Link`` says what the loop may tell and ask; the wire is ``lineshaft.report.Channel``. Nothing
here imports a training framework, decides anything, or ends the process.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineshaft.report import SOCKET_VARIABLE, Channel, rank_of
from trainer.faults import Fenced, StorageFault

_NAN = math.nan


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop that was asked for. ``deadline_ms`` is milliseconds since the epoch."""

    intent: str
    deadline_ms: int
    reason: str = ""


class Link:
    """A rank's line to its agent. Thread-safe.

    Without an agent (``LINESHAFT_AGENT_SOCKET`` is not set: a loop run by hand) everything told
    is dropped, ``may_commit`` is True and ``stop_requested`` is None.
    """

    def __init__(self, channel: Channel | None, rank: int = 0) -> None:
        self._channel = channel
        self.rank = rank

    @classmethod
    def connect(cls, environ: Mapping[str, str] | None = None) -> "Link":
        """Return the line that the environment names. Never waits; it connects behind."""
        environ = os.environ if environ is None else environ
        path, rank = environ.get(SOCKET_VARIABLE), rank_of(environ)
        return cls(Channel(path, rank=rank) if path else None, rank)

    # Told, never waited for.

    def step(  # noqa: PLR0913 - one keyword per field of the wire's record
        self,
        step: int,
        *,
        samples: float = _NAN,
        tokens: float = _NAN,
        loss: float = _NAN,
        grad_norm: float = _NAN,
        learning_rate: float = _NAN,
        step_ms: float = _NAN,
        compute_ms: float = _NAN,
        collective_ms: float = _NAN,
        data_ms: float = _NAN,
        checkpoint_ms: float = _NAN,
        cpu_ms: float = _NAN,
    ) -> None:
        """Tell one optimiser step of this rank, by the fields of ``contracts.telemetry``."""
        self._tell(
            "step",
            step=step,
            samples=samples,
            tokens=tokens,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            step_ms=step_ms,
            compute_ms=compute_ms,
            collective_ms=collective_ms,
            data_ms=data_ms,
            checkpoint_ms=checkpoint_ms,
            cpu_ms=cpu_ms,
        )

    def metric(
        self,
        name: str,
        value: float,
        step: int,
        split: str | None = None,
        subtask: str | None = None,
    ) -> None:
        """Tell a named value: an evaluation's result, a planned number."""
        self._tell("metric", name=name, value=value, step=step, split=split, subtask=subtask)

    def phase(self, name: str) -> None:
        """Tell what this rank does from now on: building, loading, training, saving, ..."""
        self._tell("phase", name=name)

    def plan(self, *, total_steps: int, **numbers: float) -> None:
        """Tell the planned length; it travels as the metrics ``planned_steps``, ``planned_...``."""
        self.metric("planned_steps", float(total_steps), 0)
        for name, value in numbers.items():
            self.metric(f"planned_{name}", float(value), 0)

    def error(
        self, kind: str, message: str, traceback: str = "", failure_class: str | None = None
    ) -> None:
        """Tell the error that ends this rank, before it ends."""
        if self._channel is not None:
            told = {"kind": kind, "message": message, "traceback": traceback}
            self._channel.send({"op": "error", **told, "class": failure_class}, urgent=True)
            self._channel.flush()

    def stop_requested(self) -> Stop | None:
        """Return the stop that was asked for, without waiting."""
        asked = None if self._channel is None else self._channel.stop
        if asked is None:
            return None
        return Stop(
            str(asked.get("intent", "fault")),
            int(asked.get("deadline_ms", 0)),
            str(asked.get("reason", "")),
        )

    # Asked, and waited for.

    def may_commit(self, timeout_s: float = 10.0) -> bool:
        """Tell whether this attempt still owns the run; an agent that cannot tell means no."""
        if self._channel is None:
            return True
        answer = self._channel.ask({"op": "may_commit"}, timeout_s=timeout_s)
        return answer is not None and answer.get("ok") is True

    def committed(
        self, step: int, digest: str, size: int, path: str, metrics: Mapping[str, float]
    ) -> None:
        """Record a checkpoint that is whole on disk; it exists for the platform from then on.

        ``size`` in bytes. Raises ``Fenced`` when a newer attempt owns the run, ``StorageFault``
        when the record could not be made in a minute; the checkpoint is then not committed.
        """
        told = {"step": step, "digest": digest, "bytes": size, "path": path}
        self._ask("committed", 75.0, **told, metrics=dict(metrics))

    def finished(self, folder: str, step: int) -> None:
        """Tell (rank 0) that the final artefacts lie in ``folder``, described by ``artifact.json``.

        ``artifact.json``: {kind, model, metrics, environment, lineage, roles: {path: role}}. The
        agent stages them once every rank has ended with 0. Raises like ``committed``.
        """
        self._ask("finished", 30.0, folder=folder, step=step)

    def close(self) -> None:
        """Hand over what is queued, for two seconds at most, and end the line."""
        if self._channel is not None:
            self._channel.close()

    def _tell(self, op: str, **fields: Any) -> None:
        if self._channel is not None:
            self._channel.send({"op": op, **fields})

    def _ask(self, op: str, timeout_s: float, **fields: Any) -> None:
        if self._channel is None:
            return
        answer = self._channel.ask({"op": op, **fields}, timeout_s=timeout_s)
        if answer is not None and answer.get("ok") is True:
            return
        reason = "the agent gave no answer" if answer is None else str(answer.get("reason"))
        if answer is not None and answer.get("fenced") is True:
            raise Fenced(reason)
        raise StorageFault(f"{op}: {reason}")
