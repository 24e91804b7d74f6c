"""Effects of tasks and pairs on any fitted surrogate: what attribution and interactions are both made of.

An *effect* is the expected change of the outcome when a task is added (or the second difference when two are), the
other tasks being drawn from a :class:`.mixture.Mixture`. Surrogates have effects in closed form, and say what else
they predict, their *remainder* (:mod:`whence.surrogates.protocol`): it is summed over all subsets, or sampled where
these are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from whence.answers.rules import Contrasts
from whence.errors import InputError
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.model import Model, Part
from whence.surrogates.protocol import as_surrogate
from whence.surrogates.remainders import ENUMERATED, SAMPLED, remainder_effects

EXACT = "exact"
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
        std[at] *= part.effect_factor
        baseline[at] = surrogate.mean_outcome(mixture)
        remainder = surrogate.remainder()
        if remainder is not None and n_tasks >= order:
            rest, error[at], mean, method = remainder_effects(remainder, n_tasks, mixture, order, seed)
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
        std[:, part.targets] = own * part.effect_factor
    if asked.sampled:
        for k, contrast in enumerate(asked.contrasts):
            groups = [values[side] - values[side].mean(0) for side in (contrast > 0, contrast < 0) if side.any()]
            shares = [contrast[side] for side in (contrast > 0, contrast < 0) if side.any()]
            error[k] = np.sqrt(sum(c**2 @ away**2 for c, away in zip(shares, groups, strict=True)))
    return Effects(scores, std, error, asked.overall @ values, OVER_RUNS if asked.sampled else EXACT)


def pair_contrast_effects(model: Model, asked: Sequence[Contrasts]) -> Effects:
    """Return the effects of all pairs as differences between outcomes of given subsets, those of a task at a time."""
    n_tasks, n_targets = model.outcomes.n_tasks, model.outcomes.n_targets
    scores, std = np.zeros((2, n_tasks, n_tasks, n_targets))
    baseline = np.full(n_targets, np.nan)
    for k, contrasts in enumerate(asked):
        found = contrast_effects(model, contrasts)
        scores[k, k + 1 :], std[k, k + 1 :], baseline = found.scores, found.std, found.baseline
    both = scores + scores.swapaxes(0, 1)
    return Effects(both, std + std.swapaxes(0, 1), np.zeros_like(both), baseline, EXACT)


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
