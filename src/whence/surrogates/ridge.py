"""Ridge regression in one singular value decomposition: centring, leave-one-out and the evidence of every penalty.

The linear algebra behind :class:`.additive.AdditiveSurrogate`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.special
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from whence.outcomes import distinct_rows

Floats = NDArray[np.float64]
# Columns whose spreads differ by less than this factor are left alone; else they are divided by one of these powers.
ALIKE, POWERS = 3.0, (0.0, 0.5, 1.0)
FEATURE_SHARES = (0.3, 0.7, 0.95)  # of the variance of effects that features may explain
TARGETS_AT_ONCE = 256  # keeps the residuals of a block of targets in cache while penalties are tried


class Centred(NamedTuple):
    """Distinct subsets and their mean outcomes, less the overall mean and times the root of their weight."""

    X: Floats  # (m, K)
    Y: Floats  # (m, T)
    weights: Floats  # (m,)
    subset_mean: Floats  # (K,)
    value_mean: Floats  # (T,)
    scatter: Floats  # (T,), weighted squared distances of replicates from the mean of their subset

    def variance(self, squares: Floats, freedom: ArrayLike) -> Floats:
        """σ² from a sum of squares; without a degree of freedom, from replicates; NaN without those."""
        replicates = self.weights.sum() - len(self.weights)
        from_scatter = self.scatter / (replicates if replicates > 0 else np.nan)
        known = np.asarray(freedom) > 0
        return np.asarray(np.where(known, squares / np.where(known, freedom, 1.0), from_scatter))


def centred(X: Floats, Y: Floats, sample_weight: Floats) -> Centred:
    """Merge rows with the same subset, and centre; rows of weight 0 vanish."""
    kept = sample_weight > 0
    X, Y, sample_weight = X[kept], Y[kept], sample_weight[kept]
    first, group = distinct_rows(X)
    # Sorted, so that folds and rounding do not depend on the order of the runs.
    order = np.lexsort(X[first].T[::-1])
    first, group = first[order], np.argsort(order)[group]
    weights = np.bincount(group, weights=sample_weight).astype(np.float64)
    shares = sample_weight / weights[group]
    means = np.asarray(csr_array((shares, (group, np.arange(len(group))))) @ Y)
    constant = Y.min(axis=0) == Y.max(axis=0)
    scatter = np.zeros(Y.shape[1])
    if len(first) < len(group):
        scatter = np.where(constant, 0.0, sample_weight @ (Y - means[group]) ** 2)
    subsets, root = X[first], np.sqrt(weights)[:, None]
    subset_mean, value_mean = weights @ subsets / weights.sum(), weights @ means / weights.sum()
    centred_X, centred_Y = (subsets - subset_mean) * root, (means - value_mean) * root
    # The mean of equal numbers may be off in its last digit, and a constant must not look like a tiny signal.
    centred_X[:, subsets.min(axis=0) == subsets.max(axis=0)] = 0.0
    centred_Y[:, constant] = 0.0
    return Centred(centred_X, centred_Y, weights, subset_mean, value_mean, scatter)


def leave_one_out(
    alphas: Floats, U: Floats, s: Floats, Z: Floats, residual: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Leave-one-out errors of each penalty: Σ e² and Σ (1 − h) e² over subsets, both of shape (A, T).

    e_i = r_i / (1 − h_i), with r the residuals and h the leverages of the fit to all subsets, is by how much
    a fit without subset i misses it (times the root of its weight): one division instead of m fits.
    """
    n_targets = residual.shape[1]
    losses, squares = np.empty((len(alphas), n_targets)), np.empty((len(alphas), n_targets))
    # The part of 1 − h that no penalty changes; 0 but for rounding where subsets are fewer than tasks.
    fixed = 1 - weights / weights.sum() - (U**2).sum(axis=1)
    fixed[fixed < 1e-12] = 0.0
    shrunk = alphas[:, None] / (s**2 + alphas[:, None])
    left = fixed + shrunk @ (U**2).T
    over = np.divide(1.0, left, out=np.zeros_like(left), where=left > 0)
    for start in range(0, n_targets, TARGETS_AT_ONCE):
        block = slice(start, start + TARGETS_AT_ONCE)
        outside, inside = np.ascontiguousarray(residual[:, block]), np.ascontiguousarray(Z[:, block])
        for a in range(len(alphas)):
            residual_squares = (outside + (U * shrunk[a]) @ inside) ** 2
            losses[a, block] = over[a] ** 2 @ residual_squares
            squares[a, block] = over[a] @ residual_squares
    return losses, squares


