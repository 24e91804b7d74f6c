"""The tables that every surrogate and rule is run through, and the data they are run on."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.kernel import KernelSurrogate

KERNELS = {
    "rbf": KernelSurrogate(),
    "rbf, paper": KernelSurrogate(settings="paper"),
    "rbf, given": KernelSurrogate(alpha=0.05, gamma=0.3),
    "poly 1": KernelSurrogate("poly", degree=1, coef0=1.0, alpha=0.1),
    "poly 2": KernelSurrogate("poly", degree=2, coef0=1.0),
    "poly 3": KernelSurrogate("poly", degree=3, coef0=1.0, settings="paper"),
    "combined": CombinedSurrogate(),
    "combined, shared": CombinedSurrogate(own=False),
    "combined on ranks": CombinedSurrogate("rank"),
}
ADDITIVE = {"ridge": AdditiveSurrogate(), "ols": AdditiveSurrogate("ols")}
SURROGATES = KERNELS | ADDITIVE
# One without any closed form, as a user may bring it.
FOREST = RandomForestRegressor(20, max_depth=4, random_state=0)
ANY = SURROGATES | {"forest": FOREST}

RULES = ("shapley", "banzhaf", "loo", "inclusion")
PAIR_RULES = ("shapley", "banzhaf", "loo")


def subsets(m, K, *, seed=0, keep_prob=0.5):
    """At most m distinct random subsets, among them neither all nor no tasks."""
    rng = np.random.default_rng(seed)
    S = np.unique((rng.random((3 * m, K)) < keep_prob).astype(float), axis=0)
    S = S[(S.sum(1) > 0) & (S.sum(1) < max(K, 2))]
    return S[rng.permutation(len(S))[:m]]


def outcomes_of(S, T=1, *, noise=0.1, seed=0):
    """Effects of tasks, two interactions, and noise, (m, T); the last of more than three tasks does nothing."""
    rng = np.random.default_rng(seed)
    K = S.shape[1]
    effects = rng.normal(size=(K, T))
    if K > 3:
        effects[-1] = 0.0
    signal = 1.0 + S @ effects
    if K > 2:
        signal += rng.normal(1.5, 0.5, T) * (S[:, 0] * S[:, 1])[:, None]
        signal -= rng.normal(1.0, 0.5, T) * (S[:, 1] * S[:, 2])[:, None]
    return signal + noise * rng.normal(size=signal.shape)


def table(m=40, K=5, T=2, *, noise=0.1, seed=0, keep_prob=0.5, **arguments):
    """An Outcomes table of `subsets` and `outcomes_of`."""
    S = subsets(m, K, seed=seed, keep_prob=keep_prob)
    return Outcomes(S, outcomes_of(S, T, noise=noise, seed=seed), **arguments)
