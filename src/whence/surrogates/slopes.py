"""Slopes of estimates: how much of the truth moves with each kind of estimate, learned from few true runs.

The part of :mod:`.fused` that decides how far estimates are trusted. What is not known is the correlation r of the
truth with a combination b of the estimates (their shares): useless estimates have r = 0, and perfect ones r = 1. Every
r and b of a grid is judged by the true runs. Targets share their prior over the grid, which is learned from all of them
(empirical Bayes); it starts with even odds that the estimates are useless.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import softmax

from whence.surrogates.kernels import Array

# Correlations with the truth that are considered, and how likely it is at first that there is none.
CORRELATIONS = np.array([0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97, 0.99, 0.997])
USELESS = 0.4
# Shares of the estimates in their combination are multiples of one over this; the finest for two kinds.
SHARES = {1: 1, 2: 4, 3: 4, 4: 3}
# How many runs, and how many targets, prior guesses are worth.
PRIOR_RUNS, PRIOR_TARGETS = 3, 2
# A ratio of spreads that is off by more than this factor is taken as it is: the units differ.
LIKELY_FACTOR = 3.0
# From so many runs on, those that are so many times as far off as most others are brought back.
TAMED_RUNS, FAR = 8, 2.0
PASSES = 30
# How far a slope may lie from a point of the grid, in units of the target.
GRID_STEP = 0.1


@dataclass(frozen=True, eq=False)
class Slopes:
    """Slopes of R kinds of estimates for T targets, as a Gaussian per target.

    Attributes
    ----------
    mean : (R, T)
    covariance : (T, R, R)
    useful : (T,)
        How likely it is that the estimates say anything about the target.
    """

    mean: Array
    covariance: Array
    useful: Array


def typical_ratio(estimates: Array, truth: Array, spread: Array) -> Array:
    """Return how much wider the truth (m, T) spreads than the estimates (R, m, T), typical of the targets, (R,).

    With few runs it is drawn towards 1, since estimates usually have the unit of the truth, unless it is so far from 1
    that they cannot. ``spread`` (R, T) is that of estimates as they came, of which a surrogate may have found little to
    depend on the subset: that little is not to be blown up.
    """
    m = len(truth)
    if m < 2:
        return np.ones(len(estimates))
    wide, narrow = tamed(truth).std(0), np.maximum(estimates.std(1), spread)
    ratios = np.divide(wide, narrow, out=np.full(narrow.shape, np.nan), where=(narrow > 0) & (wide > 0))
    logs = np.array([np.median(np.log(row[~np.isnan(row)])) if (~np.isnan(row)).any() else 0.0 for row in ratios])
    doubt = PRIOR_RUNS / (1 + (logs / np.log(LIKELY_FACTOR)) ** 4)
    return np.asarray(np.exp(logs * (m - 1) / (m - 1 + doubt)))


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

    Each is worth its runs, the typical one as many as `PRIOR_RUNS`; and so is, for the typical one, the expectation.

    >>> pooled_variance(np.array([1.0, 1.0, 1e-9]), np.ones(3), 1000).round(2).tolist()
    [1.0, 1.0, 0.0]
    """
    own, prior = n_runs / (n_runs + PRIOR_RUNS), PRIOR_RUNS / (n_runs + PRIOR_RUNS)
    known = expected > 0
    typical = own * np.median(variance[known] / expected[known]) + prior if known.any() else 1.0
    return own * variance + prior * np.where(known, typical * expected, variance)


