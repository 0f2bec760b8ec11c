"""Saving: every rank writes its share, rank 0 checks all shares and commits or gives up.

The ranks meet over the store, not in a collective: a rank that cannot write or is late makes
the save fail for all, and training goes on. Nothing is named before it is whole and synced.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from trainer.checkpoint import files, generators, layout
from trainer.checkpoint.layout import FileRecord, Manifest
from trainer.engines.port import Engine
from trainer.faults import Fenced, StorageFault
from trainer.gang import Gang

FAILURES_MAX = 3
RECORDS_WAIT = timedelta(minutes=10)
FREE_SPACE_FACTOR = 1.2
_OK, _FAILED, _FENCED = "ok", "failed", "fenced"
logger = logging.getLogger("trainer.checkpoint")


class Commits(Protocol):
    """The line to the agent, as far as saving needs it."""

    def may_commit(self) -> bool:
        """Tell whether this attempt still owns the run."""
        ...

    def committed(
        self, step: int, digest: str, size: int, path: str, metrics: Mapping[str, float]
    ) -> None:
        """Record the commit; it counts from then on."""
        ...


@dataclass(slots=True)
class Saver:
    """Saves one attempt's checkpoints into ``root`` and keeps the last ``keep`` of them.

    ``describe`` makes the manifest from (step, files, metrics).
    """

    root: Path
    keep: int
    gang: Gang
    link: Commits
    describe: Callable[[int, Mapping[str, FileRecord], Mapping[str, float]], Manifest]
    forecast_bytes: int
    _failures: int = 0
    _committed: list[int] = field(default_factory=list)
    _round: int = 0

    def save(self, engine: Engine, step: int, metrics: Mapping[str, float]) -> bool:
        """Write and commit a checkpoint of ``step``; tell whether it was committed.

        Raises ``StorageFault`` after three failures in a row, ``Fenced`` when a newer attempt
        owns the run. On all ranks alike.
        """
        self._round += 1
        making = self.root / f".making-{layout.folder_name(step)}-{self._round}"
        verdict = self._attempt(engine, making, step, metrics)
        if self.gang.is_leader:
            shutil.rmtree(making, ignore_errors=True)
        state, _, reason = verdict.partition(":")
        if state == _FENCED:
            raise Fenced(reason)
        if state == _OK:
            self._failures = 0
            return True
        self._failures += 1
        logger.warning(
            "checkpoint of step %d failed (%d of %d): %s",
            step,
            self._failures,
            FAILURES_MAX,
            reason,
        )
        if self._failures >= FAILURES_MAX:
            raise StorageFault(f"{self._failures} saves in a row failed; the last: {reason}")
        return False

    def _attempt(
        self, engine: Engine, making: Path, step: int, metrics: Mapping[str, float]
    ) -> str:
        begin = self.gang.share(self._room(making) if self.gang.is_leader else "")
        if begin:
            return f"{_FAILED}:{begin}"
        sink = files.FolderSink(making)
        engine.save(sink)
        sink.save(generators.take(), layout.rank_file(self.gang.rank))
        told = self._record(sink)
        if self.gang.world_size == 1:
            return self._judge([told], making, step, metrics)
        return self._meet(told, making, step, metrics)

    def _room(self, making: Path) -> str:
        """Make the folder; return why there is no room for the checkpoint, or nothing."""
        try:
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            free = shutil.disk_usage(making).free
        except OSError as error:
            return str(error)
        needed = int(self.forecast_bytes * FREE_SPACE_FACTOR)
        return f"{free} bytes are free, about {needed} are needed" if free < needed else ""

    def _record(self, sink: files.FolderSink) -> str:
        """Leave this rank's record beside its files; return "ok" or what failed."""
        if sink.failure is not None:
            return f"rank {self.gang.rank}: {sink.failure}"
        body = {path: {"size": f.size, "digest": f.digest} for path, f in sink.written.items()}
        try:
            raw = json.dumps(body).encode()
            files.write_bytes(sink.folder / layout.record_file(self.gang.rank), raw)
        except OSError as error:
            return f"rank {self.gang.rank}: {error}"
        return _OK

    def _meet(self, told: str, making: Path, step: int, metrics: Mapping[str, float]) -> str:
        """Tell the store how it went; rank 0 judges and tells all."""
        store, prefix = self.gang.store, f"save/{self._round}"
        store.set(f"{prefix}/{self.gang.rank}", told)
        if not self.gang.is_leader:
            store.wait([f"{prefix}/verdict"], RECORDS_WAIT * 2)
            return str(store.get(f"{prefix}/verdict").decode())
        keys = [f"{prefix}/{rank}" for rank in range(self.gang.world_size)]
        try:
            store.wait(keys, RECORDS_WAIT)
        except Exception as error:  # the store's time-out has no class of its own in every release
            verdict = f"{_FAILED}:not all ranks wrote their share in time: {error}"
        else:
            answers = [str(store.get(key).decode()) for key in keys]
            verdict = self._judge(answers, making, step, metrics)
        store.set(f"{prefix}/verdict", verdict)
        return verdict

    def _judge(
        self, answers: list[str], making: Path, step: int, metrics: Mapping[str, float]
    ) -> str:
        """Check all shares, commit; return the verdict."""
        failed = [answer for answer in answers if answer != _OK]
        if failed:
            return f"{_FAILED}:{'; '.join(failed)}"
        try:
            manifest = self.describe(step, self._shares(making), metrics)
            files.write_bytes(making / layout.MANIFEST, manifest.encode())
            if not self.link.may_commit():  # or the agent cannot tell now, which may pass
                return f"{_FAILED}:the agent does not allow the commit of step {step}"
            self._name(making, manifest)
        except Fenced as fenced:
            return f"{_FENCED}:{fenced}"
        except (OSError, StorageFault, layout.BadManifest) as error:
            return f"{_FAILED}:{error}"
        self._committed.append(step)
        self._prune()
        return _OK

    def _shares(self, making: Path) -> dict[str, FileRecord]:
        """Return all ranks' files, after a look at each size. Raises ``OSError``."""
        whole: dict[str, FileRecord] = {}
        for rank in range(self.gang.world_size):
            raw = (making / layout.record_file(rank)).read_bytes()
            whole |= layout.records_of(json.loads(raw))
        for path, file in whole.items():
            found = (making / path).stat().st_size
            if found != file.size:
                raise OSError(f"{path}: {found} bytes on disk, {file.size} written")
        return whole

    def _name(self, making: Path, manifest: Manifest) -> None:
        target = self.root / layout.folder_name(manifest.step)
        shutil.rmtree(target, ignore_errors=True)  # our own attempt's, of the same step
        making.rename(target)
        files.sync(self.root)
        try:
            self.link.committed(
                manifest.step, manifest.digest, manifest.size, str(target), manifest.metrics
            )
        except (StorageFault, Fenced):
            shutil.rmtree(target, ignore_errors=True)  # nobody knows of it: it must not be found
            raise

    def _prune(self) -> None:
        """Remove what is older than the last ``keep`` commits of this attempt, nothing else."""
        while len(self._committed) > max(1, self.keep):
            old = self.root / layout.folder_name(self._committed.pop(0))
            trash = old.with_name(f".trash-{old.name}-{time.monotonic_ns()}")
            try:
                old.rename(trash)
                shutil.rmtree(trash)
            except OSError as error:
                logger.warning("%s is not removed: %s", old, error)


def forecast(engine: Engine, gang: Gang) -> int:
    """Return about how many bytes a checkpoint takes: weights, and master and moments in fp32."""
    learning: Any = [p for p in engine.module.parameters() if p.requires_grad]
    elements = sum(int(getattr(p, "ds_numel", p.numel())) for p in learning)
    return elements * 16 + gang.world_size * 32 * 1024
