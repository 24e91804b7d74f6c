"""Cross-validation of surrogates on a table of runs: what :func:`whence.fit` chooses by and tells of its choice.

A subset's replicates are always held out together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from sklearn.base import clone

from whence.evaluation import lds, residual_error
from whence.evaluation.scores import has_std
from whence.evaluation.statistics import ratio
from whence.outcomes import Outcomes
from whence.surrogates.kernels import Array
from whence.surrogates.posterior import HALF_WIDTH, LEVEL, interval_factor
from whence.surrogates.warp import RankScale

CHOICE_RUNS = 2000
FEWEST_TO_CHOOSE = 6
# From so many held-out runs on, their quantile says more of how wide intervals must be than their mean square.
MANY_RUNS = 50


@dataclass(frozen=True)
class Trial:
    """How one candidate predicted held-out runs in cross-validation; arrays are per target."""

    name: str
    lds: Array
    score_error: Array  # mean absolute error in normal scores of the outcome, by which surrogates are chosen
    residual_error: Array
    coverage: Array
    factor: Array  # what its std has to be multiplied with for intervals to hold
    seconds: float
    runs: NDArray[np.intp]  # (n,) rows of the table that took part
    predicted: Array  # (n, T) what it said of them when they were held out
    std: Array  # (n, T)


def folds_of(table: Outcomes, n_folds: int, seed: int, *, fold_size: int = 4) -> NDArray[np.intp] | None:
    """Return the fold of every run, −1 for those that take no part (of thousands); None with too few subsets for it.

    Small tables get fewer folds, of at least ``fold_size`` subsets: ranks within a fold of one or two say little.
    """
    subset_id = np.unique(table.subsets, axis=0, return_inverse=True)[1].ravel()
    n_distinct = int(subset_id.max(initial=-1)) + 1
    if n_distinct < FEWEST_TO_CHOOSE:
        return None
    order = np.random.default_rng(seed).permutation(n_distinct)[:CHOICE_RUNS]
    fold_of_subset = np.full(n_distinct, -1)
    fold_of_subset[order] = np.arange(len(order)) % min(n_folds, max(2, len(order) // fold_size))
    return np.asarray(fold_of_subset[subset_id])


def fitted(candidate: Any, table: Outcomes) -> Any:
    """Return a fresh copy of the candidate, fitted to the table."""
    values = table.values[:, 0] if table.n_targets == 1 else table.values
    return clone(candidate).fit(table.subsets, values)


def cross_validated(name: str, make: Callable[[Outcomes], Any], table: Outcomes, folds: NDArray[np.intp]) -> Trial:
    """Return the scores of one way of fitting on runs it has not seen, fold by fold (fold −1 takes no part)."""
    began = time.perf_counter()
    taken = np.flatnonzero(folds >= 0)
    table, folds = table.rows(taken), folds[taken]
    predicted, std = np.empty((2, *table.values.shape))
    held_out = [folds == fold for fold in range(folds.max() + 1)]
    for held in held_out:
        predicted[held], std[held] = predict_with_std(make(table.rows(~held)), table.subsets[held])
    residual = table.values - predicted
    # Across folds, predictions differ by the mean of the runs they saw, which is lower where the held-out ones are
    # higher: ranks are compared within a fold. Coverage in a fold uses the factor that the other folds ask for.
    ranked = np.array([lds(predicted[held], table.rows(held)).per_target for held in held_out])
    inside = np.empty(residual.shape)
    for held in held_out:
        width = HALF_WIDTH * std[held] * held_out_factor(residual[~held], std[~held])
        inside[held] = np.where(np.isnan(width), np.nan, np.abs(residual[held]) <= width)
    scale, scores = RankScale.learn(table.values)
    return Trial(
        name=name,
        lds=mean_of_defined(ranked),
        score_error=np.abs(scale.score(predicted) - scores).mean(0),
        residual_error=residual_error(predicted, table).per_target,
        coverage=inside.mean(0),
        factor=held_out_factor(residual, std),
        seconds=time.perf_counter() - began,
        runs=taken,
        predicted=predicted,
        std=std,
    )


def held_out_factor(residual: Array, std: Array) -> Array:
    """Return by how much to stretch ``std`` (m, T) so that 90% intervals hold, from runs that were held out, (T,).

    A quantile of a handful of runs is one of the largest of them, and as likely too small as too large. Their mean
    square is steadier, and Student's t allows for its being uncertain. Of targets, the typical one's counts.

    Examples
    --------
    >>> residual = np.random.default_rng(0).normal(size=(8, 1))
    >>> held_out_factor(residual, np.ones((8, 1))).round(1), interval_factor(residual, np.ones((8, 1))).round(1)
    (array([0.7]), array([0.6]))
    """
    by_quantile = interval_factor(residual, std)
    known = std > 0
    n = known.sum(0)
    if not (n >= 2).any():
        return by_quantile
    square = np.divide(residual, std, out=np.zeros_like(std), where=known) ** 2
    typical = np.sqrt(np.median(square.sum(0)[n >= 2] / n[n >= 2]))
    by_square = max(float(typical), 1e-3) * stdtrit(np.maximum(n - 1, 1), (1 + LEVEL) / 2) / HALF_WIDTH
    trust = n / (n + MANY_RUNS)
    return np.asarray(by_quantile**trust * by_square ** (1 - trust))


def mean_of_defined(scores: Array) -> Array:
    """Return the mean over axis 0 of what is not NaN; NaN where nothing is."""
    defined = np.isfinite(scores)
    count = defined.sum(0)
    total = np.where(defined, scores, 0.0).sum(0)
    return np.asarray(ratio(total, count))


def predict_with_std(model: Any, S: Array) -> tuple[Array, Array]:
    """Return predictions and std (n, T); NaN std from a regressor that has none."""
    if has_std(model):
        mean, std = model.predict(S, return_std=True)
    else:
        mean = np.asarray(model.predict(S))
        std = np.full(mean.shape, np.nan)
    return mean.reshape(len(S), -1), std.reshape(len(S), -1)
