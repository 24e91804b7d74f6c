"""A Gaussian process conditioned on measured runs: the linear algebra behind every kernel surrogate.

One :class:`Posterior` holds one kernel and all the targets that share it. Everything read off it (prediction,
leave-one-out, effects of tasks and of pairs) is a linear functional of the process: a vector of kernel values a
against the runs gives the estimate a·dual and the variance prior − aᵀ C⁻¹ a, with C = gram + noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotri
from scipy.special import ndtri

from whence.errors import InputError
from whence.surrogates.kernels import BLOCK_BYTES, Kernel, Lattice
from whence.surrogates.mixture import Array, Mixture

# Intervals are calibrated at this level.
LEVEL = 0.9
HALF_WIDTH = float(ndtri((1 + LEVEL) / 2))  # of an interval at that level, in standard deviations
# Leave-one-out needs a full inverse: beyond this many runs, a sample of them calibrates the intervals.
CALIBRATION_RUNS = 4000
PAIR_BYTES = 1 << 24  # of the representers of pairs at a time: as much as stays in a processor's cache
JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)  # shares of the mean diagonal that may be added to a matrix to factor it


@dataclass(frozen=True)
class Posterior:
    """Runs ``X`` (m, D), a kernel, and for T targets sharing it the dual coefficients and the scale of the process.

    The process has std ``scale`` (T,); one measured run adds noise of variance ``alpha`` relative to it, and a row that
    stands for the mean of ``counts`` runs has alpha / counts.
    """

    kernel: Kernel
    alpha: float
    X: Array
    Y: Array
    counts: Array  # (m,)
    factor: Array  # (m, m) lower Cholesky factor of gram + noise
    dual: Array  # (m, T)
    level: Array  # (T,) what was subtracted from the outcomes
    scale: Array  # (T,)

    @classmethod
    def condition(
        cls, kernel: Kernel, alpha: float, X: Array, Y: Array, counts: Array, *, center: bool = True
    ) -> Posterior:
        """Return the process given outcomes ``Y`` (m, T): θ = (K + noise)⁻¹ (F − level) (paper, section 3.2)."""
        factor = _cholesky(kernel.evaluate(X, X), alpha / counts)
        level = np.average(Y, axis=0, weights=counts) if center else np.zeros(Y.shape[1])
        dual, scale = _dual(factor, Y - level)
        return cls(kernel, alpha, X, Y, counts, factor, dual, level, scale)

    def given(self, Y: Array) -> Posterior:
        """Return the same process (kernel, noise, runs) given other outcomes, without factoring again."""
        level = np.average(Y, axis=0, weights=self.counts)
        dual, scale = _dual(self.factor, Y - level)
        return replace(self, Y=Y, dual=dual, level=level, scale=scale)

    @property
    def noise(self) -> Array:
        """What the diagonal of the gram got before it was factored (m,): noise, and jitter where it needed some."""
        exact = self.kernel.diag(self.X) + self.alpha / self.counts
        added = (np.einsum("ij,ij->i", self.factor, self.factor) - exact).mean() / exact.mean()
        jitter = min(JITTERS, key=lambda one: abs(one - added))
        return np.asarray(self.alpha / self.counts + jitter * exact.mean())

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return the mean (n, T) and the variance of the process relative to scale² (n,)."""
        mean = np.empty((len(X), self.dual.shape[1]))
        variance = np.empty(len(X))
        rows = max(1, BLOCK_BYTES // (8 * len(self.X)))
        for start in range(0, len(X), rows):
            block = slice(start, start + rows)
            against = self.kernel.evaluate(X[block], self.X)
            mean[block] = against @ self.dual + self.level
            variance[block] = self.kernel.diag(X[block]) - self._explained(against.T)
        return mean, np.maximum(variance, 0.0)

    def predict_mean(self, X: Array) -> Array:
        """Return the mean alone (n, T): a matrix product, without the triangular solves of the variance."""
        rows = max(1, BLOCK_BYTES // (8 * len(self.X)))
        blocks = [self.kernel.evaluate(X[i : i + rows], self.X) @ self.dual for i in range(0, len(X), rows)]
        return np.concatenate(blocks) + self.level if blocks else np.empty((0, len(self.level)))

    def covariance(self, X: Array) -> Array:
        """Return the posterior covariance between subsets relative to scale², (n, n)."""
        half = solve_triangular(self.factor, self.kernel.evaluate(self.X, X), lower=True)
        return np.asarray(self.kernel.evaluate(X, X) - half.T @ half)

    def leave_one_out(self) -> tuple[Array, Array]:
        """Return what each run would be predicted without it (m, T), and that prediction's variance (m,).

        Closed form (Sundararajan & Keerthi 2001): y_i − θ_i / (C⁻¹)_ii, with variance 1/(C⁻¹)_ii, noise included.
        """
        diagonal = inverse_diagonal(self.factor)
        return self.Y - self.dual / diagonal[:, None], 1 / diagonal

    def calibrated(self, seed: int = 0) -> Posterior:
        """Return the same process with the scale at which 90% intervals hold 90% of the left-out runs.

        The maximum-likelihood scale trusts the kernel; this one trusts the residuals.
        """
        sample = self
        if len(self.X) > CALIBRATION_RUNS:
            rows = np.random.default_rng(seed).choice(len(self.X), CALIBRATION_RUNS, replace=False)
            sample = Posterior.condition(self.kernel, self.alpha, self.X[rows], self.Y[rows], self.counts[rows])
        mean, variance = sample.leave_one_out()
        factor = interval_factor(sample.Y - mean, np.sqrt(variance)[:, None] * self.scale)
        return replace(self, scale=self.scale * factor)

    def mean_outcome(self, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the expected outcome over the subsets of a mixture, (T,)."""
        total = mixture.overall_chances(len(lattice.absent)).sum()
        return np.asarray(self.kernel.mean(self.X, lattice, mixture) @ self.dual + total * self.level)

    def effects(self, order: int, lattice: Lattice, mixture: Mixture) -> tuple[Array, Array]:
        """Return the effects of tasks (K, T) or pairs (K, K, T), and their posterior std."""
        return self._main_effects(lattice, mixture) if order == 1 else self._pair_effects(lattice, mixture)

    def _main_effects(self, lattice: Lattice, mixture: Mixture) -> tuple[Array, Array]:
        representer = self.kernel.main(self.X, lattice, mixture)
        prior = self.kernel.main_prior(lattice, mixture)
        variance = np.maximum(prior - self._explained(representer), 0.0)
        return representer.T @ self.dual, np.sqrt(variance)[:, None] * self.scale

    def _pair_effects(self, lattice: Lattice, mixture: Mixture) -> tuple[Array, Array]:
        n_runs, n_tasks, n_targets = len(self.X), len(lattice.absent), len(self.scale)
        scores = np.empty((n_tasks, n_tasks, n_targets))
        variance = self.kernel.pair_prior(lattice, mixture)
        representers = self.kernel.pairs(self.X, lattice, mixture)
        start = 0
        while start < n_tasks:  # a pair is the same in either order: each block begins at its own diagonal
            width = n_tasks - start
            rows = min(width, max(1, PAIR_BYTES // (8 * n_runs * width)))
            block, others = slice(start, start + rows), slice(start, None)
            representer = representers(block, others).reshape(n_runs, -1)
            scores[block, others] = (representer.T @ self.dual).reshape(rows, width, n_targets)
            variance[block, others] -= self._explained(representer).reshape(rows, width)
            scores[others, block] = scores[block, others].swapaxes(0, 1)
            variance[others, block] = variance[block, others].T
            start += rows
        std = np.sqrt(np.maximum(variance, 0.0))[:, :, None] * self.scale
        itself = np.arange(n_tasks)
        scores[itself, itself] = std[itself, itself] = 0.0
        return scores, std

    def export(self, kept: NDArray[np.bool_]) -> dict[str, Any] | None:
        """Return the process of the targets ``kept`` as plain data; None where the page does not know its kernel."""
        kernel = self.kernel.export()
        if kernel is None:
            return None
        return {
            "kernel": kernel,
            "alpha": self.alpha,
            "noise": self.noise,
            "dual": self.dual[:, kept].T,
            "level": self.level[kept],
            "scale": self.scale[kept],
        }

    def _explained(self, representer: Array) -> Array:
        """aᵀ C⁻¹ a for every column a of ``representer`` (m, n)."""
        # From the right and transposed, which is how LAPACK sees rows that follow each other: nothing is copied twice.
        half = dtrsm(1.0, self.factor, representer.T, side=1, lower=1, trans_a=1)
        return np.asarray(np.einsum("ji,ji->j", half, half))


def interval_factor(residual: Array, std: Array) -> Array:
    """Return by how much to stretch ``std`` (m, T) so that 90% intervals hold 90% of the residuals, (T,).

    A target's own quantile is shrunk towards that of all targets, the more so the fewer runs there are.
    """
    # A constant target (std 0) and a missing std (NaN) say nothing about how wide the others' intervals must be.
    known = std > 0
    if not known.any():
        return np.ones(std.shape[1])
    ratio = np.divide(np.abs(residual), std, out=np.zeros_like(std), where=known)
    pooled = np.quantile(ratio[known], LEVEL)
    whole = np.asarray(known.all(0))
    own = np.full(std.shape[1], pooled)
    own[whole] = np.quantile(ratio[:, whole], LEVEL, axis=0)
    for t in np.flatnonzero(~whole & known.any(0)):
        own[t] = np.quantile(ratio[known[:, t], t], LEVEL)
    trust = known.sum(0) / (known.sum(0) + 50)
    stretched = np.maximum(own, 1e-3) ** trust * max(pooled, 1e-3) ** (1 - trust)
    return np.asarray(stretched / HALF_WIDTH)


def _dual(factor: Array, residual: Array) -> tuple[Array, Array]:
    """C⁻¹·residual, and the maximum-likelihood scale of the process, sqrt(residualᵀ C⁻¹ residual / m)."""
    dual = cho_solve((factor, True), residual)
    return dual, np.sqrt(np.maximum((residual * dual).sum(0), 0.0) / len(residual))


def inverse_diagonal(factor: Array) -> Array:
    """Return the diagonal of C⁻¹ from its lower Cholesky factor, (m,)."""
    inverse, _ = dpotri(factor, lower=1)
    return np.diag(inverse).copy()


def _cholesky(gram: Array, noise: Array) -> Array:
    """Factor gram + noise, adding the least jitter that makes it numerically positive definite."""
    diagonal = np.diag_indices_from(gram)
    gram[diagonal] += noise
    exact = gram[diagonal].copy()
    large = gram.nbytes > BLOCK_BYTES * 2
    for jitter in (1e-8,) if large else JITTERS:
        gram[diagonal] = exact + jitter * exact.mean()
        try:
            # The transpose of a symmetric matrix is itself in LAPACK's order: a large one is factored in place.
            return np.asarray(cholesky(gram.T, lower=True, overwrite_a=large, check_finite=False))
        except np.linalg.LinAlgError:
            continue
    raise InputError("The kernel matrix is not positive definite. Give the surrogate a larger noise (alpha).")
