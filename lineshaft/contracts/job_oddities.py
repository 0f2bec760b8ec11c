"""What a careful user expects of odd job files: a table that is tested and shown.

Each row changes ``PLAIN`` in one place and says what comes of it: how the field is read, or the
exact message with its line and column. Values only; the page is made by ``job_page``.
"""
# ruff: noqa: E501 - exact messages stay on one line, to be found by searching for them

from dataclasses import dataclass
from typing import Final

PLAIN: Final = """\
apiVersion: lineshaft.io/v1
kind: TrainingJob
metadata:
  name: tune
spec:
  jobType: full-finetune
  model: tiny@latest
  datasets:
    - name: pairs
      path: pairs.jsonl
  resources: {gpuType: cpu, gpuCount: 2}
  hyperparameters:
    maxSteps: 10
    learningRate: 2e-5
    gradientCheckpointing: auto
  env:
    LEVEL: low
  output: {modelName: tiny}
"""


@dataclass(frozen=True, slots=True)
class Oddity:
    """``old`` of the plain file is written as ``new``; ``said`` is what comes of it.

    ``field`` is the path, below ``spec``, of what is read.
    """

    what: str
    old: str
    new: str
    said: str
    field: str = ""

    def text(self) -> str:
        """Return the whole file."""
        return PLAIN.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class OddFile:
    """A file that is odd as a whole, described in words."""

    what: str
    said: str


ODDITIES: Final = (
    Oddity(
        "a number with an exponent",
        "learningRate: 2e-5",
        "learningRate: 1e-5",
        "read as 1e-05",
        field="hyperparameters.learningRate",
    ),
    Oddity(
        "the same as a text",
        "learningRate: 2e-5",
        'learningRate: "1e-5"',
        "read as 1e-05",
        field="hyperparameters.learningRate",
    ),
    Oddity(
        "a whole number",
        "maxSteps: 10",
        "maxSteps: 16",
        "read as 16",
        field="hyperparameters.maxSteps",
    ),
    Oddity(
        "the same as a text",
        "maxSteps: 10",
        'maxSteps: "16"',
        "read as 16",
        field="hyperparameters.maxSteps",
    ),
    Oddity(
        "a whole number with a point",
        "maxSteps: 10",
        "maxSteps: 16.0",
        "read as 16",
        field="hyperparameters.maxSteps",
    ),
    Oddity(
        "a broken number",
        "maxSteps: 10",
        "maxSteps: 16.5",
        "13:5: spec.hyperparameters.maxSteps: must be a whole number, not '16.5'",
    ),
    Oddity(
        "a number in hexadecimal",
        "maxSteps: 10",
        "maxSteps: 0x10",
        "read as 16",
        field="hyperparameters.maxSteps",
    ),
    Oddity(
        "digits in groups",
        "maxSteps: 10",
        "maxSteps: 1_000",
        "13:5: spec.hyperparameters.maxSteps: must be a whole number, not '1_000'",
    ),
    Oddity(
        "no number at all",
        "learningRate: 2e-5",
        "learningRate: .nan",
        "14:5: spec.hyperparameters.learningRate: must be a number above 0 and of at most 10, not nan",
    ),
    Oddity(
        "a truth value as a number",
        "maxSteps: 10",
        "maxSteps: yes",
        "13:5: spec.hyperparameters.maxSteps: must be a whole number, not 'yes'",
    ),
    Oddity(
        "the word no for false",
        "gradientCheckpointing: auto",
        "gradientCheckpointing: no",
        "read as False",
        field="hyperparameters.gradientCheckpointing",
    ),
    Oddity(
        "another spelling of a field",
        "learningRate: 2e-5",
        "learning_rate: 2e-5",
        "14:5: spec.hyperparameters.learning_rate: is not a field; did you mean 'learningRate'?",
    ),
    Oddity(
        "a field without value",
        "maxSteps: 10",
        "maxSteps:",
        "read as None",
        field="hyperparameters.maxSteps",
    ),
    Oddity(
        "a number where a text belongs",
        "LEVEL: low",
        "LEVEL: 3",
        "17:5: spec.env.LEVEL: must be a text, not '3': put it in quotes",
    ),
    Oddity(
        "a name with a dot",
        "name: tune",
        "name: tune.v2",
        "4:3: metadata.name: 'tune.v2' is no name: 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends; 'tune-v2' would do",
    ),
    Oddity(
        "a name with a space",
        "name: tune",
        "name: my tune",
        "4:3: metadata.name: 'my tune' is no name: 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends; 'my-tune' would do",
    ),
    Oddity(
        "a name with capitals",
        "name: tune",
        "name: Tune",
        "4:3: metadata.name: 'Tune' is no name: 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends; 'tune' would do",
    ),
    Oddity(
        "a name of Chinese characters",
        "name: tune",
        "name: 微调",
        "4:3: metadata.name: '微调' is no name: 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends",
    ),
    Oddity(
        "a number as a name",
        "name: tune",
        "name: 2026",
        "4:3: metadata.name: must be a name, not '2026': put it in quotes",
    ),
    Oddity(
        "a label of Chinese characters",
        "LEVEL: low",
        "LEVEL: 微调",
        "read as '微调'",
        field="env.LEVEL",
    ),
    Oddity(
        "a key that occurs twice",
        "maxSteps: 10",
        "maxSteps: 10\n    maxSteps: 20",
        "14:5: spec.hyperparameters.maxSteps: the key occurs twice; the first is on line 13",
    ),
    Oddity(
        "an anchor",
        "maxSteps: 10",
        "maxSteps: &steps 10",
        "13:5: spec.hyperparameters.maxSteps: anchors and aliases are not read: write the value out",
    ),
    Oddity(
        "an alias",
        "maxSteps: 10",
        "maxSteps: *steps",
        "13:5: spec.hyperparameters.maxSteps: anchors and aliases are not read: write the value out",
    ),
    Oddity(
        "a merge key",
        "maxSteps: 10",
        "<<: {maxSteps: 10}",
        "12:3: spec.hyperparameters: merge keys ('<<') are not read: write the values out",
    ),
    Oddity(
        "a tag",
        "maxSteps: 10",
        "maxSteps: !!int 10",
        "13:5: spec.hyperparameters.maxSteps: tags are not read: remove '!!int'",
    ),
    Oddity(
        "a tag that makes objects",
        "maxSteps: 10",
        "maxSteps: !!python/object/apply:os.system [ls]",
        "13:5: spec.hyperparameters.maxSteps: tags are not read: remove '!!python/object/apply:os.system'",
    ),
    Oddity(
        "a tab as indentation",
        "    maxSteps: 10",
        "\tmaxSteps: 10",
        "13:1: the job file: a tab indents this line; YAML is indented with spaces",
    ),
    Oddity(
        "an unquoted text with a colon",
        "LEVEL: low",
        "LEVEL: low: er",
        "17:15: the job file: a second ':' on this line, or wrong indentation; put texts that hold ': ' in quotes",
    ),
)

