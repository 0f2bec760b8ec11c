"""Several files, --set, and declared variables make one document."""

from typing import Any

import pytest

from lineshaft.contracts import job
from lineshaft.contracts.job_sources import compose
from lineshaft.contracts.jobfile import JobFileError
from tests.builders_admission import a_document

FIRST = """\
apiVersion: lineshaft.io/v1
kind: TrainingJob
metadata: {name: tune}
variables: {DATA: pairs, STEPS: 10, TAG: null}
spec:
  jobType: full-finetune
  model: tiny@latest
  datasets:
    - {name: pairs, path: "/data/${DATA}.jsonl"}
  resources: {gpuType: cpu, gpuCount: 2}
  hyperparameters: {maxSteps: "${STEPS}", learningRate: 1e-5}
  output: {modelName: tiny-chat}
"""


def made(*more: str, sets: Any = (), variables: Any = ()) -> dict[str, Any]:
    files = [(f"{n}.yaml", text) for n, text in enumerate((FIRST, *more))]
    return job.parse(*compose(files, sets, variables)).spec


def faults(*more: str, sets: Any = (), variables: Any = ()) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        made(*more, sets=sets, variables=variables)
    return [fault.text("f") for fault in caught.value.faults]


def test_declared_variables_are_filled_in() -> None:
    """Inside a text as text, alone as the value that was declared."""
    spec = made()
    assert spec["datasets"][0]["path"] == "/data/pairs.jsonl"
    assert spec["hyperparameters"]["maxSteps"] == 10


def test_a_given_variable_wins_over_the_declared_value() -> None:
    """And may itself declare one."""
    spec = made(
        "spec: {labels: {tag: '${TAG}', who: '${WHO}'}}",
        variables=["DATA=more", "TAG=a b", "WHO=ann"],
    )
    assert spec["datasets"][0]["path"] == "/data/more.jsonl"
    assert spec["labels"] == {"tag": "a b", "who": "ann"}


def test_nothing_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is not declared is a fault, also when the shell has it."""
    monkeypatch.setenv("HOME", "/root")
    found = faults("spec: {tokenizer: '${HOME}/t'}")
    assert found == [
        "f: spec.tokenizer: the variable 'HOME' is not declared; write $${HOME} for the text itself"
    ]


def test_a_fault_names_the_line_the_nearest_name_and_the_way_out() -> None:
    """A misspelt variable, one without value."""
    text = FIRST.replace("${STEPS}", "${STEP}").replace("tiny@latest", "${TAG}")
    with pytest.raises(JobFileError) as caught:
        job.read(text)
    found = [fault.text("f") for fault in caught.value.faults]
    assert "f:7:3: spec.model: the variable 'TAG' has no value; give one: --var TAG=..." in found
    assert (
        "f:11:21: spec.hyperparameters.maxSteps: the variable 'STEP' is not declared; "
        "did you mean 'STEPS'?; write $${STEP} for the text itself"
    ) in found


def test_a_doubled_dollar_is_the_text_itself() -> None:
    """A shell's own variables stay the shell's."""
    document = a_document(
        jobType="script", model=None, datasets=None, output=None,
        command=["bash", "-c", "echo $${HOME} $HOME $(pwd)"],
    )  # fmt: skip
    assert job.parse(document).spec["command"][2] == "echo ${HOME} $HOME $(pwd)"


def test_a_later_file_lies_over_the_first() -> None:
    """Mappings are merged, lists replaced, null takes away."""
    spec = made(
        "spec: {hyperparameters: {learningRate: 3e-4}, datasets: [{name: x, path: /data/x}]}",
        "spec: {hyperparameters: {maxSteps: null}}",
    )
    assert spec["hyperparameters"]["learningRate"] == 3e-4
    assert spec["hyperparameters"]["maxSteps"] is None
    assert [row["name"] for row in spec["datasets"]] == ["x"]


def test_single_values_are_set_by_path() -> None:
    """With or without ``spec.``, into lists too, in YAML's own spelling."""
    spec = made(
        sets=[
            "hyperparameters.learningRate=1e-3",
            "spec.datasets[0].version=v2",
            "datasets[1]={name: more, path: /data/more}",
            "metadata.name=other",
            'args=["a=b", "c"]'.replace("args", "labels.x").replace('["a=b", "c"]', "'a=b'"),
            "checkpoint.keepLast=5",
        ]
    )
    assert spec["hyperparameters"]["learningRate"] == 1e-3
    assert [row["version"] for row in spec["datasets"]] == ["v2", None]
    assert (spec["name"], spec["labels"]) == ("other", {"x": "a=b"})
    assert spec["checkpoint"]["keepLast"] == 5


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("learningRate", "must be path=value"),
        ("=1", "must be path=value"),
        ("a..b=1", "must be path=value"),
        ("a b=1", "must be path=value"),
        ("spec.=1", "must be path=value"),
        ("datasets[5].name=x", "there are 1 items, so [5] is no place"),
        ("model.x=1", "'x' is below a value that is no mapping"),
        ("model=&a x", "anchors and aliases are not read"),
        ("model=[", "not YAML"),
        ("model=a\nspec: b", "one value, on one line"),
        ("hyperparameters.learningRte=1", "did you mean 'learningRate'?"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, said: str) -> None:
    """In words, never by a stack trace."""
    assert said in faults(sets=[setting])[0]


@pytest.mark.parametrize("given", ["X", "=1", "1X=2", "a-b=1"])
def test_a_variable_is_given_by_name_and_value(given: str) -> None:
    """Anything else is refused."""
    assert "must be NAME=value" in faults(variables=[given])[0]


@pytest.mark.parametrize("declared", ["[1]", "{1x: 2}", "{A: [1]}", "x"])
def test_declared_variables_are_names_with_single_values(declared: str) -> None:
    """A list, a number as a name: faults at their place."""
    assert any(line.startswith("f: variables") for line in faults(f"variables: {declared}"))
