"""`schema`, `explain-field`, `init`, completion: what a user has before there is a platform."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lineshaft.cli import field_help, job_draft, job_files
from lineshaft.cli.main import app
from lineshaft.contracts import job, job_page
from lineshaft.contracts.job_faults import FaultList
from lineshaft.contracts.job_types import Place

HONOURED = [path for path, field in job_page.fields().items() if not field.later]
REFUSED = [path for path, field in job_page.fields().items() if field.later]


def run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), input=stdin)
    return done.exit_code, done.output


def test_the_schema_is_the_contract(tmp_path: Path) -> None:
    """On the screen and in a file."""
    assert json.loads(run("schema")[1]) == job.json_schema()
    file = tmp_path / "s.json"
    code, text = run("schema", "--out", str(file))
    assert code == 0
    assert f"$schema={file}" in text
    assert json.loads(file.read_text()) == job.json_schema()


@pytest.mark.parametrize("path", HONOURED)
def test_every_field_has_an_example_that_it_accepts(path: str) -> None:
    """What is shown can be copied."""
    faults = FaultList()
    field = job_page.fields()[path]
    field.type.read(field_help.example_of(path, field), Place((), faults))
    assert not faults.sorted(), faults.sorted()
    assert field_help.explain(path).example


@pytest.mark.parametrize("path", REFUSED)
def test_a_refused_field_says_so(path: str) -> None:
    """Nobody takes a field for honoured because it is explained."""
    code, text = run("explain-field", path)
    assert code == 0
    assert "not honoured" in text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("spec.hyperparameters.learningRate", "spec.hyperparameters.learningRate"),
        ("learningRate", "spec.hyperparameters.learningRate"),
        ("LEARNINGRATE", "spec.hyperparameters.learningRate"),
        ("hyperparameters.seed", "spec.hyperparameters.seed"),
        ("spec.datasets[0].path", "spec.datasets[].path"),
        ("datasets.0.format", "spec.datasets[].format"),
        ("resources", "spec.resources"),
    ],
)
def test_fields_are_found_as_people_spell_them(text: str, path: str) -> None:
    """Whole paths, ends of paths, with and without an index."""
    assert field_help.explain(text).path == path


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("learning_rat", "spec.hyperparameters.learningRate"),
        ("spec.dataset", "spec.datasets"),
        ("everySteps", "spec.evaluation.everySteps"),
    ],
)
def test_an_unknown_or_unclear_field_names_the_nearest(text: str, near: str) -> None:
    """Exit code 2, and the paths that were probably meant."""
    code, output = run("explain-field", text)
    assert code == 2
    assert near in output


def test_explained_for_programs() -> None:
    """The JSON form says the same."""
    told = json.loads(run("explain-field", "spec.jobType", "-o", "json")[1])
    assert told["default"] == "required"
    assert "qlora" in told["refused_values"]
    assert "pretrain" in told["type"]


DRAFTS = {
    "full-finetune": ["--model", "base@latest", "--data", "my data/qa #1.jsonl"],
    "lora": ["--model", "base:1.0.0", "--data", "qa.txt", "--gpus", "2"],
    "pretrain": ["--model", "config.json", "--data", "corpus", "--tokenizer", "tok"],
    "script": ["--command", "python train.py --name 'a b' --rate 1e-5"],
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_is_a_valid_job(kind: str, tmp_path: Path) -> None:
    """What `init --yes` writes passes `validate`, with odd texts kept as they are."""
    file = tmp_path / "job.yaml"
    code, text = run("init", str(file), "--yes", "--type", kind, "--name", "1e-5", *DRAFTS[kind])
    assert code == 0, text
    made = job.read(file.read_text())
    assert (made.job_type, made.name) == (kind, "1e-5")
    if kind == "full-finetune":
        assert made.spec["datasets"][0]["path"] == "my data/qa #1.jsonl"
    if kind == "script":
        assert made.spec["command"] == [
            "python",
            "train.py",
            "--name",
            "a b",
            "--rate",
            "1e-5",
        ]


def test_asked_again_until_the_answer_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer says what is meant; what was given as an option is not asked."""
    monkeypatch.setattr(job_files, "_is_terminal", lambda: True)
    file = tmp_path / "job.yaml"
    stdin = "fine\nscript\nMy Job\nmy-job\npython a.py\ncpu\nmany\n2\n\n"
    code, text = run("init", str(file), stdin=stdin)
    assert code == 0, text
    assert "one of full-finetune" in text
    assert "my-job would do" in text
    made = job.read(file.read_text())
    assert (made.name, made.ranks, made.spec["command"]) == ("my-job", 2, ["python", "a.py"])


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    """A script that forgot `--yes` ends at once."""
    code, text = run("init", str(tmp_path / "job.yaml"))
    assert code == 2
    assert "--yes" in text


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """The options are named, and nothing is written."""
    file = tmp_path / "job.yaml"
    code, text = run("init", str(file), "--yes")
    assert code == 2
    assert "--model, --data" in text
    assert not file.exists()


def test_a_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    """Work is not lost by a second `init`."""
    file = tmp_path / "job.yaml"
    file.write_text("mine")
    arguments = ["init", str(file), "--yes", "--type", "script"]
    assert run(*arguments)[0] == 2
    assert file.read_text() == "mine"
    assert run(*arguments, "--force")[0] == 0
    assert file.read_text() != "mine"
    assert run("init", str(tmp_path / "no" / "job.yaml"), "--yes", "--type", "script")[0] == 2


def test_every_question_is_an_answer() -> None:
    """Questions and answers are the same list, in the same order."""
    assert list(job_draft.QUESTIONS) == list(job_draft.Answers.__dataclass_fields__)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_three_shells(shell: str) -> None:
    """Each shell gets a script, and the script's call completes a command."""
    command = [sys.executable, "-c", "from lineshaft.cli.main import run; run()"]
    made = subprocess.run(
        command,
        env={**os.environ, "_LINESHAFT_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "_LINESHAFT_COMPLETE" in made.stdout, made.stderr
    assert f"complete_{shell}" in made.stdout


def test_help_names_the_completion_options() -> None:
    """`--install-completion` and `--show-completion` are there."""
    text = run("--help")[1]
    assert "--install-completion" in text
    assert "--show-completion" in text


def test_the_program_itself() -> None:
    """Its version, and the options that set up completion; both without a platform."""
    code, text = run("--version")
    assert code == 0
    assert text.startswith("lineshaft ")
    shown = run("--help")[1]
    assert "--install-completion" in shown
    assert "--show-completion" in shown
