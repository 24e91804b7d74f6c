"""Whether chains of a sampler have mixed: effective sample size and R-hat.

Gelman et al., Bayesian Data Analysis, third edition, section 11.4 and 11.5: chains are cut in halves, so that
a chain that drifts disagrees with itself.
"""

from __future__ import annotations

import numpy as np

from whence.arrays import Floats


def r_hat(draws: Floats) -> Floats:
    """Ratio of the spread of all draws to that within chains, (P,); 1 if chains agree.

    Parameters
    ----------
    draws : ndarray of shape (chains, draws, P)
        Of P quantities.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> r_hat(rng.normal(size=(4, 1000, 1))).round(2), r_hat(rng.normal(size=(2, 1000, 1)) + [[[0]], [[3]]]).round(1)
    (array([1.]), array([2.]))
    """
    halves = _halves(draws)
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    # A quantity that never changes has nothing to mix.
    ratio = np.divide((n - 1) / n * within + between, within, out=np.ones_like(within), where=within > 0)
    return np.asarray(np.sqrt(ratio))


def effective_draws(draws: Floats) -> Floats:
    """Number of independent draws that would say as much about each mean, (P,).

    Autocorrelations of the chains together, summed while sums of neighbours are above 0 (Geyer, 1992).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bool(abs(effective_draws(rng.normal(size=(4, 1000, 1)))[0] / 4000 - 1) < 0.2)
    True
    """
    halves = _halves(draws)
    m, n, _ = halves.shape
    centred = halves - halves.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * n, axis=1)) ** 2
    covariance = (np.fft.irfft(spectrum, axis=1)[:, :n] / n).mean(axis=0)  # (n, P)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + halves.mean(axis=1).var(axis=0, ddof=1)
    varies = total > 0
    rho = 1 - (within - covariance) / np.where(varies, total, 1.0)
    rho[0] = 1.0
    pairs = rho[: n // 2 * 2].reshape(n // 2, 2, -1).sum(axis=1)
    pairs = np.where(np.logical_and.accumulate(pairs > 0, axis=0), pairs, 0.0)
    pairs = np.minimum.accumulate(pairs, axis=0)
    time = np.maximum(2 * pairs.sum(axis=0) - 1, 1 / np.log10(max(m * n, 11)))
    return np.where(varies, m * n / time, float(m * n))


def _halves(draws: Floats) -> Floats:
    """The first and the second half of every chain, as chains of their own."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, half : 2 * half]])
