"""Outcomes on a rank scale: heavy-tailed and saturating metrics become Gaussian before a kernel sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from whence.surrogates.mixture import Array


@dataclass(frozen=True)
class RankScale:
    """The monotone map between outcomes and normal scores, one per target, linear between measured values.

    Beyond the measured range it continues with the slope of the outer tenth, so that predictions can exceed every run.
    """

    scores: Array  # (m, T), increasing
    outcomes: Array  # (m, T), increasing

    @classmethod
    def learn(cls, Y: Array) -> tuple[RankScale, Array]:
        """Return the map and the normal scores of the training outcomes, (m, T)."""
        scores = ndtri((rankdata(Y, axis=0) - 0.5) / len(Y))
        return cls(np.sort(scores, axis=0), np.sort(Y, axis=0)), scores

    def outcome(self, Z: Array) -> Array:
        """Return the outcomes at normal scores ``Z`` (n, T)."""
        out = np.empty_like(Z)
        for t in range(Z.shape[1]):
            z, scores, outcomes = Z[:, t], self.scores[:, t], self.outcomes[:, t]
            out[:, t] = np.interp(z, scores, outcomes)
            for end, inner in ((0, max(1, len(scores) // 10)), (-1, -1 - max(1, len(scores) // 10))):
                run = scores[end] - scores[inner] if len(scores) > 1 else 0.0
                slope = (outcomes[end] - outcomes[inner]) / run if run else 0.0
                beyond = z < scores[0] if end == 0 else z > scores[-1]
                out[beyond, t] += slope * (z[beyond] - scores[end])
        return out

    def score(self, Y: Array) -> Array:
        """Return the normal scores of outcomes ``Y`` (n, T), within the measured range."""
        columns = [np.interp(Y[:, t], self.outcomes[:, t], self.scores[:, t]) for t in range(Y.shape[1])]
        return np.column_stack(columns)

    def around(self, mean: Array, std: Array) -> tuple[Array, Array]:
        """Return the median outcome and half the distance between the outcomes one std below and above, both (n, T)."""
        return self.outcome(mean), (self.outcome(mean + std) - self.outcome(mean - std)) / 2
