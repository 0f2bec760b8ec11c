"""Preflight: gathers bounded observations about a job before the decider sees it.

Disk work runs in a few threads with a deadline and is remembered for seconds. What is observed
is put into the fact as ``observed``; nothing here decides.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from lineshaft.contracts.job import TrainingJob
from lineshaft.ports import Clock
from services.admission import checking, data_checks, disks, model_checks
from services.admission.asking import Neighbours
from services.admission.checking import Check
from services.admission.domain import inventory
from services.admission.findings import Problem, Seen
from services.admission.mounts import Mounts

LOOK_S_MAX: Final = 20.0
KEPT_MS: Final = 5_000
THREADS: Final = 4
_KEPT_MAX: Final = 64


class Preflight:
    """Looks at paths, data and models of jobs on this machine, and asks the neighbours."""

    def __init__(
        self,
        mounts: Mounts,
        neighbours: Neighbours,
        clock: Clock,
        *,
        checks: Sequence[Check] = (),
        checkpoint_root: Path | None = None,
    ) -> None:
        self._mounts = mounts
        self._checks = checks
        self._checkpoint_root = checkpoint_root
        self._neighbours = neighbours
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="preflight")
        self._kept: dict[str, tuple[int, Seen]] = {}

    async def observe(self, job: TrainingJob, *, team: str) -> dict[str, Any]:
        """Return {findings, paths, datasets, model, inventory} for a job.

        Raises ``BusUnavailable`` when the job names a registry model and the registry is away.
        """
        seen = await self._look(job)
        model = job.spec["model"]
        if isinstance(model, str) and is_reference(model) and job.job_type != "pretrain":
            try:
                seen.model = await self._neighbours.model(model, team)
            except Problem as problem:
                seen.problem("spec.model", problem)
        nodes = await self._neighbours.nodes()
        stock = None if nodes is None else inventory.to_dict(inventory.from_scheduler(nodes))
        return {**seen.to_dict(), "inventory": stock, "at": self._clock.now()}

    def close(self) -> None:
        """Let the threads go; one that hangs on a dead file system is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self, job: TrainingJob) -> Seen:
        """Look at the disk in a thread, or take what was seen a few seconds ago."""
        key = json.dumps(job.spec, sort_keys=True)
        kept = self._kept.get(key)
        if kept is None or self._clock.monotonic() - kept[0] >= KEPT_MS:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            kept = (self._clock.monotonic(), await self._look_now(job))
            self._kept[key] = kept
        seen = kept[1]
        return Seen([*seen.findings], {**seen.paths}, {**seen.datasets}, seen.model, {**seen.disks})

    async def _look_now(self, job: TrainingJob) -> Seen:
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._look_at_all, job)
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                return await asyncio.shield(work)
        except TimeoutError:
            seen = Seen()
            seen.warn("spec", f"the paths could not be checked within {LOOK_S_MAX:.0f} s")
            return seen

    def _look_at_all(self, job: TrainingJob) -> Seen:
        seen = look(job, self._mounts)
        checking.look(seen, job.spec, self._checks)
        disks.look(seen, self._checkpoint_root)
        return seen


def is_reference(model: str) -> bool:
    """Tell whether ``model`` is spelt like a registry reference and not like a path."""
    return "/" not in model and not model.startswith(".")


def look(job: TrainingJob, mounts: Mounts) -> Seen:
    """Look at everything of a job that lies on this machine's disks. Blocking."""
    seen, spec = Seen(), job.spec
    for index, row in enumerate(spec["datasets"]):
        is_corpus = job.job_type == "pretrain"
        where = f"spec.datasets[{index}]"
        if job.job_type == "script":
            _look_at_script_data(seen, f"{where}.path", row["path"], mounts)
        else:
            data_checks.look(seen, where, row, mounts=mounts, is_corpus=is_corpus)
    _look_at_model(seen, job, mounts)
    if spec["tokenizer"] is not None:
        model_checks.look_at_tokenizer(seen, spec["tokenizer"], mounts)
    for index, suite in enumerate((spec["evaluation"] or {}).get("suites") or []):
        model_checks.look_at_suite(seen, f"spec.evaluation.suites[{index}]", suite, mounts)
    if spec["command"] is not None:
        model_checks.look_at_command(seen, spec, mounts)
    if spec["output"]["modelSavePath"] is not None:
        _look_at_output(seen, spec["output"]["modelSavePath"], mounts)
    return seen


def _look_at_model(seen: Seen, job: TrainingJob, mounts: Mounts) -> None:
    model = job.spec["model"]
    if not isinstance(model, str):
        if isinstance(model, dict):
            seen.model = {"kind": "config", "config": model}
        return
    if job.job_type == "pretrain":
        model_checks.look_at_configuration(seen, model, mounts)
    elif not is_reference(model):
        needs_tokenizer = job.spec["tokenizer"] is None
        model_checks.look_at_folder(seen, model, mounts, needs_tokenizer=needs_tokenizer)


def _look_at_script_data(seen: Seen, where: str, text: str, mounts: Mounts) -> None:
    try:
        seen.paths[where] = str(mounts.readable(text))
    except Problem as problem:
        seen.problem(where, problem)


def _look_at_output(seen: Seen, text: str, mounts: Mounts) -> None:
    where = "spec.output.modelSavePath"
    try:
        path: Path = mounts.writable(text)
    except Problem as problem:
        seen.problem(where, problem)
        return
    seen.paths[where] = str(path)
    if path.is_dir() and any(path.iterdir()):
        seen.warn(where, f"{path} is not empty; another job's files stay, see the job's warnings")
