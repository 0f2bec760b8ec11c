"""The job behind the file: fields, defaults, faults all at once, rules between fields."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from lineshaft.contracts import job, job_page, limits
from lineshaft.contracts.job import JobFileError
from lineshaft.contracts.job_fields import refused_words
from tests.builders_admission import FOUNDING, a_document, a_script, with_value


def faults(document: Any) -> dict[str, str]:
    with pytest.raises(JobFileError) as caught:
        job.parse(document)
    return {fault.path: fault.message for fault in caught.value.faults}


def canonical(document: Any) -> dict[str, Any]:
    return job.parse(document).canonical()


def words(text: str) -> list[str]:
    return text.split()


# Every field that the design and users of other systems name, with what becomes of it.
HONOURED = words("""
apiVersion kind metadata metadata.name metadata.labels spec
spec.jobType spec.team spec.priority spec.labels spec.model spec.tokenizer spec.trustRemoteCode
spec.datasets spec.datasets[].name spec.datasets[].path spec.datasets[].format
spec.datasets[].version spec.datasets[].readOnly
spec.resources spec.resources.gpuType spec.resources.gpuCount spec.resources.nodeCount
spec.resources.processesPerNode spec.resources.minNodes spec.resources.maxNodes
spec.hyperparameters spec.hyperparameters.epochs spec.hyperparameters.maxSteps
spec.hyperparameters.batchSize spec.hyperparameters.gradientAccumulation
spec.hyperparameters.globalBatchSize spec.hyperparameters.sequenceLength
spec.hyperparameters.learningRate spec.hyperparameters.minLearningRate
spec.hyperparameters.lrScheduler spec.hyperparameters.warmupSteps
spec.hyperparameters.warmupRatio spec.hyperparameters.optimizer spec.hyperparameters.weightDecay
spec.hyperparameters.adamBeta1 spec.hyperparameters.adamBeta2 spec.hyperparameters.adamEpsilon
spec.hyperparameters.maxGradNorm spec.hyperparameters.precision
spec.hyperparameters.gradientCheckpointing spec.hyperparameters.seed
spec.hyperparameters.distributedStrategy spec.hyperparameters.deepspeedConfig
spec.hyperparameters.lora spec.hyperparameters.lora.rank spec.hyperparameters.lora.alpha
spec.hyperparameters.lora.dropout spec.hyperparameters.lora.targets
spec.checkpoint spec.checkpoint.everySteps spec.checkpoint.everyMinutes spec.checkpoint.keepLast
spec.evaluation spec.evaluation.suites spec.evaluation.everySteps
spec.retry spec.retry.limits spec.retry.limits.node spec.retry.limits.platform
spec.retry.limits.user spec.retry.limits.preemption
spec.output spec.output.modelSavePath spec.output.modelName
spec.command spec.args spec.workingDir spec.env spec.launcher spec.gracePeriod spec.resume
spec.preemptible spec.determinism spec.startTimeout spec.schedule spec.schedule.maxRunTime
variables
""")
REFUSED = words("""
metadata.annotations metadata.namespace
spec.code spec.code.repository spec.code.ref spec.code.subPath spec.code.uploadPath spec.image
spec.framework spec.framework.name spec.framework.version spec.framework.args
spec.datasets[].split spec.datasets[].template spec.datasets[].columns spec.datasets[].trainOn
spec.datasets[].weight spec.datasets[].maxSamples
spec.resources.cpu spec.resources.memory spec.resources.shm spec.resources.topology
spec.resources.gpuTypes spec.resources.gpuFraction spec.resources.migProfile
spec.resources.nodeSelector spec.resources.tolerations spec.resources.excludeNodes
spec.resources.exclusive spec.resources.rdma spec.resources.hostNetwork
spec.hyperparameters.attentionImplementation spec.hyperparameters.packing
spec.hyperparameters.saveDtype spec.hyperparameters.torchCompile
spec.hyperparameters.quantization spec.hyperparameters.quantization.type
spec.hyperparameters.quantization.doubleQuant spec.hyperparameters.quantization.computeDtype
spec.hyperparameters.lora.modulesToSave spec.hyperparameters.lora.useRslora
spec.hyperparameters.freeze spec.hyperparameters.mergeTarget spec.hyperparameters.parallelism
spec.hyperparameters.parallelism.tensor spec.hyperparameters.parallelism.pipeline
spec.hyperparameters.parallelism.context spec.hyperparameters.parallelism.expert
spec.dataLoader spec.dataLoader.workers spec.dataLoader.prefetch
spec.checkpoint.keepBest spec.checkpoint.quota spec.checkpoint.asyncSave
spec.checkpoint.verifyReload spec.evaluation.earlyStopping spec.evaluation.gate
spec.evaluation.metric spec.evaluation.mode
spec.schedule.windows spec.schedule.deadline
spec.secrets spec.notify spec.imagePullSecret spec.dependsOn spec.setup
spec.idleTimeout spec.serviceAccount spec.volumes spec.volumes.name spec.volumes.path
spec.volumes.source spec.volumes.readOnly spec.scratch spec.scratch.size spec.scratch.path
spec.initFrom spec.initFrom.version spec.initFrom.job spec.initFrom.checkpoint spec.initFrom.load
spec.modelRevision spec.incremental spec.incremental.baseDatasets spec.incremental.replayRatio
spec.monitoring spec.monitoring.sampleEvery spec.monitoring.rules
spec.logging spec.logging.level spec.logging.linesPerSecondMax spec.logging.retention
spec.trackers spec.profiling
""")


def test_every_known_field_is_honoured_or_refused() -> None:
    """The table holds exactly the fields that are promised; none is silently accepted."""
    wanted = dict.fromkeys(HONOURED, "honoured") | dict.fromkeys(REFUSED, "refused")
    assert job.statuses() == wanted


@pytest.mark.parametrize("path", [p for p in REFUSED if p.startswith("spec.")])
def test_a_refused_field_is_refused_by_name(path: str) -> None:
    """Its message says that the platform does not honour it yet, at the field's own path."""
    outer = path.removeprefix("spec.")
    found = faults(with_value(a_document(), outer, {"any": 1}))
    said = {where: words for where, words in found.items() if "not honoured" in words}
    assert any(f"{path}.".replace("[]", "[0]").startswith(f"{where}.") for where in said), found


