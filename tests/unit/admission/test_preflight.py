"""Preflight: paths against mounts, data by file and line, models by their parts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lineshaft.contracts import job
from services.admission import data_checks
from services.admission.findings import Problem, Seen
from services.admission.mounts import Mounts
from services.admission.observing import is_reference, look
from tests.builders_admission import TINY, a_document, a_script, write_model, write_pairs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_pairs(folder / "pairs.jsonl")
    return folder


def seen(root: Path, document: dict[str, Any]) -> Seen:
    return look(job.parse(document), Mounts([root]))


def messages(found: Seen, severity: str = "reason") -> list[str]:
    return [
        f"{row['path']}: {row['message']} | {row['hint']}"
        for row in found.findings
        if row["severity"] == severity
    ]


def a_tuning(root: Path, **spec: Any) -> dict[str, Any]:
    given = {"datasets": [{"name": "d", "path": str(root / "pairs.jsonl")}], **spec}
    return a_document(**given)


def test_what_is_fine_has_no_findings_and_is_measured(root: Path) -> None:
    """Paths are absolute, size and digest are those that training computes."""
    found = seen(root, a_tuning(root))
    assert found.findings == []
    file = root / "pairs.jsonl"
    assert found.paths["spec.datasets[0].path"] == str(file)
    assert found.datasets["0"] == {
        "bytes": file.stat().st_size,
        "files": 1,
        "digest": data_checks.digest_of([file], file),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/etc/passwd", "outside the mounts"),
        ("{root}/../secret", "outside the mounts"),
        ("{root}/leads-out", "it leads to"),
        ("{root}/Pairs.jsonl", "did you mean {root}/pairs.jsonl?"),
        ("{root}/pairs.jsnl", "did you mean {root}/pairs.jsonl?"),
        ("{root}/nothing/like/it", "does not exist"),
        ("{root}/dangling", "does not exist"),
        ("{root}/loop", ""),
    ],
)
def test_a_path_is_inside_a_mount_after_resolving_links(root: Path, given: str, said: str) -> None:
    """Outside, missing and misspelt paths are told apart, with the real spelling."""
    (root / "leads-out").symlink_to("/etc")
    (root / "dangling").symlink_to(root / "gone")
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(Problem) as caught:
        Mounts([root]).find(given.format(root=root))
    words = f"{caught.value.message} {caught.value.hint}"
    assert said.format(root=root) in words


def test_relative_paths_are_looked_for_below_each_mount(tmp_path: Path, root: Path) -> None:
    """The first mount that has it counts."""
    other = tmp_path / "other"
    other.mkdir()
    assert Mounts([other, root]).find("pairs.jsonl") == root / "pairs.jsonl"
    with pytest.raises(Problem, match="does not exist"):
        Mounts([other]).find("pairs.jsonl")
    with pytest.raises(Problem, match="outside"):
        Mounts([other]).find("../data/pairs.jsonl")


def test_a_mount_may_itself_be_a_link(tmp_path: Path, root: Path) -> None:
    """Both sides are compared without links."""
    (tmp_path / "link").symlink_to(root)
    assert Mounts([tmp_path / "link"]).find(str(tmp_path / "link" / "pairs.jsonl")).is_file()
    assert Mounts([tmp_path / "link"]).find(str(root / "pairs.jsonl")).is_file()


def test_without_mounts_nothing_may_be_used() -> None:
    """And the message says where to name one."""
    with pytest.raises(Problem) as caught:
        Mounts([]).find("/data")
    assert "lineshaft.toml" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"prompt": "a", "response": "b"}\n{"prompt": \n', "pairs.jsonl:2: not JSON"),
        ("[1]\n", "pairs.jsonl:1: expected an object, found list"),
        ('\n{"prompt": "a"}\n', "pairs.jsonl:2: has the keys prompt; understood are"),
        ('{"prompt": 1, "response": 2}\n', "understood are texts under"),
        ('{"messages": []}\n', "understood are texts under"),
        ("\n\n  \n", "holds only empty lines"),
        ("", "is empty"),
    ],
)
def test_bad_lines_are_named_by_file_and_line(root: Path, lines: str, said: str) -> None:
    """What training would stumble over after an hour in the queue is said now."""
    (root / "pairs.jsonl").write_text(lines)
    assert any(said in message for message in messages(seen(root, a_tuning(root))))


def test_bad_lines_are_found_deep_inside_by_sampling(root: Path) -> None:
    """Every 97th line behind the first two hundred is read."""
    file = write_pairs(root / "pairs.jsonl", 1_000)
    rows = file.read_text().splitlines()
    rows[97 * 5 - 1] = "broken"
    file.write_text("\n".join(rows))
    assert any("pairs.jsonl:485" in message for message in messages(seen(root, a_tuning(root))))


def test_mixed_forms_are_warned_of(root: Path) -> None:
    """They train, but rarely on purpose."""
    with (root / "pairs.jsonl").open("a") as stream:
        stream.write('{"question": "a", "answer": "b"}\n')
    found = seen(root, a_tuning(root))
    assert messages(found) == []
    assert "{question, answer} at pairs.jsonl:11" in messages(found, "warning")[0]


def test_a_folder_of_the_wrong_files_says_what_is_there(root: Path) -> None:
    """Instead of an empty dataset."""
    (root / "csv").mkdir()
    (root / "csv" / "a.csv").write_text("1")
    document = a_tuning(root, datasets=[{"name": "d", "path": str(root / "csv")}])
    assert "there are: 1 x .csv" in messages(seen(root, document))[0]


def test_a_file_that_leads_out_of_its_folder_is_found(root: Path, tmp_path: Path) -> None:
    """A link inside a dataset's folder is no way around the mounts."""
    write_pairs(tmp_path / "outside.jsonl")
    (root / "more").mkdir()
    (root / "more" / "a.jsonl").symlink_to(tmp_path / "outside.jsonl")
    document = a_tuning(root, datasets=[{"name": "d", "path": str(root / "more")}])
    assert "leads outside the mounts" in messages(seen(root, document))[0]


