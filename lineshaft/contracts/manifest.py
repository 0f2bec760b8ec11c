"""The manifest of a version: which files, what they are, where they come from.

A manifest is canonical JSON (sorted keys, no spaces); its digest is the version's identity.
The agent writes it, the registry checks it, the download client verifies against it.
Standard library only: the agent imports this module.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from lineshaft.contracts import ids, limits

SCHEMA = 1
FILE_NAME = "lineshaft-manifest.json"
"""The manifest's own name beside the files of a pulled version."""
PARTIAL_FOLDER = ".partial"
"""Where a download keeps its unfinished files; no file of a version may lie there."""
KINDS = ("model", "adapter", "merged", "files")
ROLES = ("weights", "config", "tokenizer", "training", "evaluation", "environment", "data", "log")
PARENTS = ("base", "adapter")
"""The links of a lineage to other versions: {name, version, manifest}."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = re.compile(r"[^/\\\x00-\x1f\x7f]+")


class ManifestError(ValueError):
    """A manifest that cannot be trusted; its message says which part."""


def is_digest(text: Any) -> bool:
    """Tell whether ``text`` is ``sha256:<64 hex digits>``."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_path(path: Any) -> str:
    """Return ``path`` if it leads into a version's folder and is safe to create there.

    Relative, ``/`` between parts, no ``.`` or ``..``, no backslash or control character, parts of
    at most 255 bytes (the limit of the usual file systems), not one of our own names. Raises
    ``ManifestError``.
    """
    if not isinstance(path, str) or len(path) > 1024:
        raise ManifestError("a path must be a text of at most 1024 characters")
    parts = path.split("/")
    if any(part in (".", "..") or not _PART.fullmatch(part) for part in parts):
        raise ManifestError(f"not a path inside a version: {path!r}")
    try:
        too_long = any(len(part.encode()) > 255 for part in parts)
    except UnicodeEncodeError:
        raise ManifestError(f"not a path inside a version: {path!r}") from None
    if too_long:
        raise ManifestError(f"a part of the path is longer than 255 bytes: {path!r}")
    if _folded(parts[0]) in (PARTIAL_FOLDER, FILE_NAME):
        raise ManifestError(f"the name {parts[0]!r} is the download client's own")
    return path


def _folded(path: str) -> str:
    """Return what two paths share when some file system takes them for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


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
    tokenizer, chatTemplate, and optionally weights (of the tensors' names and contents in the
    order of their names, whatever the files; without it the weight files' digests stand for
    it). ``lineage``: base and, for a merged model, adapter, each {name, version, manifest} or
    None; a link without ``manifest`` is to something outside the registry. Besides job,
    attempt, step, datasets [{name, version, digest}]. Raises ``ManifestError``.
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
    _check_tree([_check_file(file) for file in files])
    for part in ("lineage", "model", "metrics", "environment"):
        if not isinstance(manifest.get(part), dict):
            raise ManifestError(f"{part} must be an object")
    for role in PARENTS:
        _check_parent(role, manifest["lineage"].get(role))


def _check_file(file: Any) -> str:
    if not isinstance(file, dict):
        raise ManifestError("a file must be an object")
    path = check_path(file.get("path"))
    size = file.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 62:
        raise ManifestError(f"{path}: size must be a whole number")
    if not is_digest(file.get("digest")):
        raise ManifestError(f"{path}: digest must be sha256:<64 hex digits>")
    if file.get("role") not in ROLES:
        raise ManifestError(f"{path}: unknown role {file.get('role')!r}")
    return path


def _check_tree(paths: Sequence[str]) -> None:
    """Refuse paths that cannot lie in one folder, on any file system."""
    seen: set[str] = set()
    for path in paths:
        folded = _folded(path)
        if folded in seen:
            raise ManifestError(f"the path {path!r} occurs twice")
        seen.add(folded)
    for path in paths:
        parts = _folded(path).split("/")
        if any("/".join(parts[:end]) in seen for end in range(1, len(parts))):
            raise ManifestError(f"the path {path!r} lies in what is itself a file")


def _check_parent(role: str, link: Any) -> None:
    if link is None:
        return
    if not isinstance(link, dict):
        raise ManifestError(f"lineage.{role} must be an object or null")
    if link.get("manifest") is None:
        return
    if not is_digest(link["manifest"]) or not ids.is_name(str(link.get("name"))):
        raise ManifestError(f"lineage.{role} must hold name, version and manifest of a version")


def encode(manifest: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON form."""
    return json.dumps(
        manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the canonical form: the version's identity."""
    return ids.digest_of(encode(manifest))


def bytes_of(manifest: Mapping[str, Any]) -> int:
    """Return the size of all files together, in bytes."""
    return sum(int(file["size"]) for file in manifest["files"])


def decode(raw: bytes) -> dict[str, Any]:
    """Read and check a manifest in its canonical form. Raises ``ManifestError``."""
    if len(raw) > limits.MANIFEST_BYTES_MAX:
        raise ManifestError(f"a manifest of {len(raw)} bytes is too large")
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise ManifestError("a manifest is an object")
    check(manifest)
    try:
        is_canonical = encode(manifest) == raw
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"it has no canonical form: {error}") from None
    if not is_canonical:
        raise ManifestError("it is not in its canonical form (sorted keys, no spaces, UTF-8)")
    return manifest