@pytest.mark.parametrize(
    ("path", "word"), [(p, word) for p, words in refused_words().items() for word in words]
)
def test_a_refused_value_is_refused_by_name(path: str, word: str) -> None:
    """A known word of a field that is honoured otherwise is not taken for a misspelling."""
    found = faults(with_value(a_document(), path.removeprefix("spec."), word))
    assert "is not honoured by this platform yet" in found[path.replace("[]", "[0]")]


def test_the_founding_job_file_is_valid_as_it_stands() -> None:
    """Not a byte of it needs to change."""
    report = job.validate(FOUNDING.read_bytes())
    assert report.lines() == []
    assert report.job is not None
    made = report.job.canonical()
    assert made["hyperparameters"]["learningRate"] == 1e-5
    assert made["hyperparameters"]["globalBatchSize"] == 64
    assert made["output"]["modelName"] == "domain-chat-finetune-v1"
    assert (report.job.ranks, report.job.nodes, report.job.slots_per_node) == (16, 2, 8)


@pytest.mark.parametrize("example", ["founding", "script", "pretrain"])
def test_the_examples_are_valid(example: str) -> None:
    """What the repository shows, validates."""
    assert job.validate((FOUNDING.parent / f"{example}.yaml").read_bytes()).lines() == []


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    """With path, line, column and the nearest known name."""
    text = FOUNDING.read_text()
    text = text.replace("learningRate", "learningRte").replace("gpuCount: 16", "gpuCount: 15")
    text = text.replace("epochs: 3", "epochs: three") + "  env:\n    RANK: '0'\n"
    report = job.validate(text, name="x.yaml")
    assert [line.partition(": ")[0] for line in report.lines()] == [
        "x.yaml:15:5",
        "x.yaml:18:5",
        "x.yaml:20:5",
        "x.yaml:25:5",
    ]
    assert report.faults[2].path == "spec.hyperparameters.learningRte"
    assert report.faults[2].nearest == "learningRate"
    assert "did you mean 'learningRate'?" in report.faults[2].message
    assert "14 or 16" in report.faults[0].message


