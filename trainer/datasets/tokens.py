"""The vocabulary: a tokenizer folder in Hugging Face layout, read or trained here.

Uses the ``tokenizers`` library alone, so that preparation starts in a fraction of a second; only
a chat template, or a folder without ``tokenizer.json``, brings in transformers.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.faults import ConfigFault

END = "<|endoftext|>"
PAD = "<|pad|>"
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


@dataclass(slots=True)
class Vocabulary:
    """A tokenizer with the ids that training needs. ``config`` is ``tokenizer_config.json``."""

    tokenizer: Tokenizer
    eos_id: int
    pad_id: int
    config: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def digest(self) -> str:
        """SHA-256 of the tokenizer's content: equal digests give equal token ids."""
        return "sha256:" + hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens around them."""
        made = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [each.ids for each in made]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Write the tokenizer as a folder that transformers loads."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(str(folder / "tokenizer.json"))
        text = json.dumps(self.config, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> Vocabulary:
    """Read a tokenizer folder. Raises ``ConfigFault`` when it is none."""
    tokenizer = _backend(folder)
    config = _json(folder / "tokenizer_config.json")
    eos = _token_id(tokenizer, config.get("eos_token"))
    if eos is None:
        raise ConfigFault(f"{folder}: the tokenizer names no eos_token that it knows")
    pad = _token_id(tokenizer, config.get("pad_token"))
    template = config.get("chat_template")
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        template = jinja.read_text(encoding="utf-8")
    return Vocabulary(
        tokenizer=tokenizer,
        eos_id=eos,
        pad_id=eos if pad is None else pad,
        config=config,
        chat_template=template if isinstance(template, str) else None,
    )


def _backend(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    if not any((folder / name).is_file() for name in FILES):
        raise ConfigFault(f"{folder}: no tokenizer here (tokenizer.json is missing)")
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import, rarely needed

    made = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    backend: Tokenizer | None = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise ConfigFault(f"{folder}: this tokenizer has no fast form")
    return backend


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigFault(f"{file}: not JSON: {error}") from None
    return body if isinstance(body, dict) else {}


def _token_id(tokenizer: Tokenizer, named: Any) -> int | None:
    text = named.get("content") if isinstance(named, dict) else named
    if not isinstance(text, str):
        return None
    found = tokenizer.token_to_id(text)
    return None if found is None else int(found)


def train_tokenizer(texts: Iterator[str], size: int) -> Vocabulary:
    """Train a byte-level BPE of at most ``size`` ids; id 0 ends a text, id 1 pads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "bos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    return Vocabulary(tokenizer, eos_id=0, pad_id=1, config=config)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a tokenizer's files from one folder to another."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
