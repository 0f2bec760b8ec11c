"""Data: what is understood, what is refused with file and line, in which order it is seen."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineshaft.contracts.failures import FailureClass
from tests.builders_trainer import TINY_MODEL, a_corpus, a_file, a_suite, an_order, pairs
from trainer import prepare
from trainer.datasets import cleaning, docstrings, permutation, reading, store, tokens
from trainer.datasets.reading import Exchange
from trainer.datasets.rendering import Renderer
from trainer.faults import ConfigFault, DataFault, TrainingFault


def read(folder: Path, *rows: Any) -> list[Exchange]:
    return list(reading.exchanges(a_file(folder / "d.jsonl", list(rows))))


def a_tokenizer(folder: Path) -> Path:
    texts = [row["prompt"] + row["response"] for row in pairs(200)]
    tokens.train_tokenizer(iter(texts), 300).save(folder)
    return folder


def a_base(folder: Path) -> dict[str, Any]:
    """Return a model folder with a configuration and a tokenizer (preparation needs no weights)."""
    a_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(TINY_MODEL))
    return {"kind": "folder", "path": str(folder)}


def a_tuning(folder: Path, data: Path, **more: Any) -> dict[str, Any]:
    base = a_base(folder / "base")
    return an_order(folder, data=data, job_type="full-finetune", model=base, **more)


# Reading.


@pytest.mark.parametrize(
    ("record", "asked", "answered"),
    [
        ({"prompt": "p", "response": "r"}, "p", "r"),
        ({"prompt": "p", "completion": "r"}, "p", "r"),
        ({"question": "p", "answer": "r"}, "p", "r"),
        ({"instruction": "p", "input": "", "output": "r"}, "p", "r"),
        ({"instruction": "p", "input": "i", "output": "r"}, "p\ni", "r"),
    ],
)
def test_pairs_of_all_usual_names_are_understood(
    tmp_path: Path, record: dict[str, str], asked: str, answered: str
) -> None:
    """The prompt never counts in the loss, the answer does."""
    (sample,) = read(tmp_path, record)
    prompt, answer = sample.turns
    assert (prompt.text, prompt.trained) == (asked, False)
    assert (answer.text, answer.trained) == (answered, True)


def test_in_messages_the_assistants_parts_alone_count(tmp_path: Path) -> None:
    """System and user parts are context."""
    roles = ["system", "user", "assistant", "user", "assistant"]
    messages = [{"role": role, "content": role} for role in roles]
    (sample,) = read(tmp_path, {"messages": messages})
    assert [turn.trained for turn in sample.turns] == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "p", "resp', "not JSON"),
        (b"[1, 2]", "expected an object"),
        (b'{"prompt": "p"}', "expected prompt and response"),
        (b'{"prompt": "p", "response": "  "}', "not empty"),
        (b'{"prompt": "p", "response": 7}', "must be a text"),
        (b'{"messages": []}', "list that is not empty"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "no answer of the assistant"),
        (b'{"messages": [{"role": "bot", "content": "x"}]}', "role out of"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{", "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path, line: bytes, words: str) -> None:
    """The class is data: somebody must look at this very line."""
    file = tmp_path / "d.jsonl"
    file.write_bytes(b'{"prompt": "p", "response": "r"}\n\n' + line + b"\n")
    with pytest.raises(DataFault, match=r"d\.jsonl:3: ") as caught:
        list(reading.exchanges(file))
    assert words in str(caught.value)
    assert caught.value.failure_class is FailureClass.DATA


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """Other files in it do not count; a folder without data is an error."""
    for name in ("b.jsonl", "a.jsonl", "notes.md"):
        (tmp_path / name).write_text("{}")
    assert [f.name for f in reading.files_of(tmp_path, "jsonl")] == ["a.jsonl", "b.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFault, match="no file ends in"):
        reading.files_of(tmp_path / "empty", "jsonl")


def test_a_data_sets_digest_follows_names_and_contents(tmp_path: Path) -> None:
    """Another name or byte is another data set; another place is the same."""
    made = []
    for place, name, text in (("x", "a", "1"), ("y", "a", "1"), ("z", "a", "2"), ("w", "b", "1")):
        folder = tmp_path / place
        folder.mkdir()
        (folder / f"{name}.jsonl").write_text(text)
        made.append(reading.digest_of(reading.files_of(folder, "jsonl"), folder))
    assert made[0] == made[1]
    assert len(set(made)) == 3


# Cleaning.


def test_the_first_of_equal_samples_stays_also_across_data_sets() -> None:
    """Case and blanks make no difference; what was dropped is counted per data set."""
    seen = cleaning.Seen()
    assert list(seen.unique(["One  two", "one two", "", "three"], str)) == ["One  two", "three"]
    first = seen.take()
    assert (first.read, first.duplicates, first.empty, first.kept) == (4, 1, 1, 2)
    assert list(seen.unique(["THREE", "four"], str)) == ["four"]
    assert seen.take().duplicates == 1


def test_a_samples_side_depends_on_its_content_alone() -> None:
    """About the asked share is held out, and growing the share only adds to it."""
    texts = [f"sample {n}" for n in range(4000)]
    small = {t for t in texts if cleaning.is_held_out(t, 0.1)}
    large = {t for t in texts if cleaning.is_held_out(t, 0.2)}
    assert small < large
    assert 300 < len(small) < 500


# Order.


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 4097])
def test_every_epoch_shows_every_row_once(count: int) -> None:
    """And no two epochs in the same order, once there is any choice."""
    epochs = [
        permutation.rows(np.arange(e * count, (e + 1) * count), count, seed=5) for e in range(3)
    ]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(count))
    if count > 60:
        assert not np.array_equal(epochs[0], epochs[1])


def test_the_order_depends_on_the_seed_and_the_position_alone() -> None:
    """Any sample can be asked for by itself, in any company."""
    whole = permutation.rows(np.arange(500), 137, seed=1)
    assert [int(permutation.rows([i], 137, seed=1)[0]) for i in range(500)] == whole.tolist()
    assert not np.array_equal(whole, permutation.rows(np.arange(500), 137, seed=2))


# Rendering.


def test_the_mask_covers_the_answer_and_the_end_mark(tmp_path: Path) -> None:
    """The prompt has the same ids as when it is asked alone."""
    vocabulary = tokens.load(a_tokenizer(tmp_path / "t"))
    (sample,) = read(tmp_path, {"prompt": "Colour of 7:", "response": " red"})
    renderer = Renderer(vocabulary)
    (made,) = renderer.render([sample], 100)
    asked = vocabulary.encode([renderer.prompt(sample)])[0]
    assert made.ids[: len(asked)] == asked
    assert made.mask == [False] * len(asked) + [True] * (len(made.ids) - len(asked))
    assert made.ids[-1] == vocabulary.eos_id
    assert vocabulary.decode(made.ids[len(asked) :]) == " red"


def test_an_answer_without_a_blank_stands_on_its_own_line(tmp_path: Path) -> None:
    """Prompt and answer never run into one word."""
    (sample,) = read(tmp_path, {"prompt": "How many?", "response": "Three"})
    renderer = Renderer(tokens.load(a_tokenizer(tmp_path / "t")))
    assert renderer.prompt(sample) + renderer.answer(sample) == "How many?\nThree"


def test_messages_use_the_tokenizers_chat_template(tmp_path: Path) -> None:
    """Every turn is cut where the template ends it; the answer's opening is not trained."""
    folder = a_tokenizer(tmp_path / "t")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    (sample,) = read(tmp_path, {"messages": messages})
    renderer = Renderer(tokens.load(folder))
    assert renderer.pieces(sample) == [
        ("<user>hi</>", False),
        ("<assistant>", False),
        ("yo</>", True),
    ]
    assert renderer.prompt(sample) == "<user>hi</><assistant>"


