"""The kernel algebra: what is known exactly about a kernel on subsets, in one place.

A kernel is a sum of *parts* (constant, polynomial, RBF, subset size). Prediction, tuning, posterior std, attribution
and interactions all need the same few facts about each part, and find them here:

- ``gram``: its values between two lists of subsets;
- ``mean``, ``main``, ``pair``: the expectation, the effect of one task and the joint effect of two tasks on
  k(·, t) when the other tasks are drawn at random;
- ``main_prior``, ``pair_prior``: the same effects applied to both arguments, i.e. their prior variance when the
  kernel is the covariance of a Gaussian process.

The random draws are Bernoulli: every other task is in with probability q. All the rules of attribution are mixtures
over q (:mod:`whence.answers`), so each method takes ``nodes`` q and ``weights`` and returns the weighted sum. On
{0,1}^K the RBF kernel is a product over tasks and the polynomial depends on a sum of independent terms: every
expectation has a closed form, equal to the sum over all 2^K subsets.

Parts see *coordinates*: task k is a number, ``lattice.absent[k]`` or ``lattice.present[k]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

Array = NDArray[np.float64]

BLOCK_BYTES = 1 << 28


class Lattice(NamedTuple):
    """The two coordinates of every task: left out, and in."""

    absent: Array  # (K,)
    present: Array  # (K,)

    @property
    def step(self) -> Array:
        return self.present - self.absent


class Part(Protocol):
    """One summand of a kernel; Y is (m, K), the results are per row of Y."""

    def gram(self, X: Array, Y: Array) -> Array: ...
    def diag(self, X: Array) -> Array: ...
    def mean(self, Y: Array, lattice: Lattice, q: float) -> Array: ...
    def main(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array) -> Array: ...
    def pair(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array, rows: slice) -> Array: ...
    def main_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array: ...
    def pair_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array: ...


@dataclass(frozen=True)
class Constant:
    """k(s, t) = 1: the unknown level of the outcome."""

    def gram(self, X: Array, Y: Array) -> Array:
        return np.ones((len(X), len(Y)))

    def diag(self, X: Array) -> Array:
        return np.ones(len(X))

    def mean(self, Y: Array, lattice: Lattice, q: float) -> Array:
        return np.ones(len(Y))

    def main(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        return np.zeros(Y.shape)

    def pair(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array, rows: slice) -> Array:
        return np.zeros((len(Y), len(lattice.absent[rows]), Y.shape[1]))

    def main_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        return np.zeros(len(lattice.absent))

    def pair_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        return np.zeros((len(lattice.absent),) * 2)


@dataclass(frozen=True)
class Polynomial:
    """k(x, y) = (offset + Σ_k w_k x_k y_k)^degree, degree 1 to 3 (paper, appendix "Comparison of kernels").

    Fixing y, M = offset + Σ_k a_k x_k with a = w·y is a sum of independent two-valued terms, so its moments follow
    from those of the terms.
    """

    degree: int
    weights: Array  # (K,)
    offset: float = 0.0

    def gram(self, X: Array, Y: Array) -> Array:
        inner = (X * self.weights) @ Y.T
        inner += self.offset
        return inner if self.degree == 1 else inner**self.degree

    def diag(self, X: Array) -> Array:
        return np.asarray((self.offset + (X * X) @ self.weights) ** self.degree)

    def mean(self, Y: Array, lattice: Lattice, q: float) -> Array:
        a = self.weights * Y
        step = lattice.step
        mean = self.offset + a @ (lattice.absent + q * step)
        if self.degree == 1:
            return mean
        spread = q * (1 - q)
        variance = spread * (a * a) @ step**2
        if self.degree == 2:
            return np.asarray(mean**2 + variance)
        skew = spread * (1 - 2 * q) * (a**3) @ step**3
        return np.asarray(mean**3 + 3 * mean * variance + skew)

    def main(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        a = self.weights * Y
        low, high, step = a * lattice.absent, a * lattice.present, a * lattice.step
        total = np.zeros(Y.shape)
        for q, weight in zip(nodes, weights, strict=True):
            if self.degree == 1:
                total += weight
                continue
            terms = low + q * step
            rest = self.offset + terms.sum(1, keepdims=True) - terms
            if self.degree == 2:
                total += weight * (2 * rest + high + low)
                continue
            variances = q * (1 - q) * step**2
            rest_variance = variances.sum(1, keepdims=True) - variances
            square = rest**2 + rest_variance
            total += weight * (3 * square + 3 * rest * (high + low) + high**2 + high * low + low**2)
        return total * step

    def pair(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array, rows: slice) -> Array:
        a = self.weights * Y
        low, high, step = a * lattice.absent, a * lattice.present, a * lattice.step
        steps = step[:, rows, None] * step[:, None, :]
        if self.degree == 1:
            return np.zeros_like(steps)
        if self.degree == 2:
            return np.asarray(2 * weights.sum() * steps)
        total = np.zeros_like(steps)
        for q, weight in zip(nodes, weights, strict=True):
            terms = low + q * step
            edge = high + low - 2 * terms
            level = self.offset + terms.sum(1)
            total += weight * 3 * (2 * level[:, None, None] + edge[:, rows, None] + edge[:, None, :])
        return total * steps

    def main_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        w = self.weights
        first, second, third = self._power_steps(lattice)
        total = np.zeros(len(w))
        for (_, _, weight), rest, rest_variance in self._both_random(lattice, nodes, weights):
            if self.degree == 1:
                total += weight * w * first
            elif self.degree == 2:
                total += weight * (2 * rest * w * first + w**2 * second)
            else:
                square = rest**2 + rest_variance
                total += weight * (3 * square * w * first + 3 * rest * w**2 * second + w**3 * third)
        return total

    def pair_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        w = self.weights
        first, second, _ = self._power_steps(lattice)
        linear, quadratic = w * first, w**2 * second
        if self.degree == 1:
            return np.zeros((len(w),) * 2)
        if self.degree == 2:
            return np.asarray(2 * weights.sum() ** 2 * np.outer(linear, linear))
        total = np.zeros((len(w),) * 2)
        cross = np.outer(quadratic, linear)
        for (q, p, weight), _, _ in self._both_random(lattice, nodes, weights):
            terms = w * (lattice.absent + q * lattice.step) * (lattice.absent + p * lattice.step)
            rest = self.offset + terms.sum() - terms[:, None] - terms[None, :]
            total += weight * (6 * rest * np.outer(linear, linear) + 3 * (cross + cross.T))
        return total

    @staticmethod
    def _power_steps(lattice: Lattice) -> tuple[Array, Array, Array]:
        """(x_present^p − x_absent^p)² for p = 1, 2, 3: what a change of one task does to x^p y^p."""
        low, high = lattice
        return (high - low) ** 2, (high**2 - low**2) ** 2, (high**3 - low**3) ** 2

    def _both_random(self, lattice: Lattice, nodes: Array, weights: Array):  # type: ignore[no-untyped-def]
        """For each pair of nodes: the mean and variance of offset + Σ_{j≠k} w_j x_j x'_j, for every k."""
        low, high = lattice
        for q, weight_q in zip(nodes, weights, strict=True):
            for p, weight_p in zip(nodes, weights, strict=True):
                terms = self.weights * (low + q * (high - low)) * (low + p * (high - low))
                squares = self.weights**2 * (low**2 + q * (high**2 - low**2)) * (low**2 + p * (high**2 - low**2))
                variances = squares - terms**2
                yield (
                    (q, p, weight_q * weight_p),
                    self.offset + terms.sum() - terms,
                    variances.sum() - variances,
                )


