"""From ``job.succeeded`` to a version: a real host and journal, objects in memory or a folder."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lineshaft.adapters.clock import VirtualClock
from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.contracts import ids, manifest, records
from lineshaft.ports import Objects, ObjectStat, StorageFull
from services.registry.catalogue import Catalogue
from services.registry.examination import Candidate
from services.registry.registrar import Registrar
from tests.builders_registry import (
    NAME,
    RegistryShell,
    a_job,
    a_manifest,
    stage,
    succeeded,
)

CONTENTS = {"model.safetensors": b"w" * 70_000, "sub/config.json": b"{}", "empty": b""}


@pytest.fixture(params=["memory", "folder"])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Objects]:
    """Both object stores of one machine."""
    made: Any = MemoryObjects() if request.param == "memory" else FolderObjects(tmp_path)
    yield made
    await made.aclose()


async def _keys(objects: Objects, prefix: str) -> list[str]:
    return [found.key async for found in objects.list(prefix)]


async def test_a_staged_run_becomes_a_version(objects: Objects) -> None:
    """Files and manifest lie under their digests, staging is empty, the documents tell it."""
    made = a_manifest(CONTENTS)
    candidate = await stage(objects, made, CONTENTS)
    async with RegistryShell(MemoryJournal(), objects) as shell:
        await shell.host.handle([succeeded(candidate)])
        await Registrar(shell).register(candidate)
        views = await shell.views()
    expected = {ids.digest_of(data) for data in CONTENTS.values()} | {candidate.manifest}
    assert set(await _keys(objects, "blobs/")) == {records.blob(digest) for digest in expected}
    assert await _keys(objects, "staging/") == []
    found = await Catalogue(views, objects).resolve(NAME)
    assert (found["version"], found["manifest"]) == ("1.0.0", candidate.manifest)
    assert found["files"] == made["files"]
    assert found["metrics"] == {"kind": {"exactMatch": 0.6}}
    document = await views.get("candidate", candidate.session)
    assert document is not None
    assert document.body["status"] == "registered"
    assert document.body["version"] == "1.0.0"


async def _refusal(shell: RegistryShell, candidate: Candidate) -> str:
    await shell.host.handle([succeeded(candidate)])
    await Registrar(shell).register(candidate)
    [event] = await shell.events("model.registered", "model.refused")
    assert event.kind == "model.refused"
    return str(event.data["reason"])


async def test_a_file_that_differs_is_refused_and_kept(objects: Objects) -> None:
    """Nothing false ever has a digest's key; the staged files stay for a person to look at."""
    made = a_manifest(CONTENTS)
    candidate = await stage(objects, made, {**CONTENTS, "model.safetensors": b"v" * 70_000})
    async with RegistryShell(MemoryJournal(), objects) as shell:
        assert "its content differs" in await _refusal(shell, candidate)
    assert await _keys(objects, records.blob(ids.digest_of(CONTENTS["model.safetensors"]))) == []
    assert len(await _keys(objects, "staging/")) == 4


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"manifest": "sha256:" + "0" * 64}, "names another manifest"),
        ({"manifest": None}, "names another manifest"),
        ({}, "cannot be read"),
    ],
)
async def test_the_completion_record_has_the_last_word(
    record: Mapping[str, Any], said: str
) -> None:
    """A fact that the record does not bear out registers nothing."""
    objects = MemoryObjects()
    candidate = await stage(objects, a_manifest(CONTENTS), CONTENTS, record=record or {"x": 1})
    async with RegistryShell(MemoryJournal(), objects) as shell:
        assert said in await _refusal(shell, candidate)


async def test_a_missing_file_or_another_size_is_refused() -> None:
    """Said by the path."""
    for number, contents in enumerate(({}, {**CONTENTS, "sub/config.json": b"{ }"})):
        objects = MemoryObjects()
        made = a_manifest(CONTENTS, job=a_job(str(number)))
        candidate = await stage(objects, made, contents)
        async with RegistryShell(MemoryJournal(), objects) as shell:
            reason = await _refusal(shell, candidate)
            assert "was not staged" in reason or "3 bytes, not 2" in reason


@pytest.mark.parametrize(
    "changes", [{"model_name": "another"}, {"team": "others"}, {"manifest": "sha256:" + "1" * 64}]
)
async def test_a_manifest_that_is_not_the_jobs_is_refused(changes: dict[str, Any]) -> None:
    """Another name, team or digest than the job's."""
    objects = MemoryObjects()
    candidate = await stage(objects, a_manifest(CONTENTS), CONTENTS)
    other = Candidate(**{f: getattr(candidate, f) for f in candidate.__slots__} | changes)
    async with RegistryShell(MemoryJournal(), objects) as shell:
        assert await _refusal(shell, other)


async def test_the_same_content_is_stored_once_and_need_not_be_staged() -> None:
    """A second version moves only what is new."""
    objects = MemoryObjects()
    first = a_manifest(CONTENTS)
    changed = {**CONTENTS, "sub/config.json": b"{1}"}
    second = a_manifest(changed, job=a_job("2"))
    async with RegistryShell(MemoryJournal(), objects) as shell:
        one = await stage(objects, first, CONTENTS)
        await shell.host.handle([succeeded(one)])
        await Registrar(shell).register(one)
        two = await stage(objects, second, {"sub/config.json": b"{1}"})
        await shell.host.handle([succeeded(two, "pool/default:2:0")])
        await Registrar(shell).register(two)
        events = await shell.events("model.registered")
    assert [event.data["version"] for event in events] == ["1.0.0", "1.0.1"]
    assert len(await _keys(objects, "blobs/")) == 3 + 1 + 2


