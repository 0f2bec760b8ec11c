"""validate, plan and submit put a job together from files, settings and variables."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lineshaft.cli import options, submit
from lineshaft.cli.main import app
from tests.builders_admission import a_document


def test_validate_takes_more_files_settings_and_variables(tmp_path: Path) -> None:
    """The canonical job shows what came of them."""
    first, more = tmp_path / "job.yaml", tmp_path / "more.yaml"
    first.write_text(yaml.safe_dump(a_document(tokenizer="/data/${WHICH}")))
    more.write_text("spec: {hyperparameters: {maxSteps: 7}}")
    words = ["validate", str(first), "-f", str(more), "--set", "checkpoint.keepLast=4"]
    ran = CliRunner().invoke(app, [*words, "--var", "WHICH=tok", "-o", "json"])
    assert ran.exit_code == 0, ran.output
    made = json.loads(ran.stdout)["job"]
    assert made["tokenizer"] == "/data/tok"
    assert made["hyperparameters"]["maxSteps"] == 7
    assert made["checkpoint"]["keepLast"] == 4
    ran = CliRunner().invoke(app, [*words, "--set", "nonsense"])
    assert ran.exit_code != 0
    assert "--set nonsense: must be path=value" in ran.output


def test_a_single_file_is_sent_as_it_stands(tmp_path: Path) -> None:
    """So that the platform's reasons have its lines; what was put together is sent as JSON."""
    file = tmp_path / "job.yaml"
    file.write_text("a: 1  # mine\n")
    assert options.read_job(file, None, None, None) == "a: 1  # mine\n"
    assert json.loads(options.read_job(file, [file], ["b=2"], ["C=3"])) == {
        "a": 1,
        "spec": {"b": 2},
        "variables": {"C": "3"},
    }


def test_a_plan_shows_the_table_by_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not known is a dash."""
    unknown = dict.fromkeys(("compute_s", "communication_s", "efficiency", "hours", "cost"))
    row = {"nodes": 2, "ranks": 16, "memory_bytes": 40 << 30, **unknown, "fits": False}
    known = {"compute_s": 4.0, "communication_s": 1.0, "efficiency": 0.8, "hours": 2.5, "cost": 80}
    submit._print_plan("job.yaml", {"estimate": {"by_nodes": [row, {**row, **known}]}})
    shown = capsys.readouterr().out
    assert "80%" in shown
    assert "no" in shown
