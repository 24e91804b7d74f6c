"""Which examples a training sees: drawn from the tasks of a subset, by a generator of its own seed.

The draws of a run depend on its subset and its seed alone, and not on the device, or on which other runs are trained
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from whence.arrays import Floats, Integers
from whence.errors import check_choice
from whence.models.recipe import CHOICES, Recipe

Draws = Literal["own", "shared", "reweighted"]
DRAWS_AT_ONCE = 1 << 20


def weights_of(subsets: Floats, sizes: Integers, weighting: str) -> Floats:
    """Weight of each example of each task, (m, K), for tasks of ``sizes`` (K,); those of a subset add up to one.

    Tasks count equally ("task"), as in the paper's weighted loss, or examples do ("sample").

    >>> weights_of(np.array([[1.0, 1.0]]), np.array([1, 4]), "task")
    array([[0.5  , 0.125]])
    >>> weights_of(np.array([[1.0, 1.0]]), np.array([1, 4]), "sample")
    array([[0.2, 0.2]])
    """
    check_choice(weighting, CHOICES["weighting"], "weighting")
    per_example = subsets / sizes if weighting == "task" else np.asarray(subsets, dtype=float)
    total = (per_example * sizes).sum(axis=1, keepdims=True)
    shares: Floats = np.divide(per_example, total, out=np.zeros_like(per_example), where=total > 0)
    return shares


def task_shares(subsets: Floats, sizes: Integers, weighting: str) -> Floats:
    """Probability that an example is drawn from each task, (m, K); all 0 for the empty subset.

    >>> task_shares(np.array([[1.0, 1.0]]), np.array([30, 10]), "sample")
    array([[0.75, 0.25]])
    """
    return weights_of(subsets, sizes, weighting) * sizes


def example_shares(subsets: Floats, sizes: Integers, weighting: str) -> Floats:
    """Probability of each example, (m, n), the examples of a task one after the other.

    >>> example_shares(np.array([[1.0, 0.0, 1.0]]), np.array([1, 1, 2]), "task")
    array([[0.5 , 0.  , 0.25, 0.25]])
    """
    return np.repeat(weights_of(subsets, sizes, weighting), sizes, axis=1)


def draw_batches(
    subsets: Floats, seeds: Integers, sizes: Integers, recipe: Recipe, steps: int, *, shared: bool = False
) -> Iterator[Integers]:
    """Yield the rows of the examples of each step, (m, batch_size), for subsets that are not empty.

    With ``shared``, runs of one seed see the same examples as far as their shares allow: examples are drawn from all
    tasks, and only what a run has too much of is drawn again. Runs then differ by their shares, not by their draws.

    >>> recipe = Recipe(steps=2, batch_size=4)
    >>> batches = draw_batches(np.array([[0.0, 1.0]]), np.array([7]), np.array([10, 2]), recipe, 2)
    >>> [sorted(set(rows.ravel().tolist())) for rows in batches]
    [[10, 11], [10, 11]]
    """
    size = recipe.batch_size
    assert size is not None
    shares = task_shares(subsets, sizes, recipe.weighting)
    everything = task_shares(np.ones((1, len(sizes))), sizes, recipe.weighting)[0]
    generators = [np.random.default_rng(int(seed)) for seed in seeds]
    choosing = [np.random.default_rng([int(seed), 1]) for seed in seeds]
    block = max(1, DRAWS_AT_ONCE // (len(subsets) * size))
    for start in range(0, steps, block):
        n = min(block, steps - start)
        drawn = [
            _shared_rows(rng.random((n, size)), choose.random((n, size)), s, everything, sizes)
            if shared
            else _rows(rng.random((n, size)), s, sizes)
            for rng, choose, s in zip(generators, choosing, shares, strict=True)
        ]
        yield from np.stack(drawn, axis=1)


def _shared_rows(uniform: Floats, choice: Floats, shares: Floats, everything: Floats, sizes: Integers) -> Integers:
    """Integers of examples of the given shares, as many as can be the same as those drawn from all tasks."""
    missing = np.clip(shares - everything, 0.0, None)
    missing[missing < 1e-12] = 0.0
    rows = _rows(uniform, everything, sizes)
    if not missing.any():
        return rows
    kept = np.minimum(shares / everything, 1.0)[np.searchsorted(np.cumsum(sizes), rows, side="right")]
    left = np.clip((choice - kept) / np.maximum(1 - kept, 1e-12), 0.0, 1.0)  # uniform again, where it was not kept
    return np.where(choice < kept, rows, _rows(left, missing / missing.sum(), sizes))


def _rows(uniform: Floats, shares: Floats, sizes: Integers) -> Integers:
    """Integers of examples by inverting the distribution: the task, and the place in it, from one number."""
    inside = np.flatnonzero(shares)
    stops = np.cumsum(shares[inside])
    task = np.minimum(np.searchsorted(stops, uniform, side="right"), len(inside) - 1)
    start = np.concatenate([[0.0], stops[:-1]])[task]
    chosen = inside[task]
    place = ((uniform - start) / shares[chosen] * sizes[chosen]).astype(np.int64)
    first = np.cumsum(sizes) - sizes
    rows: Integers = first[chosen] + np.minimum(place, sizes[chosen] - 1)
    return rows
