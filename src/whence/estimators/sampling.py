"""Which examples a training sees: drawn from the tasks of a subset, by a generator of its own seed.

The draws of a run depend on its subset and its seed alone, and not on the device, or on which other runs are trained
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from whence.estimators.recipe import Recipe
from whence.gradients.solve import weights_of

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
DRAWS_AT_ONCE = 1 << 20


def task_shares(subsets: Floats, sizes: Rows, weighting: str) -> Floats:
    """Probability that an example is drawn from each task, (m, K); all 0 for the empty subset.

    Examples
    --------
    >>> task_shares(np.array([[1.0, 1.0]]), np.array([30, 10]), "sample")
    array([[0.75, 0.25]])
    """
    return weights_of(subsets, sizes, weighting) * sizes


def example_shares(subsets: Floats, sizes: Rows, weighting: str) -> Floats:
    """Probability of each example, (m, n), the examples of a task one after the other.

    Examples
    --------
    >>> example_shares(np.array([[1.0, 0.0, 1.0]]), np.array([1, 1, 2]), "task")
    array([[0.5 , 0.  , 0.25, 0.25]])
    """
    return np.repeat(weights_of(subsets, sizes, weighting), sizes, axis=1)


def draw_batches(subsets: Floats, seeds: Rows, sizes: Rows, recipe: Recipe, steps: int) -> Iterator[Rows]:
    """Yield the rows of the examples of each step, (m, batch_size), for subsets that are not empty.

    Examples
    --------
    >>> recipe = Recipe(steps=2, batch_size=4)
    >>> batches = draw_batches(np.array([[0.0, 1.0]]), np.array([7]), np.array([10, 2]), recipe, 2)
    >>> [sorted(set(rows.ravel().tolist())) for rows in batches]
    [[10, 11], [10, 11]]
    """
    size = recipe.batch_size
    assert size is not None
    shares = task_shares(subsets, sizes, recipe.weighting)
    alike = task_shares(np.ones((1, len(sizes))), sizes, recipe.weighting)[0]
    generators = [np.random.default_rng(int(seed)) for seed in seeds]
    block = max(1, DRAWS_AT_ONCE // (len(subsets) * size))
    for start in range(0, steps, block):
        n = min(block, steps - start)
        drawn = [_mixed_rows(rng.random((n, size)), s, alike, sizes) for rng, s in zip(generators, shares, strict=True)]
        yield from np.stack(drawn, axis=1)


def _mixed_rows(uniform: Floats, shares: Floats, alike: Floats, sizes: Rows) -> Rows:
    """Rows of examples, the part that mixtures have in common being drawn first.

    Shares are c times those of all tasks alike, and a rest. Runs of one seed that have the same c, such as those that
    each put more weight on another task, then see the same examples in that part, and differ by the rest alone.
    """
    common = float((shares / alike).min())
    if not 1e-12 < common < 1 - 1e-12:
        return _rows(uniform, shares, sizes)
    rest = np.clip(shares - common * alike, 0.0, None) / (1 - common)
    rest[rest < 1e-12] = 0.0
    from_rest = _rows(np.clip((uniform - common) / (1 - common), 0.0, None), rest, sizes)
    return np.where(uniform < common, _rows(np.minimum(uniform / common, 1.0), alike, sizes), from_rest)


def _rows(uniform: Floats, shares: Floats, sizes: Rows) -> Rows:
    """Rows of examples by inverting the distribution: the task, and the place in it, from one number."""
    inside = np.flatnonzero(shares)
    stops = np.cumsum(shares[inside])
    task = np.minimum(np.searchsorted(stops, uniform, side="right"), len(inside) - 1)
    start = np.concatenate([[0.0], stops[:-1]])[task]
    chosen = inside[task]
    place = ((uniform - start) / shares[chosen] * sizes[chosen]).astype(np.int64)
    first = np.cumsum(sizes) - sizes
    rows: Rows = first[chosen] + np.minimum(place, sizes[chosen] - 1)
    return rows
