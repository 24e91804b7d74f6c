"""Effects of remainders: what a surrogate predicts beyond its closed form, summed over all subsets or sampled."""

from __future__ import annotations

import numpy as np

from whence.designs import Exhaustive
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.protocol import Remainder

ENUMERATED_TASKS = 14
SAMPLES = 8192

ENUMERATED = "exact, summed over all subsets"
SAMPLED = "exact for the product-kernel part, the remainder sampled"


def remainder_effects(
    remainder: Remainder, n_tasks: int, mixture: Mixture, order: int, seed: int = 0
) -> tuple[Array, Array, Array, str]:
    """Return effects of what a surrogate predicts beyond its closed form, their standard error, its mean, and how.

    The weight of a subset s in the effect of task k is ±p(number of other tasks in s), which depends on its size only;
    a sampled subset counts with the inverse of its density.
    """
    full_only = mixture.size is None and bool((mixture.present == 1).all())
    if n_tasks <= ENUMERATED_TASKS or full_only:
        everything = Exhaustive(allow_empty=True).draw(n_tasks) if n_tasks <= ENUMERATED_TASKS else None
        points = _near_full(n_tasks, order) if everything is None else everything
        log_density = np.zeros(len(points))
        method = ENUMERATED
    else:
        points, log_density = mixture.draw(n_tasks, SAMPLES, seed)
        method = SAMPLED
    values = np.asarray(remainder(points))
    # A constant has no effect, but its samples would scatter.
    level = values.mean(0) if method == SAMPLED else np.zeros(values.shape[1])
    values = values - level
    scores = _contrast(points, values, log_density, mixture, order, power=1)
    sizes = points.sum(1).astype(int)
    mean = (
        np.exp(mixture.log_overall(n_tasks)[sizes] - log_density) @ values
        + level * mixture.overall_chances(n_tasks).sum()
    )
    if method == ENUMERATED:
        return scores, np.zeros_like(scores), mean, method
    second_moment = _contrast(points, values**2, log_density, mixture, order, power=2)
    return scores, np.sqrt(np.maximum(second_moment - scores**2 / len(points), 0.0)), mean, method


def _contrast(points: Array, values: Array, log_density: Array, mixture: Mixture, order: int, power: int) -> Array:
    """Σ_s (±p(others in s) / density)^power · value(s), for every task or pair: matrix products over the points."""
    n_tasks = points.shape[1]
    sizes = points.sum(1).astype(int)
    inside, outside = mixture.log_chances(n_tasks - order)
    sign = -1.0 if power == 1 else 1.0

    def weighted(log_chance: Array, absent_minus: int) -> Array:
        """Value · (p(|s| − absent_minus) / density)^power, zero where that size cannot occur."""
        n = sizes - absent_minus
        possible = (n >= 0) & (n < len(log_chance))
        ratio = np.exp(log_chance[np.clip(n, 0, len(log_chance) - 1)] - log_density)
        factor = np.where(possible, ratio, 0.0) ** power
        return np.asarray(factor[:, None] * values)

    if order == 1:
        return np.asarray(points.T @ weighted(inside, 1) + sign * (1 - points).T @ weighted(outside, 0))
    both, one, none = weighted(inside, 2), sign * weighted(inside, 1), weighted(inside, 0)
    # "Out" is 1 less "in": one matrix product serves all four cases of a pair, the rest depends on single tasks.
    single = points.T @ (one - none)
    out = none.sum(0) + single[:, None] + single[None, :]
    for t, weight in enumerate((both - 2 * one + none).T):
        out[:, :, t] += (points * weight[:, None]).T @ points
        np.fill_diagonal(out[:, :, t], 0.0)
    return np.asarray(out)


def _near_full(n_tasks: int, order: int) -> Array:
    """The full set and all subsets with one (order 1) or up to two (order 2) tasks left out."""
    single = 1 - np.eye(n_tasks)
    if order == 1:
        return np.vstack([np.ones(n_tasks), single])
    first, second = np.triu_indices(n_tasks, 1)
    return np.vstack([np.ones(n_tasks), single, single[first] * single[second]])
