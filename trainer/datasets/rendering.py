"""From exchanges to token ids, with a mark on each token that counts in the loss.

The prompt of a sample is tokenised apart from its answer, so that the same prompt has the same
ids in training, in evaluation and at the user's. No torch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trainer.datasets.reading import Exchange, Turn
from trainer.datasets.tokens import Vocabulary
from trainer.faults import ConfigFault

BATCH_SAMPLES = 1024
Piece = tuple[str, bool]


@dataclass(slots=True)
class Rendered:
    """One sample: its token ids, and for each whether it counts in the loss."""

    ids: list[int]
    mask: list[bool]


@dataclass(slots=True)
class Renderer:
    """Turns exchanges into tokens.

    Messages are rendered with the tokenizer's chat template where it has one, else as lines that
    begin with the role; a pair is its prompt and its answer, on a line of its own unless one of
    them brings the blank between them.
    """

    vocabulary: Vocabulary
    _chat: Callable[..., str] | None = field(default=None, repr=False)

    def render(self, samples: Iterable[Exchange], limit: int) -> Iterator[Rendered]:
        """Yield each sample with its end mark, cut to ``limit`` tokens from behind."""
        stream = iter(samples)
        while batch := list(islice(stream, BATCH_SAMPLES)):
            pieces = [self.pieces(sample) for sample in batch]
            flat = self.vocabulary.encode([text for each in pieces for text, _ in each])
            position = 0
            for each in pieces:
                parts = flat[position : position + len(each)]
                position += len(each)
                yield self._joined(each, parts, limit)

    def _joined(self, pieces: Sequence[Piece], parts: Sequence[list[int]], limit: int) -> Rendered:
        ids: list[int] = []
        mask: list[bool] = []
        for (_, is_trained), part in zip(pieces, parts, strict=True):
            ids += part
            mask += [is_trained] * len(part)
        if not ids or ids[-1] != self.vocabulary.eos_id:
            ids.append(self.vocabulary.eos_id)
            mask.append(True)
        return Rendered(ids[:limit], mask[:limit])

    def pieces(self, sample: Exchange) -> list[Piece]:
        """Return the sample as texts, each with whether it counts in the loss."""
        if self._is_chat(sample):
            return self._chat_pieces(sample)
        if sample.is_chat:
            return [(self._named(turn), turn.trained) for turn in sample.turns]
        prompt, response = sample.turns
        is_apart = prompt.text[-1:].isspace() or response.text[:1].isspace()
        asked = prompt.text if is_apart else prompt.text + "\n"
        return [(asked, prompt.trained), (response.text, response.trained)]

    def prompt(self, sample: Exchange) -> str:
        """Return what the model is given when it is to answer the sample's last turn."""
        if self._is_chat(sample):
            return self._chat_text(sample.turns[:-1], opened=True)
        return "".join(text for text, _ in self.pieces(sample)[:-1])

    def answer(self, sample: Exchange) -> str:
        """Return the text that the model is to produce after ``prompt``."""
        return self.pieces(sample)[-1][0]

    def _is_chat(self, sample: Exchange) -> bool:
        return sample.is_chat and self.vocabulary.chat_template is not None

    @staticmethod
    def _named(turn: Turn) -> str:
        return f"{turn.role.capitalize()}: {turn.text}\n"

    def _chat_pieces(self, sample: Exchange) -> list[Piece]:
        """Cut the rendered conversation where each turn ends; its template must only append."""
        made: list[Piece] = []
        before = ""
        for number, turn in enumerate(sample.turns):
            if turn.role == "assistant":
                opened = self._chat_text(sample.turns[:number], opened=True)
                made.append((_behind(before, opened), False))
                before = opened
            whole = self._chat_text(sample.turns[: number + 1], opened=False)
            made.append((_behind(before, whole), turn.trained))
            before = whole
        return made

    def _chat_text(self, turns: Sequence[Turn], *, opened: bool) -> str:
        if self._chat is None:
            self._chat = _chat_renderer(self.vocabulary)
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        return self._chat(messages=messages, add_generation_prompt=opened) if messages else ""


def _behind(before: str, whole: str) -> str:
    if not whole.startswith(before):
        raise ConfigFault("the chat template rewrites earlier turns; give a template of your own")
    return whole[len(before) :]


def _chat_renderer(vocabulary: Vocabulary) -> Callable[..., str]:
    """Return the compiled chat template (Jinja, sandboxed, as transformers runs it)."""
    from jinja2.ext import loopcontrols  # noqa: PLC0415 - only where a chat template is used
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def fail(message: str) -> Any:
        raise ConfigFault(f"the chat template refuses this conversation: {message}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = fail
    marks = {
        name: _content(vocabulary.config.get(name))
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
    }
    compiled = environment.from_string(vocabulary.chat_template or "")

    def render(**given: Any) -> str:
        return compiled.render(**marks, **given)

    return render


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