@pytest.mark.parametrize("version", ["lineshaft.io/v1", "trainer.example.io/v1"])
def test_both_spellings_of_the_version_are_accepted(version: str) -> None:
    """The founding spelling and the canonical one mean the same job."""
    assert canonical({**a_document(), "apiVersion": version}) == canonical(a_document())


def test_the_canonical_form_is_flat_and_complete() -> None:
    """Every honoured field is there with its default, so that no reader needs a default."""
    made = canonical(a_document())
    tops = {p.split(".")[1].partition("[")[0] for p in HONOURED if p.startswith("spec.")}
    assert set(made) == {"name", *tops}
    assert made["team"] is None
    assert made["priority"] == 500
    assert made["retry"] == {"limits": {"node": 5, "platform": 5, "preemption": 32, "user": 0}}
    assert json.loads(json.dumps(made)) == made


def test_the_canonical_form_is_the_callers_own() -> None:
    """Changing what was returned changes no job."""
    one = job.parse(a_document())
    one.canonical()["resources"]["gpuCount"] = 99
    assert one.ranks == 2
    assert job.parse(a_document()).canonical()["hyperparameters"]["lora"]["targets"] == []


@pytest.mark.parametrize(
    ("path", "value", "becomes"),
    [
        ("hyperparameters.learningRate", "1e-5", 1e-5),
        ("hyperparameters.learningRate", "3.E-4", 3e-4),
        ("resources.gpuCount", "16", 16),
        ("resources.gpuCount", 16.0, 16),
        ("hyperparameters.seed", "+7", 7),
        ("hyperparameters.gradientCheckpointing", "yes", True),
        ("hyperparameters.gradientCheckpointing", "auto", "auto"),
        ("priority", "high", 750),
        ("priority", 10, 10),
        ("priority", "10", 10),
    ],
)
def test_texts_become_the_numbers_they_mean(path: str, value: Any, becomes: Any) -> None:
    """Also where another system quotes every value."""
    found = canonical(with_value(a_document(), path, value))
    for name in path.split("."):
        found = found[name]
    assert found == becomes
    assert type(found) is type(becomes)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("hyperparameters.learningRate", float("nan"), "above 0"),
        ("hyperparameters.learningRate", 0, "above 0"),
        ("hyperparameters.learningRate", True, "must be a number"),
        ("resources.gpuCount", 2.5, "whole number"),
        ("resources.gpuCount", "٣", "whole number"),
        ("resources.gpuCount", 0, "from 1 to 65536"),
        ("resources.gpuType", "A100 80G", "a device type"),
        ("datasets", "x", "must be a list"),
        ("datasets", [], "at least one dataset"),
        ("labels", {"a": 1}, "put it in quotes"),
        ("labels", {"a b": "x"}, "not a key"),
        ("hyperparameters.lrScheduler", "cosin", "did you mean 'cosine'?"),
        ("hyperparameters.distributedStrategy", "deepspeed-zero-2", "'deepspeed-zero2'?"),
        ("priority", "hihg", "did you mean 'high'?"),
        ("team", "Team A", "'team-a' would do"),
        ("trustRemoteCode", True, "only 'false' is"),
        ("preemptible", True, "only 'false' is"),
        ("resume", "nevr", "did you mean 'never'?"),
        ("startTimeout", 5, "from 10 to 604800 seconds, not 5"),
        ("schedule.maxRunTime", "2 hours", "as in 90s, 30m, 2h, 1d12h, not '2 hours'"),
        ("schedule.maxRunTime", "", "as in 90s"),
        ("schedule.maxRunTime", "m", "as in 90s"),
        ("gracePeriod", "2h", "from 1 to 3600 seconds, not 7200"),
        ("resources.minNodes", 2, "unless it equals nodeCount"),
        ("resources.processesPerNode", 3, "gpuCount / nodeCount = 2"),
        ("checkpoint", {"everySteps": 5, "everyMinutes": 5}, "not both"),
        ("hyperparameters", {"warmupSteps": 5, "warmupRatio": 0.1}, "not both"),
        ("hyperparameters.minLearningRate", 1.0, "above learningRate"),
        ("hyperparameters.distributedStrategy", "none", "trains on one device"),
        ("launcher", "none", "starts one rank"),
        ("command", ["python"], "is for jobType script"),
        ("hyperparameters.lora.rank", 8, "is for jobType lora"),
        ("model", {"hidden_size": 8}, "a configuration is for jobType pretrain"),
        ("output", {"modelSavePath": "/models/"}, None),
        ("output", {"modelSavePath": "/models/模型"}, "what the model will be called"),
        ("env", {"MASTER_PORT": "1"}, "set by the platform"),
        ("env", {"LINESHAFT_JOB": "x"}, "set by the platform"),
        ("env", {"HF_TOKEN": "x"}, "looks like a secret"),
        ("env", {"A": 1}, "put it in quotes"),
        ("datasets", [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}], "already"),
    ],
)
def test_a_wrong_value_is_said_in_plain_words(path: str, value: Any, said: str | None) -> None:
    """What is wrong, and what would be right."""
    document = with_value(a_document(), path, value)
    if said is None:
        job.parse(document)
    else:
        assert any(said in message for message in faults(document).values()), faults(document)


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ({}, (1, 1, 2)),
        ({"batchSize": 4}, (4, 1, 8)),
        ({"gradientAccumulation": 3}, (1, 3, 6)),
        ({"globalBatchSize": 12}, (6, 1, 12)),
        ({"globalBatchSize": 12, "batchSize": 2}, (2, 3, 12)),
        ({"globalBatchSize": 12, "gradientAccumulation": 2}, (3, 2, 12)),
        ({"globalBatchSize": 12, "gradientAccumulation": 2, "batchSize": 3}, (3, 2, 12)),
        ({"globalBatchSize": 12, "gradientAccumulation": 2, "batchSize": 4}, None),
        ({"globalBatchSize": 13}, None),
        ({"globalBatchSize": 1}, None),
        ({"globalBatchSize": 12, "batchSize": 5}, None),
    ],
)
def test_two_of_three_batch_sizes_give_the_third(
    given: dict[str, int], batch: tuple[int, int, int] | None
) -> None:
    """And three must agree, over both ranks."""
    document = a_document(hyperparameters=given)
    if batch is None:
        assert "spec.hyperparameters.globalBatchSize" in faults(document)
        return
    hyper = canonical(document)["hyperparameters"]
    names = ("batchSize", "gradientAccumulation", "globalBatchSize")
    assert tuple(hyper[name] for name in names) == batch


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 999},
        {"train_micro_batch_size_per_gpu": 3},
        {"gradient_accumulation_steps": 7},
        {"zero_optimization": {"stage": 3}},
        {"bf16": {"enabled": True}},
        {"fp16": {"enabled": True}},
        {"gradient_clipping": 3.0},
        {"optimizer": {"type": "Adam"}},
        {"scheduler": {"type": "WarmupLR"}},
    ],
)
def test_deepspeed_keys_of_the_platform_are_errors_when_they_disagree(config: Any) -> None:
    """What the job says elsewhere is not said twice, differently."""
    hyper = {"distributedStrategy": "deepspeed-zero2", "precision": "fp32"}
    found = faults(a_document(hyperparameters={**hyper, "deepspeedConfig": config}))
    assert all("deepspeedConfig" in path for path in found)


