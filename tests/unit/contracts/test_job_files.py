"""Reading a job file's text: places, bounds, and every oddity that YAML allows."""

import pytest

from lineshaft.contracts import jobfile, limits
from lineshaft.contracts.jobfile import JobFileError


def faults(text: str | bytes) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        jobfile.read(text)
    return [fault.text() for fault in caught.value.faults]


def test_every_key_and_item_has_its_line_and_column() -> None:
    """A fault can be pointed at, in block and in flow style."""
    document, places = jobfile.read("a: 1\nb:\n  - c: 2\n  - [3, {d: 4}]\n")
    assert document == {"a": 1, "b": [{"c": 2}, [3, {"d": 4}]]}
    assert places.find(("a",)) == (1, 1)
    assert places.find(("b", 0, "c")) == (3, 5)
    assert places.find(("b", 1, 1, "d")) == (4, 10)
    assert places.find(("b", 1, 1, "absent", 7)) == (4, 9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("-3", -3),
        ("0x1F", 31),
        ("0o17", 15),
        ("0123", 123),
        ("1_000", "1_000"),
        ("'16'", "16"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("~", None),
        ("2024-06-01", "2024-06-01"),
        ("1:30", "1:30"),
        ("9" * 80, "9" * 80),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    """No date, octal or Norwegian surprises; what a field makes of a text is the field's word."""
    document, _ = jobfile.read(f"a: {text}")
    assert document["a"] == value
    assert type(document["a"]) is type(value)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    """A file from Windows reads like any other, bytes or text."""
    for text in ("\ufeffa: 1\r\nb: x\r\n", "\ufeffa: 1\r\nb: x\r\n".encode()):
        assert jobfile.read(text)[0] == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n\tb: 2\n", "job.yaml:2:1: the job file: a tab indents this line"),
        ("a: 1\nb: 2\na: 3\n", "job.yaml:3:1: a: the key occurs twice; the first is on line 1"),
        ("a: &x 1\n", "anchors and aliases are not read"),
        ("a: *x\n", "anchors and aliases are not read"),
        ("<<: {a: 1}\n", "merge keys"),
        ("a: !!python/object:os.system x\n", "job.yaml:1:1: a: tags are not read"),
        ("a: !mine x\n", "tags are not read"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2:1: the job file: a second document"),
        ("? [a]\n: 1\n", "a key must be a plain text"),
        ("a: b: c\n", "a second ':' on this line"),
        ("a:\n  - b\n c: d\n", "the indentation does not match"),
        ("", "the file is empty"),
        ("- 1\n", "a job file is a mapping"),
        ("a: \x01\n", "job.yaml:1:4: the job file: the character U+0001"),
        (b"a: 1\nb: \xff\n", "job.yaml:2:4: the job file: the file is not UTF-8"),
        ("a: 1".encode("utf-16"), "UTF-16; save it as UTF-8"),
        ("%YAML 9.9\n---\na: 1\n", "not YAML"),
        ("a: [1, 2\nb: 3\n", "not YAML"),
        ("{" + "a: {" * 40 + "}" * 41, "nested deeper than 24"),
        ("[" * 5000, "nested deeper than 24"),
        ("a: [" + "1," * (limits.JOB_FILE_NODES_MAX + 1) + "]", "more than 20000 values"),
        ("x" * (limits.JOB_FILE_BYTES_MAX + 1), "at most 1048576 are read"),
    ],
)
def test_what_a_job_file_may_not_be_is_said_with_its_place(text: str | bytes, said: str) -> None:
    """A clear message instead of a parser's, and nothing is ever constructed or expanded."""
    assert any(said in line for line in faults(text)), faults(text)


def test_faults_of_the_file_are_reported_together() -> None:
    """A twice-used key, a tag and an anchor are one answer, not three tries."""
    assert len(faults("a: 1\na: 2\nb: !x 1\nc: &d 1\n")) == 3


def test_json_is_read_too() -> None:
    """What other systems send as JSON is a job file, also with escapes that YAML lacks."""
    assert jobfile.read('{"a": "\\ud83d\\ude00", "b": [1, 2.5, null]}')[0] == {
        "a": "😀",
        "b": [1, 2.5, None],
    }
    assert "twice" in faults('{"a": 1, "a": 2}')[0]


def test_a_bomb_of_aliases_is_refused_before_it_is_expanded() -> None:
    """Nine levels of nine references each are one fault per reference, at no cost."""
    rows = ["a0: &a0 [x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert all("anchors" in line for line in faults("\n".join(rows)))
