"""Real data that is on every machine: the docstrings of the installed standard library.

``python -m trainer.datasets.docstrings --out DIR`` writes a text corpus, question/answer pairs of
two sub-tasks, their held-out side as an evaluation suite, a byte-level BPE tokenizer trained on
the corpus, and the configuration of a small Qwen model. Files are parsed, never imported; the
same interpreter gives the same bytes. No torch, no transformers.
"""

import argparse
import ast
import hashlib
import inspect
import json
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.datasets import cleaning
from trainer.datasets.tokens import train_tokenizer

SUITE_VERSION = "1.0.0"
HELD_OUT_SHARE = 0.15
KIND_TRAIN_MAX = 900
KIND_HELD_OUT_MAX = 200
DESCRIBE_TRAIN_MAX = 500
DESCRIBE_HELD_OUT_MAX = 150
SENTENCE_CHARS_MIN = 15
SENTENCE_CHARS_MAX = 160
VOCABULARY = 4096
KINDS = ("module", "class", "method", "function")
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "lib2to3", "idlelib", "turtledemo"}
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\]'\"`])\.(?:\s|$)")
_WORDS = re.compile(r"[A-Za-z]{2,}")

# About three million parameters: 2 x 4096 x 256 would be a third of them, so embeddings are tied.
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "hidden_act": "silu",
    "dtype": "float32",
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 1,
}


@dataclass(frozen=True, slots=True)
class Docstring:
    """One docstring: what it describes (kind and qualified name), and its text."""

    kind: str
    name: str
    text: str


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (module name, file) of the standard library's Python files, in order of names."""
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if _SKIPPED & set(parts) or not all(part.isidentifier() for part in parts):
            continue
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def docstrings(root: Path) -> Iterator[Docstring]:
    """Yield every docstring under ``root``; files that cannot be parsed are passed over."""
    for module, file in sources(root):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue
        yield from _of(tree, "module", module)


def _of(node: ast.AST, kind: str, name: str) -> Iterator[Docstring]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield Docstring(kind, name, cleaning.clean(inspect.cleandoc(text)))
        if isinstance(node, ast.Module | ast.ClassDef):
            inside_class = isinstance(node, ast.ClassDef)
            for child in node.body:
                if isinstance(child, ast.ClassDef):
                    yield from _of(child, "class", f"{name}.{child.name}")
                elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    inner = "method" if inside_class else "function"
                    yield from _of(child, inner, f"{name}.{child.name}")


