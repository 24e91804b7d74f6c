"""Kernels of a sum over tasks: powers of an inner product, and functions of the subset size.

Neither is a product over tasks. Drawn at random, a sum of independent terms has moments in closed form, and a size a
binomial distribution: that is all their effects need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.surrogates.kernels import Kernel, Lattice, PairEffects, none_of_pairs
from whence.surrogates.mixture import Array, Mixture, Weights


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, y) = (offset + Σ_k w_k x_k y_k)^degree, degree 1 to 3 (paper, appendix "Comparison of kernels").

    Fixing y, the base M = offset + Σ_k a_k x_k with a = w·y is a sum of independent two-valued terms. The expectation
    of M^degree is a polynomial in q, so that of a mixture only Σ_q w_q q^p matters.
    """

    degree: int
    weights: Array  # (K,)
    offset: float = 0.0

    def evaluate(self, X: Array, Y: Array) -> Array:
        return self.of((X * self.weights) @ Y.T)

    def of(self, inner: Array) -> Array:
        """Return the kernel at weighted inner products Σ_k w_k x_k y_k."""
        base = inner + self.offset if self.offset else inner
        return base if self.degree == 1 else base**self.degree

    def slope(self, inner: Array) -> Array | float:
        """Return the derivative by the weighted inner products."""
        return 1.0 if self.degree == 1 else self.degree * (inner + self.offset) ** (self.degree - 1)

    def diag(self, X: Array) -> Array:
        return self.of((X * X) @ self.weights)

    def mean(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        a = self.weights * Y
        q, _, _, weights = mixture.normalised(Y.shape[1])
        fixed = self.offset + a @ lattice.absent
        sums = [((a * lattice.step) ** power).sum(1) for power in range(1, self.degree + 1)]
        return _real(_dot(_powers(weights, q), self._expected(fixed, *sums)))

    def main(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        a = self.weights * Y
        low, step = a * lattice.absent, a * lattice.step
        q, inside, outside, _ = mixture.normalised(Y.shape[1] - 1)
        fixed = self.offset + _leave_one(low)
        sums = [_leave_one(step**power) for power in range(1, self.degree + 1)]
        present = _dot(_powers(inside, q), self._expected(fixed + low + step, *sums))
        return _real(present - _dot(_powers(outside, q), self._expected(fixed + low, *sums)))

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.degree == 1

    def pairs(self, Y: Array, lattice: Lattice, mixture: Mixture) -> PairEffects:
        total, first, *_ = _powers(mixture.pair_weights, mixture.present)
        if self.degree == 1:
            return none_of_pairs(Y)
        a = self.weights * Y
        low, high, step = a * lattice.absent, a * lattice.present, a * lattice.step
        if self.degree == 2:
            return lambda some, others: np.asarray((2 * total * step[:, some, None]) * step[:, None, others])
        terms = total * low + first * step
        edge = total * (high + low) - 2 * terms
        level = total * self.offset + terms.sum(1)

        def effects(some: slice, others: slice) -> Array:
            rest = 2 * level[:, None, None] + edge[:, some, None] + edge[:, None, others]
            return np.asarray(3 * rest * step[:, some, None] * step[:, None, others])

        return effects

    def main_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the effect on both arguments: of R + w_k x_k x'_k, R being the sum over the other tasks."""
        (low, high), w = lattice, self.weights
        q, u, v, _ = mixture.normalised(len(w) - 1)
        # E x^n at every node, (Q, K); those of w x x' at two nodes are products of them.
        at_node = [low**n + q[:, None] * (high**n - low**n) for n in range(1, self.degree + 1)]
        total: Any = 0.0
        for i in range(len(q)):
            moments = [w**n * at[i] * at for n, at in enumerate(at_node, start=1)]
            rest = [_leave_one(cumulant) for cumulant in _cumulants(moments)]
            for weights, x in ((u[i] * u, high * high), (v[i] * v, low * low), (-u[i] * v - v[i] * u, low * high)):
                total = total + weights @ _power_mean(self.offset + rest[0] + w * x, *rest[1:])
        return _real(total)

    def pair_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        (low, high), w = lattice, self.weights
        total, first, *_ = _powers(mixture.pair_weights, mixture.present)
        # (x_present^p − x_absent^p)²: what a change of one task does to x^p x'^p.
        linear, quadratic = w * (high - low) ** 2, w**2 * (high**2 - low**2) ** 2
        products, cross = np.outer(linear, linear), np.outer(quadratic, linear)
        if self.degree == 1:
            return np.zeros_like(products)
        if self.degree == 2:
            return np.asarray(2 * total**2 * products)
        terms = w * (total * low + first * (high - low)) ** 2
        rest = total**2 * self.offset + terms.sum() - terms[:, None] - terms[None, :]
        return np.asarray(6 * rest * products + 3 * total**2 * (cross + cross.T))

    def export(self) -> list[dict[str, Any]]:
        return [
            {
                "part": "polynomial",
                "variance": 1.0,
                "degree": self.degree,
                "offset": self.offset,
                "weights": self.weights,
            }
        ]

    def _expected(self, fixed: Array, *sums: Array) -> list[Array]:
        """Coefficients in q of E (fixed + Σ_j step_j x_j)^degree; ``sums`` are Σ step, Σ step², Σ step³."""
        s1, s2, s3 = (*sums, *(np.zeros(()),) * 3)[:3]
        if self.degree == 1:
            return [fixed, s1]
        if self.degree == 2:
            return [fixed**2, 2 * fixed * s1 + s2, s1**2 - s2]
        return [
            fixed**3,
            3 * fixed**2 * s1 + 3 * fixed * s2 + s3,
            3 * fixed * (s1**2 - s2) + 3 * s1 * s2 - 3 * s3,
            s1**3 - 3 * s1 * s2 + 2 * s3,
        ]


@dataclass(frozen=True)
class Size(Kernel):
    """k(s, t) = exp(−rate (|s| − |t|)²): outcomes that depend on how many tasks are in, whichever they are.

    ``direction`` turns coordinates into the subset size, up to ``offset``. With an ``anchor``, it is the kernel of the
    difference to subsets of that size: nothing there, and the more the farther away.
    """

    rate: float
    direction: Array  # (K,)
    offset: float
    anchor: float | None = None

    def evaluate(self, X: Array, Y: Array) -> Array:
        return self.between(self._size(X), self._size(Y))

    def between(self, some: Array, others: Array) -> Array:
        """Return the kernel between sizes (n,) and (m,)."""
        if self.anchor is None:
            return self._alike(some, others)
        here = np.array([self.anchor])
        return self._alike(some, others) - self._alike(some, here) - self._alike(here, others) + 1

    def diag(self, X: Array) -> Array:
        if self.anchor is None:
            return np.ones(len(X))
        return 2 - 2 * self._alike(self._size(X), np.array([self.anchor]))[:, 0]

    def mean(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        return np.asarray(mixture.overall_chances(len(self.direction)) @ self._against(Y))

    def main(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        inside, outside = mixture.size_chances(len(self.direction) - 1)
        values = self._against(Y)
        return np.repeat((inside @ values[1:] - outside @ values[:-1])[:, None], len(self.direction), axis=1)

    def pairs(self, Y: Array, lattice: Lattice, mixture: Mixture) -> PairEffects:
        n_tasks, none = len(self.direction), none_of_pairs(Y)
        if n_tasks < 2:
            return none
        effect = mixture.pair_chances(n_tasks - 2) @ np.diff(self._against(Y), n=2, axis=0)
        return lambda some, others: effect[:, None, None] + none(some, others)

    def main_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        n_tasks = len(self.direction)
        inside, outside = mixture.size_chances(n_tasks - 1)
        functional = np.append(0.0, inside) - np.append(outside, 0.0)
        return np.full(n_tasks, functional @ self._between_sizes() @ functional)

    def pair_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        n_tasks = len(self.direction)
        if n_tasks < 2:
            return np.zeros((n_tasks, n_tasks))
        chance = mixture.pair_chances(n_tasks - 2)
        both = np.diff(np.diff(self._between_sizes(), n=2, axis=0), n=2, axis=1)
        return np.full((n_tasks, n_tasks), chance @ both @ chance)

    def export(self) -> list[dict[str, Any]]:
        anchor = {} if self.anchor is None else {"anchor": self.anchor}
        place = {"offset": self.offset, "weights": self.direction, **anchor}
        return [{"part": "size", "variance": 1.0, "rate": self.rate, **place}]

    def _size(self, X: Array) -> Array:
        return np.asarray(X @ self.direction + self.offset)

    def _alike(self, some: Array, others: Array) -> Array:
        return np.asarray(np.exp(-self.rate * (some[:, None] - others[None, :]) ** 2))

    def _against(self, Y: Array) -> Array:
        """The kernel between the sizes 0 … K and the rows of Y, (K + 1, m)."""
        return self.between(np.arange(len(self.direction) + 1.0), self._size(Y))

    def _between_sizes(self) -> Array:
        sizes = np.arange(len(self.direction) + 1.0)
        return self.between(sizes, sizes)


def _leave_one(values: Any) -> Any:
    """Σ_{j≠k} values_j for every k, the last axis."""
    return values.sum(-1, keepdims=True) - values


def _cumulants(moments: list[Any]) -> list[Any]:
    """Mean, variance and third central moment, as many of them as there are moments."""
    first, *higher = moments
    found = [first]
    if higher:
        found.append(higher[0] - first**2)
    if len(higher) > 1:
        found.append(higher[1] - 3 * first * higher[0] + 2 * first**3)
    return found


def _power_mean(mean: Any, *central: Any) -> Any:
    """E M^d of a sum with these cumulants; d is how many there are."""
    if not central:
        return mean
    if len(central) == 1:
        return mean**2 + central[0]
    return mean**3 + 3 * mean * central[0] + central[1]


def _powers(weights: Weights, q: Weights) -> list[Any]:
    """Σ_q w_q q^p for p = 0 … 3."""
    return [(weights * q**power).sum() for power in range(4)]


def _dot(sums: list[Any], coefficients: list[Array]) -> Any:
    return sum(total * coefficient for total, coefficient in zip(sums, coefficients, strict=False))


def _real(values: Any) -> Array:
    """Values that are real but for rounding, where nodes are complex."""
    return np.asarray(np.real(values))
