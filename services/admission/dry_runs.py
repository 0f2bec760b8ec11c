"""Dry runs of training, asked of ``trainer.dryrun`` in a process of its own and kept on disk.

Admission imports no torch. One process runs at a time; its answers are kept by the digest of
the request, so the same model, batch, length, precision and checkpointing are rehearsed once.
Who asks waits a few seconds only; the process goes on, and the next to ask finds its answer. Until
then, and where there is no torch, the estimate falls back to its formulas, and says so.
"""

import asyncio
import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from lineshaft.contracts.ids import digest_of

TAKES_S_MAX: Final = 120.0
WAIT_S: Final = 6.0
_PENDING: Final = "it still runs; plan again in a minute"
ANSWER_BYTES_MAX: Final = 1 << 20
_COMMAND: Final = (sys.executable, "-W", "ignore", "-m", "trainer.dryrun")


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions of the libraries whose doing is rehearsed; without importing them."""
    found = {}
    for name in ("torch", "transformers", "peft"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class DryRuns:
    """Answers dry-run requests from its folder, or by a process."""

    def __init__(self, folder: Path, command: Sequence[str] = _COMMAND) -> None:
        self._folder = folder
        self._command = command
        self._turn = asyncio.Lock()
        self._going: dict[str, asyncio.Task[tuple[dict[str, Any], str]]] = {}

    def kept(self, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return the answers if every one is kept already, else None. Blocking, small reads."""
        found = {name: self._read(request) for name, request in requests.items()}
        return None if None in found.values() else found

    async def observed(
        self, requests: Mapping[str, Mapping[str, Any]], *, is_waiting: bool
    ) -> dict[str, Any]:
        """Return {answers, tokens, reason} for an observation; empty when there are none yet.

        Without ``is_waiting`` only what is kept is given: nobody waits for a process.
        """
        if not requests:
            return {}
        answers, reason = self.kept(requests), ""
        if answers is None and is_waiting:
            answers, reason = await self._awaited(requests)
        if answers is None:
            return {}
        first = next(iter(requests.values()))
        tokens = int(first["micro_batch"]) * int(first["sequence"])
        return {"answers": answers, "tokens": tokens, "reason": reason}

    async def close(self) -> None:
        """End what still runs."""
        tasks = list(self._going.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _awaited(
        self, requests: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], str]:
        key = json.dumps(requests, sort_keys=True)
        task = self._going.get(key)
        if task is None:
            task = asyncio.create_task(self.of(requests))
            self._going[key] = task
            task.add_done_callback(lambda _: self._going.pop(key, None))
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        return task.result() if done and not task.cancelled() else ({}, _PENDING)

    async def of(self, requests: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], str]:
        """Return (answers by name, why there are none). Never raises for a failed dry run."""
        async with self._turn:
            kept = self.kept(requests)
            if kept is not None:
                return kept, ""
            try:
                answers = await self._ask(list(requests.values()))
            except TimeoutError:
                return {}, f"it took longer than {TAKES_S_MAX:.0f} s"
            except (OSError, ValueError) as error:
                return {}, str(error)[:300]
            made = dict(zip(requests, answers, strict=True))
            for name, request in requests.items():
                self._keep(request, made[name])
            return made, ""

    async def _ask(self, requests: Sequence[Mapping[str, Any]]) -> list[Any]:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        try:
            async with asyncio.timeout(TAKES_S_MAX):
                told, said = await process.communicate(json.dumps(requests).encode())
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            last = said.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ValueError(f"it ended with code {process.returncode}: {last[0]}")
        if len(told) > ANSWER_BYTES_MAX:
            raise ValueError(f"its answer has {len(told)} bytes")
        answers = json.loads(told)
        if not isinstance(answers, list) or len(answers) != len(requests):
            raise ValueError("its answer is no list of that many dry runs")
        return answers

    def _file(self, request: Mapping[str, Any]) -> Path:
        asked = {"request": request, "versions": _versions()}
        whole = json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()
        return self._folder / f"{digest_of(whole).partition(':')[2]}.json"

    def _read(self, request: Mapping[str, Any]) -> Any:
        try:
            return json.loads(self._file(request).read_bytes())
        except (OSError, ValueError):
            return None

    def _keep(self, request: Mapping[str, Any], answer: Any) -> None:
        """Write an answer whole or not at all; a full disk only means to rehearse again."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as stream:
                json.dump(answer, stream)
            Path(stream.name).replace(self._file(request))