# Preparation.


def test_a_corpus_is_packed_and_attention_stays_in_its_documents(tmp_path: Path) -> None:
    """Rows are full; positions begin again behind every document's end mark."""
    order = an_order(tmp_path, data=a_corpus(tmp_path))
    found = prepare.prepare(order)
    assert found.data is not None
    data = store.read(found.data)
    train = data.subset("train")
    vocabulary = tokens.load(found.tokenizer)
    assert len(train) > 10
    for number in range(len(train)):
        row = train.row(number)
        assert len(row.ids) == 32
        assert row.positions is not None
        begins = np.flatnonzero(row.positions == 0)
        ends = np.flatnonzero(row.ids[:-1] == vocabulary.eos_id) + 1
        assert begins.tolist() == [0, *ends.tolist()]
    report = data.meta["datasets"][0]
    assert report["train"] + report["heldOut"] == report["kept"] == 120


def test_the_same_question_is_answered_from_the_cache(tmp_path: Path) -> None:
    """Equal inputs share one folder; another sequence length makes another."""
    corpus = a_corpus(tmp_path)
    first = prepare.prepare(an_order(tmp_path, data=corpus))
    again = prepare.prepare(an_order(tmp_path, data=corpus, job="j-other"))
    other = prepare.prepare(an_order(tmp_path, data=corpus, hyper={"sequenceLength": 16}))
    assert first.data == again.data != other.data


