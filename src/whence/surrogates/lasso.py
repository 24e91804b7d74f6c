"""The lasso of one target, its penalty tuned by cross-validation: for :class:`.additive.AdditiveSurrogate`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Lasso, LassoCV
from sklearn.model_selection import KFold

Floats = NDArray[np.float64]

GRID = np.geomspace(1.0, 1e-3, 50)  # multiples of the smallest penalty at which every coefficient is 0
SWEEPS = 50_000  # subsets of a fixed size are collinear, and coordinate descent is slow there


def lasso(X: Floats, y: Floats, weights: Floats, alpha: float | None, largest: float) -> tuple[float, Floats]:
    """Penalty and coefficients of one target; ``largest`` is the smallest penalty at which all are 0."""
    if largest == 0:  # a constant, in which no penalty finds an effect
        return alpha or 0.0, np.zeros(X.shape[1])
    if alpha is None and len(X) > 2:
        # Shuffled, since merging has put the subsets in order; seeded, since fitting is not random.
        folds = KFold(min(5, len(X)), shuffle=True, random_state=0)
        model = LassoCV(alphas=largest * GRID, cv=folds, max_iter=SWEEPS)
        model.fit(X, y, sample_weight=weights)
        return float(model.alpha_), model.coef_
    chosen = largest if alpha is None else alpha  # two subsets leave nothing to tune by
    model = Lasso(alpha=chosen, max_iter=SWEEPS).fit(X, y, sample_weight=weights)
    return float(chosen), model.coef_
