"""Names and forms inside a checkpoint: folder names, the manifest, a rank's record.

Pure: reads and writes nothing. Standard library only.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lineshaft.contracts.ids import digest_of

SCHEMA = 1
MANIFEST = "manifest.json"
_STEP = re.compile(r"^step-(\d{9})$")


class BadManifest(ValueError):
    """A manifest that cannot be read; its message says why."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: size in bytes and SHA-256."""

    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What a checkpoint fits: the same form, ranks and batch, or the resume is another run."""

    layout: str
    world_size: int
    micro_batch: int
    accumulation: int
    precision: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is. ``position`` is the global index of the next sample."""

    job: str
    attempt: int
    step: int
    position: int
    shape: Shape
    data: str
    versions: Mapping[str, str]
    files: Mapping[str, FileRecord]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def encode(self) -> bytes:
        """Return the JSON form; equal manifests give equal bytes."""
        body = {"schema": SCHEMA, **asdict(self), "files": _files(self.files)}
        return json.dumps(body, sort_keys=True, indent=1).encode()

    @property
    def digest(self) -> str:
        """The digest of the JSON form: the checkpoint's identity."""
        return digest_of(self.encode())


def _files(files: Mapping[str, FileRecord]) -> dict[str, dict[str, Any]]:
    return {path: {"size": file.size, "digest": file.digest} for path, file in files.items()}


def decode(raw: bytes) -> Manifest:
    """Read a manifest. Raises ``BadManifest``."""
    try:
        body = json.loads(raw)
        if body["schema"] != SCHEMA:
            raise BadManifest(f"schema {body['schema']} is of another release")
        return Manifest(
            job=str(body["job"]),
            attempt=int(body["attempt"]),
            step=int(body["step"]),
            position=int(body["position"]),
            shape=Shape(**body["shape"]),
            data=str(body["data"]),
            versions=dict(body["versions"]),
            files=records_of(body["files"]),
            metrics=dict(body["metrics"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadManifest(f"not a manifest: {error!r}") from None


def records_of(body: Any) -> dict[str, FileRecord]:
    """Read {path: {size, digest}}; paths must stay inside. Raises ``BadManifest``."""
    made = {}
    for path, file in dict(body).items():
        if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
            raise BadManifest(f"a path that leaves the checkpoint: {path!r}")
        made[path] = FileRecord(int(file["size"]), str(file["digest"]))
    return made


def folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Return the step in a folder's name, or None."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


def rank_file(rank: int) -> str:
    """Return where a rank keeps its generators."""
    return f"rank-{rank:05d}.pt"


def record_file(rank: int) -> str:
    """Return where a rank records what it wrote."""
    return f"record-{rank:05d}.json"