def test_two_preparations_at_once_end_with_one_whole_folder(tmp_path: Path) -> None:
    """Whoever is second takes the other's result; nothing half-made is left."""
    corpus = a_corpus(tmp_path)
    made: list[Path | None] = []
    threads = [
        threading.Thread(
            target=lambda n=n: made.append(
                prepare.prepare(an_order(tmp_path, data=corpus, job=f"j-{n}")).data
            )
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert [p.name for p in (tmp_path / "cache" / "prepared").iterdir()] == [made[0].name]  # type: ignore[union-attr]


def test_long_samples_are_cut_and_those_without_an_answer_left_out(tmp_path: Path) -> None:
    """Both are counted in the data report."""
    long_answer = {"prompt": "Colour:", "response": " red" * 100}
    long_prompt = {"prompt": "Colour of " * 60, "response": " red"}
    data = a_file(tmp_path / "t.jsonl", [*pairs(10), long_answer, long_prompt])
    found = prepare.prepare(a_tuning(tmp_path, data))
    assert found.data is not None
    meta = store.read(found.data).meta
    assert (meta["truncated"], meta["withoutAnswer"]) == (2, 1)
    assert meta["longestTokens"] == 32
    assert meta["subsets"]["train"]["documents"] == 11


def test_samples_of_a_suite_are_not_trained_on(tmp_path: Path) -> None:
    """A few are left out and counted; many are refused: the split is wrong."""
    suite = a_suite(tmp_path / "suite")
    few = a_file(tmp_path / "few.jsonl", [*pairs(40), *pairs(2, first=10_000)])
    found = prepare.prepare(a_tuning(tmp_path, few, suites=[suite]))
    assert found.data is not None
    assert store.read(found.data).meta["datasets"][0]["inSuites"] == 2
    many = a_file(tmp_path / "many.jsonl", [*pairs(40), *pairs(20, first=10_000)])
    with pytest.raises(DataFault, match="20 of 60 samples are in an evaluation suite"):
        prepare.prepare(a_tuning(tmp_path, many, suites=[suite]))


def test_data_that_changed_since_admission_is_refused(tmp_path: Path) -> None:
    """The lineage names what was admitted."""
    corpus = a_corpus(tmp_path)
    digest = reading.digest_of([corpus], corpus)
    prepare.prepare(an_order(tmp_path, data=corpus, digest=digest))
    with corpus.open("a") as stream:
        stream.write('{"text": "One more."}\n')
    with pytest.raises(DataFault, match="changed since the job was admitted"):
        prepare.prepare(an_order(tmp_path, data=corpus, digest=digest))


def test_packed_data_is_used_as_it_is_if_it_fits(tmp_path: Path) -> None:
    """What was prepared once can be a data set of its own; another length must be prepared."""
    made = prepare.prepare(an_order(tmp_path, data=a_corpus(tmp_path))).data
    assert made is not None
    wish = {"data": made, "format": "packed", "job": "j-packed"}
    assert prepare.prepare(an_order(tmp_path, **wish)).data == made
    with pytest.raises(ConfigFault, match="sequenceLength is 32, the job needs 16"):
        prepare.prepare(an_order(tmp_path, **wish, hyper={"sequenceLength": 16}))


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_data_set_is_an_error_of_the_data(tmp_path: Path, text: str) -> None:
    """Training on nothing never looks like success."""
    file = tmp_path / "empty.jsonl"
    file.write_text(text)
    with pytest.raises(DataFault, match="empty"):
        prepare.prepare(an_order(tmp_path, data=file))


def test_a_corpus_shorter_than_one_row_is_refused(tmp_path: Path) -> None:
    """The message names the numbers."""
    with pytest.raises(DataFault, match="do not fill one row of sequenceLength 32"):
        prepare.prepare(an_order(tmp_path, data=a_file(tmp_path / "s.jsonl", [{"text": "Hi."}])))


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    """Ids that the embedding lacks would end the first step in the middle of nowhere."""
    order = a_tuning(tmp_path, a_file(tmp_path / "t.jsonl", pairs(10)))
    small = {**TINY_MODEL, "vocab_size": 100}
    (tmp_path / "base" / "config.json").write_text(json.dumps(small))
    with pytest.raises(ConfigFault, match="ids, the model 100"):
        prepare.prepare(order)


def test_the_command_ends_with_the_code_of_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent reads 44 for data, and one line that says what is wrong where."""
    file = tmp_path / "bad.jsonl"
    file.write_text("{oops\n")
    (tmp_path / "order.json").write_text(json.dumps(an_order(tmp_path, data=file)))
    monkeypatch.setattr("sys.argv", ["prepare", "--order", str(tmp_path / "order.json")])
    assert prepare.main() == 44
    assert "bad.jsonl:1" in capsys.readouterr().err


def test_every_fault_names_its_class() -> None:
    """No fault of ours leaves the scheduler guessing."""
    classes = [TrainingFault, *TrainingFault.__subclasses__()]
    assert all(isinstance(each.failure_class, FailureClass) and each.kind for each in classes)


# The data that is on every machine.


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small library in source form."""
    root = tmp_path_factory.mktemp("library")
    for number in range(30):
        (root / f"mod{number}.py").write_text(
            f'"""Module number {number} holds several useful things."""\n'
            f"raise SystemExit  # whoever imports this has lost\n"
            f'class Thing{number}:\n    """A thing with the number {number} in it."""\n'
            f'    def turn(self):\n        """Turn the thing {number} times around."""\n'
            f'def make{number}():\n    """Return a new thing of size {number}."""\n'
        )
    (root / "broken.py").write_text("def (:")
    (root / "test").mkdir()
    (root / "test" / "hidden.py").write_text('"""Tests are not part of the library."""')
    return root


def test_docstrings_are_read_without_an_import(library: Path) -> None:
    """Each has the kind of what it describes; files that are no Python are passed over."""
    found = list(docstrings.docstrings(library))
    assert {each.kind for each in found} == set(docstrings.KINDS)
    assert len(found) == 120
    assert not any("Tests are not" in each.text for each in found)


def test_the_same_library_gives_the_same_bytes(library: Path, tmp_path: Path) -> None:
    """The version names the content; held-out sentences are in no training file."""
    first, again = (docstrings.build(tmp_path / name, library) for name in ("a", "b"))
    assert first == again
    held_out = [
        json.loads(line)
        for line in (tmp_path / "a" / "heldout-kind.jsonl").read_text().splitlines()
    ]
    assert held_out
    trained = (tmp_path / "a" / "train.jsonl").read_text()
    corpus = (tmp_path / "a" / "corpus.jsonl").read_text()
    for row in held_out:
        sentence = docstrings.sentence_of(row)
        assert sentence not in trained
        assert sentence not in corpus


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Return the size.\n\nMore.", "Return the size."),
        ("Return the\nsize. And more.", "Return the size."),
        ("Short.", None),
        (">>> 1 + 1 is an example here", None),
        ("Größe des ganzen Dings hier.", None),
    ],
)
def test_first_sentences(text: str, sentence: str | None) -> None:
    """One line of prose, or nothing."""
    assert docstrings.first_sentence(text) == sentence
