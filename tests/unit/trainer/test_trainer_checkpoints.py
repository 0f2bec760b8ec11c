"""Checkpoints: whole or absent, proved before they are trusted, never forgotten."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.builders_trainer import RecordingLink  # noqa: E402
from trainer.checkpoint import files, generators, layout, resuming, saving  # noqa: E402
from trainer.checkpoint.layout import Manifest, Shape  # noqa: E402
from trainer.checkpoint.saving import Saver  # noqa: E402
from trainer.faults import ConfigFault, Fenced, NoCheckpoint, StorageFault  # noqa: E402
from trainer.gang import Gang  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Gang(0, 1, 0)
SHAPE = Shape("plain", 1, 2, 1, "fp32")


class FakeEngine:
    """Has one tensor; fails to be written when it is told to."""

    def __init__(self) -> None:
        self.broken: Exception | None = None

    def save(self, sink: Any) -> None:
        if self.broken is not None:
            sink.failure = sink.failure or self.broken
        sink.save({"weights": torch.arange(1000)}, "engine/state.pt")


def a_saver(root: Path, link: RecordingLink, **wish: Any) -> Saver:
    def describe(step: int, written: Any, metrics: Any) -> Manifest:
        attempt = int(root.name)
        return Manifest(
            "j-a", attempt, step, step * 2, SHAPE, "sha256:d", {"torch": "2"}, written, metrics
        )

    given = {"keep": 2, "forecast_bytes": 1000, "gang": ALONE, **wish}
    return Saver(root=root, link=link, describe=describe, **given)


def folders(root: Path) -> list[str]:
    return sorted(each.name for each in root.iterdir()) if root.exists() else []


def saved(root: Path, *steps: int) -> list[dict[str, Any]]:
    """Return what a resume order would name for each step saved under ``root``."""
    link = RecordingLink()
    saver = a_saver(root, link, keep=100)
    for step in steps:
        assert saver.save(FakeEngine(), step, {"loss": 1.0})
    return [{**each, "attempt": int(root.name)} for each in link.commits]


def test_a_commit_names_a_folder_whose_manifest_has_the_told_digest(tmp_path: Path) -> None:
    """Sizes and hashes of all files are in it; nothing half-made is left beside it."""
    (told,) = saved(tmp_path / "1", 7)
    assert folders(tmp_path / "1") == ["step-000000007"]
    raw = (Path(told["path"]) / layout.MANIFEST).read_bytes()
    assert files.digest(Path(told["path"]) / layout.MANIFEST) == told["digest"]
    manifest = layout.decode(raw)
    assert (manifest.step, manifest.position, manifest.size) == (7, 14, told["bytes"])
    for path, file in manifest.files.items():
        assert files.digest(Path(told["path"]) / path) == file.digest


def test_only_the_last_ones_of_the_own_attempt_are_kept(tmp_path: Path) -> None:
    """Another attempt's folder is never touched."""
    saved(tmp_path / "1", 1, 2)
    saver = a_saver(tmp_path / "2", RecordingLink())
    for step in (3, 4, 5):
        saver.save(FakeEngine(), step, {})
    assert folders(tmp_path / "2") == ["step-000000004", "step-000000005"]
    assert folders(tmp_path / "1") == ["step-000000001", "step-000000002"]


def test_a_failed_save_leaves_the_last_good_one_and_training_goes_on(tmp_path: Path) -> None:
    """The third failure in a row ends the run with the class of the storage."""
    link, engine = RecordingLink(), FakeEngine()
    saver = a_saver(tmp_path / "1", link)
    assert saver.save(engine, 1, {})
    engine.broken = OSError("no space left")
    assert not saver.save(engine, 2, {})
    assert not saver.save(engine, 3, {})
    engine.broken = None
    assert saver.save(engine, 4, {}), "a good save forgives"
    engine.broken = OSError("no space left")
    assert not saver.save(engine, 5, {})
    assert not saver.save(engine, 6, {})
    with pytest.raises(StorageFault, match=r"3 saves in a row failed.*no space left"):
        saver.save(engine, 7, {})
    assert folders(tmp_path / "1") == ["step-000000001", "step-000000004"]
    assert [each["step"] for each in link.commits] == [1, 4]


def test_a_save_that_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    """The forecast is compared with the free space first."""
    saver = a_saver(tmp_path / "1", RecordingLink(), forecast_bytes=1 << 60)
    assert not saver.save(FakeEngine(), 1, {})
    assert folders(tmp_path / "1") == []


def test_an_attempt_that_may_not_commit_commits_nothing(tmp_path: Path) -> None:
    """It neither names a folder nor tells one; the store may be away only for now."""
    link = RecordingLink(may=False)
    assert not a_saver(tmp_path / "1", link).save(FakeEngine(), 1, {})
    assert folders(tmp_path / "1") == []
    assert link.commits == []


@pytest.mark.parametrize("refusal", [StorageFault("away"), Fenced("newer")])
def test_a_commit_that_nobody_recorded_is_not_found_later(
    tmp_path: Path, refusal: Exception
) -> None:
    """What the platform does not know of must not be resumed from."""
    link = RecordingLink(refuse=refusal)
    saver = a_saver(tmp_path / "1", link)
    if isinstance(refusal, Fenced):
        with pytest.raises(Fenced):
            saver.save(FakeEngine(), 1, {})
    else:
        assert not saver.save(FakeEngine(), 1, {})
    assert folders(tmp_path / "1") == []


