"""Statistics of columns of numbers, NaN where not measured: what every score is computed with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROUNDING = 1e-12  # of the largest number: predictions of one subset in two rows may differ by so much


def ranks(columns: Floats, tolerance: Floats | float = 0.0) -> Floats:
    """Average ranks within each column, NaN for NaN; a third of the time of scipy.stats.rankdata.

    Neighbours that differ by at most ``tolerance``, one for each column, are tied.
    """
    rows = np.ascontiguousarray(columns.T)
    order = np.argsort(rows, axis=1)
    ordered = np.take_along_axis(rows, order, axis=1)
    starts = np.ones(rows.shape, dtype=np.bool_)  # of runs of equal numbers
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if np.any(tolerance):
        starts[:, 1:] &= ~(ordered[:, 1:] <= ordered[:, :-1] + np.reshape(tolerance, (-1, 1)))
    places = np.broadcast_to(np.arange(1.0, rows.shape[1] + 1), rows.shape)
    if not starts.all():
        ends = np.ones_like(starts)
        ends[:, :-1] = starts[:, 1:]
        first = np.maximum.accumulate(np.where(starts, places, 0.0), axis=1)
        last = np.minimum.accumulate(np.where(ends, places, np.inf)[:, ::-1], axis=1)[:, ::-1]
        places = (first + last) / 2
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, places, axis=1)
    ranks[np.isnan(rows)] = np.nan
    return ranks.T


def rounding(columns: Floats) -> Floats:
    """Difference (T,) that rounding can make to numbers of the size of those in each column."""
    return np.asarray(ROUNDING * np.fmax.reduce(abs(columns), axis=0, initial=0.0))


def varies(columns: Floats) -> NDArray[np.bool_]:
    """Whether a column holds two different numbers, shape (T,)."""
    largest = np.fmax.reduce(columns, axis=0, initial=-np.inf)
    smallest = np.fmin.reduce(columns, axis=0, initial=np.inf)
    return np.asarray(largest > smallest)


def pearson(a: Floats, b: Floats) -> Floats:
    """Correlation of each pair of columns, NaN where one does not vary; both lack the same cells."""
    present = ~np.isnan(a)
    count = present.sum(axis=0)
    left = np.where(present, a - ratio(np.nansum(a, axis=0), count), 0.0)
    right = np.where(present, b - ratio(np.nansum(b, axis=0), count), 0.0)
    product = np.einsum("mt,mt->t", left, right)
    norms = np.sqrt(np.einsum("mt,mt->t", left, left) * np.einsum("mt,mt->t", right, right))
    defined = varies(a) & varies(b)
    return np.clip(ratio(product, np.where(defined, norms, 0.0)), -1.0, 1.0)


def ratio(above: Floats, below: NDArray[Any]) -> Floats:
    """Quotient of each pair, NaN where the divisor is 0."""
    quotient = np.full(np.shape(above), np.nan)
    np.divide(above, below, out=quotient, where=np.not_equal(below, 0))
    return quotient


def failures_as_zero(scores: Floats, measured: Floats) -> Floats:
    """Correlations with 0 instead of NaN where the measured values do vary."""
    return np.where(np.isnan(scores) & varies(measured), 0.0, scores)


def mean_defined(scores: Floats) -> float:
    """Mean of what is not NaN; NaN where nothing is left."""
    defined = scores[~np.isnan(scores)]
    return float(defined.mean()) if len(defined) else np.nan


def out_of(per_target: Floats) -> str:
    """Say how many targets have a score."""
    n_targets, n_undefined = len(per_target), int(np.isnan(per_target).sum())
    return f"over {n_targets - n_undefined} of {n_targets} targets; {n_undefined} undefined"