class Spectrum(NamedTuple):
    """The singular value decomposition U s basisᵀ of centred subsets whose columns were multiplied with ``unit``."""

    unit: Floats  # (K,), or (K, D) where columns were combined
    U: Floats  # (m, rank)
    s: Floats  # (rank,)
    basis: Floats  # (D, rank)

    @classmethod
    def of(cls, runs: Centred, unit: Floats) -> Spectrum:
        """Return the decomposition in these units, without directions that the subsets do not vary in."""
        U, s, Vt = scipy.linalg.svd(in_units(runs.X, unit), full_matrices=False, check_finite=False)
        rank = int(np.sum(s > s.max(initial=0.0) * max(runs.X.shape) * np.finfo(np.float64).eps))
        return cls(unit, U[:, :rank], s[:rank], Vt[:rank].T)

    @classmethod
    def of_most_evidence(cls, runs: Centred, grid: Floats, features: Floats | None) -> Spectrum:
        """Return the decomposition in the units in which one penalty for all columns explains the outcomes best."""

        def evidence(spectrum: Spectrum) -> float:
            if not len(spectrum.s):
                return 0.0
            alphas = (spectrum.s**2).mean() * grid
            # The best of several shares would look better than no features at all where these are useless.
            tries = len(FEATURE_SHARES) if spectrum.unit.ndim == 2 else 1
            found = scipy.special.logsumexp(log_evidence(alphas, spectrum, runs), axis=0).mean()
            return float(found - np.log(tries))

        units = _units(runs, features)
        return cls.of(runs, units[0]) if len(units) == 1 else max((cls.of(runs, unit) for unit in units), key=evidence)


def in_units(X: Floats, unit: Floats) -> Floats:
    """Return the columns of X (m, K) times ``unit``, or combined by it."""
    return X * unit if unit.ndim == 1 else np.asarray(X @ unit)


def _units(runs: Centred, features: Floats | None) -> list[Floats]:
    """What columns may be multiplied with before one penalty is put on all of them.

    Weights may be amounts, of which one unit of any task does about as much, or such that their spread does. Where
    spreads hardly differ it does not matter, and columns stay as they are. Beside every task's own column, the sums of
    features (K, p) over the tasks of a subset are columns with a share of the prior variance of effects: effects of
    covariance (1 − share)·I + share·FFᵀ.
    """
    n_tasks = runs.X.shape[1]
    spread = np.sqrt((runs.X**2).mean(axis=0))
    seen = spread > 0
    found = [np.ones(n_tasks)]
    if seen.any() and spread[seen].max() > ALIKE * spread[seen].min():
        relative = np.where(seen, spread / spread[seen].mean(), 1.0)
        found = [relative**-power for power in POWERS]
    if features is not None:
        of_unit_variance = features / np.sqrt((features**2).sum(axis=1).mean())
        found += [
            np.hstack([np.sqrt(1 - share) * np.eye(n_tasks), np.sqrt(share) * of_unit_variance])
            for share in FEATURE_SHARES
        ]
    return found


def log_evidence(alphas: Floats, spectrum: Spectrum, runs: Centred) -> Floats:
    """Logarithm of the marginal likelihood of each penalty, shape (A, T), up to a constant, with σ² unknown.

    Under penalty α, Z_j has variance σ²(1 + s_j²/α), and what lies outside the span of the subsets σ²; σ²
    integrated over 1/σ² leaves the sum of squares below to the power of minus half its degrees of freedom.
    """
    Z = spectrum.U.T @ runs.Y
    unexplained = ((runs.Y - spectrum.U @ Z) ** 2).sum(axis=0)
    shrunk = alphas[:, None] / (spectrum.s**2 + alphas[:, None])
    squares = np.maximum(unexplained + shrunk @ Z**2, np.finfo(np.float64).tiny)
    return np.asarray(np.log(shrunk).sum(axis=1)[:, None] / 2 - (len(runs.Y) - 1) / 2 * np.log(squares))
