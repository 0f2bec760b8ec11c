"""Scoring a model on samples: greedy decoding, and the likelihood of given answers.

Works on batches and returns plain numbers per sample; what they mean is ``report``'s business.
Draws no random number and leaves the model as it was.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from trainer.datasets.reading import Exchange, Turn
from trainer.datasets.rendering import Rendered, Renderer
from trainer.datasets.tokens import Vocabulary

BATCH_SAMPLES = 32
NEW_TOKENS_MAX = 256
LOGITS_MAX = 128 * 1024 * 1024  # of one batch; twice 4 bytes each
UNFINISHED = "…"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of one sample's answer: sum of negative log-likelihoods, tokens, tokens guessed right."""

    nll: float
    tokens: int
    right: int


@dataclass(slots=True)
class Scorer:
    """One rank's part in scoring.

    ``share`` is (rank, ranks): batches are dealt out in turn, so results do not depend on the
    number of ranks; where every rank must take part in every pass it is (0, 1).
    """

    module: nn.Module
    vocabulary: Vocabulary
    device: torch.device
    limit: int
    share: tuple[int, int] = (0, 1)
    beat: Callable[[], None] = lambda: None

    def answers(self, samples: Sequence[Exchange]) -> dict[int, str]:
        """Return the greedy answers by the samples' numbers, cut at the end mark.

        One that does not end within the longest wanted answer has a "…" behind it.
        """
        renderer = Renderer(self.vocabulary)
        prompts = self.vocabulary.encode([renderer.prompt(sample) for sample in samples])
        wanted = self.vocabulary.encode([renderer.answer(sample) for sample in samples])
        longest = min(NEW_TOKENS_MAX, max(len(ids) for ids in wanted) + 1)
        kept = [ids[-max(1, self.limit - longest) :] for ids in prompts]
        made: dict[int, str] = {}
        ordered = sorted(enumerate(kept), key=lambda each: len(each[1]))
        for batch in self._batches(ordered, [len(ids) for _, ids in ordered]):
            answers = self._greedy([ids for _, ids in batch], longest)
            for (number, _), (ids, has_ended) in zip(batch, answers, strict=True):
                made[number] = self.vocabulary.decode(ids) + ("" if has_ended else UNFINISHED)
        return made

    def likelihoods(self, samples: Sequence[Exchange]) -> dict[int, Likelihood]:
        """Return how likely the samples' own answers are, by the samples' numbers."""
        return self.likelihoods_of(list(Renderer(self.vocabulary).render(samples, self.limit)))

    def likelihoods_of(self, rows: Sequence[Rendered]) -> dict[int, Likelihood]:
        """Return how likely the marked tokens of each row are."""
        made: dict[int, Likelihood] = {}
        ordered = sorted(enumerate(rows), key=lambda each: len(each[1].ids))
        for batch in self._batches(ordered, [len(row.ids) for _, row in ordered]):
            scored = self._scored([row for _, row in batch])
            made |= {number: each for (number, _), each in zip(batch, scored, strict=True)}
        return made

    def choices(self, samples: Sequence[Exchange], words: Sequence[str]) -> dict[int, str]:
        """Return for each sample the most likely of ``words``, in its answer's blank style."""
        asked = [_answering(sample, word) for sample in samples for word in words]
        scored = self.likelihoods(asked)
        made = {}
        for number in range(len(samples)):
            first = number * len(words)
            known = [scored.get(first + each) for each in range(len(words))]
            if all(each is not None for each in known):
                costs = [each.nll for each in known if each is not None]
                made[number] = words[costs.index(min(costs))]
        return made

    def _batches(self, items: Sequence[Item], lengths: Sequence[int]) -> Iterator[Sequence[Item]]:
        """Yield this rank's batches of items that ascend in length.

        A batch's logits stay within a bound; which items it holds does not depend on the ranks.
        """
        rank, ranks = self.share
        number = begin = 0
        while begin < len(items):
            end = min(begin + BATCH_SAMPLES, len(items))
            while end > begin + 1 and (end - begin) * lengths[end - 1] > self._tokens_max:
                end -= 1
            if number % ranks == rank:
                self.beat()
                yield items[begin:end]
            number, begin = number + 1, end

    @property
    def _tokens_max(self) -> int:
        return LOGITS_MAX // self.vocabulary.size

    def _greedy(self, prompts: Sequence[list[int]], longest: int) -> list[tuple[list[int], bool]]:
        """Return the new tokens of each prompt, and whether the end mark came."""
        ids, attention = self._padded(prompts, left=True)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        made: list[list[int]] = [[] for _ in prompts]
        is_open = [True] * len(prompts)
        past: Any = None
        for _ in range(longest):
            out = self.module(
                input_ids=ids,
                attention_mask=attention,
                position_ids=positions,
                cache=past,
                use_cache=True,
            )
            past = out.cache
            following = out.logits[:, -1].argmax(-1)
            for number, token in enumerate(following.tolist()):
                is_open[number] = is_open[number] and token != self.vocabulary.eos_id
                if is_open[number]:
                    made[number].append(token)
            if not any(is_open):
                break
            ids = following[:, None]
            attention = torch.cat([attention, torch.ones_like(ids)], dim=1)
            positions = positions[:, -1:] + 1
        return [(ids, not still) for ids, still in zip(made, is_open, strict=True)]

    def _scored(self, rows: Sequence[Rendered]) -> list[Likelihood]:
        ids, attention = self._padded([row.ids for row in rows], left=False)
        marks = torch.zeros_like(ids, dtype=torch.bool)
        for number, row in enumerate(rows):
            marks[number, : len(row.mask)] = torch.tensor(row.mask, device=self.device)
        logits = self.module(input_ids=ids, attention_mask=attention).logits[:, :-1].float()
        wanted, counted = ids[:, 1:], marks[:, 1:]
        flat = logits.flatten(0, 1)
        costs = nn.functional.cross_entropy(flat, wanted.flatten(), reduction="none")
        nll = (costs.view_as(wanted) * counted).double().sum(1)
        right = ((logits.argmax(-1) == wanted) & counted).sum(1)
        return [
            Likelihood(float(cost), int(count), int(hits))
            for cost, count, hits in zip(nll, counted.sum(1), right, strict=True)
        ]

    def _padded(
        self, rows: Sequence[list[int]], *, left: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(1, *(len(row) for row in rows))
        ids = torch.full((len(rows), longest), self.vocabulary.pad_id, dtype=torch.long)
        attention = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            place = slice(longest - len(row), longest) if left else slice(0, len(row))
            ids[number, place] = torch.tensor(row, dtype=torch.long)
            attention[number, place] = 1
        return ids.to(self.device), attention.to(self.device)


def _answering(sample: Exchange, word: str) -> Exchange:
    last = sample.turns[-1]
    text = f" {word}" if last.text[:1] == " " else word
    return Exchange((*sample.turns[:-1], Turn(last.role, text, True)), sample.is_chat)
