"""How certain a rank correlation is that few runs show."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from whence.evaluation.scores import lds, predictions
from whence.evaluation.statistics import Floats, ranks, ratio
from whence.outcomes import Outcomes

LEVEL = 0.8
# Set by benchmarks/lds_interval.py, so that 80% intervals hold 80% over real tables and 8 to 40 runs.
PRIOR_RUNS = 16.0  # What runs show of their own scatter counts beside so many that scatter as unrelated numbers do.
WIDER = 1.1  # By so much the interval is wider: what is learned from runs changes with them, too.
# A surrogate of all runs does better than those of cross-validation, by so much on Fisher's scale; it fades with runs.
GAIN, FADING = 0.15, 60.0


class LdsInterval(NamedTuple):
    """Between which rank correlations the one on new runs probably lies: for every target, and for their mean."""

    low: Floats  # (T,)
    high: Floats  # (T,)
    mean: tuple[float, float]


def lds_interval(model: Any, held_out: Outcomes, level: float = LEVEL) -> LdsInterval:
    """Interval of the rank correlation that held-out runs show of a surrogate.

    A rank correlation is the mean over runs of products of ranks; how much each run moves it (its influence) gives its
    variance, also for the mean over targets that were measured in the same runs. Few runs tell little of their own
    scatter, so that this is averaged with the variance 1/(n − 3) of unrelated numbers on Fisher's scale. Runs of
    cross-validation were predicted with fewer runs than there are, so that the interval lies a little higher.

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
    guess, truth = (_standard(ranks(np.where(missing, np.nan, each))) for each in (predicted, held_out.values))
    influence = guess * truth - score.per_target * (guess**2 + truth**2) / 2
    known = ~np.isnan(score.per_target)
    columns = np.column_stack([influence, influence[:, known].mean(1) if known.any() else influence[:, 0]])
    subset = np.unique(held_out.subsets, axis=0, return_inverse=True)[1].ravel()
    n_subsets = int(subset.max(initial=-1)) + 1
    moved = np.zeros((n_subsets, columns.shape[1]))
    np.add.at(moved, subset, columns)
    low, high = _around(
        np.append(score.per_target, score.mean), (moved**2).sum(0) / len(columns) ** 2, n_subsets, level
    )
    return LdsInterval(low[:-1], high[:-1], (float(low[-1]), float(high[-1])))


def _around(score: Floats, variance: Floats, n_subsets: int, level: float) -> tuple[Floats, Floats]:
    """The interval around rank correlations of this variance, on Fisher's scale."""
    z = np.arctanh(np.clip(score, -0.999, 0.999))
    shown = variance * np.cosh(z) ** 4
    share = n_subsets / (n_subsets + PRIOR_RUNS)
    std = WIDER * np.sqrt(share * shown + (1 - share) / max(n_subsets - 3, 1))
    middle, reach = z + GAIN * FADING / (n_subsets + FADING), ndtri((1 + level) / 2) * std
    return np.tanh(middle - reach), np.tanh(middle + reach)


def _standard(columns: Floats) -> Floats:
    """Columns of mean 0 and variance 1; 0 where not measured, or where nothing varies."""
    known = ~np.isnan(columns)
    count = known.sum(0)
    centred = np.where(known, columns - ratio(np.nansum(columns, 0), count), 0.0)
    spread = np.sqrt((centred**2).mean(0))
    return np.asarray(centred / np.where(spread > 0, spread, 1.0))
