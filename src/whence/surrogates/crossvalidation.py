"""Cross-validation of surrogates on a table of runs: what :func:`whence.fit` weighs them by and reports of the result.

A subset's replicates are always held out together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from sklearn.base import clone

from whence.evaluation import LdsInterval, lds, lds_interval, residual_error
from whence.evaluation.scores import has_std
from whence.evaluation.statistics import ratio, rounding
from whence.outcomes import Outcomes
from whence.surrogates.averaged import mixed, weights_by_error
from whence.surrogates.kernels import Array
from whence.surrogates.posterior import HALF_WIDTH, LEVEL, interval_factor
from whence.surrogates.warp import RankScale

CHOICE_RUNS = 2000
FEWEST_TO_CHECK = 6
# Up to the first number of subsets each is held out alone, up to the second in 10 folds, and more in 5.
SINGLY, SMALL, SMALL_FOLDS, FOLDS = 12, 60, 10, 5
# From this many held-out runs on, their quantile is a better guide to the width of intervals than their mean square.
MANY_RUNS = 50
PRIOR_RUNS = 8
# With this many subsets, the spread of outcomes and the errors of held-out runs count alike for the width of intervals.
SPREAD_SUBSETS = 8
# What targets share is never more than this of what is said of them.
MOST_SHARED = 0.5


@dataclass(frozen=True, eq=False)
class Held:
    """Runs to be held out: the table of those that take part, the fold of each, and where they stand in all runs.

    ``alone`` says that these runs are all that is known, without estimates.
    """

    table: Outcomes
    folds: NDArray[np.intp]
    rows: NDArray[np.intp]
    alone: bool = True

    @property
    def masks(self) -> list[NDArray[np.bool_]]:
        """Which runs are held out, fold by fold."""
        return [self.folds == fold for fold in range(self.folds.max() + 1)]

    @property
    def n_subsets(self) -> int:
        return len(np.unique(self.table.subsets, axis=0))


@dataclass(frozen=True)
class Trial:
    """How one candidate predicted held-out runs in cross-validation; arrays are per target."""

    name: str
    lds: Array
    interval: LdsInterval  # of the rank correlation on new runs
    residual_error: Array
    coverage: Array
    factor: Array  # what its std has to be multiplied with for intervals to hold
    seconds: float
    runs: NDArray[np.intp]  # (n,) rows of the table that took part
    folds: NDArray[np.intp]  # (n,) in which each of them was held out
    predicted: Array  # (n, T) what it said of them when they were held out
    std: Array  # (n, T)


def held_runs(
    table: Outcomes, n_folds: int | str, seed: int, *, fewest: int = FEWEST_TO_CHECK, alone: bool = True
) -> Held | None:
    """Return the runs to hold out, at most `CHOICE_RUNS` subsets; None with fewer subsets than ``fewest``."""
    subset_id = np.unique(table.subsets, axis=0, return_inverse=True)[1].ravel()
    n_distinct = int(subset_id.max(initial=-1)) + 1
    if n_distinct < max(fewest, 2):
        return None
    if isinstance(n_folds, str):
        n_folds = n_distinct if n_distinct <= SINGLY else SMALL_FOLDS if n_distinct <= SMALL else FOLDS
    order = np.random.default_rng(seed).permutation(n_distinct)[:CHOICE_RUNS]
    fold_of_subset = np.full(n_distinct, -1)
    fold_of_subset[order] = np.arange(len(order)) % min(n_folds, len(order))
    folds = fold_of_subset[subset_id]
    rows = np.flatnonzero(folds >= 0)
    return Held(table.rows(rows), folds[rows], rows, alone)


def fitted(candidate: Any, table: Outcomes) -> Any:
    """Return a fresh copy of the candidate, fitted to the table."""
    values = table.values[:, 0] if table.n_targets == 1 else table.values
    return clone(candidate).fit(table.subsets, values)


def cross_validated(name: str, make: Callable[[Outcomes], Any], held: Held) -> Trial:
    """Return the scores of one way of fitting on runs it has not seen."""
    began = time.perf_counter()
    predicted, std = np.empty((2, *held.table.values.shape))
    for out in held.masks:
        predicted[out], std[out] = predict_with_std(make(held.table.rows(~out)), held.table.subsets[out])
    return trial(name, held, predicted, std, time.perf_counter() - began)


def averaged_trial(
    name: str,
    trials: Sequence[Trial],
    prior: Array,
    power: Callable[[int], float],
    held: Held,
    outright: float = 0.0,
) -> tuple[Trial, Array]:
    """Return the trial of the average of several candidates, and their weights (C, T).

    Each fold is predicted with the weights that the other folds give; ``power`` says how sharply so many subsets weigh,
    and ``outright`` how much errors in the outcome itself count beside those in its normal scores.
    """
    predicted, std = np.empty((2, *held.table.values.shape))
    values, stds = np.stack([t.predicted for t in trials]), np.stack([t.std for t in trials])
    squares = _squares(values, held.table.values)
    subsets = np.unique(held.table.subsets, axis=0, return_inverse=True)[1].ravel()
    for out in held.masks:
        others = weights_by_error(_errors(squares[:, :, ~out], outright), prior, power(len(np.unique(subsets[~out]))))
        predicted[out], std[out] = mixed(values[:, out], stds[:, out], others)
    weights = weights_by_error(_errors(squares, outright), prior, power(len(np.unique(subsets))))
    return trial(name, held, predicted, std, sum(t.seconds for t in trials)), weights


def shared_trial(name: str, own: Trial, shared: Trial, held: Held) -> tuple[Trial, float]:
    """Return the trial of what single targets are predicted with, blended with what they share, and the share of that.

    Each fold is predicted with the share that the other folds give. Nothing is shared where ranks are predicted no
    better by it: a blend also has smaller errors because it says less.
    """
    scale, scores = RankScale.learn(held.table.values)
    alone, apart = scale.score(own.predicted), scale.score(shared.predicted)
    subsets = np.unique(held.table.subsets, axis=0, return_inverse=True)[1].ravel()
    predicted, std = np.empty((2, *scores.shape))
    values, stds = np.stack([own.predicted, shared.predicted]), np.stack([own.std, shared.std])
    for out in held.masks:
        share = share_by_error(scores[~out] - alone[~out], apart[~out] - alone[~out], subsets[~out])
        weights = np.repeat([[1 - share], [share]], scores.shape[1], axis=1)
        predicted[out], std[out] = mixed(values[:, out], stds[:, out], weights)
    blended = trial(name, held, predicted, std, own.seconds + shared.seconds)
    if not mean_of_defined(blended.lds) > mean_of_defined(own.lds):
        return own, 0.0
    return blended, share_by_error(scores - alone, apart - alone, subsets)


def share_by_error(residual: Array, step: Array, subsets: NDArray[np.intp]) -> float:
    """Return how much of the way from one prediction to another to go, up to `MOST_SHARED`, the same for all targets.

    Of the least-squares share of held-out errors less its standard error, half: where runs are too few to tell, or
    targets have nothing in common, it is 0. Targets of one run err together, so that runs are what counts.

    Parameters
    ----------
    residual, step : (n, T)
        The outcomes, and the other prediction, both less the first prediction.
    subsets : (n,)
        Which runs have the same subset.

    Examples
    --------
    >>> step = np.random.default_rng(0).normal(size=(20, 10))
    >>> round(share_by_error(0.6 * step, step, np.arange(20)), 6), share_by_error(-step, step, np.arange(20))
    (0.3, 0.0)
    """
    n = int(subsets.max()) + 1
    along = np.bincount(subsets, (step * residual).sum(1), n)
    length = np.bincount(subsets, (step**2).sum(1), n)
    if not length.any():
        return 0.0
    share = along.sum() / length.sum()
    error = np.sqrt(((along - share * length) ** 2).sum() * n / (n - 1)) / length.sum()
    return MOST_SHARED * float(np.clip(share - error, 0.0, 1.0))


def _squares(predicted: Array, values: Array) -> Array:
    """Squared errors (2, C, n, T): in normal scores of the outcomes, and in shares of their variance."""
    scale, scores = RankScale.learn(values)
    variance = values.var(0)
    variance[variance == 0] = 1.0
    in_scores = [(scale.score(each) - scores) ** 2 for each in predicted]
    return np.array([in_scores, (predicted - values) ** 2 / variance])


def _errors(squares: Array, outright: float) -> Array:
    """The errors (C, T) of members: the weighted geometric mean of both kinds of mean squares."""
    in_scores, in_outcome = squares.mean(2)
    return np.asarray(in_scores ** (1 - outright) * in_outcome**outright)


def trial(name: str, held: Held, predicted: Array, std: Array, seconds: float) -> Trial:
    """Return the scores of predictions for held-out runs.

    Predictions of a fold lie around the mean of the runs they learned from, which is lower where the held-out ones are
    higher. Ranks are compared without it. Coverage in a fold uses the factor that the other folds ask for.
    """
    table, masks = held.table, held.masks
    residual = table.values - predicted

    def factor(of: NDArray[np.bool_]) -> Array:
        own = held_out_factor(residual[of], std[of])
        return shrunk_factor(own, std[of], table.rows(of)) if held.alone else own

    centred, inside = np.empty(residual.shape), np.empty(residual.shape)
    for out in masks:
        centred[out] = predicted[out] - table.values[~out].mean(0)
        width = HALF_WIDTH * std[out] * factor(~out)
        inside[out] = np.where(np.isnan(width), np.nan, np.abs(residual[out]) <= width + rounding(table.values))
    return Trial(
        name=name,
        lds=lds(centred, table).per_target,
        interval=lds_interval(centred, table),
        residual_error=residual_error(predicted, table).per_target,
        coverage=inside.mean(0),
        factor=factor(np.ones(len(residual), bool)),
        seconds=seconds,
        runs=held.rows,
        folds=held.folds,
        predicted=predicted,
        std=std,
    )


def held_out_factor(residual: Array, std: Array) -> Array:
    """Return by how much to stretch ``std`` (m, T) so that 90% intervals hold, from runs that were held out, (T,).

    A quantile of a handful of runs is one of the largest of them, and as likely too small as too large. Their mean
    square is steadier, and Student's t allows for its being uncertain. Errors of one surrogate are alike, so that two
    count as one there. Of targets, the typical one's counts.

    Examples
    --------
    >>> residual = np.random.default_rng(0).normal(size=(8, 1))
    >>> held_out_factor(residual, np.ones((8, 1))).round(1), interval_factor(residual, np.ones((8, 1))).round(1)
    (array([0.9]), array([0.6]))
    """
    by_quantile = interval_factor(residual, std)
    known = std > 0
    n = known.sum(0)
    if not (n >= 2).any():
        return by_quantile
    square = np.divide(residual, std, out=np.zeros_like(std), where=known) ** 2
    # That intervals are as wide as the surrogate says counts as much as `PRIOR_RUNS` runs.
    typical = np.median((square.sum(0)[n >= 2] + PRIOR_RUNS) / (n[n >= 2] + PRIOR_RUNS))
    by_square = np.sqrt(typical) * stdtrit((np.maximum(n - 1, 1) + PRIOR_RUNS) / 2, (1 + LEVEL) / 2) / HALF_WIDTH
    trust = n / (n + MANY_RUNS)
    return np.asarray(by_quantile**trust * by_square ** (1 - trust))


def shrunk_factor(factor: Array, std: Array, runs: Outcomes) -> Array:
    """Return the factor (T,) of ``std`` (m, T), drawn towards the one that makes intervals as wide as outcomes spread.

    The errors of a handful of held-out runs may be small by chance. How much these runs differ from each other is
    known better, and few runs do not explain most of it.

    Examples
    --------
    >>> runs = Outcomes(np.eye(8), np.tile([1.0, -1.0], 4))
    >>> shrunk_factor(np.ones(1), np.full((8, 1), 0.25), runs).round(1)
    array([2.2])
    """
    n = len(np.unique(runs.subsets, axis=0))
    spread, typical = runs.values.std(0, ddof=1), np.median(std, axis=0)
    known = (n > 1) & (typical > 0) & (spread > 0)
    wide = np.divide(spread, typical, out=np.ones_like(factor), where=known)
    wide *= float(stdtrit(max(n - 1, 1), (1 + LEVEL) / 2)) / HALF_WIDTH
    share = SPREAD_SUBSETS**2 / (SPREAD_SUBSETS**2 + n**2)
    return np.where(known, factor ** (1 - share) * wide**share, factor)


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
