"""Targets that help each other: what many targets have in common, fitted as a few targets of their own.

Outcomes of the same runs often move together (losses on like domains, queries of one kind). Their principal components,
in normal scores, are less noisy than any of them, so that few runs say more about a component than about a target:

    score of target t at s  =  level_t + Σ_c loading_ct f_c(s) + rest_t,

with one Gaussian process f_c for every component that matters (:class:`.combined.CombinedSurrogate`, each with its own
noise: the intrinsic co-regionalisation model, its eigenvectors those of the outcomes). What is a target's own is noise
here; :func:`whence.fit` weighs this surrogate against those of single targets by how both predict held-out runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import merge_replicates
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate
from whence.surrogates.warp import RankScale

# As many components as have this share of the variance of all targets.
SHARE = 0.8


class ComponentsSurrogate(Surrogate):
    """Gaussian processes of the principal components of all targets, on ranks of outcomes.

    Attributes
    ----------
    loadings_ : (C, T)
        Of every component in every target.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> common = S[:, 0] - S[:, 1]
    >>> model = ComponentsSurrogate().fit(S, np.column_stack([common, 2 * common, -common]))
    >>> model.loadings_.shape, model.predict(S[:1]).shape
    ((1, 3), (1, 3))
    """

    def fit(self, X: Any, y: Any) -> ComponentsSurrogate:
        """Return self, fitted to subsets X (m, K) and outcomes y (m,) or (m, T)."""
        self.single_target_, self.n_features_in_ = np.ndim(y) == 1, np.shape(X)[1]
        S, Y, counts = merge_replicates(np.asarray(X, np.float64), np.asarray(y, np.float64).reshape(len(X), -1))
        self.scale_, scores = RankScale.learn(Y)
        self.level_, spread = scores.mean(0), scores.std(0)
        centred = scores - self.level_
        varies = spread > 0
        left, sizes, right = np.linalg.svd(centred / np.where(varies, spread, 1.0), full_matrices=False)
        explained = np.cumsum(sizes**2)
        n = int(np.searchsorted(explained, SHARE * explained[-1])) + 1
        components = left[:, :n] * sizes[:n]
        self.loadings_ = right[:n] * spread
        self.rest_ = (centred - components @ self.loadings_).std(0)
        # The straight line through outcomes over scores, along which effects are known in closed form.
        self.mean_ = Y.mean(0)
        self.slope_ = ((Y - self.mean_) * centred).mean(0) / np.where(varies, spread, 1.0) ** 2
        self.components_ = CombinedSurrogate().fit(S, components, sample_weight=counts)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new run."""
        if not return_std:
            mean = self.scale_.outcome(self.level_ + self.components_.predict(X) @ self.loadings_)
            return mean[:, 0] if self.single_target_ else mean
        scores, stds = self.components_.predict(X, return_std=True)
        std = np.sqrt(stds**2 @ self.loadings_**2 + self.rest_**2)
        mean, std = self.scale_.around(self.level_ + scores @ self.loadings_, std)
        return (mean[:, 0], std[:, 0]) if self.single_target_ else (mean, std)

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of tasks (K, T) or pairs (K, K, T) along the straight line, and their posterior std."""
        values, stds = self.components_.effects(order, mixture)
        return values @ self.loadings_ * self.slope_, self._outcome_std(stds)

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the expected outcome (T,) over the subsets of a mixture, along the straight line."""
        total = mixture.overall_chances(self.n_features_in_).sum()
        along = self.components_.mean_outcome(mixture) @ self.loadings_
        return np.asarray(total * self.mean_ + along * self.slope_)

    def remainder(self) -> Remainder:
        """Return how far predictions are from the straight line."""

        def rest(S: Array) -> Array:
            scores = self.components_.predict(S) @ self.loadings_
            return np.asarray(self.scale_.outcome(self.level_ + scores) - self.mean_ - scores * self.slope_)

        return rest

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return the std (c, T) of the combinations ``contrasts`` (c, n) of outcomes at n subsets."""
        return self._outcome_std(self.components_.contrast_std(X, contrasts))

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Return the covariance between subsets (n, n) and the noise of one run, averaged over components."""
        return self.components_.covariance(X)

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the components as plain data, what targets have of them, and the scales that lead to outcomes."""
        components = self.components_.export(subsets, np.arange(len(self.loadings_)))
        if components is None:
            return None
        return {
            "kind": "components",
            "components": components,
            "loadings": self.loadings_[:, places].T,
            "level": self.level_[places],
            "rest": self.rest_[places],
            "slope": self.slope_[places],
            "scale": {"scores": self.scale_.scores[:, places].T, "outcomes": self.scale_.outcomes[:, places].T},
        }

    def _outcome_std(self, stds: Array) -> Array:
        """From stds of components (…, C), which are independent, to those of outcomes (…, T)."""
        return np.asarray(np.sqrt(stds**2 @ self.loadings_**2) * np.abs(self.slope_))