def first_sentence(text: str) -> str | None:
    """Return a docstring's first sentence on one line, or None when it is no prose of our size."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    sentence = _SENTENCE_END.split(paragraph, maxsplit=1)[0].strip().rstrip(".")
    fits = SENTENCE_CHARS_MIN <= len(sentence) <= SENTENCE_CHARS_MAX
    prose = len(_WORDS.findall(sentence)) >= 3 and sentence.isascii()
    return sentence + "." if fits and prose and ">>>" not in sentence else None


def kind_pair(sentence: str, kind: str) -> dict[str, str]:
    """Return the question for the kind of thing that ``sentence`` describes, with its answer."""
    return {"prompt": f"Text: {sentence}\nKind:", "response": f" {kind}"}


def sentence_of(pair: dict[str, str]) -> str:
    """Return the sentence that a question of the sub-task ``kind`` is about."""
    return pair["prompt"].removesuffix("\nKind:").removeprefix("Text: ")


def describe_pair(name: str, sentence: str) -> dict[str, str]:
    """Return the question for what ``name`` does, with its answer."""
    return {"prompt": f"Question: What does {name} do?\nAnswer:", "response": f" {sentence}"}


@dataclass(slots=True)
class _Sides:
    train: list[dict[str, str]]
    held_out: list[dict[str, str]]


def _ordered(items: list[Docstring], salt: str) -> list[tuple[Docstring, str]]:
    """Return items with their sentences, one per sentence, in an order that content decides."""
    made: dict[bytes, tuple[Docstring, str]] = {}
    clash: set[bytes] = set()
    for item in items:
        sentence = first_sentence(item.text)
        if sentence is None:
            continue
        key = cleaning.key_of(sentence)
        if key in made and made[key][0].kind != item.kind:
            clash.add(key)  # the same sentence for two kinds teaches nothing
        made.setdefault(key, (item, sentence))
    keep = [(key, pair) for key, pair in made.items() if key not in clash]
    keep.sort(key=lambda each: hashlib.sha256(salt.encode() + each[0]).digest())
    return [pair for _, pair in keep]


def _kind_sides(items: list[Docstring]) -> _Sides:
    """The kinds are as frequent as in the library: the majority baseline stands in the report."""
    sides = _Sides([], [])
    for item, sentence in _ordered(items, "kind"):
        held_out = cleaning.is_held_out(sentence, HELD_OUT_SHARE)
        (sides.held_out if held_out else sides.train).append(kind_pair(sentence, item.kind))
    return _Sides(sides.train[:KIND_TRAIN_MAX], sides.held_out[:KIND_HELD_OUT_MAX])


def _describe_sides(items: list[Docstring]) -> _Sides:
    sides = _Sides([], [])
    for item, sentence in _ordered(items, "describe"):
        held_out = cleaning.is_held_out(sentence, HELD_OUT_SHARE)
        (sides.held_out if held_out else sides.train).append(describe_pair(item.name, sentence))
    return _Sides(sides.train[:DESCRIBE_TRAIN_MAX], sides.held_out[:DESCRIBE_HELD_OUT_MAX])


def _write_lines(file: Path, rows: list[dict[str, str]]) -> str:
    raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(raw)
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def _write_json(file: Path, body: dict[str, Any]) -> None:
    file.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def _suite() -> dict[str, Any]:
    return {
        "schema": 1,
        "name": "docstrings",
        "version": SUITE_VERSION,
        "tasks": [
            {
                "name": "kind",
                "metric": "exactMatch",
                "data": "heldout-kind.jsonl",
                "choices": list(KINDS),
            },
            {
                "name": "describe",
                "metric": ["perplexity", "tokenAccuracy"],
                "data": "heldout-describe.jsonl",
            },
        ],
    }


def corpus_of(found: list[Docstring], held_out: set[bytes], seen: cleaning.Seen) -> list[str]:
    """Return the corpus: entries of a reference, none whose first sentence is held out.

    The base model meets the words for the kinds here, and never a question: it goes on writing
    where an answer would end.
    """
    texts = []
    for item in seen.unique(found, lambda each: each.text):
        sentence = first_sentence(item.text)
        if sentence is None or cleaning.key_of(sentence) not in held_out:
            texts.append(f"Name: {item.name}\nKind: {item.kind}\n\n{item.text}")
    return texts


def build(out: Path, root: Path | None = None) -> dict[str, Any]:
    """Write everything into ``out`` and return the report (also in ``report.json``)."""
    (out / "model").mkdir(parents=True, exist_ok=True)
    found = list(docstrings(root or Path(sysconfig.get_path("stdlib"))))
    kind, describe = _kind_sides(found), _describe_sides(found)
    answers = [sentence_of(row) for row in kind.held_out]
    answers += [row["response"].strip() for row in describe.held_out]
    hidden = {cleaning.key_of(text) for text in answers}
    seen = cleaning.Seen()
    corpus = corpus_of(found, hidden, seen)
    tally = seen.take()
    train = [row for row in kind.train + describe.train if not _shows(row, hidden)]
    train.sort(key=lambda row: hashlib.sha256(json.dumps(row).encode()).digest())
    files = {
        "corpus.jsonl": [{"text": text} for text in corpus],
        "train.jsonl": train,
        "heldout-kind.jsonl": kind.held_out,
        "heldout-describe.jsonl": describe.held_out,
    }
    digests = {name: _write_lines(out / name, rows) for name, rows in files.items()}
    _write_json(out / "suite.json", _suite())
    _write_json(out / "model" / "config.json", MODEL)
    train_tokenizer(iter(corpus), VOCABULARY).save(out / "tokenizer")
    whole = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
    report = {
        "schema": 1,
        "name": "python-docstrings",
        "version": f"{platform.python_version()}+{whole[:12]}",
        "digest": f"sha256:{whole}",
        "source": f"docstrings of the Python {platform.python_version()} standard library",
        "docstrings": tally.read,
        "duplicates": tally.duplicates,
        "heldOutShare": HELD_OUT_SHARE,
        "counts": {name: len(rows) for name, rows in files.items()},
        "digests": digests,
    }
    _write_json(out / "report.json", report)
    return report


def _shows(row: dict[str, str], hidden: set[bytes]) -> bool:
    """Tell whether a training row contains a held-out sentence."""
    shown = (sentence_of(row), row["response"].strip())
    return any(cleaning.key_of(text) in hidden for text in shown)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m trainer.datasets.docstrings")
    parser.add_argument("--out", type=Path, required=True, help="folder to fill")
    report = build(parser.parse_args().out)
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
