"""What scores come to: rates with their intervals, the majority baseline, perplexity. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

Z_95 = 1.959963984540054


def wilson(right: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """Return the 95 % interval of a rate of ``right`` out of ``count``.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    if count == 0:
        return 0.0, 1.0
    rate = right / count
    centre = rate + z * z / (2 * count)
    half = z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def majority(answers: Sequence[str]) -> float:
    """Return how often the most frequent answer is right: what a guess without looking gets."""
    return Counter(answers).most_common(1)[0][1] / len(answers) if answers else 0.0


def rate(right: int, count: int) -> dict[str, float | int]:
    """Return a rate with its interval, for a report."""
    low, high = wilson(right, count)
    return {"value": right / max(1, count), "low": low, "high": high, "right": right}


def perplexity(nll: float, tokens: int) -> float:
    """Return exp of the mean negative log-likelihood, at most the largest number there is."""
    return math.exp(min(700.0, nll / max(1, tokens)))
