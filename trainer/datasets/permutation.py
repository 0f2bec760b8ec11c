"""The order of samples: a stateless permutation whose position is one number.

Sample ``i`` of a run (counted over all epochs and ranks) maps to a row of the data set by a keyed
bijection, computed where it is needed: nothing is shuffled, stored or restored, and the order
depends neither on the number of ranks nor on how the run was cut into attempts.
Feistel network with cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains"
(2002); the round function is the finaliser of MurmurHash3. Numpy only.
"""

import numpy as np
import numpy.typing as npt

ROUNDS = 6
Whole = npt.NDArray[np.uint64]


def rows(indices: npt.ArrayLike, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the data set's row for each global sample index.

    ``count`` rows make an epoch; every epoch has its own order. Raises ``ValueError`` unless
    ``count`` is positive.
    """
    if count <= 0:
        raise ValueError("a data set needs at least one row")
    flat = np.asarray(indices, dtype=np.uint64)
    epochs, places = flat // np.uint64(count), flat % np.uint64(count)
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    keys = _keys(epochs, seed)
    made = _walk(places, keys, half)
    outside = made >= count
    while outside.any():  # fewer than 4 x count values are possible, so a few rounds suffice
        made[outside] = _walk(made[outside], [key[outside] for key in keys], half)
        outside = made >= count
    return made.astype(np.int64)


def _keys(epochs: Whole, seed: int) -> list[Whole]:
    start = _mix(epochs + _mix(np.full_like(epochs, np.uint64(seed % 2**64))))
    return [_mix(start + np.uint64(number)) for number in range(ROUNDS)]


def _walk(values: Whole, keys: list[Whole], half: int) -> Whole:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: Whole) -> Whole:
    """Return MurmurHash3's 64-bit finaliser of each value (wrapping multiplication)."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))
