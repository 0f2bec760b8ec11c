"""What only a folder must keep: other processes, kills, links, full disks, leftovers."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.ports import ObjectExists, ObjectMissing, StorageFull, StoreUnavailable
from tests.builders_stores import a_process, a_small_disk, all_of

CHILD = Path(__file__).with_name("child.py")


def names_in(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def partials(folder: FolderObjects) -> list[str]:
    return names_in(folder.root / ".partial")


async def test_each_object_is_a_file_of_its_name(folder):
    """People and other tools can read them; nothing else lies there but one folder."""
    await folder.put("a/b.txt", b"123")
    assert (folder.root / "a" / "b.txt").read_bytes() == b"123"
    assert names_in(folder.root) == [".partial", "a"]
    assert partials(folder) == []


async def test_processes_never_create_the_same_key_twice(folder):
    """Each key has one winner, and its content is there."""
    claimants = [a_process(CHILD, "claim", folder.root, name, 150) for name in "abc"]
    outputs = await asyncio.gather(*(asyncio.to_thread(c.communicate) for c in claimants))
    assert [c.returncode for c in claimants] == [0, 0, 0]
    won = {key: name for name, (out, _) in zip("abc", outputs, strict=True) for key in out.split()}
    assert sum(len(out.split()) for out, _ in outputs) == len(won) == 150
    for key, name in won.items():
        assert (folder.root / key).read_text() == name
    assert partials(folder) == []


async def test_a_kill_in_mid_put_shows_no_part(folder):
    """What was acknowledged is there; whatever is listed is whole."""
    acknowledged = []
    for round in range(3):
        writer = a_process(CHILD, "pour", folder.root, f"r{round}")
        assert writer.stdout is not None
        lines = list(itertools.islice(writer.stdout, 20 + 7 * round))
        writer.kill()
        acknowledged += [line.strip() for line in [*lines, *writer.stdout] if line.endswith("\n")]
        writer.wait()
    listed = await all_of(folder.list(""))
    assert set(acknowledged) <= {found.key for found in listed}
    for found in listed:
        expected = f"{int(found.key.rpartition('/')[2]):08d}".encode() * 20_000
        assert b"".join(await all_of(folder.open(found.key))) == expected


async def test_leftovers_are_removed_when_they_are_old_and_nobody_writes(folder):
    """A young one, and one that a live process still writes, stay."""
    going = asyncio.Event()
    other = FolderObjects(folder.root)

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        going.set()
        await arrived.wait()
        yield b"y"

    arrived = asyncio.Event()
    putting = asyncio.create_task(other.put("live", slow()))
    await going.wait()
    [live] = partials(folder)
    place = folder.root / ".partial"
    for name in ("old", "young"):
        (place / name).write_bytes(b"left")
    for name in ("old", live):
        os.utime(place / name, (time.time() - 7200,) * 2)
    await folder.put("k", b"1")
    assert sorted(partials(folder)) == sorted([live, "young"])
    arrived.set()
    assert await putting == 2_000_001
    await other.aclose()


@pytest.mark.parametrize("replace", [False, True])
async def test_content_is_durable_before_its_name_and_the_name_before_the_answer(
    folder, monkeypatch, replace
):
    """A loss of power leaves an object whole or absent, and never takes an acknowledged one."""
    steps: list[str] = []
    fsync, link, rename = os.fsync, os.link, os.replace

    def record_sync(handle: int) -> None:
        place = Path(f"/proc/self/fd/{handle}").readlink()
        steps.append("partial" if place.parent.name == ".partial" else place.name)
        fsync(handle)

    def record(step):
        return lambda *names, **how: (steps.append("named"), step(*names, **how))

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "link", record(link))
    monkeypatch.setattr(os, "replace", record(rename))
    await folder.put("a/b/k", b"1", replace=replace)
    assert steps == ["partial", "named", "b", "a", "objects"]
    steps.clear()
    await folder.delete(["a/b/k"])
    assert steps == ["b"]


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_bytes(b"secret")
    return place


async def test_a_link_leads_nowhere(folder, outside):
    """Links that someone planted inside are neither read, written through, listed nor followed."""
    await folder.put("a/k", b"1")
    (folder.root / "link").symlink_to(outside)
    (folder.root / "a" / "file").symlink_to(outside / "secret")
    for key in ("link/secret", "a/file", "link"):
        assert await folder.stat(key) is None
        with pytest.raises(ObjectMissing):
            await all_of(folder.open(key))
    with pytest.raises(ValueError, match="cannot be stored"):
        await folder.put("link/new", b"2")
    with pytest.raises(ValueError, match="cannot be stored"):
        await folder.put("a/file", b"2")
    await folder.delete(["link/secret", "a/file", "link"])
    assert [found.key async for found in folder.list("")] == ["a/k"]
    assert await all_of(folder.list("link/")) == []
    assert await folder.put("a/file", b"mine", replace=True) == 4
    assert {p.name: p.read_bytes() for p in outside.iterdir()} == {"secret": b"secret"}


async def test_what_is_no_file_is_no_object(folder):
    """A pipe or a foreign name in the folder neither hangs nor shows."""
    await folder.put("a/k", b"1")
    os.mkfifo(folder.root / "a" / "pipe")
    (folder.root / "a" / "back\\slash").write_bytes(b"x")
    (folder.root / os.fsdecode(b"\xff")).write_bytes(b"x")
    with pytest.raises(ObjectMissing):
        await all_of(folder.open("a/pipe"))
    assert [found.key async for found in folder.list("")] == ["a/k"]


async def test_a_linked_root_is_a_root(tmp_path):
    """Where the root itself lies is the operator's choice."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    objects = FolderObjects(tmp_path / "root")
    await objects.put("a/b", b"1")
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"1"
    await objects.aclose()


