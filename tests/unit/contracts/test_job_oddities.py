"""Odd job files: each row of the table is what happens, to the word."""

from pathlib import Path

import pytest

from lineshaft.contracts import job
from lineshaft.contracts.job_oddities import ODD_FILES, ODD_PATHS, ODDITIES, PLAIN, OddFile, Oddity
from services.admission.findings import Problem
from services.admission.mounts import Mounts

FILES: dict[str, str | bytes] = {
    "a byte order mark at the beginning": "\ufeff" + PLAIN,
    "Windows line ends (CRLF)": PLAIN.replace("\n", "\r\n"),
    "an empty file": "",
    "a list instead of a mapping": "- 1\n",
    "a second document below '---'": PLAIN + "---\na: 1\n",
    "UTF-16": PLAIN.encode("utf-16"),
    "Latin-1 with an accent": PLAIN.replace("low", "lów").encode("latin-1"),
    "a control character": PLAIN.replace("low", "l\x07w"),
    "10 megabytes": "#" * 10_000_000,
    "40 lists inside one another": PLAIN + "more: " + "[" * 40 + "]" * 40 + "\n",
    "a bomb of aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
}


@pytest.mark.parametrize("odd", ODDITIES, ids=lambda odd: odd.what)
def test_an_odd_value_is_read_or_refused_in_these_words(odd: Oddity) -> None:
    """The reference shows the same words."""
    assert PLAIN.count(odd.old) == 1
    report = job.validate(odd.text())
    if report.job is None:
        assert odd.said in [line.removeprefix("job.yaml:") for line in report.lines()]
        return
    value = report.job.spec
    for key in odd.field.split("."):
        value = value[key]
    assert f"read as {value!r}" == odd.said


@pytest.mark.parametrize("odd", ODD_FILES, ids=lambda odd: odd.what)
def test_an_odd_file_is_read_or_refused_in_these_words(odd: OddFile) -> None:
    """Also when it is no text, no mapping, or far too much."""
    report = job.validate(FILES[odd.what])
    said = [line.removeprefix("job.yaml:").strip() for line in report.lines()]
    if odd.said.startswith("read"):
        assert said == []
        assert report.job == job.validate(PLAIN).job
    else:
        assert odd.said in said


def test_odd_paths_are_refused_in_these_words(tmp_path: Path) -> None:
    """Outside, by dots, by a link, by the case of a letter, not there."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "pairs.jsonl").write_text("{}")
    (data / "link-to-etc").symlink_to("/etc")
    for odd in ODD_PATHS:
        given = odd.what.replace("/data", str(data))
        with pytest.raises(Problem) as caught:
            Mounts([data]).find(given)
        message = caught.value.message.replace(str(data), "/data").replace(str(tmp_path), "")
        assert message == odd.said