def learn_slopes(
    estimates: Array,
    truth: Array,
    spread: Array,
    scale: Array,
    overlap: Array,
    signal: Array,
    useless: float = USELESS,
) -> Slopes:
    """Return the slopes of the truth on the estimates.

    With combination b and correlation r, the truth is r·scale·(Σ_r b_r c_r / spread_r) / norm + √(1 − r²)·scale·δ: what
    estimates leave over shrinks as they explain more.

    Parameters
    ----------
    estimates, truth : (R, m, T), (m, T)
        At the true runs, centred and whitened by the covariance of δ.
    spread : (R, T)
        Standard deviation of the estimates over subsets.
    scale : (T,)
        Standard deviation of the truth over subsets.
    overlap : (R, R)
        Correlation of the kinds of estimates with each other.
    signal : (R,)
        How clearly each kind depends on the subset at all, from 0 to 1.
    useless : float
        How likely it is at first that there is no relation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> cheap = rng.normal(size=(1, 40, 20))
    >>> truth = 0.5 * cheap[0] + 0.1 * rng.normal(size=(40, 20))
    >>> slopes = learn_slopes(cheap, truth, np.ones((1, 20)), np.full(20, 0.51), np.ones((1, 1)), np.ones(1))
    >>> slopes.mean.mean().round(1), slopes.useful.min().round(1)
    (np.float64(0.5), np.float64(1.0))
    """
    n_rungs, n_runs, n_targets = estimates.shape
    freedom = n_runs - 1
    known = (spread > 0) & (scale > 0)
    unit = np.divide(scale, spread, out=np.zeros_like(spread), where=known)  # (R, T)
    shares = simplex(n_rungs)
    norms = np.sqrt(np.maximum(np.einsum("br,rs,bs->b", shares, overlap, shares), 1e-12))
    # Slopes of every combination and correlation, in units of each target: (G, R); the first is that of no relation.
    directions = shares / norms[:, None]
    grid = np.concatenate([np.zeros((1, n_rungs)), (CORRELATIONS[:, None, None] * directions).reshape(-1, n_rungs)])
    left = np.concatenate([[1.0], np.repeat(1 - CORRELATIONS**2, len(shares))])
    useful = np.tile(shares @ signal, len(CORRELATIONS)) * (1 - useless) / (len(grid) - 1)
    prior = np.concatenate([[1 - useful.sum()], useful])

    if freedom < 1:
        # Nothing to judge them by: estimates are taken as they are.
        even = np.full(n_rungs, 1 / n_rungs)
        spread_of_grid = np.einsum("g,gr,gs->rs", prior, grid - even, grid - even)
        covariance = np.broadcast_to(spread_of_grid, (n_targets, n_rungs, n_rungs))
        return _in_units(
            np.broadcast_to(even, (n_targets, n_rungs)), covariance, unit, 1 - prior[0] + np.zeros(n_targets)
        )
    C = (estimates * unit[:, None, :]).transpose(2, 1, 0)  # (T, m, R)
    moments = np.einsum("tir,it->tr", C, truth)
    squares = np.einsum("tir,tis->trs", C, C)
    rest = (truth**2).sum(0)[:, None] - 2 * moments @ grid.T + np.einsum("gr,trs,gs->tg", grid, squares, grid)
    ratio = np.divide(np.maximum(rest, 0.0), scale[:, None] ** 2, out=np.zeros_like(rest), where=scale[:, None] > 0)
    # The scale of what is left over is itself uncertain: integrated over, as if `PRIOR_RUNS` runs had shown it.
    fit = -(freedom + PRIOR_RUNS) / 2 * np.log1p(ratio / left / PRIOR_RUNS)
    likelihood = fit - freedom / 2 * np.log(left)
    shared = prior
    for _ in range(PASSES):
        belief = softmax(likelihood + np.log(np.maximum(shared, 1e-300)), axis=1)
        left_over = truth.T - np.einsum("tir,tr->ti", C, belief @ grid)
        share = independent(C, left_over) / n_targets
        shared = PRIOR_TARGETS * prior + share * belief.sum(0)
        shared = shared / shared.sum()
    belief = softmax(likelihood + np.log(np.maximum(shared, 1e-300)), axis=1)  # (T, G)
    mean = belief @ grid
    apart = grid[None] - mean[:, None]
    covariance = np.einsum("tg,tgr,tgs->trs", belief, apart, apart)
    # Between the points of the grid, slopes are as the runs have them: many runs end at least squares.
    noise = np.maximum((belief * rest / freedom).sum(1), 1e-12 * scale**2 + 1e-300)
    sharp = np.linalg.inv(squares / noise[:, None, None] + np.eye(n_rungs) / GRID_STEP**2)
    pull = (moments - np.einsum("trs,ts->tr", squares, mean)) / noise[:, None]
    useful = 1 - belief[:, 0]
    mean = mean + useful[:, None] * np.einsum("trs,ts->tr", sharp, pull)
    return _in_units(mean, covariance + useful[:, None, None] * sharp, unit, useful)


def _in_units(mean: Array, covariance: Array, unit: Array, useful: Array) -> Slopes:
    """Slopes of estimates as they are, from those in units of each target (T, R); ``unit`` is (R, T)."""
    own = unit.T
    return Slopes((mean * own).T, covariance * own[:, :, None] * own[:, None, :], useful)


def simplex(n: int) -> Array:
    """Return shares of n kinds of estimates that add up to 1, on a lattice, (B, n); for many kinds, one or all."""
    if n not in SHARES:
        return np.concatenate([np.eye(n), np.full((1, n), 1 / n)])
    steps = SHARES[n]
    counts = [c for c in product(range(steps + 1), repeat=n) if sum(c) == steps]
    return np.array(counts, np.float64) / steps


def independent(estimates: Array, errors: Array) -> float:
    """Return how many independent targets the estimates (T, m, R) and their errors (T, m) are worth as evidence.

    That estimates and errors agree by chance adds up over targets only as far as both are alike between targets: the
    variance of the sum of T agreements is that of T²/n independent ones, with n as returned.

    >>> independent(np.ones((50, 3, 1)), np.ones((50, 3)))
    1.0
    """
    n_targets = len(errors)
    unit = errors / np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1e-300)
    own = estimates / np.maximum(np.linalg.norm(estimates, axis=1, keepdims=True), 1e-300)
    shared = np.einsum("tir,tj->rij", own, unit)
    return float(np.clip(n_targets**2 / max((shared**2).sum((1, 2)).max(), 1e-300), 1.0, n_targets))