async def test_empty_folders_do_not_stay_and_do_not_disturb(folder):
    """Deleting prunes; what a crash left empty gives way to an object."""
    await folder.put("a/b/c/d", b"1")
    await folder.put("a/x", b"2")
    await folder.delete(["a/b/c/d"])
    assert names_in(folder.root / "a") == ["x"]
    (folder.root / "e" / "f" / "g").mkdir(parents=True)
    assert [found.key async for found in folder.list("")] == ["a/x"]
    assert await folder.put("e", b"3") == 1
    assert await folder.put("e", b"33", replace=True) == 2


async def test_puts_and_pruning_deletes_do_not_hurt_one_another(folder):
    """A folder may vanish under a put at any moment; the put never fails for that."""
    other = FolderObjects(folder.root)

    async def churn(objects: FolderObjects, name: str) -> None:
        for _ in range(60):
            await objects.put(f"a/b/c/{name}", name.encode())
            await objects.delete([f"a/b/c/{name}"])

    await asyncio.gather(
        *(churn(objects, f"{n}{side}") for n in range(3) for side, objects in
          (("x", folder), ("y", other)))
    )  # fmt: skip
    await other.aclose()
    assert names_in(folder.root) == [".partial"]


async def test_a_full_disk_stores_nothing_by_halves(tmp_path):
    """``StorageFull`` is told, no part stays, and what was there is untouched."""
    with a_small_disk(tmp_path / "disk", "2m") as disk:
        objects = FolderObjects(disk)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100_000

        await objects.put("kept", b"k" * 300_000)
        for data in (b"x" * 3_000_000, chunks()):
            with pytest.raises(StorageFull):
                await objects.put("a/b/large", data)
            with pytest.raises(StorageFull):
                await objects.put(
                    "kept", data if isinstance(data, bytes) else chunks(), replace=True
                )
        assert partials(objects) == []
        assert [(f.key, f.size) async for f in objects.list("")] == [("kept", 300_000)]
        assert b"".join(await all_of(objects.open("kept"))) == b"k" * 300_000
        assert await objects.put("a/b/small", b"x" * 1000) == 1000
        await objects.aclose()


async def test_a_file_too_large_for_the_system_is_told_as_full(folder):
    """A quota on file sizes is no room as well; nothing of the file stays."""
    child = a_process(CHILD, "limited", folder.root, "a", 100_000)
    out, _ = await asyncio.to_thread(child.communicate)
    assert out.split() == ["full", "50000"]
    assert [found.key async for found in folder.list("")] == ["small"]
    assert partials(folder) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_folder_without_permission_is_unavailable(folder):
    """The system's word is passed on."""
    await folder.put("a/k", b"1")
    (folder.root / "a").chmod(0o500)
    with pytest.raises(StoreUnavailable, match="denied"):
        await folder.put("a/l", b"1")


async def test_a_root_that_cannot_be_made_is_unavailable(tmp_path):
    """A file in its way is told; reading finds nothing."""
    (tmp_path / "file").write_text("")
    objects = FolderObjects(tmp_path / "file" / "root")
    with pytest.raises(StoreUnavailable, match="file"):
        await objects.put("k", b"1")
    assert await objects.stat("k") is None
    assert await all_of(objects.list("")) == []
    await objects.delete(["k"])
    await objects.aclose()


async def test_a_cancelled_put_leaves_no_partial_file(folder):
    """Wherever it is cancelled: while begun, written, or published."""
    for turns in range(0, 60, 2):
        putting = asyncio.create_task(folder.put(f"k{turns}", _chunks()))
        for _ in range(turns):
            await asyncio.sleep(0)
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        assert putting.done()
        assert not (folder.root / ".partial").exists() or partials(folder) == []
    for found in await all_of(folder.list("")):
        assert found.size == 3_000_000


async def _chunks() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield b"x" * 1_000_000


async def test_a_closed_folder_says_so(folder):
    """What was begun ends well; later calls are refused."""
    putting = asyncio.create_task(folder.put("k", b"1"))
    await asyncio.sleep(0)
    await folder.aclose()
    assert await putting == 1
    with pytest.raises(StoreUnavailable):
        await folder.put("l", b"1")
    with pytest.raises(StoreUnavailable):
        await folder.stat("k")
    again = FolderObjects(folder.root)
    with pytest.raises(ObjectExists):
        await again.put("k", b"2")
    await again.aclose()


def test_the_folder_needs_the_standard_library_alone():
    """The agent imports it into any image."""
    code = (
        "import sys, json; before = set(sys.modules)\n"
        "import lineshaft.adapters.objects.select, lineshaft.adapters.clock\n"
        "print(json.dumps(sorted({n.partition('.')[0] for n in set(sys.modules) - before})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tops = set(json.loads(out.stdout))
    assert {name for name in tops if name not in sys.stdlib_module_names} == {"lineshaft"}
