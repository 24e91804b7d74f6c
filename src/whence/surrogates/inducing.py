r"""A Gaussian process given more runs than a matrix of them would fit in memory: seen through some of the runs.

The process is taken to be known once it is known at M *inducing points*, runs drawn at random among the m there are.
Given it there, runs are independent, so that they add up: m·M² work and M² memory instead of m³ and m². With
L Lᵀ = k(Z, Z), V = L⁻¹ k(Z, X) and B = 1 + V Λ⁻¹ Vᵀ, Λ the noise of the runs, the dual coefficients of the points are
L⁻ᵀ B⁻¹ V Λ⁻¹ (F − level), and a functional a of the process has the variance prior − |L⁻¹ a|² + aᵀ (L B Lᵀ)⁻¹ a
(the "deterministic training conditional", Quiñonero-Candela & Rasmussen 2005). Where all runs are points, this is the
exact posterior. What it costs in accuracy is measured in benchmarks/speed_core.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.blas import dsyrk, dtrsm

from whence.surrogates.kernels import Array, Kernel
from whence.surrogates.posterior import CALIBRATION_RUNS, Posterior, interval_factor

# Up to this many runs the posterior is exact.
EXACT_RUNS = 10_000
# As many points as make up this much work, m·M², but from FEWEST to MOST of them.
WORK, FEWEST, MOST = 4e11, 1000, 2000
BLOCK = 4096
JITTER = 1e-8  # share of the diagonal of k(Z, Z) that is added to it


@dataclass(frozen=True)
class InducingPosterior(Posterior):
    """A posterior whose ``X`` (M, D), ``factor`` and ``dual`` are those of the points; ``Y`` (m, T) is of all runs."""

    runs: Array  # (m, D)
    inner: Array  # (M, M) lower Cholesky factor of B

    @classmethod
    def condition(
        cls, kernel: Kernel, alpha: float, X: Array, Y: Array, counts: Array, *, center: bool = True, seed: int = 0
    ) -> Posterior:
        """Return the process given outcomes ``Y`` (m, T) of all runs; exact where there are few."""
        if len(X) <= EXACT_RUNS:
            return Posterior.condition(kernel, alpha, X, Y, counts, center=center)
        points = X[np.sort(np.random.default_rng(seed).choice(len(X), n_points(len(X)), replace=False))]
        gram = kernel.evaluate(points, points)
        gram[np.diag_indices_from(gram)] += JITTER * np.diag(gram).mean()
        factor = np.asfortranarray(cholesky(gram, lower=True, overwrite_a=True, check_finite=False))
        inner = np.eye(len(points), order="F")
        for rows in _blocks(len(X)):
            half = dtrsm(1.0, factor, kernel.evaluate(points, X[rows]), lower=1)
            inner = dsyrk(1.0, half * np.sqrt(counts[rows] / alpha), beta=1.0, c=inner, lower=1, overwrite_c=1)
        inner = np.asfortranarray(cholesky(inner, lower=True, overwrite_a=True, check_finite=False))
        nothing = np.zeros((len(points), Y.shape[1]))
        empty = cls(kernel, alpha, points, Y, counts, factor, nothing, nothing[0], nothing[0], X, inner)
        return empty.given(Y) if center else empty._given(Y, np.zeros(Y.shape[1]))

    def given(self, Y: Array) -> Posterior:
        """Return the same process (kernel, noise, runs) given other outcomes, without factoring again."""
        return self._given(Y, np.average(Y, axis=0, weights=self.counts))

    def _given(self, Y: Array, level: Array) -> Posterior:
        precise = (Y - level) * (self.counts / self.alpha)[:, None]
        against = sum(self.kernel.evaluate(self.X, self.runs[rows]) @ precise[rows] for rows in _blocks(len(Y)))
        seen = dtrsm(1.0, self.factor, against, lower=1)
        told = cho_solve((self.inner, True), seen)
        dual = dtrsm(1.0, self.factor, told, lower=1, trans_a=1)
        squares = ((Y - level) * precise).sum(0) - (seen * told).sum(0)
        return replace(self, Y=Y, dual=dual, level=level, scale=np.sqrt(np.maximum(squares, 0.0) / len(Y)))

    def covariance(self, X: Array) -> Array:
        """Return the posterior covariance between subsets relative to scale², (n, n)."""
        known, left = self._halves(self.kernel.evaluate(self.X, X))
        return np.asarray(self.kernel.evaluate(X, X) - known.T @ known + left.T @ left)

    def calibrated(self, seed: int = 0) -> Posterior:
        """Return the same process with the scale at which 90% intervals hold 90% of a sample of left-out runs.

        Leaving run i out divides its residual and what is left to know of it by 1 − h, h being its leverage.
        """
        rows = np.random.default_rng(seed).choice(len(self.runs), min(CALIBRATION_RUNS, len(self.runs)), replace=False)
        sample, noise = self.runs[rows], self.alpha / self.counts[rows]
        known, left = (np.einsum("ij,ij->j", h, h) for h in self._halves(self.kernel.evaluate(self.X, sample)))
        others = np.maximum(1 - left / noise, 1e-6)
        variance = np.maximum(self.kernel.diag(sample) - known, 0.0) + left / others + noise
        residual = (self.Y[rows] - self.predict_mean(sample)) / others[:, None]
        return replace(self, scale=self.scale * interval_factor(residual, np.sqrt(variance)[:, None] * self.scale))

    def export(self, kept: NDArray[np.bool_]) -> dict[str, Any] | None:
        """Return None: the page's script knows processes of runs, and not of points that stand for them."""
        return None

    def _explained(self, representer: Array) -> Array:
        known, left = self._halves(representer)
        return np.asarray(np.einsum("ij,ij->j", known, known) - np.einsum("ij,ij->j", left, left))

    def _halves(self, representer: Array) -> tuple[Array, Array]:
        """L⁻¹ a and the Cholesky factor of B into it, for every column a of ``representer`` (M, n)."""
        known = dtrsm(1.0, self.factor, representer, lower=1)
        return known, dtrsm(1.0, self.inner, known, lower=1)


def n_points(n_runs: int) -> int:
    """Return the number of inducing points for a number of runs.

    >>> n_points(100_000), n_points(1_000_000)
    (2000, 1000)
    """
    return int(np.clip(np.sqrt(WORK / n_runs), FEWEST, MOST))


def _blocks(n_runs: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, n_runs, BLOCK))