ODD_FILES: Final = (
    OddFile("a byte order mark at the beginning", "read as if it were not there"),
    OddFile("Windows line ends (CRLF)", "read like any others"),
    OddFile("an empty file", "the job file: the file is empty"),
    OddFile(
        "a list instead of a mapping",
        "1:1: the job file: a job file is a mapping that begins with 'apiVersion:'",
    ),
    OddFile(
        "a second document below '---'",
        "19:1: the job file: a second document ('---'); a job file holds one job",
    ),
    OddFile("UTF-16", "1:1: the job file: the file is UTF-16; save it as UTF-8"),
    OddFile(
        "Latin-1 with an accent",
        "17:13: the job file: the file is not UTF-8 text here; save it as UTF-8",
    ),
    OddFile(
        "a control character",
        "17:13: the job file: the character U+0007 does not belong in a job file",
    ),
    OddFile("10 megabytes", "the job file: the file has 10000000 bytes; at most 1048576 are read"),
    OddFile("40 lists inside one another", "19:30: the job file: nested deeper than 24"),
    OddFile(
        "a bomb of aliases",
        "1:1: a: anchors and aliases are not read: write the value out",
    ),
)
ODD_PATHS: Final = (
    OddFile("/etc/passwd", "/etc/passwd is outside the mounts"),
    OddFile("/data/../secret", "/data/../secret is outside the mounts"),
    OddFile("/data/link-to-etc", "/data/link-to-etc is outside the mounts (it leads to /etc)"),
    OddFile("/data/Pairs.jsonl", "/data/Pairs.jsonl does not exist"),
    OddFile("/data/gone/pairs.jsonl", "/data/gone/pairs.jsonl does not exist"),
)
