"""The version rule, as a table."""

from typing import Any

import pytest

from services.registry.domain import versions
from services.registry.domain.versions import Level, Version
from tests.builders_registry import a_manifest

BASE = {"name": "qwen", "version": "1.0.0", "manifest": "sha256:" + "1" * 64}
OTHER_BASE = {"name": "qwen", "version": "2.0.0", "manifest": "sha256:" + "2" * 64}
FULL: dict[str, Any] = {
    "parameters": 100,
    "dtype": "bfloat16",
    "quantization": None,
    "tensors": "sha256:" + "a" * 64,
    "tokenizer": "sha256:" + "b" * 64,
    "chatTemplate": "sha256:" + "c" * 64,
}


def _level(old: dict[str, Any], new: dict[str, Any]) -> Level:
    before, after = versions.facet_of(a_manifest(**old)), versions.facet_of(a_manifest(**new))
    return versions.compare(before, after).level


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, Level.PATCH),
        ({"contents": {"model.safetensors": b"weights", "README.md": b"more"}}, Level.PATCH),
        ({"contents": {"renamed.safetensors": b"weights"}}, Level.PATCH),
        ({"contents": {"model.safetensors": b"others"}}, Level.MINOR),
        ({"dtype": "float32", "tensors": "sha256:" + "d" * 64}, Level.MINOR),
        ({"quantization": "nf4", "parameters": 50}, Level.MINOR),
        ({"context": 512}, Level.MINOR),
        ({"context": 128}, Level.MAJOR),
        ({"context": None}, Level.MAJOR),
        ({"architecture": "LlamaForCausalLM"}, Level.MAJOR),
        ({"vocabSize": 513}, Level.MAJOR),
        ({"tokenizer": "sha256:" + "e" * 64}, Level.MAJOR),
        ({"chatTemplate": None}, Level.MAJOR),
        ({"tensors": "sha256:" + "f" * 64}, Level.MAJOR),
        ({"parameters": 101}, Level.MAJOR),
        ({"kind": "adapter", "base": BASE}, Level.MAJOR),
    ],
)
def test_a_change_has_the_level_that_consumers_feel(change: dict[str, Any], level: Level) -> None:
    """Major breaks a consumer, minor is other weights or type, patch is packaging."""
    assert _level(FULL, {**FULL, **change}) is level


def test_another_base_is_major_for_an_adapter_only() -> None:
    """An adapter fits one base; a full model's origin is its own affair."""
    adapter = {**FULL, "kind": "adapter"}
    assert _level({**adapter, "base": BASE}, {**adapter, "base": OTHER_BASE}) is Level.MAJOR
    assert _level({**FULL, "base": BASE}, {**FULL, "base": OTHER_BASE}) is Level.PATCH


def test_sharded_anew_with_the_same_content_digest_is_a_patch() -> None:
    """The digest over the tensors' content tells packaging from training."""
    same = {**FULL, "weights": "sha256:" + "9" * 64}
    split = {"one.safetensors": b"wei", "two.safetensors": b"ghts"}
    assert _level(same, {**same, "contents": split}) is Level.PATCH
    assert _level(FULL, {**FULL, "contents": split}) is Level.MINOR


def test_every_reason_is_said() -> None:
    """A change names all that differs, the weightiest first."""
    before = versions.facet_of(a_manifest(**FULL))
    changed = {**FULL, "vocabSize": 600, "contents": {"model.safetensors": b"others"}}
    reasons = versions.compare(before, versions.facet_of(a_manifest(**changed))).reasons
    assert reasons == ("the vocabulary: 512 -> 600", "other weights")


def test_successors_reset_what_is_below() -> None:
    """1.2.3 becomes 2.0.0, 1.3.0 or 1.2.4."""
    version = Version(1, 2, 3)
    assert versions.successor(version, Level.MAJOR) == (2, 0, 0)
    assert versions.successor(version, Level.MINOR) == (1, 3, 0)
    assert versions.successor(version, Level.PATCH) == (1, 2, 4)


@pytest.mark.parametrize("text", ["1.2.0", "v1.2.0"])
def test_both_spellings_are_accepted(text: str) -> None:
    """``v1.2.0`` is 1.2.0."""
    assert versions.parse(text) == (1, 2, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "1.2.3.4",
        "01.2.0",
        "1.2.0 ",
        "1.2.0\n",
        "V1.2.0",
        "vv1.2.0",
        "１.2.0",
        "1.2.-1",
        "1.2.0-rc1",
        "1.2.1234567890",
    ],
)
def test_nothing_else_is(text: str) -> None:
    """Leading zeros, spaces, other digits, suffixes are no versions."""
    assert versions.parse(text) is None
