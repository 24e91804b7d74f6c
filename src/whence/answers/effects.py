"""Effects of tasks and pairs on any fitted surrogate: what attribution and interactions are both made of.

An *effect* is the expected change of the outcome when a task is added (or the second difference when two are), the
other tasks being drawn from a :class:`.mixture.Mixture`. Surrogates have effects in closed form, and say what else
they predict, their *remainder* (:mod:`whence.surrogates.protocol`): it is summed over all subsets, or sampled where
these are too many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from whence.answers.rules import Contrasts
from whence.designs import Exhaustive
from whence.errors import InputError
from whence.surrogates.choose import Model, Part
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.protocol import Remainder, as_surrogate

ENUMERATED_TASKS = 14
SAMPLES = 8192

EXACT = "exact"
ENUMERATED = "exact, summed over all subsets"
SAMPLED = "exact for the product-kernel part, the remainder sampled"
OVER_RUNS = "averaged over the subsets of the runs"


class Effects(NamedTuple):
    """Effects on all targets: scores and std (K, T) or (K, K, T), the standard error of sampling, and how."""

    scores: Array
    std: Array
    sampling_error: Array
    baseline: Array  # (T,) the expected outcome over the subsets that are asked about
    how: str


def effects(model: Model, order: int, mixture: Mixture, *, seed: int = 0) -> Effects:
    """Return the effects of all tasks (order 1), or the second differences of all pairs (order 2)."""
    n_tasks, n_targets = model.outcomes.n_tasks, model.outcomes.n_targets
    shape = (n_tasks,) * order + (n_targets,)
    scores, std, error = np.zeros((3, *shape))
    baseline = np.zeros(n_targets)
    how = {EXACT}
    for part in model.parts:
        surrogate, at = as_surrogate(part.surrogate, len(part.targets)), (..., part.targets)
        scores[at], std[at] = surrogate.effects(order, mixture)
        std[at] *= part.factor
        baseline[at] = surrogate.mean_outcome(mixture)
        remainder = surrogate.remainder()
        if remainder is not None and n_tasks >= order:
            rest, error[at], mean, method = _remainder(remainder, n_tasks, mixture, order, seed)
            scores[at] += rest
            baseline[at] += mean
            how.add(method)
    words = next(method for method in (SAMPLED, ENUMERATED, EXACT) if method in how)
    return Effects(scores, std, error, baseline, words)


def contrast_effects(model: Model, asked: Contrasts) -> Effects:
    """Return the effects of all tasks as differences between the outcomes of given subsets."""
    values = model.predict_quietly(asked.points)
    scores = asked.contrasts @ values
    std, error = np.empty_like(scores), np.zeros_like(scores)
    for part in model.parts:
        own = as_surrogate(part.surrogate, len(part.targets)).contrast_std(asked.points, asked.contrasts)
        std[:, part.targets] = own * part.factor
    if asked.sampled:
        for k, contrast in enumerate(asked.contrasts):
            groups = [values[side] - values[side].mean(0) for side in (contrast > 0, contrast < 0) if side.any()]
            shares = [contrast[side] for side in (contrast > 0, contrast < 0) if side.any()]
            error[k] = np.sqrt(sum(c**2 @ away**2 for c, away in zip(shares, groups, strict=True)))
    return Effects(scores, std, error, asked.overall @ values, OVER_RUNS if asked.sampled else EXACT)


def _remainder(
    remainder: Remainder, n_tasks: int, mixture: Mixture, order: int, seed: int
) -> tuple[Array, Array, Array, str]:
    """Effects of what a surrogate predicts beyond its closed form, their standard error, and its mean.

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

    present, absent = points, 1 - points
    if order == 1:
        return np.asarray(present.T @ weighted(inside, 1) + sign * absent.T @ weighted(outside, 0))
    both, one, none = (weighted(inside, n) for n in (2, 1, 0))
    out = np.empty((n_tasks, n_tasks, values.shape[1]))
    for t in range(values.shape[1]):
        mixed = present.T @ (one[:, [t]] * absent)
        out[:, :, t] = present.T @ (both[:, [t]] * present) + absent.T @ (none[:, [t]] * absent)
        out[:, :, t] += sign * (mixed + mixed.T)
        np.fill_diagonal(out[:, :, t], 0.0)
    return out


def _near_full(n_tasks: int, order: int) -> Array:
    """The full set and all subsets with one (order 1) or up to two (order 2) tasks left out."""
    single = 1 - np.eye(n_tasks)
    if order == 1:
        return np.vstack([np.ones(n_tasks), single])
    first, second = np.triu_indices(n_tasks, 1)
    return np.vstack([np.ones(n_tasks), single, single[first] * single[second]])


def as_model(model: Any) -> Model:
    """Return the model itself, or a fitted scikit-learn regressor as one, with default names if it has none."""
    if isinstance(model, Model):
        return model
    from whence.outcomes import Outcomes

    if not hasattr(model, "n_features_in_") or not hasattr(model, "predict"):
        raise InputError(
            "The 'model' must be what whence.fit returns, or a fitted scikit-learn regressor. "
            f"Got {type(model).__name__} instead."
        )
    n_tasks = int(model.n_features_in_)
    n_targets = np.asarray(model.predict(np.ones((1, n_tasks)))).size
    names = {key: getattr(model, key) for key in ("task_names", "target_names") if hasattr(model, key)}
    empty = Outcomes(subsets=np.empty((0, n_tasks)), values=np.empty((0, n_targets)), **names)
    return Model(empty, (Part(np.arange(n_targets), model, type(model).__name__, ()),))
