"""Examining a candidate: its completion record, its manifest, its files; publishing them.

I/O only: what may become a version is decided in ``domain.registering``. Everything here may be
interrupted anywhere and done again: a blob is created once, whole and verified, or not at all.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts import events, ids, limits, manifest, records
from lineshaft.contracts.manifest import ManifestError
from lineshaft.ports import ObjectExists, ObjectMissing, Objects
from services.registry.domain import versions

_OFF_LOOP_BYTES = 64 * 1024


class NotFit(Exception):
    """A candidate that can never become a version; its text says why, for people."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One run's claim that a version lies in its staging session."""

    session: str
    job: str
    attempt: int
    manifest: str
    model_name: str | None
    job_name: str
    team: str

    @property
    def name(self) -> str:
        """Return the name to file a refusal under while the manifest is not known."""
        return ids.slug(self.model_name or self.job_name)


class Examiner:
    """Reads candidates from Objects and publishes their files under their digests."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def read(self, candidate: Candidate) -> dict[str, Any]:
        """Return the candidate's manifest, proved to be the one its run completed with.

        Raises ``NotFit`` for what can never be right, ``StoreUnavailable`` for what may be later.
        """
        await self._check_record(candidate)
        raw = await self._manifest_bytes(candidate)
        if ids.digest_of(raw) != candidate.manifest:
            raise NotFit("the staged manifest has another digest than the run completed with")
        try:
            made = manifest.decode(raw)
        except ManifestError as error:
            raise NotFit(f"the manifest: {error}") from None
        _check_origin(made, candidate)
        return made

    async def publish(self, candidate: Candidate, made: Mapping[str, Any]) -> None:
        """Publish every file, then the manifest itself, each under its digest.

        A file that is published already is not read again. Raises ``NotFit`` when a staged file
        is missing or differs from the manifest.
        """
        for file in made["files"]:
            await self._publish_file(candidate, file)
        if await self._objects.stat(records.blob(candidate.manifest)) is None:
            await self._put(records.blob(candidate.manifest), manifest.encode(made))

    async def clean(self, session: str) -> None:
        """Delete the staging session."""
        keys = [found.key async for found in self._objects.list(records.staging(session))]
        for first in range(0, len(keys), 500):
            await self._objects.delete(keys[first : first + 500])

    async def _check_record(self, candidate: Candidate) -> None:
        key = records.complete(candidate.job, candidate.attempt)
        raw = await self._whole(key, limits.RECORD_BYTES_MAX, "the completion record")
        try:
            record = json.loads(raw)
            named, session = record["manifest"], record.get("session", candidate.session)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise NotFit("the completion record cannot be read") from None
        if named != candidate.manifest:
            raise NotFit("the completion record names another manifest")
        if session != candidate.session:
            raise NotFit("the completion record names another staging session")

    async def _manifest_bytes(self, candidate: Candidate) -> bytes:
        """Read the manifest where it was published, else where it is staged.

        Published first: staging is cleaned before the candidate is concluded.
        """
        published = records.blob(candidate.manifest)
        staged = records.staging(candidate.session, "manifest.json")
        key = staged if await self._objects.stat(published) is None else published
        return await self._whole(key, limits.MANIFEST_BYTES_MAX, "the manifest")

    async def _whole(self, key: str, bytes_max: int, words: str) -> bytes:
        raw = bytearray()
        try:
            async for chunk in self._objects.open(key):
                raw += chunk
                if len(raw) > bytes_max:
                    raise NotFit(f"{words} is larger than {bytes_max} bytes")
        except ObjectMissing:
            raise NotFit(f"{words} is not in the store ({key})") from None
        return bytes(raw)

    async def _publish_file(self, candidate: Candidate, file: Mapping[str, Any]) -> None:
        key = records.blob(file["digest"])
        published = await self._objects.stat(key)
        if published is not None:
            if published.size != file["size"]:
                raise NotFit(f"{file['path']}: its size is not that of the published content")
            return
        staged = records.staging(candidate.session, records.staged_name(file["path"]))
        found = await self._objects.stat(staged)
        if found is None:
            raise NotFit(f"{file['path']}: the file was not staged")
        if found.size != file["size"]:
            raise NotFit(f"{file['path']}: {found.size} bytes, not {file['size']}")
        await self._put(key, _verified(self._objects.open(staged), file))

    async def _put(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
        try:
            await self._objects.put(key, data)
        except ObjectExists:
            return  # someone published the same content meanwhile
        except ObjectMissing:
            raise NotFit(f"a staged file vanished while it was read (for {key})") from None


def _check_origin(made: Mapping[str, Any], candidate: Candidate) -> None:
    if candidate.model_name is not None and made["name"] != candidate.model_name:
        raise NotFit(f"the manifest is of {made['name']!r}, the job's of {candidate.model_name!r}")
    if candidate.team not in (made["team"], events.NOT_APPLICABLE):
        raise NotFit(f"the manifest is of the team {made['team']!r}, the job {candidate.team!r}'s")
    lineage = made["lineage"]
    said = (lineage.get("job", candidate.job), lineage.get("attempt", candidate.attempt))
    if said != (candidate.job, candidate.attempt):
        raise NotFit("the manifest names another run as its origin")


async def _verified(chunks: AsyncIterator[bytes], file: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """Pass ``chunks`` on; raise before the end when they are not what the manifest says.

    The put that consumes this fails with it, so nothing wrong ever has that digest's key.
    """
    sha = hashlib.sha256()
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if len(chunk) < _OFF_LOOP_BYTES:
            sha.update(chunk)
        else:
            await asyncio.to_thread(sha.update, chunk)
        yield chunk
    if size != file["size"] or f"sha256:{sha.hexdigest()}" != file["digest"]:
        raise NotFit(f"{file['path']}: its content differs from the manifest")


def registration(candidate: Candidate, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the decision needs of a manifest. Raises ``NotFit`` when that is too large."""
    facet = versions.facet_of(made)
    if _size(facet) > limits.MODEL_EVENT_PART_BYTES_MAX:
        raise NotFit("the manifest's model facts are too large")
    lineage = made["lineage"]
    if _size(lineage) > limits.MODEL_EVENT_PART_BYTES_MAX:
        kept = (*manifest.PARENTS, "job", "attempt", "step")
        lineage = {key: lineage.get(key) for key in kept} | {"isShortened": True}
        if _size(lineage) > limits.MODEL_EVENT_PART_BYTES_MAX:
            raise NotFit("the manifest's lineage is too large")
    metrics = made["metrics"]
    if _size(metrics) > limits.MODEL_EVENT_PART_BYTES_MAX:
        metrics = {"isShortened": True}  # the whole stays in the manifest
    return {
        **unread(candidate),
        "name": made["name"],
        "team": made["team"],
        "kind": made["kind"],
        "facet": facet,
        "lineage": lineage,
        "files": len(made["files"]),
        "bytes": manifest.bytes_of(made),
        "metrics": metrics,
    }


def unread(candidate: Candidate) -> dict[str, Any]:
    """Return what the decision needs of a candidate whose manifest says nothing usable."""
    return {
        "name": candidate.name,
        "session": candidate.session,
        "job": candidate.job,
        "attempt": candidate.attempt,
        "team": candidate.team,
        "manifest": candidate.manifest,
        "parents": [],
        "refused": None,
    }


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
