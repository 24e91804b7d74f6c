"""Slopes of estimates: how much of the truth moves with each kind of estimate, learned from few true runs.

The part of :mod:`.fused` that decides how far estimates are trusted. A target's own slope from a handful of runs is
mostly noise. The targets share one, from which each departs as far as its runs insist (an empirical Bayes estimate),
and where even the shared one is uncertain it stays near what estimates are made to have: the spread of the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.surrogates.kernels import Array

# Standard deviation of the shared slope before any true run, in units of the ratio of spreads.
PRIOR_STD = 0.5
# Least, usual and most that targets differ from the shared slope (standard deviation), in the same units.
LEAST_OWN, TYPICAL_OWN, MOST_OWN = 0.1, 0.25, 1.0
# How many runs, and how many targets, prior guesses are worth.
PRIOR_RUNS, PRIOR_TARGETS = 3, 10
# From so many runs on, those that are so many times as far off as most others are brought back.
TAMED_RUNS, FAR = 8, 2.0
# Beyond so many standard deviations a run counts as an outlier (Huber 1964), found in so many passes.
HUBER, PASSES = 1.5, 5


@dataclass(frozen=True, eq=False)
class Slopes:
    """Slopes of R kinds of estimates for T targets, as a Gaussian per target.

    Attributes
    ----------
    mean : (R, T)
    covariance : (T, R, R)
    shared : (R,)
        What the targets have in common.
    """

    mean: Array
    covariance: Array
    shared: Array


def typical_ratio(estimates: Array, truth: Array, spread: Array) -> Array:
    """Return how much wider the truth (m, T) spreads than the estimates (R, m, T), typical of the targets, (R,).

    With few runs it is drawn towards 1: estimates have the unit of the truth. ``spread`` (R, T) is that of estimates as
    they came, of which a surrogate may have found little to depend on the subset: that little is not to be blown up.
    """
    m = len(truth)
    if m < 2:
        return np.ones(len(estimates))
    wide, narrow = tamed(truth).std(0), np.maximum(estimates.std(1), spread)
    ratios = np.divide(wide, narrow, out=np.full(narrow.shape, np.nan), where=(narrow > 0) & (wide > 0))
    logs = [np.median(np.log(row[~np.isnan(row)])) if (~np.isnan(row)).any() else 0.0 for row in ratios]
    return np.asarray(np.exp(np.array(logs) * (m - 1) / (m - 1 + PRIOR_RUNS)))


def tamed(values: Array) -> Array:
    """Return values (m, T) with the few that are far off in their column brought back.

    A run gone wild is to be expected among many, and nothing learned from them must follow it. Far is several times as
    far from the middle as all but a tenth of the runs: what several runs share, however rare, is left alone.

    >>> tamed(np.array([[0.0], [1.0], [-1.0], [0.5], [-0.5], [2.0], [-2.0], [0.2], [500.0]])).max(0).round(1).tolist()
    [4.6]
    """
    if len(values) < TAMED_RUNS:
        return values
    middle = np.median(values, axis=0)
    far = FAR * np.quantile(np.abs(values - middle), 0.9, axis=0, method="lower")
    return np.clip(values, middle - far, middle + far)


def pooled_variance(variance: Array, expected: Array, n_runs: int) -> Array:
    """Return variances (T,) of few runs, drawn towards what is typical of targets of their ``expected`` variance.

    A target that happens to be fitted well would else be given a slope of its own, and be certain of it. Each is
    worth its runs, the typical one as many as `PRIOR_RUNS`; and so is, for the typical one, the expectation.

    >>> pooled_variance(np.array([1.0, 1.0, 1e-9]), np.ones(3), 1000).round(2).tolist()
    [1.0, 1.0, 0.0]
    """
    own, prior = n_runs / (n_runs + PRIOR_RUNS), PRIOR_RUNS / (n_runs + PRIOR_RUNS)
    known = expected > 0
    typical = own * np.median(variance[known] / expected[known]) + prior if known.any() else 1.0
    return own * variance + prior * np.where(known, typical * expected, variance)


def learn_slopes(estimates: Array, truth: Array, scale: Array, unit: Array) -> Slopes:
    """Return the slopes of the truth on the estimates.

    Parameters
    ----------
    estimates, truth : (R, m, T), (m, T)
        At the true runs, centred and whitened: what the estimates leave over has variance scale² in every row.
    scale : (T,)
    unit : (R,)
        Slopes that make estimates as wide as the truth; see `typical_ratio`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> cheap = rng.normal(size=(1, 40, 20))
    >>> truth = 0.5 * cheap[0] + 0.1 * rng.normal(size=(40, 20))
    >>> slopes = learn_slopes(cheap, truth, np.full(20, 0.1), np.ones(1))
    >>> slopes.shared.round(1).tolist(), slopes.mean.shape
    ([0.5], (1, 20))
    """
    # In units of the prior: all numbers below are of order one.
    C = (estimates * unit[:, None, None]).transpose(2, 1, 0)  # (T, m, R)
    noise = np.maximum(scale, 1e-12 * (1e-300 + np.abs(truth).max(initial=0.0)))
    Z, C = (truth / noise).T, C / noise[:, None, None]
    n_rungs = C.shape[2]
    start = np.full(n_rungs, 1 / n_rungs)
    weights = np.ones_like(Z)
    own = np.full(n_rungs, TYPICAL_OWN)
    for _ in range(PASSES):
        precision = np.einsum("tir,ti,tis->trs", C, weights, C)
        moment = np.einsum("tir,ti,ti->tr", C, weights, Z)
        shared, uncertainty = _shared(precision, moment, own, start, independent(Z - C @ start))
        own = _own(precision, moment, own, shared)
        mean, covariance = _shrunk(precision, moment, own, shared)
        residual = np.abs(Z - np.einsum("tir,tr->ti", C, mean))
        weights = HUBER / np.maximum(residual, HUBER)
    follow = covariance / own**2  # how far a target follows the shared slope
    covariance = covariance + follow @ uncertainty @ follow.transpose(0, 2, 1)
    return Slopes((mean * unit).T, covariance * np.outer(unit, unit), shared * unit)


def independent(residuals: Array) -> float:
    """Return how many independent targets residuals (T, m) are worth: targets of the same runs err together.

    >>> independent(np.ones((50, 3)))
    1.0
    """
    small = residuals if residuals.shape[0] <= residuals.shape[1] else residuals.T
    products = small @ small.T
    # (Σλ)² / Σλ² of its eigenvalues λ: how many of them matter.
    return float(np.clip(np.trace(products) ** 2 / max((products**2).sum(), 1e-300), 1.0, len(residuals)))


def _shared(precision: Array, moment: Array, own: Array, start: Array, n_independent: float) -> tuple[Array, Array]:
    """The shared slope (R,) and its covariance: each target is evidence of variance P⁻¹ + own², all of them dependent.

    (P⁻¹ + D)⁻¹ = (I + P D)⁻¹ P, which needs no inverse of P: estimates may be alike, or constant.
    """
    share = n_independent / len(precision)
    through = np.linalg.inv(np.eye(len(own)) + precision * own**2)
    total = share * (through @ precision).sum(0) + np.eye(len(own)) / PRIOR_STD**2
    covariance = np.asarray(np.linalg.inv((total + total.T) / 2), np.float64)
    said = share * (through @ moment[:, :, None])[:, :, 0].sum(0)
    # Estimates of an outcome that fall where it rises do so by chance, until a target's own runs insist.
    return np.maximum(covariance @ (said + start / PRIOR_STD**2), 0.0), covariance


def _shrunk(precision: Array, moment: Array, own: Array, shared: Array) -> tuple[Array, Array]:
    """The slope of every target (T, R), between its own and the shared one, and its covariance (T, R, R)."""
    covariance = np.asarray(np.linalg.inv(precision + np.diag(1 / own**2)), np.float64)
    mean = (covariance @ (moment + shared / own**2)[:, :, None])[:, :, 0]
    return mean, covariance


def _own(precision: Array, moment: Array, own: Array, shared: Array) -> Array:
    """How much targets differ in truth (R,): one step of expectation–maximisation, by medians over targets.

    Few targets say little about that, and a typical difference counts as much as `PRIOR_TARGETS` of them.
    """
    mean, covariance = _shrunk(precision, moment, own, shared)
    # The median of a squared normal variable is 0.455 of its variance.
    spread = np.median((mean - shared) ** 2, axis=0) / 0.455
    shrunk = np.median(np.diagonal(covariance, axis1=1, axis2=2), axis=0)
    share = len(mean) / (len(mean) + PRIOR_TARGETS)
    variance = share * (spread + shrunk) + (1 - share) * TYPICAL_OWN**2
    return np.clip(np.sqrt(variance), LEAST_OWN, MOST_OWN)