def test_deepspeed_keys_that_agree_or_are_the_users_are_kept() -> None:
    """Buckets, offload and the like are merged."""
    config = {
        "train_batch_size": 2,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000},
        "gradient_clipping": 1,
    }
    hyper = {"distributedStrategy": "deepspeed-zero2", "deepspeedConfig": config}
    assert (
        canonical(a_document(hyperparameters=hyper))["hyperparameters"]["deepspeedConfig"] == config
    )


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        ["/usr/bin/deepspeed", "train.py"],
        ["python", "train.py", "--master_port=29500"],
        ["python", "train.py", "--nproc-per-node", "2"],
        ["python", "train.py", "--NNODES=2"],
    ],
)
def test_launchers_and_their_flags_are_the_platforms(words: list[str]) -> None:
    """In the command or in the arguments, with dashes or underscores."""
    assert faults(a_script(command=words))
    if words[0] == "python":
        assert faults(a_script(command=["python", "train.py"], args=words[2:]))


def test_a_script_job_needs_a_command_and_nothing_of_training() -> None:
    """What a script job would not use is said, not ignored."""
    made = canonical(a_script(env={"A": "1"}, args=["--lr", "1e-5"]))
    assert made["hyperparameters"] is made["checkpoint"] is made["evaluation"] is None
    found = faults(a_script(command=None, hyperparameters={"seed": 1}, model="x"))
    assert set(found) == {"spec.command", "spec.hyperparameters", "spec.model"}


