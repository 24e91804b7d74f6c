"""Fusion on ranks: estimates and true runs as normal scores, and which surrogates there are to fuse them."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate
from whence.surrogates.rungs import Rung
from whence.surrogates.slopes import USELESS
from whence.surrogates.warp import RankScale

FUSED, RANK_FUSED, ESTIMATES = "fused", "fused on ranks", "estimates"  # what the surrogates are called
# Their weights before any run: a process of outcomes that saturate says more of residuals than ranks bear out.
PRIOR = {FUSED: 1.0, RANK_FUSED: 3.0, ESTIMATES: 3.0}
# They are for the case that estimates say something, which is weighed against the other case by `usefulness`.
STILL_USELESS = 0.05


class RankFusedSurrogate(Surrogate):
    """Fusion of normal scores: of estimates and true outcomes that are heavy-tailed, or related by a curve.

    Effects are those of the plain fusion in closed form, and of what the two differ by as a remainder.

    Parameters
    ----------
    rungs : tuple of Rung
    ranked : tuple of Rung
        The same, `Rung.on_ranks`.
    useless : float
        How likely it is, before any run, that the estimates say nothing about a target.
    random_state : int
    """

    def __init__(
        self, rungs: tuple[Rung, ...], ranked: tuple[Rung, ...], *, useless: float = USELESS, random_state: int = 0
    ) -> None:
        self.rungs = rungs
        self.ranked = ranked
        self.useless = useless
        self.random_state = random_state

    def __sklearn_clone__(self) -> RankFusedSurrogate:
        return RankFusedSurrogate(self.rungs, self.ranked, useless=self.useless, random_state=self.random_state)

    def fit(self, X: ArrayLike, y: ArrayLike) -> RankFusedSurrogate:
        """Return self, fitted to subsets X (m, K) and true outcomes y (m,) or (m, T)."""
        Y = np.asarray(y, np.float64)
        self.single_target_, self.n_features_in_ = Y.ndim == 1, np.shape(X)[1]
        self.X_, self.Y_ = np.asarray(X, np.float64), Y.reshape(len(Y), -1)
        self.scale_, scores = RankScale.learn(self.Y_)
        self.scored_ = FusedSurrogate(self.ranked, useless=self.useless, random_state=self.random_state).fit(X, scores)
        return self

    def usefulness(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Return how likely it is that the estimates say something about each target, (T,).

        All true runs judge the estimates, which were made without them, by how they line up: as they are and as normal
        scores, whose log odds are averaged, since a single run may decide the one and a coarse order the other.
        """
        scores = RankScale.learn(np.asarray(y, np.float64))[1]
        both = [
            FusedSurrogate(rungs, kernel=False).fit(X, values).slopes_.useful
            for rungs, values in ((self.rungs, y), (self.ranked, scores))
        ]
        return np.asarray(expit(logit(np.clip(both, 1e-9, 1 - 1e-9)).mean(0)))

    def unseen(self) -> RankFusedSurrogate:
        """Return the same surrogate, as it would predict subsets if their estimates had been held out too."""
        other = copy.copy(self)
        other.scored_ = self.scored_.unseen()
        return other

    @cached_property
    def plain_(self) -> FusedSurrogate:
        """The plain fusion of the same runs and estimates, fitted when effects are first asked for."""
        return FusedSurrogate(self.rungs, useless=self.useless, random_state=self.random_state).fit(self.X_, self.Y_)

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new true run."""
        if not return_std:
            mean = self.scale_.outcome(self.scored_.predict(X))
            return mean[:, 0] if self.single_target_ else mean
        mean, std = self.scale_.around(*self.scored_.predict(X, return_std=True))
        return (mean[:, 0], std[:, 0]) if self.single_target_ else (mean, std)

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of the plain fusion, and their posterior std."""
        return self.plain_.effects(order, mixture)

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the expected outcome (T,) of the plain fusion over the subsets of a mixture."""
        return self.plain_.mean_outcome(mixture)

    def remainder(self) -> Remainder:
        """Return what predictions differ by from the closed form of the plain fusion."""
        plain = self.plain_.remainder()

        def rest(S: Array) -> Array:
            apart = np.asarray(self.predict(S)).reshape(len(S), -1) - self.plain_.predict(S)
            return np.asarray(apart if plain is None else apart + plain(S))

        return rest

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return that of the plain fusion."""
        return self.plain_.contrast_std(X, contrasts)

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Return that of the plain fusion."""
        return self.plain_.covariance(X)

    def only(self, targets: ArrayLike) -> RankFusedSurrogate:
        """Return the fusion of what normal scores need for these targets alone."""
        narrowed = copy.copy(self)
        narrowed.scored_ = self.scored_.only(targets)
        return narrowed

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the fusion of normal scores as plain data, and the scale that leads back to outcomes."""
        scored = self.scored_.export(subsets, places)
        if scored is None:
            return None
        scale = {"scores": self.scale_.scores[:, places].T, "outcomes": self.scale_.outcomes[:, places].T}
        return {"kind": "fused on ranks", "scored": scored, "scale": scale}


def fusion_candidates(rungs: tuple[Rung, ...], targets: NDArray[np.intp]) -> dict[str, Any]:
    """Return the surrogates of some targets that estimates allow, by name."""
    own = tuple(rung.at(targets) for rung in rungs)
    return {
        FUSED: FusedSurrogate(own, useless=STILL_USELESS),
        RANK_FUSED: RankFusedSurrogate(own, tuple(rung.on_ranks() for rung in own), useless=STILL_USELESS),
        ESTIMATES: FusedSurrogate(own, kernel=False, useless=STILL_USELESS),
    }
