"""The download client against a real server that is stopped, damaged and lied about."""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.contracts import ids, limits, manifest, records
from lineshaft.ports import StoreUnavailable
from lineshaft.sdk import fetching, placing
from lineshaft.sdk.download import pull, verify
from lineshaft.sdk.errors import PlatformError
from services.registry import server
from services.registry.api import make_app
from services.registry.catalogue import Catalogue
from services.registry.server import HttpServer
from tests.builders_registry import NAME, PureJournal, a_job, a_manifest, examined

TOKEN = "a-token"
ROOT = Path(__file__).parents[3]
WEIGHTS = random.Random(7).randbytes(3_000_000)
CONTENTS = {
    "model.safetensors": WEIGHTS,
    "sub/config.json": b"{}",
    "sub/copy.json": b"{}",
    "empty": b"",
}


class Gated(MemoryObjects):
    """Objects that serve so many reads, then act as told: hang, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_left = 1_000_000
        self.does_hang = False
        self.is_reached = asyncio.Event()

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Read, as long as it is allowed."""
        self.reads_left -= 1
        if self.reads_left < 0:
            self.is_reached.set()
            if self.does_hang:
                await asyncio.Event().wait()
            raise StoreUnavailable("the store is away")
        async for chunk in super().open(key, start, end):
            yield chunk


class Registry:
    """A registry over HTTP that can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.objects = Gated()
        self.journal = PureJournal()
        self._server: HttpServer | None = None
        self._port = 0
        self.url = ""

    async def register(self, contents: dict[str, bytes], **changes: Any) -> dict[str, Any]:
        """Publish a version and let the catalogue know it."""
        made = a_manifest(contents, **changes)
        for data in set(contents.values()):
            if await self.objects.stat(records.blob(ids.digest_of(data))) is None:
                await self.objects.put(records.blob(ids.digest_of(data)), data)
        await self.objects.put(records.blob(manifest.digest(made)), manifest.encode(made))
        self.journal.hand_in(examined(made))
        return made

    async def start(self) -> None:
        """Serve what is registered now."""
        catalogue = Catalogue(await self.journal.views(), self.objects)
        app = make_app(catalogue, self.objects, TOKEN)
        self._server = HttpServer(app, "127.0.0.1", self._port)
        self.url = await self._server.start()
        self._port = int(self.url.rpartition(":")[2])

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop()

    async def pull(self, target: Path, ref: str = NAME, **options: Any) -> Any:
        """Pull as a client does."""
        return await pull(self.url, TOKEN, ref, target, **options)


@pytest.fixture
async def registry(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registry]:
    """domain-chat 1.0.0, served; parts are small, so that there are many."""
    monkeypatch.setattr(limits, "PART_BYTES", 64 * 1024)
    monkeypatch.setattr(fetching, "_BACKOFF_MS_MIN", 4)
    made = Registry()
    await made.register(CONTENTS)
    await made.start()
    yield made
    await made.stop()


def _read(target: Path) -> dict[str, bytes]:
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    }


async def test_a_version_arrives_whole(registry: Registry, tmp_path: Path) -> None:
    """Files, manifest, nothing else; the report says so and ``verify`` agrees."""
    told: list[tuple[int, int]] = []
    target = tmp_path / "deep" / "model"
    report = await registry.pull(target, progress=lambda d, t, _: told.append((d, t)))
    files = _read(target)
    marker = json.loads(files.pop(manifest.FILE_NAME))
    assert files == CONTENTS
    assert marker["name"] == NAME
    assert (report.version, report.files, report.bytes) == ("1.0.0", 4, 3_000_004)
    assert report.moved == 3_000_002
    assert told[-1] == (3_000_002, 3_000_002)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    verified = verify(target)
    assert (verified.files, verified.manifest, verified.others) == (4, report.manifest, [])


async def test_what_is_there_is_not_moved_again(registry: Registry, tmp_path: Path) -> None:
    """A second pull moves nothing; one lost file moves alone."""
    await registry.pull(tmp_path)
    assert (await registry.pull(tmp_path)).moved == 0
    (tmp_path / "sub/config.json").unlink()
    assert (await registry.pull(tmp_path)).moved == 2
    assert verify(tmp_path).files == 4


async def test_an_interrupted_pull_goes_on_where_it_was(registry: Registry, tmp_path: Path) -> None:
    """Cancelled (Ctrl-C), the target has no manifest; the next pull moves the rest."""
    half = asyncio.Event()
    task = asyncio.create_task(
        registry.pull(tmp_path, progress=lambda d, t, _: half.set() if d > t // 2 else None)
    )
    await half.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / manifest.FILE_NAME).exists()
    report = await registry.pull(tmp_path)
    assert 0 < report.moved < 2_000_000
    assert _read(tmp_path).pop("model.safetensors") == WEIGHTS
    assert not (tmp_path / manifest.PARTIAL_FOLDER).exists()


async def test_a_client_that_is_killed_goes_on_where_it_was(
    registry: Registry, tmp_path: Path
) -> None:
    """By SIGKILL, in a process of its own, in the middle of a part."""
    registry.objects.reads_left, registry.objects.does_hang = 20, True
    script = f"""
