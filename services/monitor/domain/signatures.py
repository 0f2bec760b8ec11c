"""Known forms of faults in log lines: matching with bounded work, and picking the root.

Reading the file of signatures is not here; ``compile_signatures`` takes what was read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lineshaft.contracts.failures import FailureClass
from lineshaft.contracts.telemetry import LogLine

LINE_CHARS_MAX = 1_024
"""Longer lines are judged by their beginning and end; this bounds the work of one line."""

KEPT_CHARS_MAX = 300
HITS_KEPT_MAX = 64

_NO_EVIDENCE = re.compile(
    r"errors might be asynchronously reported|consider passing CUDA_LAUNCH_BLOCKING"
    r"|Compile with `?TORCH_USE_CUDA_DSA|(?:may|might|could) be caused by"
)
_BLANK = re.compile(r"[ \t]{3,}")


class SignatureError(ValueError):
    """A signature that cannot be used; the message names it."""


class Role(StrEnum):
    """What a match means, strongest first."""

    ROOT = "root"  # a cause
    PRECURSOR = "precursor"  # a fault announces itself
    CASCADE = "cascade"  # follows from a cause elsewhere


_ROLE_RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Signature:
    """One known form. ``retry`` says how the job may be started again."""

    id: str
    pattern: re.Pattern[str]
    failure_class: FailureClass
    role: Role
    retry: str
    is_retriable: bool
    cause: str
    action: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that has the form of a signature. ``at`` is milliseconds since the epoch."""

    at: int
    node: str
    rank: int
    signature: Signature
    line: str

    def told(self) -> dict[str, Any]:
        """Return the hit as JSON values, for evidence."""
        signature = self.signature
        return {
            "signature": signature.id,
            "role": str(signature.role),
            "class": str(signature.failure_class),
            "retry": signature.retry,
            "retriable": signature.is_retriable,
            "cause": signature.cause,
            "action": signature.action,
            "at": self.at,
            "node": self.node,
            "rank": self.rank,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True)
class Signatures:
    """All signatures, in their order of precedence inside one line."""

    ordered: tuple[Signature, ...]
    by_id: Mapping[str, Signature] = field(default_factory=dict)

    def match(self, text: str) -> Signature | None:
        """Return the first signature that ``text`` has the form of, or None.

        The work is bounded by ``LINE_CHARS_MAX``; runs of blanks count as one, because they are
        what makes patterns with optional spaces slow.
        """
        text = bounded(text)
        if _NO_EVIDENCE.search(text):
            return None
        return next((s for s in self.ordered if s.pattern.search(text)), None)

    def hits(self, node: str, lines: Iterable[LogLine]) -> list[Hit]:
        """Return the matches among ``lines``, in order."""
        made = []
        for line in lines:
            signature = self.match(line.text)
            if signature is not None:
                kept = bounded(line.text)[:KEPT_CHARS_MAX]
                made.append(Hit(line.at, node, line.rank, signature, kept))
        return made


def bounded(text: str) -> str:
    """Return ``text`` short enough to be matched: beginning and end of a long one."""
    if len(text) > LINE_CHARS_MAX:
        half = LINE_CHARS_MAX // 2
        text = f"{text[:half]} ... {text[-half + 5 :]}"
    return _BLANK.sub("  ", text)


def compile_signatures(rows: Sequence[Mapping[str, Any]]) -> Signatures:
    """Return the signatures of ``rows``. Raises ``SignatureError`` for one that cannot be used."""
    ordered = tuple(_compile(row) for row in rows)
    by_id = {signature.id: signature for signature in ordered}
    if len(by_id) < len(ordered):
        raise SignatureError("two signatures have the same id")
    return Signatures(ordered, by_id)


def _compile(row: Mapping[str, Any]) -> Signature:
    name = str(row.get("id"))
    try:
        return Signature(
            id=name,
            pattern=re.compile(row["pattern"]),
            failure_class=FailureClass(row["class"]),
            role=Role(row["role"]),
            retry=str(row["retry"]),
            is_retriable=bool(row["retriable"]),
            cause=str(row["cause"]),
            action=str(row["action"]),
        )
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise SignatureError(f"the signature '{name}' cannot be used: {error!r}") from None


def distinct(hits: Iterable[Hit], within_ms: int) -> list[Hit]:
    """Return ``hits`` by time, equal ids within ``within_ms`` of the last one kept as one."""
    made: list[Hit] = []
    last: dict[str, int] = {}
    for hit in sorted(hits, key=lambda h: h.at):
        seen = last.get(hit.signature.id)
        if seen is None or hit.at - seen > within_ms:
            made.append(hit)
        last[hit.signature.id] = hit.at
    return made


def strongest(hits: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the hit (as told) that explains most: root before precursor before cascade.

    Among equals the earliest wins; among equally early ones, the first.
    """
    kept = list(hits)
    ranked = [(_ROLE_RANK[Role(hit["role"])], hit["at"], n) for n, hit in enumerate(kept)]
    return kept[min(ranked)[2]] if ranked else None
