"""Resuming: find the checkpoint that the order names, prove it, or step back to an older one.

A run never begins at zero because a checkpoint is damaged: without a good one it fails. Ranks
prove files in parallel and believe only what all have proved. Single writer: reads, never writes.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lineshaft.contracts.ids import digest_of
from trainer.checkpoint import files, generators, layout
from trainer.checkpoint.layout import BadManifest, Manifest, Shape
from trainer.faults import ConfigFault, NoCheckpoint
from trainer.gang import Gang

logger = logging.getLogger("trainer.checkpoint")


@dataclass(frozen=True, slots=True)
class Found:
    """A proved checkpoint. ``passed_over`` says why newer ones were not taken."""

    folder: Path
    manifest: Manifest
    passed_over: tuple[str, ...] = ()


def find(wish: Mapping[str, Any], job_root: Path, gang: Gang) -> Found:
    """Return the checkpoint named by ``wish`` {attempt, step, digest, path}, or an older good one.

    Raises ``NoCheckpoint`` when none of the job's is good. The same answer on all ranks.
    """
    passed: list[str] = []
    for folder, wanted in _candidates(wish, job_root):
        manifest, why = _proved(folder, wanted, gang)
        if manifest is not None:
            if passed:
                logger.warning("resuming from step %d: %s", manifest.step, "; ".join(passed))
            return Found(folder, manifest, tuple(passed))
        passed.append(why)
        logger.warning("checkpoint passed over: %s", why)
    raise NoCheckpoint(
        f"step {wish.get('step')} of attempt {wish.get('attempt')} cannot be resumed from, nor any "
        f"older checkpoint in {job_root}: {'; '.join(passed)}"
    )


def _candidates(wish: Mapping[str, Any], job_root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield (folder, its digest if named by the order): that one, then older ones, newest first."""
    named = Path(str(wish["path"]))
    yield named, str(wish["digest"])
    older = []
    for folder in job_root.glob("*/step-*"):
        step = layout.step_of(folder.name)
        attempt = folder.parent.name
        is_older = step is not None and step < int(wish["step"]) and attempt.isdecimal()
        if is_older and int(attempt) <= int(wish["attempt"]) and folder != named:
            older.append((step, int(attempt), folder))
    for _, _, folder in sorted(older, key=lambda each: each[:2], reverse=True):
        yield folder, None


def _proved(folder: Path, wanted: str | None, gang: Gang) -> tuple[Manifest | None, str]:
    """Check the manifest, then each file once somewhere: rank r takes every r-th of them."""
    manifest: Manifest | None = None
    why = ""
    try:
        raw = (folder / layout.MANIFEST).read_bytes()
        manifest = layout.decode(raw)
        if wanted is not None and digest_of(raw) != wanted:
            why = f"{folder}: the manifest is not the one that was committed"
        else:
            mine = sorted(manifest.files)[gang.rank :: gang.world_size]
            why = _first_bad(folder, manifest, mine)
    except (OSError, BadManifest) as error:
        why = f"{folder}: {error}"
    reasons = [each for each in gang.collect(why) if each]
    return (None, reasons[0]) if reasons else (manifest, "")


def _first_bad(folder: Path, manifest: Manifest, paths: list[str]) -> str:
    for path in paths:
        wanted, file = manifest.files[path], folder / path
        if file.stat().st_size != wanted.size:
            return f"{file}: {file.stat().st_size} bytes, {wanted.size} expected"
        if files.digest(file) != wanted.digest:
            return f"{file}: its content is not what was saved"
    return ""


def check_fit(manifest: Manifest, shape: Shape, data: str) -> None:
    """Raise ``ConfigFault`` when a checkpoint is of another shape or of other data."""
    if manifest.shape != shape:
        raise ConfigFault(f"the checkpoint was written by {manifest.shape}, this run is {shape}")
    if manifest.data != data:
        raise ConfigFault(
            f"the data changed since the checkpoint: {manifest.data} then, {data} now; submit the "
            "job again to train on the new data"
        )


def restore_generators(found: Found, gang: Gang) -> None:
    """Put this rank's generators back; the last thing before training goes on."""
    file = found.folder / layout.rank_file(gang.rank)
    generators.restore(torch.load(file, map_location="cpu", weights_only=True))
