"""Mixtures: weights that share one total, as shares or percent of one budget, also where they were rounded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whence.arrays import Floats

# Totals of a mixture in shares or in percent, and how far rounded weights may be from them.
TOTALS, ROUNDED = (1.0, 100.0), 0.03
# How far the totals of runs may differ and still count as one, where they are neither.
SAME_TOTAL = 0.005
LARGEST = 1e300  # weight; sums of larger ones are more than a number can hold


def is_mixture(S: Floats) -> bool:
    """Whether rows (m, K) are weights, not 0/1, that sum to 1 or to 100 up to rounding, or all to the same.

    >>> is_mixture(np.array([[33.3, 66.6], [50.1, 50.0]])), is_mixture(np.array([[1.0, 0.0], [0.0, 1.0]]))
    (True, False)
    """
    if S.shape[1] < 2 or not len(S) or ((S == 0) | (S == 1)).all() or np.abs(S).max() > LARGEST:
        return False
    totals = S.sum(axis=1)
    return bool(near_totals(totals).all() or (totals.min() > 0 and np.ptp(totals) <= SAME_TOTAL * np.median(totals)))


def near_totals(totals: Floats, of: tuple[float, ...] = TOTALS) -> NDArray[np.bool_]:
    """Which totals are 1 or 100, or one of others, up to rounding."""
    return np.asarray(np.any([np.abs(totals - total) <= ROUNDED * total for total in of], axis=0))


def on_simplex(S: Floats) -> Floats:
    """Rows (m, K) divided by their totals; the same array where these are all 1 but for the last digits.

    >>> on_simplex(np.array([[25.0, 75.0], [1.0, 1.0]])).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    totals = S.sum(axis=1, keepdims=True)
    return S if np.allclose(totals, 1, rtol=0, atol=1e-12) else np.asarray(S / totals)
