"""Checks as data: what they find in a user's script, and how an operator adds one."""

from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts import job
from lineshaft.runtime.settings import SettingsError
from services.admission import checking, disks
from services.admission.app import build
from services.admission.checking import CheckError
from services.admission.domain import judging, reading
from services.admission.domain.policy import GIB, AdmissionPolicy
from services.admission.findings import Seen
from services.admission.mounts import Mounts
from services.admission.observing import look
from tests.builders_admission import TINY, a_document, a_script
from tests.builders_runtime import some_settings

OURS = checking.load([checking.OURS])
BAD = """\
import os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader
os.environ["MASTER_ADDR"] = "10.0.0.1"
os.environ.setdefault("RANK", "0")
dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500", rank=0, world_size=2)
torch.cuda.set_device(0)
model = torch.nn.Linear(1, 1).to("cuda:0")
for row in DataLoader([1, 2], batch_size=1, num_workers=0):
    model(row).backward()
for row in DataLoader([1, 2]):
    pass
"""
GOOD = """\
import os, torch, lineshaft
from torch.utils.data import DataLoader, DistributedSampler
rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
data = [1, 2]
model = torch.nn.Linear(1, 1)
model.load_state_dict(torch.load("last.pt"))
for row in DataLoader(data, sampler=DistributedSampler(data), num_workers=2):
    model(row).backward()
loader = DataLoader(data, **{"num_workers": 2})
"""


def warnings(folder: Path, code: str, checks: Any = OURS, **spec: Any) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    asked = job.parse(a_script(**spec))
    seen = look(asked, Mounts([folder]))
    checking.look(seen, asked.spec, checks)
    return [f"{row['severity']} {row['path']}: {row['message']}" for row in seen.findings]


def test_every_usual_mistake_of_a_script_is_named_with_its_lines(tmp_path: Path) -> None:
    """Address, rank, device, sampler, workers, resume: each once, in the order of the files."""
    found = warnings(tmp_path / "d", BAD)
    starts = [
        "train.py:4, train.py:6: the address of the process group",
        "train.py:5, train.py:6: rank or world size",
        "train.py:7, train.py:8: every rank would use device 0",
        "train.py:9, train.py:11: no sampler knows the rank",
        "train.py:9, train.py:11: the data loader has no workers",
        "train.py:10: nothing is loaded at the start",
    ]
    assert len(found) == len(starts)
    for line, start in zip(found, starts, strict=True):
        assert line.startswith(f"warning spec.command[1]: {start}"), line


def test_a_script_that_does_it_right_has_no_warnings(tmp_path: Path) -> None:
    """Nothing cries wolf over the environment, a sampler, or options given as a mapping."""
    assert warnings(tmp_path / "d", GOOD) == []


