"""The trivial baseline: prediction from the number of tasks in a subset alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from whence.errors import InputError, some_of
from whence.evaluation.statistics import Floats
from whence.outcomes import Outcomes


@dataclass(frozen=True, eq=False)
class SizeOnly:
    """Model that knows nothing of a subset but its size: the trivial baseline.

    Per target, a parabola in the size (the sum of the weights) fitted by least squares, a line where fewer
    than four sizes were measured, and the mean where only one was. Beyond the sizes seen it goes on along its
    tangent. `SizeOnly.fit` is a method for `repeated_splits`.

    Attributes
    ----------
    coef : ndarray of shape (3, T)
        Constant, slope and curvature in the size scaled to [-1, 1].
    smallest, largest : float
        The sizes seen.

    Examples
    --------
    >>> train = Outcomes([[1, 0, 0], [1, 1, 0], [1, 1, 1]], [1.0, 2.0, 3.0])
    >>> SizeOnly.fit(train).predict([[0, 0, 0], [0, 1, 1]]).round(6)
    array([[0.],
           [2.]])
    """

    coef: Floats
    smallest: float
    largest: float

    @classmethod
    def fit(cls, train: Outcomes) -> SizeOnly:
        """Baseline fitted to a table.

        Parameters
        ----------
        train : Outcomes
            Every target measured at least once.

        Returns
        -------
        SizeOnly
        """
        measured = ~np.isnan(train.values)
        empty = [train.target_names[place] for place in np.flatnonzero(~np.any(measured, axis=0))]
        if empty:
            raise InputError(
                "The size-only baseline needs at least one measured run of each target to learn from. "
                f"Got none for: {some_of(empty)}."
            )
        sizes = sizes_of(train.subsets)
        model = cls(np.zeros((3, train.n_targets)), float(sizes.min()), float(sizes.max()))
        basis = model._basis(sizes)
        values = np.where(measured, train.values, 0.0)
        groups = size_groups(train.subsets)
        seen = np.array([measured[groups == group].any(axis=0) for group in np.unique(groups)]).sum(axis=0)
        for degree, targets in ((0, seen == 1), (1, (seen == 2) | (seen == 3)), (2, seen > 3)):
            columns = basis[:, : degree + 1]
            products = (columns[:, :, None] * columns[:, None, :]).reshape(len(sizes), -1)
            # Normal equations, since each target has its own measured rows; three unknowns on [-1, 1].
            left = (products.T @ measured[:, targets]).T.reshape(-1, degree + 1, degree + 1)
            right = (columns.T @ values[:, targets]).T[:, :, None]
            model.coef[: degree + 1, targets] = np.linalg.solve(left, right)[:, :, 0].T
        return model

    def predict(self, subsets: ArrayLike) -> Floats:
        """Predicted outcome of each subset.

        Parameters
        ----------
        subsets : array-like of shape (m, K)

        Returns
        -------
        ndarray of shape (m, T)
        """
        return np.asarray(self._basis(sizes_of(np.asarray(subsets, dtype=np.float64))) @ self.coef)

    def _basis(self, sizes: Floats) -> Floats:
        middle, half = (self.smallest + self.largest) / 2, (self.largest - self.smallest) / 2 or 1.0
        at = (sizes - middle) / half
        inside = np.clip(at, -1.0, 1.0)
        return np.column_stack([np.ones_like(at), at, inside**2 + 2 * inside * (at - inside)])


def size_only(train: Outcomes, held_out: Outcomes) -> Floats:
    """Predictions of `SizeOnly`, from the number of tasks alone, for each held-out run.

    Every score deserves to stand beside the score of these.

    Parameters
    ----------
    train : Outcomes
        Runs that the baseline learns from.
    held_out : Outcomes
        Runs that it predicts.

    Returns
    -------
    ndarray of shape (m, T)

    Examples
    --------
    >>> train = Outcomes([[1, 0, 0], [1, 1, 0], [1, 1, 1]], [1.0, 2.0, 3.0])
    >>> size_only(train, train.rows([0, 2])).round(6).ravel()
    array([1., 3.])
    """
    return SizeOnly.fit(train).predict(held_out.subsets)


def sizes_of(subsets: Floats) -> Floats:
    """Sum of the weights of each subset, shape (m,)."""
    return np.asarray(np.sum(subsets, axis=1, dtype=np.float64))


def size_groups(subsets: Floats) -> Floats:
    """Label of each subset, shape (m,), equal for subsets of one size.

    Numbers of tasks are compared exactly. Weights of a mixture are often written with few digits and add up
    to 1 only nearly, so sizes that are not whole numbers count as equal within 1% of the largest.
    """
    sizes = sizes_of(subsets)
    if np.array_equal(sizes, np.round(sizes)):
        return sizes
    return np.asarray(np.round(sizes / sizes.max(), 2))
