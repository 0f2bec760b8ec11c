"""Staging: the final artefacts go to Objects, file by file, then the manifest that names them.

Called once every local rank has ended well. Nothing is published here: the registry reads what
is staged, hashes it again and decides. Also here: filling the folder that the user named.
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lineshaft.contracts import ids, manifest, records
from lineshaft.ports import Clock, Objects, StoreUnavailable
from trainer.agent.order import Order

DESCRIPTION = "artifact.json"
LOG_NAME = "training.log"
_READ_BYTES = 1024 * 1024
_RETRIES = 20
_RETRY_MS = 1_000


class NotStaged(Exception):
    """The artefacts could not be staged; its text says which and why."""


class BadArtifact(NotStaged):
    """What the run left is no artefact: the run's own fault."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a run leaves: a folder, its files by path, and what describes them."""

    folder: Path
    files: Mapping[str, str]  # path in the folder -> role
    kind: str
    facts: Mapping[str, Any]


def described(folder: Path) -> Artifact:
    """Read the folder of a trained model, described by its ``artifact.json``."""
    try:
        facts = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        roles = {str(path): str(role) for path, role in facts.get("roles", {}).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise BadArtifact(f"{folder / DESCRIPTION}: {error}") from error
    found = {path: roles.get(path, "training") for path in _paths(folder) if path != DESCRIPTION}
    missing = sorted(roles.keys() - found.keys())
    if missing:
        raise BadArtifact(f"{folder}: {', '.join(missing[:5])} was named and is not there")
    return Artifact(folder, found, str(facts.get("kind", "model")), facts)


def loose(folder: Path) -> Artifact | None:
    """Return what a script left in its output folder, or None when it left nothing."""
    paths = _paths(folder) if folder.is_dir() else []
    if not paths:
        return None
    return Artifact(folder, dict.fromkeys(paths, "training"), "files", {})


def _paths(folder: Path) -> list[str]:
    """Return the regular files below, relative; links are not followed."""
    found: list[str] = []
    for here, _, names in os.walk(folder):
        paths = (Path(here) / name for name in names)
        found += [
            p.relative_to(folder).as_posix() for p in paths if p.is_file() and not p.is_symlink()
        ]
    return sorted(found)


class Staging:
    """Uploads one run's artefacts under its own session."""

    def __init__(self, order: Order, objects: Objects, clock: Clock) -> None:
        self._order = order
        self._objects = objects
        self._clock = clock
        self.session = ids.run_name(order.job, order.attempt)

    async def stage(self, artifact: Artifact, log: Path | None, step: int) -> dict[str, Any]:
        """Upload files, then the manifest; return the manifest.

        Raises ``BadArtifact`` for what can never be a version, ``NotStaged`` when the store
        does not take it.
        """
        sources = [(path, artifact.folder / path, role) for path, role in artifact.files.items()]
        if log is not None and log.is_file() and LOG_NAME not in artifact.files:
            sources.append((LOG_NAME, log, "log"))
        files = [await self._file(path, source, role) for path, source, role in sources]
        made = self._manifest(artifact, files, step)
        await self._put(records.staging(self.session, "manifest.json"), manifest.encode(made))
        return made

    def _manifest(
        self, artifact: Artifact, files: list[dict[str, Any]], step: int
    ) -> dict[str, Any]:
        facts, order = artifact.facts, self._order
        lineage = {
            "datasets": [
                {"name": d.get("name"), "version": d.get("version"), "digest": d.get("digest")}
                for d in order.resolved.get("datasets") or []
            ],
            **(facts.get("lineage") or {}),
            "job": order.job,
            "attempt": order.attempt,
            "step": step,
        }
        try:
            return manifest.make(
                kind=artifact.kind,
                name=order.model_name,
                team=order.team,
                files=files,
                lineage=lineage,
                model=facts.get("model"),
                metrics=facts.get("metrics"),
                environment=facts.get("environment"),
            )
        except (ValueError, TypeError) as error:
            raise BadArtifact(str(error)) from error

    async def _file(self, path: str, source: Path, role: str) -> dict[str, Any]:
        key = records.staging(self.session, records.staged_name(path))
        for left in reversed(range(_RETRIES)):
            reading = _Reading(source)
            try:
                size = await self._objects.put(key, reading.chunks(), replace=True)
            except FileNotFoundError as error:
                raise BadArtifact(f"{source}: it has gone") from error
            except (StoreUnavailable, OSError) as error:
                if not left:
                    raise NotStaged(f"{path}: {error}") from error
                await self._clock.sleep(_RETRY_MS)
            else:
                return {"path": path, "size": size, "digest": reading.digest, "role": role}
        raise NotStaged(path)

    async def _put(self, key: str, raw: bytes) -> None:
        for left in reversed(range(_RETRIES)):
            try:
                await self._objects.put(key, raw, replace=True)
                return
            except (StoreUnavailable, OSError) as error:
                if not left:
                    raise NotStaged(f"{key}: {error}") from error
                await self._clock.sleep(_RETRY_MS)


class _Reading:
    """Reads a file in pieces, off the loop, and hashes what it gave."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

    async def chunks(self) -> AsyncIterator[bytes]:
        self._hash = hashlib.sha256()
        with self._path.open("rb") as file:
            while piece := await asyncio.to_thread(self._piece, file):
                yield piece

    def _piece(self, file: BinaryIO) -> bytes:
        piece = file.read(_READ_BYTES)
        self._hash.update(piece)
        return piece


def fill(order: Order, artifact: Artifact, made: Mapping[str, Any]) -> str | None:
    """Put the artefacts into the folder that the user named; return a warning, or None.

    The files are copied into a sibling named after the attempt, which one rename moves into
    place. What another job left there is never touched: then the sibling stays, and the warning
    names it. Raises ``OSError``.
    """
    target = order.save_path
    if target is None:
        return None
    kept = target.with_name(f"{target.name}.{ids.run_name(order.job, order.attempt)}")
    draft = kept.with_name(f".{kept.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for path in artifact.files:
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(artifact.folder / path, draft / path)
    (draft / manifest.FILE_NAME).write_bytes(manifest.encode(made))
    if _is_free(target):
        draft.replace(target)
        return None
    if _job_of(target) == order.job:
        aside = target.with_name(f".{target.name}.{ids.run_name(order.job, order.attempt)}.old")
        target.replace(aside)
        draft.replace(target)
        shutil.rmtree(aside, ignore_errors=True)
        return None
    shutil.rmtree(kept, ignore_errors=True)
    draft.replace(kept)
    return f"{target} is not empty and not of this job; the result was saved as {kept}"


def _is_free(target: Path) -> bool:
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))


def _job_of(target: Path) -> str | None:
    """Return the job whose result lies in a folder, if one's does."""
    try:
        made = manifest.decode((target / manifest.FILE_NAME).read_bytes())
    except (OSError, manifest.ManifestError):
        return None
    return str(made["lineage"].get("job"))