async def test_an_adapter_holds_its_base_until_it_is_deleted() -> None:
    """Registration takes the hold in the base's stream; a refused child gives it back."""
    objects = MemoryObjects()
    base = a_manifest(CONTENTS, name="qwen")
    link = {"name": "qwen", "version": "1.0.0", "manifest": manifest.digest(base)}
    child = a_manifest({"a.safetensors": b"a"}, kind="adapter", base=link, job=a_job("2"))
    broken = a_manifest({"b.safetensors": b"b"}, kind="adapter", base=link, job=a_job("3"))
    async with RegistryShell(MemoryJournal(), objects) as shell:
        registrar = Registrar(shell)
        for made, contents in (
            (base, CONTENTS),
            (child, {"a.safetensors": b"a"}),
            (broken, {}),
        ):
            candidate = await stage(objects, made, contents)
            await shell.host.handle([succeeded(candidate, candidate.session)])
            await registrar.register(candidate)
        held = await shell.events("registry.held")
        released = await shell.events("registry.released")
        [refused] = await shell.events("model.refused")
    digests = [event.data["holder"] for event in held]
    assert digests == [manifest.digest(child), manifest.digest(broken)]
    assert [event.data["holder"] for event in released] == [manifest.digest(broken)]
    assert "was not staged" in refused.data["reason"]


# -- crashes --------------------------------------------------------------------------------------


class Crash(Exception):
    """The process dies here."""


class CrashingObjects:
    """Objects that die before or after their n-th change."""

    def __init__(self, inner: Objects, at: int, *, is_after: bool) -> None:
        self._inner = inner
        self._left = at
        self._is_after = is_after

    async def _change(self, change: Callable[[], Awaitable[Any]]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._is_after:
            raise Crash
        result = await change()
        if self._left == 0:
            raise Crash
        return result

    async def put(self, key: str, data: Any, *, replace: bool = False) -> int:
        """Store, or die."""
        return int(await self._change(lambda: self._inner.put(key, data, replace=replace)))

    async def delete(self, keys: Any) -> None:
        """Delete, or die."""
        await self._change(lambda: self._inner.delete(keys))

    def open(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Read."""
        return self._inner.open(key, start, end)

    async def stat(self, key: str) -> ObjectStat | None:
        """Look."""
        return await self._inner.stat(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectStat]:
        """List."""
        return self._inner.list(prefix, after)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", range(1, 7))
async def test_a_crash_at_any_object_then_redelivery_ends_with_one_version(
    at: int, is_after: bool
) -> None:
    """Three files, the manifest, the cleaning: dying before or after each."""
    inner, journal = MemoryObjects(), MemoryJournal()
    candidate = await stage(inner, a_manifest(CONTENTS), CONTENTS)
    crashing = CrashingObjects(inner, at, is_after=is_after)
    async with RegistryShell(journal, crashing) as shell:
        await shell.host.handle([succeeded(candidate)])
        try:
            await Registrar(shell).register(candidate)
        except Crash:
            assert at <= 5
        else:
            assert at == 6
    await _ends_with_one_version(journal, inner, candidate)


async def _ends_with_one_version(
    journal: MemoryJournal, objects: Objects, candidate: Candidate
) -> None:
    async with RegistryShell(journal, objects) as shell:
        await shell.host.handle([succeeded(candidate)])
        await shell.host.handle([succeeded(candidate, "pool/default:77:0")])
        work = asyncio.create_task(Registrar(shell).run())
        for _ in range(1_000):
            if await shell.events("registry.candidate_concluded"):
                break
            await asyncio.sleep(0.01)
        work.cancel()
        events = await shell.events("model.registered", "model.refused")
        views = await shell.views()
    assert [(event.kind, event.data["version"]) for event in events] == [
        ("model.registered", "1.0.0")
    ]
    assert await _keys(objects, "staging/") == []
    found = await Catalogue(views, objects).resolve(NAME)
    assert found["version"] == "1.0.0"


class _Dying(Registrar):
    """Dies before or after its n-th fact is decided."""

    def __init__(self, shell: RegistryShell, at: int, *, is_after: bool) -> None:
        super().__init__(shell)
        self._left, self._is_after = at, is_after

    async def _decided(self, fact: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._is_after:
            raise Crash
        events = await super()._decided(fact)
        if self._left == 0:
            raise Crash
        return events


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", [1, 2])
async def test_a_crash_around_each_append_ends_with_one_version(at: int, is_after: bool) -> None:
    """Before and after ``model.registered``, before and after the conclusion."""
    objects, journal = MemoryObjects(), MemoryJournal()
    candidate = await stage(objects, a_manifest(CONTENTS), CONTENTS)
    async with RegistryShell(journal, objects) as shell:
        await shell.host.handle([succeeded(candidate)])
        with pytest.raises(Crash):
            await _Dying(shell, at, is_after=is_after).register(candidate)
    await _ends_with_one_version(journal, objects, candidate)


async def test_full_storage_is_a_finding_and_a_later_try() -> None:
    """Not a refusal: when there is room again the version comes and the finding closes."""
    objects, journal, clock = MemoryObjects(), MemoryJournal(), VirtualClock(1_000_000)
    candidate = await stage(objects, a_manifest(CONTENTS), CONTENTS)
    objects.fail_next(StorageFull("no room"), times=3)
    async with RegistryShell(journal, objects, clock) as shell:
        handled = asyncio.create_task(shell.host.handle([succeeded(candidate)]))
        await clock.advance(10)
        await handled
        work = asyncio.create_task(Registrar(shell).run())
        for _ in range(200):
            await clock.advance(100)
            if ("registration", candidate.session, "closed") in shell.findings:
                break
        work.cancel()
        [event] = await shell.events("model.registered", "model.refused")
    assert event.kind == "model.registered"
    statuses = [status for _, _, status in shell.findings]
    assert statuses == ["open", "open", "open", "closed"]