def test_one_rank_trains_plainly_and_several_by_ddp_unless_said() -> None:
    """The default strategy follows from the number of ranks."""
    one = canonical(a_document(resources={"gpuType": "cpu"}))
    assert one["hyperparameters"]["distributedStrategy"] == "none"
    assert canonical(a_document())["hyperparameters"]["distributedStrategy"] == "ddp"


def test_labels_of_both_places_are_one() -> None:
    """Unless they contradict one another."""
    document = a_document(labels={"a": "1"})
    document["metadata"]["labels"] = {"a": "1", "b": "2"}
    assert canonical(document)["labels"] == {"a": "1", "b": "2"}
    document["metadata"]["labels"]["a"] = "3"
    assert "spec.labels.a" in faults(document)


def test_unknown_fields_name_the_nearest_whatever_their_case() -> None:
    """snake_case of another system is recognised."""
    found = faults(with_value(a_document(), "hyperparameters.learning_rate", 1e-5))
    assert "'learningRate'" in found["spec.hyperparameters.learning_rate"]


def test_faults_are_bounded() -> None:
    """A file of nothing but mistakes gets a hundred answers, quickly."""
    document = a_document(**{f"nonsense{n}": n for n in range(5_000)})
    assert len(faults(document)) == limits.JOB_FILE_FAULTS_MAX


def test_a_job_that_would_not_fit_into_an_event_is_refused() -> None:
    """The canonical form has a bound of its own."""
    env = {f"A{n}": "x" * 4000 for n in range(100)}
    assert "bytes; at most" in faults(a_document(env=env))[""]


def test_the_schema_describes_what_is_honoured() -> None:
    """Editors complete the fields that work, and only those."""
    schema = job.json_schema()
    spec = schema["properties"]["spec"]
    assert spec["additionalProperties"] is False
    assert "hyperparameters" in spec["properties"]
    assert "image" not in spec["properties"]
    assert "qlora" not in spec["properties"]["jobType"]["enum"]
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("job-file.md", job_page.markdown),
        (
            "job-file.schema.json",
            lambda: json.dumps(job.json_schema(), indent=1, ensure_ascii=False) + "\n",
        ),
    ],
)
def test_the_reference_is_made_from_the_table(name: str, made: Callable[[], str]) -> None:
    """``docs/reference/job-file.*`` are what the table of fields gives."""
    page = FOUNDING.parent.parent / "docs" / "reference" / name
    assert page.read_text(encoding="utf-8") == made()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1d12h", 129_600)],
)
def test_a_duration_is_seconds_or_has_units(given: Any, seconds: int) -> None:
    """What the scheduler reads is a whole number of seconds."""
    document = with_value(a_document(), "schedule.maxRunTime", given)
    assert job.parse(document).spec["schedule"]["maxRunTime"] == seconds
