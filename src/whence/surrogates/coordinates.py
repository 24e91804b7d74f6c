"""From subsets to the coordinates kernels work on: replicates merged, weights transformed, columns standardised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.outcomes import distinct_rows
from whence.surrogates.kernels import Lattice
from whence.surrogates.mixture import Array

TRANSFORMS = ("identity", "sqrt", "log", "both")


def merge_replicates(X: Array, Y: Array, weights: Array | None = None) -> tuple[Array, Array, Array]:
    """Return the distinct rows of X, the mean outcome of each, and how many runs (total weight) each stands for.

    Leaving one run out must leave a whole subset out, or replicates would vouch for each other.

    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> merge_replicates(X, np.array([[1.0], [5.0], [3.0]]))[1].ravel().tolist()
    [2.0, 5.0]
    """
    weights = np.ones(len(X)) if weights is None else weights
    X, Y, weights = X[weights > 0], Y[weights > 0], weights[weights > 0]
    first, group = distinct_rows(X)
    counts, means = np.zeros(len(first)), np.zeros((len(first), Y.shape[1]))
    np.add.at(counts, group, weights)
    np.add.at(means, group, Y * weights[:, None])
    return X[first], means / counts[:, None], counts


def is_binary(X: Array) -> bool:
    """Return whether every entry is 0 or 1."""
    return bool(np.isin(X, (0.0, 1.0)).all())


@dataclass(frozen=True)
class Coordinates:
    """x = (transform(s) − center) / scale, learned from the training subsets.

    ``transform`` is for mixture weights: "sqrt" and "log" spread out small weights, "both" keeps the weight and its
    logarithm side by side.
    """

    transform: str
    floor: float  # added before taking logarithms
    center: Array  # (D,)
    scale: Array  # (D,)

    @classmethod
    def learn(cls, S: Array, transform: str = "identity", *, standardize: bool = True) -> Coordinates:
        """Return the coordinates in which the training subsets have mean 0 and std 1 (or the subsets as they are)."""
        floor = 0.01 * float(np.mean(S)) if transform in ("log", "both") else 0.0
        raw = _transformed(S, transform, floor)
        if not standardize:
            return cls(transform, floor, np.zeros(raw.shape[1]), np.ones(raw.shape[1]))
        scale = raw.std(0)
        return cls(transform, floor, raw.mean(0), np.where(scale > 1e-12 * (1 + np.abs(raw).max(0)), scale, 1.0))

    def __call__(self, S: Array) -> Array:
        return (_transformed(S, self.transform, self.floor) - self.center) / self.scale

    def lattice(self) -> Lattice:
        """Return the coordinates of "out" and "in" for every task."""
        n_tasks = len(self.center)
        return Lattice(self(np.zeros((1, n_tasks)))[0], self(np.ones((1, n_tasks)))[0])


def _transformed(S: Array, transform: str, floor: float) -> Array:
    if transform == "identity":
        return S
    if transform == "sqrt":
        return np.sqrt(S)
    logs = np.log(S + floor)
    return logs if transform == "log" else np.hstack([S, logs])
