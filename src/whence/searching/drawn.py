"""A Gaussian process averaged over what its hyperparameters may be: it says how sure the best row is.

A few runs fit many hyperparameters about equally well: smooth or wiggly, much noise or little. A process with the most
probable ones alone is too sure of itself. So hyperparameters are drawn from their posterior by elliptical slice
sampling (Murray, Adams & MacKay 2010), which has nothing to set, and the processes with these are averaged. They do not
find the best rows sooner (benchmarks/results/search.md), so runs are chosen without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky

from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import Coordinates, merge_replicates
from whence.surrogates.kernels import Array
from whence.surrogates.posterior import Posterior
from whence.surrogates.tuning import TUNING_RUNS, CombinedKernel, tuning_sample

DRAWS = 8
STEPS = 3  # of the sampler from one draw to the next
LIMIT = 12.0  # of the logarithm of a hyperparameter


@dataclass(frozen=True)
class DrawnProcess:
    """Processes of one outcome (one column) whose hyperparameters were drawn, each as likely as the others."""

    coordinates: Coordinates
    posteriors: tuple[Posterior, ...]

    @classmethod
    def learn(cls, rows: Array, goodness: Array, noise_prior: tuple[float, float]) -> DrawnProcess:
        """Return the processes given runs: rows (n, K) and their outcomes (n, 1)."""
        fitted = CombinedSurrogate(noise_prior=noise_prior).fit(rows, goodness)
        S, Y, counts = merge_replicates(rows, goodness)
        X, family = fitted.coordinates_(S), fitted.family_
        Z = (Y - Y.mean(0)) / max(float(Y.std()), 1e-300)
        some, _ = tuning_sample(Z, TUNING_RUNS, 0)
        rng = np.random.default_rng(len(rows))
        thetas = _draws(family, X[some], Z[some], counts[some], fitted.theta_[0], rng)
        return cls(
            fitted.coordinates_,
            tuple(
                Posterior.condition(family.kernel(theta), family.noise(theta), X, Z, counts).given(Y).calibrated()
                for theta in thetas
            ),
        )

    def predict(self, rows: Array, return_std: bool = False) -> Any:
        """Return the mean (n,), and with ``return_std`` the std of a new run (n,)."""
        X = self.coordinates(rows)
        if not return_std:
            return np.asarray(np.mean([p.predict_mean(X)[:, 0] for p in self.posteriors], axis=0))
        means, variances = np.empty((2, len(self.posteriors), len(rows)))
        for at, posterior in enumerate(self.posteriors):
            mean, variance = posterior.predict(X)
            means[at], variances[at] = mean[:, 0], (variance + posterior.alpha) * posterior.scale[0] ** 2
        return means.mean(0), np.sqrt(variances.mean(0) + means.var(0))

    def covariance(self, rows: Array) -> tuple[Array, float]:
        """Return the covariance (n, n) of outcomes without noise, and the variance of noise."""
        X = self.coordinates(rows)
        means = np.array([p.predict_mean(X)[:, 0] for p in self.posteriors])
        apart = means - means.mean(0)
        within = sum(float(p.scale[0]) ** 2 * p.covariance(X) for p in self.posteriors)
        noise = np.mean([p.alpha * float(p.scale[0]) ** 2 for p in self.posteriors])
        return np.asarray((within + apart.T @ apart) / len(self.posteriors)), float(noise)


def _draws(
    family: CombinedKernel, X: Array, Z: Array, counts: Array, theta: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Yield draws of the hyperparameters given standardized outcomes Z (m, 1), beginning at the most probable ones."""
    centre, std = family.prior()
    level = _log_evidence(family, theta, X, Z, counts)
    for step in range(DRAWS * STEPS):
        other = centre + std * rng.standard_normal(len(theta))
        least = level + np.log(rng.random())
        angle = rng.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while high - low > 1e-6:
            proposed = centre + (theta - centre) * np.cos(angle) + (other - centre) * np.sin(angle)
            found = _log_evidence(family, proposed, X, Z, counts)
            if found > least:
                theta, level = proposed, found
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        if step % STEPS == STEPS - 1:
            yield theta


def _log_evidence(family: CombinedKernel, theta: Array, X: Array, Z: Array, counts: Array) -> float:
    """Return log p(Z | θ) with the scale of the process at its best, up to a constant."""
    if np.abs(theta).max() > LIMIT:
        return -np.inf
    C = family.kernel(theta).evaluate(X, X)
    C[np.diag_indices_from(C)] += family.noise(theta) / counts
    try:
        factor = cholesky(C, lower=True, check_finite=False)
    except LinAlgError:
        return -np.inf
    fit = float((Z * cho_solve((factor, True), Z, check_finite=False)).sum())
    return float(-len(Z) / 2 * np.log(max(fit, 1e-12)) - np.log(np.diag(factor)).sum())