def test_the_output_is_proved_writable(root: Path) -> None:
    """By a small write below its nearest existing parent, which leaves nothing behind."""
    good = a_tuning(root, output={"modelSavePath": str(root / "models" / "new" / "m")})
    assert seen(root, good).findings == []
    assert sorted(p.name for p in root.iterdir()) == ["pairs.jsonl"]
    bad = a_tuning(root, output={"modelSavePath": str(root / "pairs.jsonl"), "modelName": "m"})
    assert "is a file, not a folder" in messages(seen(root, bad))[0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: None, None),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "is empty"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": "part-1.safetensors", "b": "model.safetensors"}})
            ),
            "1 of 2 weight files are missing: part-1.safetensors",
        ),
    ],
)
def test_a_model_folder_is_whole(root: Path, spoil: Any, said: str | None) -> None:
    """Configuration, every shard that the index names, and a tokenizer."""
    folder = write_model(root / "model")
    spoil(folder)
    found = messages(seen(root, a_tuning(root, model=str(folder))))
    assert (said is None) == (found == [])
    assert said is None or said in found[0]


def test_pickled_weights_are_not_taken_for_weights(root: Path) -> None:
    """They run code when loaded; the hint says to convert them."""
    folder = write_model(root / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled" in messages(seen(root, a_tuning(root, model=str(folder))))[0]


def test_pretraining_takes_its_configuration_from_a_file_or_folder(root: Path) -> None:
    """What it holds is observed, so that later changes do not matter."""
    (root / "corpus.jsonl").write_text('{"text": "words"}\n')
    (root / "config.json").write_text(json.dumps(TINY))
    (root / "tokenizer.json").write_text("{}")
    spec = {
        "jobType": "pretrain",
        "datasets": [{"name": "c", "path": "corpus.jsonl"}],
        "tokenizer": "tokenizer.json",
    }
    for model in (str(root / "config.json"), str(root)):
        found = seen(root, a_document(**spec, model=model))
        assert found.findings == []
        assert found.model is not None
        assert (found.model["kind"], found.model["config"]) == ("config", TINY)
    (root / "config.json").write_text("{}")
    assert "model_type" in messages(seen(root, a_document(**spec, model=str(root))))[0]


def test_a_suite_and_the_data_of_its_tasks_are_there(root: Path) -> None:
    """A suite that cannot be read fails now, not after training."""
    suite = root / "suite.json"
    suite.write_text(json.dumps({"schema": 1, "tasks": [{"name": "t", "data": "pairs.jsonl"}]}))
    document = a_tuning(root, evaluation={"suites": [str(suite)]})
    assert seen(root, document).findings == []
    suite.write_text(json.dumps({"schema": 1, "tasks": [{"name": "t", "data": "gone.jsonl"}]}))
    assert "missing or empty" in messages(seen(root, document))[0]
    suite.write_text("{}")
    assert "is no suite" in messages(seen(root, document))[0]


def test_what_a_file_names_stays_inside_the_mounts_too(root: Path) -> None:
    """A suite's data, a model's parts: neither by dots nor by links."""
    suite = root / "suite.json"
    outside = write_pairs(root.parent / "outside.jsonl")
    suite.write_text(json.dumps({"schema": 1, "tasks": [{"data": "../outside.jsonl"}]}))
    document = a_tuning(root, evaluation={"suites": [str(suite)]})
    assert "leads outside" in messages(seen(root, document))[0]
    folder = write_model(root / "model")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(outside)
    assert "leads outside" in messages(seen(root, a_tuning(root, model=str(folder))))[0]


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    """Opening one would hold a thread for ever."""
    os.mkfifo(root / "pipe.jsonl")
    for path in (root / "pipe.jsonl", root):
        document = a_tuning(root, datasets=[{"name": "d", "path": str(path)}])
        assert messages(seen(root, document))


def test_a_script_lies_in_a_mount_and_its_program_exists(root: Path) -> None:
    """Relative to workingDir, else below the mounts; programs may lie anywhere."""
    (root / "train.py").write_text("print()")
    found = seen(root, a_script())
    assert found.findings == []
    assert found.paths["spec.command[1]"] == str(root / "train.py")
    assert seen(root, a_script(workingDir=str(root))).findings == []
    assert seen(root, a_script(command=["python", "-c", "print()"])).findings == []
    assert "does not exist" in messages(seen(root, a_script(command=["python", "gone.py"])))[0]
    assert "no-such" in messages(seen(root, a_script(command=["no-such", "train.py"])))[0]


@pytest.mark.parametrize(
    ("model", "is_ref"),
    [("a@latest", True), ("a:1.0.0", True), ("a", True), ("/m/a", False), ("./a", False)],
)
def test_references_and_paths_are_told_apart_by_spelling(model: str, is_ref: bool) -> None:
    """A path has a slash; a reference never has."""
    assert is_reference(model) is is_ref