@dataclass(frozen=True)
class RBF:
    """k(x, y) = exp(−Σ_k r_k (x_k − y_k)²), a product over tasks (paper, section 3.2, with one rate r_k per task).

    With f_k(q) = E κ_k(x_k, y_k) and d_k = κ_k(present, y_k) − κ_k(absent, y_k), the effect of task k is
    d_k Π_{j≠k} f_j and that of a pair d_k d_l Π_{j≠k,l} f_j.
    """

    rates: Array  # (K,)

    def gram(self, X: Array, Y: Array) -> Array:
        scaled_x, scaled_y = X * np.sqrt(self.rates), Y * np.sqrt(self.rates)
        exponent = scaled_x @ scaled_y.T
        exponent *= 2
        exponent -= (scaled_x**2).sum(1)[:, None]
        exponent -= (scaled_y**2).sum(1)[None, :]
        # Rounding can leave a distance slightly below zero.
        np.minimum(exponent, 0.0, out=exponent)
        return np.exp(exponent, out=exponent)

    def diag(self, X: Array) -> Array:
        return np.ones(len(X))

    def mean(self, Y: Array, lattice: Lattice, q: float) -> Array:
        low, high = self._factors(Y, lattice)
        return np.asarray(np.exp(np.log((1 - q) * low + q * high).sum(1)))

    def main(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        low, high = self._factors(Y, lattice)
        total = np.zeros(Y.shape)
        for q, weight in zip(nodes, weights, strict=True):
            factor = (1 - q) * low + q * high
            total += weight * np.exp(np.log(factor).sum(1, keepdims=True)) / factor
        return total * (high - low)

    def pair(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array, rows: slice) -> Array:
        low, high = self._factors(Y, lattice)
        # (m, Q, K): for every row of Y a small matrix product over the nodes replaces a loop over pairs.
        factor = (1 - nodes[:, None]) * low[:, None] + nodes[:, None] * high[:, None]
        product = weights * np.exp(np.log(factor).sum(2))
        ratio = (high - low)[:, None] / factor
        return np.asarray(np.matmul((product[:, :, None] * ratio[:, :, rows]).transpose(0, 2, 1), ratio))

    def main_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        product, ratio = self._both_random(lattice, nodes, weights)
        return np.asarray(product @ ratio)

    def pair_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        product, ratio = self._both_random(lattice, nodes, weights)
        return np.asarray((product[:, None] * ratio).T @ ratio)

    def _factors(self, Y: Array, lattice: Lattice) -> tuple[Array, Array]:
        """κ_k(absent, y_k) and κ_k(present, y_k), kept away from zero so that ratios stay finite."""
        tiny = 1e-150  # two of them multiplied must not underflow: pairs divide by both
        low = np.exp(-self.rates * (lattice.absent - Y) ** 2)
        high = np.exp(-self.rates * (lattice.present - Y) ** 2)
        return np.maximum(low, tiny), np.maximum(high, tiny)

    def _both_random(self, lattice: Lattice, nodes: Array, weights: Array) -> tuple[Array, Array]:
        """Weight · Π_j E κ_j(x_j, x'_j) for every pair of nodes (Q²,), and 2(1−ρ_k) / E κ_k (Q², K)."""
        drop = -np.expm1(-self.rates * lattice.step**2)
        q, p = nodes[:, None], nodes[None, :]
        disagree = (q + p - 2 * q * p).reshape(-1, 1)
        factor = 1 - disagree * drop
        product = np.outer(weights, weights).ravel() * np.exp(np.log(factor).sum(1))
        return product, 2 * drop / factor


@dataclass(frozen=True)
class Size:
    """k(s, t) = exp(−rate (|s| − |t|)²): outcomes that depend on how many tasks are in, whichever they are.

    ``direction`` turns coordinates into the subset size, up to ``offset``.
    """

    rate: float
    direction: Array  # (K,)
    offset: float

    def gram(self, X: Array, Y: Array) -> Array:
        return self._between(self._size(X), self._size(Y))

    def diag(self, X: Array) -> Array:
        return np.ones(len(X))

    def mean(self, Y: Array, lattice: Lattice, q: float) -> Array:
        n_tasks = len(self.direction)
        sizes = np.arange(n_tasks + 1.0)
        return np.asarray(binom.pmf(sizes, n_tasks, q) @ self._between(sizes, self._size(Y)))

    def main(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        chance, sizes = self._other_sizes(nodes, weights, others=len(self.direction) - 1)
        effect = chance @ np.diff(self._between(sizes, self._size(Y)), axis=0)
        return np.repeat(effect[:, None], len(self.direction), axis=1)

    def pair(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array, rows: slice) -> Array:
        n_tasks = len(self.direction)
        shape = (len(Y), len(self.direction[rows]), n_tasks)
        if n_tasks < 2:
            return np.zeros(shape)
        chance, sizes = self._other_sizes(nodes, weights, others=n_tasks - 2)
        effect = chance @ np.diff(self._between(sizes, self._size(Y)), n=2, axis=0)
        return np.array(np.broadcast_to(effect[:, None, None], shape))

    def main_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        n_tasks = len(self.direction)
        chance, sizes = self._other_sizes(nodes, weights, others=n_tasks - 1)
        both = np.diff(np.diff(self._between(sizes, sizes), axis=0), axis=1)
        return np.full(n_tasks, chance @ both @ chance)

    def pair_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        n_tasks = len(self.direction)
        if n_tasks < 2:
            return np.zeros((n_tasks, n_tasks))
        chance, sizes = self._other_sizes(nodes, weights, others=n_tasks - 2)
        both = np.diff(np.diff(self._between(sizes, sizes), n=2, axis=0), n=2, axis=1)
        return np.full((n_tasks, n_tasks), chance @ both @ chance)

    def _size(self, X: Array) -> Array:
        return np.asarray(X @ self.direction + self.offset)

    def _between(self, a: Array, b: Array) -> Array:
        return np.asarray(np.exp(-self.rate * (a[:, None] - b[None, :]) ** 2))

    def _other_sizes(self, nodes: Array, weights: Array, others: int) -> tuple[Array, Array]:
        """The weighted distribution of how many of the ``others`` are in, and the sizes 0 … K."""
        chance = weights @ binom.pmf(np.arange(others + 1)[None, :], others, nodes[:, None])
        return chance, np.arange(len(self.direction) + 1.0)


@dataclass(frozen=True)
class Kernel:
    """A weighted sum of parts; every method is the sum over parts of theirs."""

    parts: tuple[Part, ...]
    variances: tuple[float, ...]

    def gram(self, X: Array, Y: Array) -> Array:
        """Values k(x, y), shape (n, m), computed in row blocks so that only the result is large."""
        out = np.empty((len(X), len(Y)))
        rows = max(1, BLOCK_BYTES // (8 * max(1, len(Y))))
        for start in range(0, len(X), rows):
            block = slice(start, start + rows)
            out[block] = sum(v * part.gram(X[block], Y) for v, part in self._terms())
        return out

    def diag(self, X: Array) -> Array:
        return np.asarray(sum(v * part.diag(X) for v, part in self._terms()))

    def mean(self, Y: Array, lattice: Lattice, q: float) -> Array:
        return np.asarray(sum(v * part.mean(Y, lattice, q) for v, part in self._terms()))

    def main(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        return np.asarray(sum(v * part.main(Y, lattice, nodes, weights) for v, part in self._terms()))

    def pair(self, Y: Array, lattice: Lattice, nodes: Array, weights: Array, rows: slice) -> Array:
        return np.asarray(sum(v * part.pair(Y, lattice, nodes, weights, rows) for v, part in self._terms()))

    def main_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        return np.asarray(sum(v * part.main_prior(lattice, nodes, weights) for v, part in self._terms()))

    def pair_prior(self, lattice: Lattice, nodes: Array, weights: Array) -> Array:
        return np.asarray(sum(v * part.pair_prior(lattice, nodes, weights) for v, part in self._terms()))

    def _terms(self) -> list[tuple[float, Part]]:
        return [(v, part) for v, part in zip(self.variances, self.parts, strict=True) if v > 0]