def test_one_device_needs_no_sampler_and_may_be_device_0(tmp_path: Path) -> None:
    """``when`` looks at the job."""
    resources = {"gpuType": "cpu", "gpuCount": 1}
    found = warnings(tmp_path / "d", BAD, resources=resources)
    assert not any("[first-device-only]" in line or "[sampler-without" in line for line in found)
    assert len(found) == 4


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    """What the script imports from its own folder is the same program, and named by its file."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "loading.py").write_text(GOOD.replace("num_workers=2)", "num_workers=0)"))
    found = warnings(folder, "import loading\nimport json\nimport train\n")
    assert len(found) == 1
    assert "loading.py:9: the data loader has no workers" in found[0]


@pytest.mark.parametrize("code", ["def (", "\0", "x = " + "(" * 500 + ")" * 500, "\xff"])
def test_a_file_that_does_not_parse_is_no_fault_of_ours(tmp_path: Path, code: str) -> None:
    """Nothing is run, nothing is said: Python itself says it better."""
    assert warnings(tmp_path / "d", code) == []


def test_an_operator_adds_a_check_without_code(tmp_path: Path) -> None:
    """A file in a folder that the settings name; ``reason`` keeps the job out, with a hint."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").write_text(
        "id: no-eval\ntest: {python: [{call: eval}]}\nmessage: eval is not allowed\n"
        "hint: use ast.literal_eval\nseverity: reason\n"
    )
    (tmp_path / "mine" / "b.yaml").write_text(
        "id: small-jobs\nwhen: {team: {isSet: false}}\n"
        "test: {job: {resources.gpuCount: {above: 1}}}\nmessage: name a team\nseverity: warning\n"
    )
    checks = checking.load([checking.OURS, tmp_path / "mine"])
    assert [check.id for check in checks][-2:] == ["no-eval", "small-jobs"]
    found = warnings(tmp_path / "d", "eval('1')\n", checks)
    assert found == [
        "reason spec.command[1]: train.py:1: eval is not allowed [no-eval]",
        "warning spec.resources.gpuCount: name a team [small-jobs]",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "while parsing"),
        ("- 1", "must be a mapping"),
        ("id: a\nmessage: m\nseverity: loud\ntest: {job: {a: 1}}", "'severity' must be one of"),
        ("id: a\nmessage: m\nseverity: warning", "'test' must be a mapping"),
        ("id: a\nmessage: m\nseverity: warning\ntest: {shell: rm}", "'test' has no 'shell'"),
        ("id: a\nmessage: m\nseverity: warning\ntest: {python: [{cal: x}]}", "no 'cal'"),
        ("id: a\nmessage: m\nseverity: warning\ntest: {job: {a: {over: 1}}}", "no 'over'"),
        (
            "id: a\nmessage: m\nseverity: warning\ntest: {python: [{call: x, where: {y: '('}}]}",
            "unterminated",
        ),
        (
            "id: hard-coded-rank\nmessage: m\nseverity: warning\ntest: {job: {a: 1}}",
            "occurs twice",
        ),
    ],
)
def test_a_check_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str, said: str) -> None:
    """With file and fault, as any wrong setting."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "wrong.yaml").write_text(text)
    with pytest.raises(CheckError, match="wrong") as caught:
        checking.load([checking.OURS, tmp_path / "checks"])
    assert said in str(caught.value)


def test_the_settings_name_the_folder(tmp_path: Path) -> None:
    """A folder that is not there is a fault of the settings."""
    policies = {"admission": {"checks": str(tmp_path / "gone")}}
    settings = some_settings(tmp_path).with_values("given", policies=policies)
    with pytest.raises(SettingsError, match="gone is no folder of checks"):
        build(settings)


def test_the_checks_are_explained_to_users() -> None:
    """Every id is explained where users look."""
    page = Path(__file__).parents[3] / "docs" / "how-to" / "preflight-checks.md"
    text = page.read_text(encoding="utf-8")
    for check in OURS:
        assert f"`{check.id}`" in text
        assert check.message.partition(";")[0] in text


# Disks


def test_a_disk_is_measured_by_a_small_write_that_leaves_nothing(tmp_path: Path) -> None:
    """Free bytes and speed, of the nearest folder that exists."""
    found = disks.measure(tmp_path / "not" / "yet")
    assert found is not None
    assert found["path"] == str(tmp_path)
    assert found["free_bytes"] > 0
    assert found["bytes_per_s"] > 0
    assert list(tmp_path.iterdir()) == []
    seen = Seen(paths={"spec.output.modelSavePath": str(tmp_path)})
    disks.look(seen, tmp_path / "checkpoints")
    assert set(seen.disks) == {"checkpoints", "output"}


def test_checkpoints_that_will_not_fit_are_forecast() -> None:
    """Together with the model where both lie on one disk; a plan says no, with both numbers."""
    config = {**TINY, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8}
    read = reading.read(a_document(checkpoint={"keepLast": 3}))
    disk = {"path": "/small", "device": 7, "free_bytes": 2 * GIB, "bytes_per_s": 100_000_000}
    observed: dict[str, Any] = {
        "model": {"kind": "config", "config": config},
        "disks": {"checkpoints": disk, "output": disk},
    }
    verdict = judging.judge(read, observed, AdmissionPolicy())
    assert any("checkpoints and output need about" in line for line in verdict.warnings)
    assert any(reason["code"] == "disk" for reason in judging.all_reasons(verdict))
    assert not verdict.reasons
    assert verdict.estimate["checkpoint_write_s"] > 50
    roomy = {name: {**disk, "free_bytes": 900 * GIB} for name in ("checkpoints", "output")}
    verdict = judging.judge(read, {**observed, "disks": roomy}, AdmissionPolicy())
    assert not any("free" in line for line in verdict.warnings)
