"""The examiner: measures the model by the job's suites, before and after, and keeps the report.

All ranks take part; all get the same report. The report of the untrained model is kept beside
the job's checkpoints, so that a resumed attempt compares with the same beginning.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineshaft.contracts.ids import digest_of
from trainer.checkpoint import files
from trainer.datasets.rendering import Rendered
from trainer.datasets.store import Prepared
from trainer.datasets.tokens import Vocabulary
from trainer.engines.port import Engine
from trainer.evaluation import statistics
from trainer.evaluation.scoring import Scorer
from trainer.evaluation.suite import Suite, Task
from trainer.gang import Gang

HELD_OUT_ROWS_MAX = 32
HELD_OUT = "heldOut"
Report = dict[str, dict[str, Any]]


@dataclass(slots=True)
class Examiner:
    """Measures one engine's model. ``beat`` is called before each batch."""

    engine: Engine
    gang: Gang
    vocabulary: Vocabulary
    suites: Sequence[Suite]
    held_out: Sequence[Rendered]
    limit: int
    beat: Callable[[], None]

    @property
    def has_work(self) -> bool:
        """Whether there is anything to measure."""
        return bool(self.suites) or bool(self.held_out)

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and digest of what is measured; several suites are joined."""
        named = [{"name": s.name, "version": s.version, "digest": s.digest} for s in self.suites]
        if len(named) == 1:
            return {"suite": named[0]["name"], **named[0]}
        joined = json.dumps(named, sort_keys=True).encode()
        return {
            "suite": "+".join(each["name"] for each in named) or None,
            "digest": digest_of(joined),
            "suites": named,
        }

    def examine(self) -> Report:
        """Return {task: {samples, metric: ...}}, the same on every rank."""
        with self.engine.evaluating() as module:
            scorer = Scorer(
                module=module,
                vocabulary=self.vocabulary,
                device=self.engine.device,
                limit=self.limit,
                share=(0, 1) if self.engine.is_lockstep else (self.gang.rank, self.gang.world_size),
                beat=self.beat,
            )
            report: Report = {}
            for suite in self.suites:
                for task in suite.tasks:
                    name = task.name if len(self.suites) == 1 else f"{suite.name}.{task.name}"
                    report[name] = self._task(scorer, task)
            if self.held_out:
                scores = self._whole(scorer.likelihoods_of(self.held_out))
                report[HELD_OUT] = {"samples": len(scores), **_likely(scores)}
        return report

    def _task(self, scorer: Scorer, task: Task) -> dict[str, Any]:
        wanted = [sample.turns[-1].text.strip() for sample in task.samples]
        made: dict[str, Any] = {"samples": len(wanted)}
        if task.slice:
            made["slice"] = task.slice
        rates = {
            "exactMatch": lambda: scorer.answers(task.samples),
            "choice": lambda: scorer.choices(task.samples, task.choices),
        }
        for metric in task.metrics:
            if metric in rates:
                answers = self._whole(rates[metric]())
                right = sum(got.strip() == want for got, want in zip(answers, wanted, strict=True))
                made[metric] = statistics.rate(right, len(wanted))
                made["majority"] = statistics.majority(wanted)
        if {"perplexity", "tokenAccuracy"} & set(task.metrics):
            likely = _likely(self._whole(scorer.likelihoods(task.samples)))
            made |= {
                name: likely[name]
                for name in ("perplexity", "tokenAccuracy")
                if name in task.metrics
            }
        return made

    def _whole(self, mine: Mapping[int, Any]) -> list[Any]:
        """Return every rank's results, in order of the samples."""
        parts = [dict(mine)] if self.engine.is_lockstep else self.gang.collect(dict(mine))
        merged = {number: result for part in parts for number, result in part.items()}
        return [merged[number] for number in sorted(merged)]


def _likely(scores: Sequence[Any]) -> dict[str, Any]:
    tokens = sum(each.tokens for each in scores)
    nll = sum(each.nll for each in scores)
    return {
        "perplexity": {"value": statistics.perplexity(nll, tokens), "tokens": tokens},
        "tokenAccuracy": statistics.rate(sum(each.right for each in scores), tokens),
        "loss": {"value": nll / max(1, tokens)},
    }


def values(report: Report) -> list[tuple[str, str, float]]:
    """Return (task, metric, value) of everything measured, in order."""
    return [
        (task, metric, float(body["value"]))
        for task, measured in report.items()
        for metric, body in measured.items()
        if isinstance(body, dict)
    ]


def held_out_rows(data: Prepared | None) -> list[Rendered]:
    """Return the first rows of the corpus side that training never sees."""
    if data is None or HELD_OUT not in data.meta["subsets"]:
        return []
    subset = data.subset(HELD_OUT)
    rows = [subset.row(number) for number in range(min(HELD_OUT_ROWS_MAX, len(subset)))]
    return [Rendered(row.ids.tolist(), row.mask.tolist()) for row in rows]


def kept(file: Path, identity: Mapping[str, Any]) -> Report | None:
    """Return the stored report of the untrained model, if it measures the same."""
    if not file.is_file():
        return None
    body = json.loads(file.read_text(encoding="utf-8"))
    return body["report"] if body["identity"] == dict(identity) else None


def keep(file: Path, identity: Mapping[str, Any], report: Report) -> None:
    """Store the report of the untrained model."""
    file.parent.mkdir(parents=True, exist_ok=True)
    body = {"identity": dict(identity), "report": report}
    files.write_bytes(file, json.dumps(body, indent=1).encode())
