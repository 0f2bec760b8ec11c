"""Dry runs of one and two layers, carried on to the whole model. Pure.

``request`` says what ``trainer.dryrun`` is to rehearse; ``read`` takes its answer; ``peak``
gives the bytes of activations, logits, gradients and temporaries at the moment of the run's peak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SCHEMA: Final = 1
_KINDS: Final = ("activations", "gradients", "temporary")
Phase = Mapping[str, float]


class RehearsalError(ValueError):
    """An answer that is none, or not of this version; its message says why."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What one and two layers took, phase by phase (bytes), for ``tokens`` per forward pass.

    ``largest`` is the element count of the largest weight.
    """

    one: tuple[Phase, ...]
    two: tuple[Phase, ...]
    tokens: int
    parameters: tuple[int, int]
    trained: tuple[int, int]
    largest: int

    def whole(self, layers: int) -> int:
        """Return the number of weights of the model with that many layers."""
        one, two = self.parameters
        return one + (layers - 1) * (two - one)

    def learning(self, layers: int) -> int:
        """Return the number of weights that get gradients."""
        one, two = self.trained
        return one + (layers - 1) * (two - one)


def read(answer: Any, tokens: int) -> Rehearsal:
    """Read an answer of ``trainer.dryrun``. Raises ``RehearsalError``."""
    try:
        if answer["schema"] != SCHEMA:
            raise RehearsalError(f"schema {answer['schema']!r} instead of {SCHEMA}")
        one, two = (tuple(_phase(p) for p in answer["layers"][n]) for n in ("1", "2"))
        parameters = (int(answer["parameters"]["1"]), int(answer["parameters"]["2"]))
        trained = (int(answer["trained"]["1"]), int(answer["trained"]["2"]))
        largest = int(answer["largest"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RehearsalError(f"no answer of a dry run: {error!r}") from None
    if (len(one), len(two)) != (2, 3):
        raise RehearsalError(f"{len(one)} and {len(two)} phases instead of 2 and 3")
    return Rehearsal(one, two, tokens, parameters, trained, largest)


def _phase(row: Mapping[str, Any]) -> dict[str, float]:
    return {kind: float(row[kind]) for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The run that a rehearsal is carried on to.

    ``has_gradients``: they are there before the backward pass (accumulation), or counted
    elsewhere (``counts_gradients`` False, as with ZeRO, which moves them into its buckets).
    """

    layers: int
    tokens: int
    has_gradients: bool
    counts_gradients: bool


def peak(seen: Rehearsal, wanted: Wanted) -> dict[str, float]:
    """Return activations, logits, gradients and temporaries (bytes) at the run's peak.

    Memory rises layer by layer to the loss and falls on the way back while gradients grow: it
    is linear in the layers on either way, so the peak is at the loss, in the last layer's
    backward pass, or in the first's.
    """
    held = _steady(seen, wanted.layers)
    candidates = [_counted(phase, wanted, held) for phase in _phases(seen, wanted.layers)]
    scale = wanted.tokens / seen.tokens
    scaled = [_scaled(phase, scale) for phase in candidates]
    top = max(scaled, key=lambda phase: sum(phase.values()))
    head = max(0.0, 2 * seen.one[0]["activations"] - seen.two[0]["activations"]) * scale
    logits = min(head, top["activations"])
    return {
        "gradients": top["gradients"],
        "activations": top["activations"] - logits,
        "logits": logits,
        "temporary": top["temporary"],
    }


def _phases(seen: Rehearsal, layers: int) -> Sequence[Phase]:
    kept = seen.two[0]["activations"] - seen.one[0]["activations"]
    grown = seen.two[2]["gradients"] - seen.one[1]["gradients"]
    more = layers - 2
    at_loss, at_last, at_first = seen.two
    if layers == 1:
        return seen.one
    return (
        {**at_loss, "activations": at_loss["activations"] + more * kept},
        {**at_last, "activations": at_last["activations"] + more * kept},
        {**at_first, "gradients": at_first["gradients"] + more * max(0.0, grown)},
    )


def _steady(seen: Rehearsal, layers: int) -> float:
    return 4.0 * seen.learning(layers)


def _counted(phase: Phase, wanted: Wanted, held: float) -> Phase:
    if not wanted.counts_gradients:
        return {**phase, "gradients": 0.0}
    return {**phase, "gradients": held} if wanted.has_gradients else phase


def _scaled(phase: Phase, scale: float) -> Phase:
    return {name: bytes_ * (1 if name == "gradients" else scale) for name, bytes_ in phase.items()}