class ThreadGang(Gang):
    """Ranks as threads that share a store, as processes share the process group's."""

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def share(self, value: Any) -> Any:
        key = f"shared/{self.local_rank}"
        self.local_rank += 1  # here: how often this rank was in this collective
        if self.is_leader:
            self.store.set(key, value)
        self.store.wait([key])
        return self.store.get(key).decode()


def save_as_ranks(root: Path, engines: list[FakeEngine], link: RecordingLink) -> list[bool]:
    """Save step 1 with as many ranks as engines; return each rank's answer."""
    import threading

    store = torch.distributed.HashStore()
    answers = [False] * len(engines)

    def rank(number: int) -> None:
        gang = ThreadGang(number, len(engines), 0, None, store)
        answers[number] = a_saver(root, link, gang=gang).save(engines[number], 1, {})

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return answers


def test_one_rank_that_cannot_write_fails_the_save_for_all(tmp_path: Path) -> None:
    """No rank waits for ever, and none believes in a checkpoint that is not there."""
    link, engines = RecordingLink(), [FakeEngine(), FakeEngine(), FakeEngine()]
    engines[1].broken = OSError("no space left")
    assert save_as_ranks(tmp_path / "1", engines, link) == [False, False, False]
    assert folders(tmp_path / "1") == []
    assert link.commits == []
    engines[1].broken = None
    assert save_as_ranks(tmp_path / "1", engines, link) == [True, True, True]
    manifest = layout.decode((Path(link.commits[0]["path"]) / layout.MANIFEST).read_bytes())
    assert {f"rank-0000{n}.pt" for n in range(3)} < set(manifest.files)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))


DAMAGES = {
    "a file is shorter": lambda folder: truncate(folder / "engine/state.pt"),
    "one bit differs": lambda folder: flip(folder / "engine/state.pt"),
    "a file is gone": lambda folder: (folder / "rank-00000.pt").unlink(),
    "the manifest is cut": lambda folder: truncate(folder / layout.MANIFEST),
    "the manifest is another": lambda folder: flip_number(folder / layout.MANIFEST),
    "everything is gone": shutil.rmtree,
}


def flip_number(file: Path) -> None:
    body = json.loads(file.read_text())
    body["position"] += 1
    file.write_text(json.dumps(body))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    """Also to an earlier attempt's, and the reason is told."""
    saved(tmp_path / "1", 10, 20)
    named = saved(tmp_path / "2", 30)[0]
    assert resuming.find(named, tmp_path, ALONE).manifest.step == 30
    DAMAGES[damage](Path(named["path"]))
    found = resuming.find(named, tmp_path, ALONE)
    assert found.manifest.step == 20
    assert len(found.passed_over) == 1


def test_without_any_good_checkpoint_the_run_fails_and_never_starts_from_zero(
    tmp_path: Path,
) -> None:
    """The error lists what was tried."""
    wishes = saved(tmp_path / "1", 10, 20)
    for wish in wishes:
        flip(Path(wish["path"]) / "engine/state.pt")
    with pytest.raises(NoCheckpoint, match=r"step 20 of attempt 1.*content is not what was saved"):
        resuming.find(wishes[-1], tmp_path, ALONE)


def test_a_later_checkpoint_than_the_named_one_is_not_taken(tmp_path: Path) -> None:
    """The order decides how far back: after a spike, newer ones are suspect."""
    wishes = saved(tmp_path / "1", 10, 20, 30)
    shutil.rmtree(wishes[1]["path"])
    assert resuming.find(wishes[1], tmp_path, ALONE).manifest.step == 10


def test_a_checkpoint_of_another_shape_or_of_other_data_is_refused(tmp_path: Path) -> None:
    """What changed is in the message."""
    (wish,) = saved(tmp_path / "1", 10)
    manifest = resuming.find(wish, tmp_path, ALONE).manifest
    resuming.check_fit(manifest, SHAPE, "sha256:d")
    with pytest.raises(ConfigFault, match="world_size=2"):
        resuming.check_fit(manifest, Shape("plain", 2, 2, 1, "fp32"), "sha256:d")
    with pytest.raises(ConfigFault, match="the data changed"):
        resuming.check_fit(manifest, SHAPE, "sha256:e")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "a//b", ""])
def test_a_manifest_cannot_name_files_outside(path: str) -> None:
    """A manifest is input."""
    with pytest.raises(layout.BadManifest):
        layout.records_of({path: {"size": 1, "digest": "sha256:0"}})


def test_all_generators_go_on_where_they_were() -> None:
    """torch's, numpy's and Python's, also through a file."""
    import io
    import random

    import numpy as np

    def draw() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(())), random.gauss(0, 1)

    generators.seed(3, rank=1)
    draw()
    raw = io.BytesIO()
    torch.save(generators.take(), raw)
    expected = [draw() for _ in range(3)]
    generators.seed(99, rank=0)
    raw.seek(0)
    generators.restore(torch.load(raw, weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_ranks_draw_differently_and_each_the_same_every_time() -> None:
    """Dropout differs between ranks, and a run can be repeated."""
    drawn = []
    for rank in (0, 1, 0):
        generators.seed(5, rank)
        drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_forecast_covers_master_and_moments() -> None:
    """Four fp32 numbers for each parameter that learns."""

    class Engine:
        module = torch.nn.Linear(100, 100)

    assert saving.forecast(Engine(), ALONE) >= 16 * 10_100  # type: ignore[arg-type]
