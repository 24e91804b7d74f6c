"""Mixtures: drawing weights like the measured ones, and searching for the best; used by selection and suggestion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 20_000
# Shares of the total weight that one transfer may move, from coarse to fine.
TRANSFERS = (0.1, 0.05, 0.02, 0.01)


def mixtures_like(runs: Array, n: int, rng: np.random.Generator) -> Array:
    """Return n mixtures between and around the measured ones: random averages of two runs, weights jittered."""
    first, second = runs[rng.integers(len(runs), size=(2, n))]
    share = rng.random((n, 1))
    mixed = (share * first + (1 - share) * second) * rng.gamma(4.0, 0.25, (n, runs.shape[1]))
    total = mixed.sum(1, keepdims=True)
    wanted = (share * first + (1 - share) * second).sum(1, keepdims=True)
    return np.asarray(mixed * np.divide(wanted, total, out=np.zeros_like(total), where=total > 0))


def best_mixture(
    goodness: Callable[[Array], Array],
    runs: Array,
    excluded: Array,
    rng: np.random.Generator,
    bounds: tuple[Array, Array] | None = None,
) -> tuple[Array, str]:
    """Return the mixture (K,) of greatest goodness that was found, and how, in words.

    Random mixtures like the runs come first; then weight moves from one task to another while that improves.
    ``excluded`` (K,) is 1 for tasks that must have no weight; ``bounds`` are the least and the most weight (K,) of the
    others.
    """
    least, most = (np.zeros(len(excluded)), np.full(len(excluded), np.inf)) if bounds is None else bounds
    least = least * (1 - excluded)
    drawn = mixtures_like(runs, DRAWS, rng) * (1 - excluded)
    total = drawn.sum(1, keepdims=True)
    drawn = (drawn / np.where(total > 0, total, 1) * np.median(runs.sum(1)))[total.ravel() > 0]
    like = ((least <= drawn) & (drawn <= most)).all(1)
    measured = runs[(runs[:, excluded == 1] == 0).all(1)]
    pool = np.vstack([measured, drawn[like] if like.any() or len(measured) else drawn])
    values = goodness(pool)
    current, value = pool[values.argmax()], values.max()
    taking = np.flatnonzero(excluded == 0)
    giver, taker = (grid.ravel() for grid in np.meshgrid(taking, taking))
    giver, taker = giver[giver != taker], taker[giver != taker]
    for share in TRANSFERS if len(giver) else ():
        while True:
            moves = np.repeat(current[None], len(giver), axis=0)
            room = np.minimum(current[giver] - least[giver], most[taker] - current[taker])
            moved = np.clip(share * current.sum(), 0, np.maximum(room, 0))
            moves[np.arange(len(giver)), giver] -= moved
            moves[np.arange(len(giver)), taker] += moved
            values = goodness(moves)
            if values.max() <= value + 1e-9 * abs(value):
                break
            current, value = moves[values.argmax()], values.max()
    return current, f"best of {len(pool):,} mixtures, improved by transfers of weight"
