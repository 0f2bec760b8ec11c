"""The model a run starts from, brought to a local folder: a configuration, a folder, a version.

A registry version is fetched from Objects by the digests of its manifest and kept in the cache.
No torch here: this runs in preparation, before there are ranks. The network itself is made in
``trainer.network``.
"""

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineshaft.adapters.objects.select import objects as select
from lineshaft.contracts import manifest, records
from lineshaft.ports import ObjectMissing, Objects, StoreUnavailable
from trainer.faults import ConfigFault, StorageFault
from trainer.recipe import Recipe

NEEDED_ROLES = ("weights", "config", "tokenizer")


@dataclass(frozen=True, slots=True)
class Materialised:
    """A local model folder. ``lineage`` is {name, version, manifest} for a registry version."""

    folder: Path
    tokenizer: Path | None
    lineage: dict[str, Any] | None
    vocabulary_size: int


def materialise(asked: Recipe) -> Materialised:
    """Return the local folder of the order's model.

    Raises ``ConfigFault`` for a model that cannot be, ``StorageFault`` for one that cannot be had.
    """
    model = asked.model
    kind = model.get("kind")
    if kind == "config":
        return _described(_configured(asked, model), None)
    if kind == "folder":
        return _described(Path(str(model.get("path"))), None)
    if kind == "registry":
        lineage = {name: model.get(name) for name in ("name", "version", "manifest")}
        folder = asyncio.run(_fetched(asked, str(model.get("manifest"))))
        return _described(folder, lineage)
    raise ConfigFault(f"a model of the kind {kind!r} cannot be trained")


def has_weights(folder: Path) -> bool:
    """Tell whether a model folder holds weights in safetensors form."""
    return any(folder.glob("*.safetensors"))


def _described(folder: Path, lineage: dict[str, Any] | None) -> Materialised:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigFault(f"{file}: no model configuration: {error}") from None
    size = config.get("vocab_size")
    if not isinstance(size, int) or size < 2:
        raise ConfigFault(f"{file}: vocab_size must be a whole number")
    has_tokenizer = any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    )
    return Materialised(folder, folder if has_tokenizer else None, lineage, size)


def _configured(asked: Recipe, model: Mapping[str, Any]) -> Path:
    if model.get("path"):
        path = Path(str(model["path"]))
        if path.is_dir():
            return path
        raw = path.read_bytes() if path.is_file() else b""
    else:
        raw = json.dumps(dict(model.get("config") or {}), sort_keys=True, indent=2).encode()
    name = hashlib.sha256(raw).hexdigest()[:32]
    folder = asked.place.cache_folder / "models" / f"config-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").is_file():
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as stream:
            stream.write(raw)
        Path(stream.name).replace(folder / "config.json")
    return folder


async def _fetched(asked: Recipe, digest: str) -> Path:
    folder = asked.place.cache_folder / "models" / digest.replace(":", "-")
    if folder.is_dir():
        return folder
    objects = select(asked.place.objects_url)
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        described = manifest.decode(await _whole(objects, digest))
        for file in described["files"]:
            if file["role"] in NEEDED_ROLES:
                await _download(objects, file["digest"], making / file["path"])
        try:
            making.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    except ObjectMissing as error:
        raise StorageFault(f"the base model {digest} is not whole in the store: {error}") from None
    except StoreUnavailable as error:
        raise StorageFault(f"the store does not answer: {error}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


async def _whole(objects: Objects, digest: str) -> bytes:
    raw = b"".join([chunk async for chunk in objects.open(records.blob(digest))])
    found = "sha256:" + hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise StorageFault(f"the store gives other content for {digest}")
    return raw


async def _download(objects: Objects, digest: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = hashlib.sha256()
    with file.open("wb") as stream:
        async for chunk in objects.open(records.blob(digest)):
            whole.update(chunk)
            stream.write(chunk)
    if "sha256:" + whole.hexdigest() != digest:
        raise StorageFault(f"the store gives other content for {file.name} ({digest})")
