"""Downloading a version: resolve, move only what is missing, verify, publish in the target folder.

    report = await pull("http://127.0.0.1:8000", token, "domain-chat@production", Path("model"))

What is moved lies in ``<target>/.partial`` until every digest is right; the manifest
(``lineshaft-manifest.json``) comes last, so a folder that has it is whole. An interrupted pull goes
on where it was. Nothing that a manifest says leads out of the folder, and no link is followed.
How bytes are fetched is in ``fetching``, how they are placed in ``placing``.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lineshaft.contracts import ids, limits, manifest
from lineshaft.contracts.manifest import ManifestError
from lineshaft.sdk import placing
from lineshaft.sdk.errors import PlatformError
from lineshaft.sdk.fetching import Content, Fetcher

Progress = Callable[[int, int, str], None]
"""Called with bytes that are here, bytes in all, and the path of the file they belong to."""


@dataclass(frozen=True, slots=True)
class PullReport:
    """What a pull did. ``bytes`` are all of the version's, ``moved`` those that came this time."""

    name: str
    version: str
    manifest: str
    target: str
    files: int
    bytes: int
    moved: int
    seconds: float

    def as_object(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Verified:
    """A folder that is what its manifest says; ``others`` are files it does not name."""

    name: str
    manifest: str
    files: int
    bytes: int
    others: list[str] = field(default_factory=list)


async def pull(
    address: str,
    token: str | None,
    ref: str,
    target: Path,
    *,
    progress: Progress | None = None,
    parallel: int = 4,
    replace: bool = False,
) -> PullReport:
    """Download the version that ``ref`` means into the folder ``target``.

    Files that are there and right are not moved again. Files there that differ, or that the
    version does not have, are refused; with ``replace`` what an earlier pull placed makes room,
    and files of the same names are overwritten. Raises ``PlatformError``: ``not_found``,
    ``refused`` (the target, the disk, the digest, the token) or ``unavailable`` (after many
    tries). Cancelling it keeps what came.
    """
    began = time.monotonic()
    async with Fetcher(address, token, min(max(parallel, 1), limits.DOWNLOAD_PARALLEL_MAX)) as net:
        found = await net.resolve(ref)
        made, raw = await _manifest(net, found)
        try:
            moved = await _fill(net, target, (made, raw), progress=progress, replace=replace)
        except OSError as error:
            text = f"{error.filename or target}: {error.strerror or error}"
            raise PlatformError("refused", text, "what came is kept; pull again") from None
    return PullReport(
        name=found["name"],
        version=found["version"],
        manifest=found["manifest"],
        target=str(target),
        files=len(made["files"]),
        bytes=manifest.bytes_of(made),
        moved=moved,
        seconds=round(time.monotonic() - began, 3),
    )


async def _fill(
    net: Fetcher,
    target: Path,
    version: tuple[dict[str, Any], bytes],
    *,
    progress: Progress | None,
    replace: bool,
) -> int:
    made, raw = version
    place = await asyncio.to_thread(placing.Place, target)
    with place.locked():
        here = await asyncio.to_thread(place.survey, made, raw, replace=replace)
        moved = await _move(net, place, _missing(made, here), _Meter(made, here, progress))
        await asyncio.to_thread(place.publish, made, raw, here)
    return moved


async def _manifest(net: Fetcher, found: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Fetch the manifest and trust nothing but its digest."""
    raw = await net.whole(found["manifest"], limits.MANIFEST_BYTES_MAX)
    if ids.digest_of(raw) != found["manifest"]:
        raise PlatformError("refused", "the manifest that came has another digest", "try again")
    try:
        return manifest.decode(raw), raw
    except ManifestError as error:
        raise PlatformError("refused", f"the manifest is not safe to unpack: {error}") from None


def _missing(made: dict[str, Any], here: set[str]) -> list[Content]:
    """Return the contents to move, each once, in the order of their first paths."""
    wanted: dict[str, Content] = {}
    for file in made["files"]:
        if file["path"] not in here and file["digest"] not in wanted:
            wanted[file["digest"]] = Content(file["digest"], file["size"], file["path"])
    return list(wanted.values())


class _Meter:
    """Counts bytes and tells the caller."""

    def __init__(self, made: dict[str, Any], here: set[str], tell: Progress | None) -> None:
        self.total = sum({f["digest"]: f["size"] for f in made["files"]}.values())
        there = {f["digest"]: f["size"] for f in made["files"] if f["path"] in here}
        missing = {f["digest"] for f in made["files"] if f["path"] not in here}
        self.done = sum(size for digest, size in there.items() if digest not in missing)
        self._tell = tell

    def add(self, count: int, path: str) -> None:
        """Count ``count`` more bytes of ``path`` (fewer, when what came was wrong)."""
        self.done += count
        if self._tell is not None:
            self._tell(self.done, self.total, path)


async def _move(net: Fetcher, place: placing.Place, missing: list[Content], meter: _Meter) -> int:
    """Move all of ``missing`` into the partial folder, verified; return the bytes that came."""
    partials = await asyncio.to_thread(lambda: [place.partial(content) for content in missing])
    for partial in partials:
        meter.add(partial.bytes_here(), partial.content.path)
    needed = sum(partial.content.size - partial.bytes_here() for partial in partials)
    await asyncio.to_thread(place.check_space, needed)
    return await net.fetch(partials, meter.add)


def verify(folder: Path) -> Verified:
    """Check a pulled folder against its manifest, every byte; return what it holds.

    Raises ``PlatformError`` (refused) that names what is missing or differs.
    """
    root = folder.resolve()
    try:
        raw = (root / manifest.FILE_NAME).read_bytes()
        made = manifest.decode(raw)
    except OSError:
        hint = "pull it again: what is there already is not moved twice"
        text = f"{folder} has no {manifest.FILE_NAME}: it was not pulled, or not to the end"
        raise PlatformError("refused", text, hint) from None
    except ManifestError as error:
        raise PlatformError("refused", f"{folder}: {manifest.FILE_NAME}: {error}") from None
    faults = [fault for file in made["files"] if (fault := placing.fault_of(root, file))]
    if faults:
        shown = "; ".join(faults[:5]) + ("; ..." if len(faults) > 5 else "")
        raise PlatformError("refused", f"{folder}: {shown}", "pull it again with replace")
    known = {file["path"] for file in made["files"]} | {manifest.FILE_NAME}
    others = [path for path in placing.paths_in(root) if path not in known]
    return Verified(
        name=made["name"],
        manifest=ids.digest_of(raw),
        files=len(made["files"]),
        bytes=manifest.bytes_of(made),
        others=others,
    )
