"""Hyperparameters of kernel surrogates: leave-one-out over a grid, or the evidence of the combined kernel.

Both look at the training runs only, and both pool what the targets say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.lapack import dpotri, dtrtri
from scipy.optimize import minimize

from whence.surrogates import priors
from whence.surrogates.kernels import RBF, Array, Constant, Kernel, Sum
from whence.surrogates.sum_kernels import Polynomial, Size

# Hyperparameters need far fewer runs and targets than predictions do.
TUNING_RUNS, TUNING_TARGETS = 400, 64
# Tuning ends when a step gains less than this share of the objective.
TOLERANCE = 1e-5


def tuning_sample(Y: Array, max_runs: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows and columns of Y (m, T) to tune on: all of them, or a seeded sample where they are many."""
    rng = np.random.default_rng(seed)
    sizes = zip(Y.shape, (max_runs, TUNING_TARGETS), strict=True)
    rows, targets = (np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False)) for n, most in sizes)
    return rows, targets


def leave_one_out_error(gram: Array, Y: Array, noise: Array) -> float:
    """Return the squared leave-one-out error relative to each target's variance, averaged over targets.

    Closed form, one factorisation: the residual of run i without run i is θ_i / (C⁻¹)_ii.
    """
    C = gram.copy()
    C[np.diag_indices_from(C)] += noise
    try:
        factor = cholesky(C.T, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return np.inf
    # C⁻¹ = L⁻ᵀ L⁻¹: its diagonal is the squared length of the columns of L⁻¹, so that C⁻¹ itself is never formed.
    inverse, _ = dtrtri(factor, lower=1, overwrite_c=1)
    residual = (inverse.T @ (inverse @ Y)) / np.einsum("ij,ij->j", inverse, inverse)[:, None]
    weight = 1 / noise
    spread = np.average((Y - np.average(Y, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    error = np.average(residual**2, axis=0, weights=weight)
    return float(np.mean(error / np.where(spread > 0, spread, 1.0)))


def grid_search(grams: Iterable[Array], Y: Array, alphas: Sequence[float], counts: Array) -> tuple[int, float]:
    """Return (index into ``grams``, alpha) of least leave-one-out error; ``counts`` are replicates per run."""
    errors = np.array([[leave_one_out_error(gram, Y, alpha / counts) for alpha in alphas] for gram in grams])
    which, at = np.unravel_index(np.argmin(errors), errors.shape)
    return int(which), float(alphas[int(at)])


@dataclass(frozen=True)
class CombinedKernel:
    """The family k = 1 + v₁·linear + v₂·pairs + v₃·RBF + v₄·size with noise, and one relevance per coordinate.

    Relevances w multiply the coordinates in the linear, pair and RBF parts alike: a task that does not matter drops
    out of all of them. All hyperparameters are logarithms in one vector θ = (v…, noise, RBF rate, size rate, w…).

    ``size_direction`` (D,) and ``size_offset`` give the subset size from coordinates; None leaves that part out. Runs
    of ``one_size`` tell nothing of it: it is not tuned, and stays in the kernel of other sizes as it usually is, so
    that what is asked about them is as uncertain as it should be.
    """

    n_coordinates: int
    size_direction: Array | None = None
    size_offset: float = 0.0
    size_unit: float = 1.0
    one_size: float | None = None
    noise_prior: tuple[float, float] = priors.LEARNED["noise"]

    @property
    def tunes_size(self) -> bool:
        return self.size_direction is not None and self.one_size is None

    @property
    def n_parts(self) -> int:
        """How many parts have a variance of their own."""
        return 4 if self.tunes_size else 3

    @property
    def names(self) -> tuple[str, ...]:
        return ("linear", "pairs", "rbf", "size")[: self.n_parts]

    def prior(self) -> tuple[Array, Array]:
        """Return mean and std of the Gaussian prior on θ, for outcomes of unit variance (:mod:`.priors`)."""
        names = [*self.names, "noise", "rbf rate", "size rate"] + ["relevance"] * self.n_coordinates
        mean, std = np.array([{**priors.LEARNED, "noise": self.noise_prior}[name] for name in names]).T
        return mean, std

    def kernel(self, theta: Array) -> Kernel:
        """Return the kernel at θ."""
        linear, pairs, rbf, size = self._parts(theta)
        parts = (Constant(), linear, pairs, rbf) if size is None else (Constant(), linear, pairs, rbf, size)
        unseen = () if self.one_size is None else (priors.UNSEEN_SIZE,)
        return Sum(parts, (1.0, *map(float, self._split(theta)[0]), *unseen))

    def noise(self, theta: Array) -> float:
        """Return the noise variance at θ, relative to outcomes of unit variance."""
        return float(self._split(theta)[1])

    def relevance(self, theta: Array) -> Array:
        """Return the relevance of every coordinate at θ, (D,)."""
        return self._split(theta)[4]

    def negative_log_evidence(
        self, theta: Array, X: Array, Z: Array, counts: Array, room: Array | None = None
    ) -> tuple[float, Array]:
        """Return −log p(Z | θ) averaged over targets, each with its own scale profiled out, and its gradient.

        With q_t = z_tᵀ C⁻¹ z_t the profile evidence of one target is −m/2 log q_t − 1/2 log|C| + constant. ``room``
        (7, m, m) is overwritten: asking for new memory in every step takes longer than computing in it.
        """
        n_runs, n_targets = Z.shape
        inner, apart, rbf, gap, size, C, spare = self.room(n_runs) if room is None else room
        variances, noise, rate, size_rate, relevance = self._split(theta)
        v_linear, v_pairs, v_rbf = variances[:3]
        weights = relevance / self.n_coordinates
        np.matmul(X * weights, X.T, out=inner)
        # The exponents of the RBF and of the size part are minus their weighted squared distances.
        half = rate / 2 * np.diag(inner)
        np.multiply(inner, rate, out=apart)
        apart -= half[:, None]
        apart -= half
        np.exp(np.minimum(apart, 0.0, out=apart), out=rbf)
        np.multiply(inner, v_pairs, out=C)
        C += v_linear
        C *= inner
        C += 1.0
        C += np.multiply(rbf, v_rbf, out=spare)
        if self.size_direction is not None and self.tunes_size:
            sizes = X @ (self.size_direction / self.size_unit)
            np.subtract(sizes[:, None], sizes, out=gap)
            gap *= gap
            gap *= -size_rate / 2
            np.exp(gap, out=size)
            C += np.multiply(size, variances[3], out=spare)
        C[np.diag_indices(n_runs)] += noise / counts
        try:
            # The transpose of a symmetric matrix is itself in LAPACK's order.
            factor = cholesky(C.T, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return np.inf, np.zeros_like(theta)
        dual = cho_solve((factor, True), Z, check_finite=False)
        fit = np.maximum((Z * dual).sum(0), 1e-12)
        value = n_runs / 2 * np.log(fit).mean() + np.log(np.diag(factor)).sum()

        # W = d value / d C, contracted below with d C / d θ for every θ at the cost of a few products with X. All that
        # it is contracted with is symmetric, so that a triangle of C⁻¹ serves, its diagonal halved.
        W = dpotri(factor, lower=1, overwrite_c=1)[0].T
        W[np.diag_indices(n_runs)] /= 2
        W -= np.matmul(dual * (n_runs / (2 * fit * n_targets)), dual.T, out=spare)
        gradient = np.zeros_like(theta)
        gradient[self.n_parts] = noise * (np.diag(W) / counts).sum()
        if self.tunes_size:
            size *= W
            gradient[3] = variances[3] * size.sum()
            gradient[self.n_parts + 2] = variances[3] * np.vdot(size, gap)
        rbf *= W
        rbf *= v_rbf
        gradient[2] = rbf.sum()
        gradient[self.n_parts + 1] = np.vdot(rbf, apart)
        np.multiply(W, inner, out=spare)
        gradient[0], gradient[1] = v_linear * spare.sum(), v_pairs * np.vdot(spare, inner)
        # d value / d inner, by way of all three parts.
        spare *= 2 * v_pairs
        spare += np.multiply(W, v_linear, out=W)
        spare += np.multiply(rbf, rate, out=rbf)
        row_sums = rbf.sum(0) + rbf.sum(1)
        gradient[self.n_parts + 3 :] = weights * ((spare @ X * X).sum(0) - row_sums @ X**2 / 2)
        return float(value), gradient

    @staticmethod
    def room(n_runs: int) -> Array:
        """Return memory for the matrices of `negative_log_evidence`."""
        return np.empty((7, n_runs, n_runs))

    def fit(
        self,
        X: Array,
        Z: Array,
        counts: Array,
        *,
        mean: Array,
        std: Array,
        max_iter: int,
        seed: int,
        max_runs: int = TUNING_RUNS,
        start: Array | None = None,
    ) -> tuple[Array, float]:
        """Return the θ of greatest evidence × Gaussian prior(mean, std), shared by the targets, and its objective.

        Large tables are tuned on a seeded sample of runs and targets: hyperparameters need far fewer of them than
        predictions do. The search begins at ``start``, or at the mean of the prior with `priors.SIZE_RATE_START`.
        """
        if start is None:
            start = mean.copy()
            if self.tunes_size:
                start[self.n_parts + 2] = priors.SIZE_RATE_START
        rows, targets = tuning_sample(Z, max_runs, seed)
        X, Z, counts = X[rows], Z[np.ix_(rows, targets)], counts[rows]
        room = self.room(len(rows))

        def objective(theta: Array) -> tuple[float, Array]:
            value, gradient = self.negative_log_evidence(theta, X, Z, counts, room)
            deviation = (theta - mean) / std
            return float(value + 0.5 * deviation @ deviation), gradient + deviation / std

        bounds = list(zip(np.maximum(mean - 4 * std, -12), np.minimum(mean + 4 * std, 6), strict=True))
        found = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": max_iter, "ftol": TOLERANCE},
        )
        return np.asarray(found.x), float(found.fun)

    def _parts(self, theta: Array) -> tuple[Polynomial, Polynomial, RBF, Size | None]:
        """The linear, pair, RBF and size kernels at θ, each of variance 1."""
        _, _, rate, size_rate, relevance = self._split(theta)
        weights = relevance / self.n_coordinates
        size = None
        if self.size_direction is not None:
            size = Size(
                size_rate / (2 * self.size_unit**2), self.size_direction, self.size_offset, anchor=self.one_size
            )
        return Polynomial(1, weights), Polynomial(2, weights), RBF(rate * weights / 2), size

    def _split(self, theta: Array) -> tuple[Array, float, float, float, Array]:
        values = np.exp(theta)
        n = self.n_parts
        return values[:n], float(values[n]), float(values[n + 1]), float(values[n + 2]), values[n + 3 :]
