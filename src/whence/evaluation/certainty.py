"""How certain a rank correlation is that few runs show."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from whence.evaluation.scores import lds, predictions
from whence.evaluation.statistics import Floats, ranks, ratio, rounding
from whence.outcomes import Outcomes

LEVEL = 0.8
# Set on fits of real tables, so that 80% intervals hold about 80% of means over targets and of single targets, at
# 8 to 40 runs (benchmarks/lds_interval.py). On Fisher's scale z, with n subsets:
SCATTER = 2.1  # the variance that runs show counts so often, as few of them understate it,
LEAST, LEARNED = 0.7, 0.2  # what is learned changes with the runs, by a variance of (LEAST + LEARNED · z²)/(n − 3),
GAIN, FADING = 0.2, 60.0  # and a surrogate of all runs does better than those of cross-validation; it fades with runs.


class LdsInterval(NamedTuple):
    """Between which rank correlations the one on new runs probably lies: for every target, and for their mean."""

    low: Floats  # (T,)
    high: Floats  # (T,)
    mean: tuple[float, float]


def lds_interval(model: Any, held_out: Outcomes, level: float = LEVEL) -> LdsInterval:
    """Interval of the rank correlation that held-out runs show of a surrogate.

    A rank correlation is the mean over runs of products of ranks; how much each run moves it (its influence) gives its
    variance, also for the mean over targets that were measured in the same runs. What a surrogate learns changes with
    its runs as well. Runs of cross-validation were predicted with fewer runs than there are, so that the interval lies
    a little higher.

    Parameters
    ----------
    model : object with ``predict``, or array-like of shape (m, T)
        A model, or its predictions for the rows of ``held_out``, as in `lds`.
    held_out : Outcomes
        Runs that it has not seen; replicates of a subset move together.
    level : float
        How often the interval shall hold the rank correlation on new runs.

    Returns
    -------
    LdsInterval
        NaN where the rank correlation is not defined.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> S = rng.integers(0, 2, (30, 8))
    >>> low, high = lds_interval(S.sum(1), Outcomes(S, S.sum(1) + rng.normal(size=30))).mean
    >>> 0.5 < low < high < 0.95
    True
    """
    predicted = predictions(model, held_out)
    score = lds(predicted, held_out)
    missing = np.isnan(held_out.values)
    guess = _standard(ranks(np.where(missing, np.nan, predicted), rounding(predicted)))
    truth = _standard(ranks(held_out.values))
    influence = guess * truth - score.per_target * (guess**2 + truth**2) / 2
    known = ~np.isnan(score.per_target)
    columns = np.column_stack([influence, influence[:, known].mean(1) if known.any() else influence[:, 0]])
    subset = np.unique(held_out.subsets, axis=0, return_inverse=True)[1].ravel()
    n_subsets = int(subset.max(initial=-1)) + 1
    moved = np.zeros((n_subsets, columns.shape[1]))
    np.add.at(moved, subset, columns)
    variance = (moved**2).sum(0) / len(columns) ** 2
    of_one = float(variance[:-1][known].mean()) if known.any() else 0.0
    # Errors that targets do not share average out.
    shared = np.append(np.ones(len(known)), np.sqrt(variance[-1] / of_one) if of_one > 0 else 1.0)
    low, high = _around(np.append(score.per_target, score.mean), variance, shared, n_subsets, level)
    return LdsInterval(low[:-1], high[:-1], (float(low[-1]), float(high[-1])))


def _around(score: Floats, variance: Floats, shared: Floats, n_subsets: int, level: float) -> tuple[Floats, Floats]:
    """The interval around rank correlations of this variance, on Fisher's scale."""
    z = np.arctanh(np.clip(score, -0.999, 0.999))
    learned = shared * (LEAST + LEARNED * z**2) / max(n_subsets - 3, 1)
    std = np.sqrt(SCATTER * variance * np.cosh(z) ** 4 + learned)
    middle, reach = z + GAIN * FADING / (n_subsets + FADING), ndtri((1 + level) / 2) * std
    return np.tanh(middle - reach), np.tanh(middle + reach)


def _standard(columns: Floats) -> Floats:
    """Columns of mean 0 and variance 1; 0 where not measured, or where nothing varies."""
    known = ~np.isnan(columns)
    count = known.sum(0)
    centred = np.where(known, columns - ratio(np.nansum(columns, 0), count), 0.0)
    spread = np.sqrt((centred**2).mean(0))
    return np.asarray(centred / np.where(spread > 0, spread, 1.0))