import asyncio, pathlib
from lineshaft.contracts import limits
from lineshaft.sdk.download import pull
limits.PART_BYTES = {limits.PART_BYTES}
asyncio.run(pull({registry.url!r}, {TOKEN!r}, {NAME!r}, pathlib.Path({str(tmp_path)!r})))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=ROOT)
    await registry.objects.is_reached.wait()
    process.kill()
    await process.wait()
    registry.objects.reads_left = 1_000_000
    report = await registry.pull(tmp_path)
    assert 1_000_000 < report.moved < 3_000_000 - 10 * limits.PART_BYTES
    assert verify(tmp_path).files == 4


async def test_a_server_that_is_killed_in_the_middle_and_comes_back(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four answers half sent: the pull waits, tries again, and ends well in the same call."""
    monkeypatch.setattr(server, "_GRACE_S", 0)
    await registry.stop()
    registry.objects.reads_left, registry.objects.does_hang = 20, True
    await registry.start()
    task = asyncio.create_task(registry.pull(tmp_path))
    await registry.objects.is_reached.wait()
    await registry.stop()
    registry.objects.reads_left = 1_000_000
    await registry.start()
    assert (await task).moved == 3_000_002
    assert verify(tmp_path).files == 4


async def test_a_store_that_stays_away_keeps_what_came(registry: Registry, tmp_path: Path) -> None:
    """It ends as ``unavailable`` after its tries, and a later pull goes on where it was."""
    registry.objects.reads_left = 20
    with pytest.raises(PlatformError) as caught:
        await registry.pull(tmp_path)
    assert caught.value.code == "unavailable"
    registry.objects.reads_left = 1_000_000
    report = await registry.pull(tmp_path)
    assert 1_000_000 < report.moved < 3_000_000 - 15 * 64 * 1024
    assert verify(tmp_path).files == 4


async def test_damaged_content_is_noticed(registry: Registry, tmp_path: Path) -> None:
    """Wrong bytes of the right size never get a name in the target."""
    key = records.blob(ids.digest_of(WEIGHTS))
    await registry.objects.put(key, b"x" + WEIGHTS[1:], replace=True)
    with pytest.raises(PlatformError, match="not what the manifest says") as caught:
        await registry.pull(tmp_path / "m")
    assert caught.value.code == "refused"
    assert not (tmp_path / "m" / "model.safetensors").exists()
    await registry.objects.put(key, WEIGHTS, replace=True)
    await registry.pull(tmp_path / "m")
    assert verify(tmp_path / "m").files == 4


async def test_partial_data_that_was_damaged_is_moved_again(
    registry: Registry, tmp_path: Path
) -> None:
    """What an earlier pull left is not trusted either."""
    half = asyncio.Event()
    task = asyncio.create_task(
        registry.pull(tmp_path, progress=lambda d, t, _: half.set() if d > t // 2 else None)
    )
    await half.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = tmp_path / manifest.PARTIAL_FOLDER / ids.digest_of(WEIGHTS).partition(":")[2]
    with left.open("rb+") as file:
        file.write(b"\0" * 1000)
    await registry.pull(tmp_path)
    assert verify(tmp_path).files == 4


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", ".partial/x"])
async def test_a_manifest_that_leads_out_is_refused(
    registry: Registry, tmp_path: Path, path: str
) -> None:
    """Even when the registry itself serves it under its right digest."""
    made = json.loads(manifest.encode(a_manifest(CONTENTS)))
    made["files"][0]["path"] = path
    raw = manifest.encode(made)
    await registry.objects.put(records.blob(ids.digest_of(raw)), raw)

    async def lie(self: fetching.Fetcher, ref: str) -> dict[str, Any]:
        return {"name": NAME, "version": "6.6.6", "manifest": ids.digest_of(raw)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching.Fetcher, "resolve", lie)
        with pytest.raises(PlatformError, match="not safe to unpack"):
            await registry.pull(tmp_path / "m")
    assert not (tmp_path / "m").exists()


async def test_a_manifest_with_another_digest_is_refused(
    registry: Registry, tmp_path: Path
) -> None:
    """What was resolved is what must come."""
    found = await Catalogue(await registry.journal.views(), registry.objects).resolve(NAME)
    key = records.blob(found["manifest"])
    other = manifest.encode(a_manifest({"x": b"y"}))
    await registry.objects.put(key, other, replace=True)
    await registry.stop()

    # The catalogue itself would notice; a proxy between us and it would not.
    async def lie(self: fetching.Fetcher, ref: str) -> dict[str, Any]:
        return {"name": NAME, "version": "1.0.0", "manifest": found["manifest"]}

    await registry.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching.Fetcher, "resolve", lie)
        with pytest.raises(PlatformError, match="another digest"):
            await registry.pull(tmp_path / "m")


async def test_a_link_in_the_target_is_not_followed(registry: Registry, tmp_path: Path) -> None:
    """A folder of the version that is a link elsewhere stops the pull; elsewhere stays empty."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "sub").symlink_to(tmp_path / "elsewhere")
    for replace in (False, True):
        with pytest.raises(PlatformError) as caught:
            await registry.pull(tmp_path / "m", replace=replace)
        assert caught.value.code == "refused"
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_other_content_is_refused_unless_replaced(registry: Registry, tmp_path: Path) -> None:
    """Replacing removes what the earlier pull placed, and nothing a person put there."""
    await registry.pull(tmp_path)
    await registry.stop()
    newer = {"model.safetensors": b"newer", "other/new.json": b"{}"}
    await registry.register(newer, job=a_job("2"))
    await registry.start()
    with pytest.raises(PlatformError, match="holds other content"):
        await registry.pull(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    report = await registry.pull(tmp_path, replace=True)
    files = _read(tmp_path)
    files.pop(manifest.FILE_NAME)
    assert files == {**newer, "notes.txt": b"mine"}
    assert report.version == "1.1.0"
    assert verify(tmp_path).others == ["notes.txt"]
    await registry.pull(tmp_path, f"{NAME}:1.0.0", replace=True)
    assert verify(tmp_path).files == 4


async def test_a_folder_with_strange_files_is_refused(registry: Registry, tmp_path: Path) -> None:
    """Nobody's home folder becomes a model by a slip; nothing is left behind."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PlatformError, match=r"notes\.txt"):
        await registry.pull(tmp_path)
    assert _read(tmp_path) == {"notes.txt": b"mine"}
    with pytest.raises(PlatformError, match="cannot be made a folder"):
        await registry.pull(tmp_path / "notes.txt")


async def test_two_pulls_into_one_target_do_not_mix(registry: Registry, tmp_path: Path) -> None:
    """The second is told so; the first ends well."""
    results = await asyncio.gather(
        registry.pull(tmp_path / "m"), registry.pull(tmp_path / "m"), return_exceptions=True
    )
    failed = [result for result in results if isinstance(result, PlatformError)]
    assert [error.code for error in failed] in ([], ["conflict"])
    assert verify(tmp_path / "m").files == 4


async def test_too_little_room_is_said_first(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is moved."""
    usage = placing.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(placing.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PlatformError, match="3000002 bytes are needed"):
        await registry.pull(tmp_path / "m")


async def test_answers_that_will_not_change_are_told_at_once(
    registry: Registry, tmp_path: Path
) -> None:
    """A wrong token, an unknown reference: no tries, no folder."""
    with pytest.raises(PlatformError) as caught:
        await pull(registry.url, "wrong", NAME, tmp_path / "m")
    assert caught.value.code == "refused"
    with pytest.raises(PlatformError) as caught:
        await registry.pull(tmp_path / "m", f"{NAME}:9.9.9")
    assert caught.value.code == "not_found"
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("fault", ["missing", "differs", "bytes, not", "is no file"])
async def test_verify_names_what_is_wrong(registry: Registry, tmp_path: Path, fault: str) -> None:
    """By the path of the file."""
    await registry.pull(tmp_path)
    file = tmp_path / "model.safetensors"
    if fault == "missing":
        file.unlink()
    elif fault == "differs":
        file.write_bytes(b"x" + WEIGHTS[1:])
    elif fault == "bytes, not":
        file.write_bytes(b"x")
    else:
        file.rename(tmp_path / "y")
        file.symlink_to(tmp_path / "y")
    with pytest.raises(PlatformError, match=rf"model\.safetensors .*{fault}"):
        verify(tmp_path)


def test_a_folder_that_was_not_pulled_is_said_to_be_so(tmp_path: Path) -> None:
    """No manifest, no verdict on its files."""
    with pytest.raises(PlatformError, match="was not pulled"):
        verify(tmp_path)
