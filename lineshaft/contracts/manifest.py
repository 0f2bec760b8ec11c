"""The manifest of a version: which files, what they are, where they come from.

A manifest is canonical JSON (sorted keys, no spaces); its digest is the version's identity.
The agent writes it, the registry checks it, the download client verifies against it.
Standard library only: the agent imports this module.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lineshaft.contracts import ids, limits

SCHEMA = 1
KINDS = ("model", "adapter", "merged", "files")
ROLES = ("weights", "config", "tokenizer", "training", "evaluation", "environment", "data", "log")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_PART = re.compile(r"^[^/\\\x00-\x1f]{1,255}$")


class ManifestError(ValueError):
    """A manifest that cannot be trusted; its message says which part."""


def check_path(path: str) -> str:
    """Return ``path`` if it is relative, without ``.``, ``..`` or backslash; raise otherwise."""
    parts = path.split("/") if isinstance(path, str) else [""]
    if len(path) > 1024 or any(p in (".", "..") or not _PART.match(p) for p in parts):
        raise ManifestError(f"not a path inside a version: {path!r}")
    return path


def make(
    *,
    kind: str,
    name: str,
    team: str,
    files: Sequence[Mapping[str, Any]],
    lineage: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make a manifest.

    ``files``: {path, size, digest, role}. ``model``: architecture, parameters, vocabSize,
    context, dtype, quantization, and the digests tensors (of names, shapes and types),
    tokenizer, chatTemplate. ``lineage``: base {name, version, manifest} or None, job, attempt,
    step, datasets [{name, version, digest}]. Raises ``ManifestError``.
    """
    made = {
        "schema": SCHEMA,
        "kind": kind,
        "name": name,
        "team": team,
        "files": sorted((dict(f) for f in files), key=lambda f: str(f.get("path"))),
        "lineage": dict(lineage),
        "model": dict(model or {}),
        "metrics": dict(metrics or {}),
        "environment": dict(environment or {}),
    }
    check(made)
    return made


def check(manifest: Mapping[str, Any]) -> None:
    """Raise ``ManifestError`` unless ``manifest`` is whole and safe to unpack."""
    if manifest.get("schema") != SCHEMA:
        raise ManifestError(f"unknown schema {manifest.get('schema')!r}")
    if manifest.get("kind") not in KINDS:
        raise ManifestError(f"unknown kind {manifest.get('kind')!r}")
    if not ids.is_name(str(manifest.get("name"))) or not ids.is_name(str(manifest.get("team"))):
        raise ManifestError("name and team must be names")
    files = manifest.get("files")
    if not isinstance(files, list) or not 0 < len(files) <= limits.MANIFEST_FILES_MAX:
        raise ManifestError("files must be a list with at least one file")
    seen: set[str] = set()
    for file in files:
        _check_file(file, seen)
    for part in ("lineage", "model", "metrics", "environment"):
        if not isinstance(manifest.get(part), dict):
            raise ManifestError(f"{part} must be an object")


def _check_file(file: Any, seen: set[str]) -> None:
    if not isinstance(file, dict):
        raise ManifestError("a file must be an object")
    path = check_path(file.get("path", ""))
    folded = path.casefold()
    if folded in seen:
        raise ManifestError(f"the path {path!r} occurs twice")
    seen.add(folded)
    size = file.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ManifestError(f"{path}: size must be a whole number")
    if not isinstance(file.get("digest"), str) or not _DIGEST.match(file["digest"]):
        raise ManifestError(f"{path}: digest must be sha256:<64 hex digits>")
    if file.get("role") not in ROLES:
        raise ManifestError(f"{path}: unknown role {file.get('role')!r}")


def encode(manifest: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON form."""
    return json.dumps(
        manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the canonical form: the version's identity."""
    return ids.digest_of(encode(manifest))


def decode(raw: bytes) -> dict[str, Any]:
    """Read and check a manifest. Raises ``ManifestError``."""
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise ManifestError("a manifest is an object")
    check(manifest)
    return manifest
