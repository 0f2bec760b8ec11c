"""Manifests from strangers."""

import json

import pytest

from lineshaft.contracts import manifest
from lineshaft.contracts.manifest import ManifestError
from tests.builders_registry import a_manifest

GOOD = a_manifest({"model.safetensors": b"w", "sub/config.json": b"{}"})


def _with_paths(*paths: str) -> bytes:
    made = json.loads(manifest.encode(GOOD))
    made["files"] = [{**made["files"][0], "path": path} for path in paths]
    return manifest.encode(made)


def test_what_is_made_is_read_back() -> None:
    """The canonical form has one reading."""
    assert manifest.decode(manifest.encode(GOOD)) == GOOD


@pytest.mark.parametrize(
    "path",
    [
        "../up",
        "/abs",
        "a/../b",
        "./a",
        "a//b",
        "",
        "a/",
        "a\\b",
        "a\x00b",
        "a\nb",
        "." * 2,
        "x" * 256,
        "é" * 128,
        "a/" * 600,
        ".partial/x",
        ".PARTIAL/x",
        "lineshaft-manifest.json",
    ],
)
def test_a_path_that_could_leave_the_folder_is_refused(path: str) -> None:
    """No way out, no control characters, no name of ours, no part too long for a file system."""
    with pytest.raises(ManifestError):
        manifest.decode(_with_paths(path))


@pytest.mark.parametrize(
    "paths", [("a", "A"), ("a", "a"), ("é", "e\u0301"), ("a", "a/b"), ("A/b", "a")]
)
def test_paths_that_some_file_system_mixes_up_are_refused(paths: tuple[str, str]) -> None:
    """Case, Unicode forms, a file that would have to be a folder."""
    with pytest.raises(ManifestError):
        manifest.decode(_with_paths(*paths))


def test_a_lone_surrogate_is_refused_not_raised_through() -> None:
    """Text that has no UTF-8 form is a manifest's fault, said as one."""
    raw = manifest.encode(GOOD).replace(b"sub/config.json", b"sub/\\ud800.json")
    with pytest.raises(ManifestError):
        manifest.decode(raw)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"nul", b"[" * 100_000, b"\xff"])
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    """Only ``ManifestError``, whatever comes."""
    with pytest.raises(ManifestError):
        manifest.decode(raw)


def test_only_the_canonical_form_counts() -> None:
    """Other spacing or order would be another digest for the same content."""
    with pytest.raises(ManifestError, match="canonical"):
        manifest.decode(json.dumps(GOOD).encode())
    with pytest.raises(ManifestError):
        manifest.decode(manifest.encode(GOOD).replace(b"256", b"NaN", 1))


def test_a_link_of_the_lineage_must_name_a_version() -> None:
    """A base is {name, version, manifest}, outside the registry without manifest, or null."""
    made = json.loads(manifest.encode(GOOD))
    made["lineage"]["base"] = {"name": "../x", "manifest": "sha256:" + "0" * 64}
    with pytest.raises(ManifestError):
        manifest.decode(manifest.encode(made))
    made["lineage"]["base"] = {"name": "a folder", "manifest": None}
    assert manifest.decode(manifest.encode(made)) == made
