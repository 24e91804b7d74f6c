"""The kernel algebra: what is known exactly about a kernel on subsets, in one place.

Prediction, tuning, posterior std, attribution and interactions all need the same few facts about a :class:`Kernel`:

- ``evaluate``: its values between two lists of subsets;
- ``mean``, ``main``, ``pairs``: the expectation, the effect of one task and the joint effect of two tasks on
  k(·, t) when the other tasks are drawn at random (:class:`.mixture.Mixture`);
- ``main_prior``, ``pair_prior``: the same effects applied to both arguments, i.e. their prior variance when the
  kernel is the covariance of a Gaussian process.

A :class:`ProductKernel` is a product over tasks, and all of this follows from its one method ``factor``: to add such a
kernel, write that method and hand the class to ``KernelSurrogate(kernel=…)``. Kernels of a sum over tasks have closed
forms of their own (:mod:`.sum_kernels`). All are equal to the sum over all 2^K subsets.

Kernels see *coordinates*: task k is a number, ``lattice.absent[k]`` or ``lattice.present[k]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from whence.surrogates.mixture import Array as Array
from whence.surrogates.mixture import Mixture

BLOCK_BYTES = 1 << 28
# Factors are kept away from zero, so that dividing by them is safe: two of these multiplied must not underflow.
TINY = 1e-150


PairEffects = Callable[[slice, slice], Array]


class Lattice(NamedTuple):
    """The two coordinates of every task: left out, and in."""

    absent: Array  # (K,)
    present: Array  # (K,)

    @property
    def step(self) -> Array:
        return self.present - self.absent


class Kernel(ABC):
    """A covariance of outcomes between subsets. Y is (m, D); results are per row of Y."""

    adds_up = False  # whether effects of tasks add up, so that no two of them have a joint one

    @abstractmethod
    def evaluate(self, X: Array, Y: Array) -> Array:
        """Return k(x, y) between the rows of X and of Y, (n, m)."""

    def diag(self, X: Array) -> Array:
        """Return k(x, x), (n,)."""
        return np.array([self.evaluate(x[None], x[None])[0, 0] for x in X])

    @abstractmethod
    def mean(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        """Return E k(x, y) over the subsets x of the mixture, (m,)."""

    @abstractmethod
    def main(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the effect of every task on k(·, y), (m, K)."""

    @abstractmethod
    def pairs(self, Y: Array, lattice: Lattice, mixture: Mixture) -> PairEffects:
        """Return the joint effects of two tasks on k(·, y): a function of some tasks and others, (m, some, others)."""

    @abstractmethod
    def main_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the prior variance of every task's effect, (K,)."""

    @abstractmethod
    def pair_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the prior variance of every pair's effect, (K, K)."""

    def export(self) -> list[dict[str, Any]] | None:
        """Return its summands as plain data, with their variances; None where the page's script does not know one."""
        return None


class ProductKernel(Kernel):
    """k(x, y) = Π_k κ_k(x_k, y_k) with positive factors: everything follows from ``factor``.

    With f_k = E κ_k(x_k, y_k) and d_k = κ_k(present, y_k) − κ_k(absent, y_k), the effect of task k is d_k Π_{j≠k} f_j
    and that of a pair d_k d_l Π_{j≠k,l} f_j.

    ``KernelSurrogate`` makes a kernel of a subclass from one rate per task: ``Laplacian(rates)``.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Laplacian(ProductKernel):
    ...     rates: Array
    ...
    ...     def factor(self, x, y):
    ...         return np.exp(-self.rates * np.abs(x - y))
    >>> Laplacian(np.array([1.0, 2.0])).evaluate(np.zeros((1, 2)), np.eye(2)).round(3)
    array([[0.368, 0.135]])
    """

    @abstractmethod
    def factor(self, x: Array, y: Array) -> Array:
        """Return κ_k(x_k, y_k) > 0 of coordinates (…, K) that are broadcast against each other."""

    def evaluate(self, X: Array, Y: Array) -> Array:
        """Return the product of the factors, in row blocks."""
        out = np.empty((len(X), len(Y)))
        rows = max(1, BLOCK_BYTES // (8 * max(1, Y.size)))
        for start in range(0, len(X), rows):
            block = slice(start, start + rows)
            out[block] = self.factor(X[block, None, :], Y[None, :, :]).prod(2)
        return out

    def diag(self, X: Array) -> Array:
        """Return the product of the factors of every row with itself."""
        return np.asarray(self.factor(X, X).prod(1))

    def mean(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        """Return Σ_q w_q Π_j f_j, (m,)."""
        low, high = self._factors(Y, lattice)
        products = ((absent * low + present * high).prod(1) for absent, present in _nodes(mixture))
        return _real(sum(w * product for w, product in zip(mixture.overall, products, strict=True)))

    def main(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        """Return Σ_q w_q d_k Π_{j≠k} f_j, (m, K)."""
        low, high = self._factors(Y, lattice)
        mixture = mixture.fewer(_slope(low, high))
        inside: Any = 0.0
        outside: Any = 0.0
        for (absent, present), u, v in zip(_nodes(mixture), mixture.inside, mixture.outside, strict=True):
            factor = absent * low + present * high
            others = factor.prod(1, keepdims=True) / factor
            inside = inside + u * others
            if not mixture.same_others:
                outside = outside + v * others
        return _real(inside * (high - low) if mixture.same_others else inside * high - outside * low)

    def pairs(self, Y: Array, lattice: Lattice, mixture: Mixture) -> PairEffects:
        """Return Σ_q w_q d_k d_l Π_{j≠k,l} f_j."""
        low, high = self._factors(Y, lattice)
        mixture = mixture.fewer(_slope(low, high))
        # (m, Q, K): for every row of Y a small matrix product over the nodes replaces a loop over pairs.
        factor = mixture.absent[:, None] * low[:, None] + mixture.present[:, None] * high[:, None]
        product = mixture.pair_weights * factor.prod(2)
        ratio = (high - low)[:, None] / factor

        def effects(some: slice, others: slice) -> Array:
            weighted = product[:, :, None] * ratio[:, :, some]
            return np.asarray(np.matmul(weighted.transpose(0, 2, 1), ratio[:, :, others]))

        return effects

    def main_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the effect on both arguments, (K,)."""
        none, one, both = self._corners(lattice)
        u, v = mixture.inside, mixture.outside
        total: Any = 0.0
        for i, product, factor in self._both_random(lattice, mixture):
            corner = np.multiply.outer(u[i] * u, both) + np.multiply.outer(v[i] * v, none)
            corner = corner - np.multiply.outer(u[i] * v + v[i] * u, one)
            total = total + (product[:, None] * corner / factor).sum(0)
        return _real(total)

    def pair_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        """Return the second difference of both arguments, (K, K)."""
        none, one, both = self._corners(lattice)
        corners = np.stack([none, one, both])
        mixture = mixture.fewer(_slope(corners.min(0), corners.max(0)))
        weights = mixture.pair_weights
        total = np.zeros((len(none), len(none)))
        for i, product, factor in self._both_random(lattice, mixture):
            ratio = (both - 2 * one + none) / factor
            total += ((weights[i] * weights * product)[:, None] * ratio).T @ ratio
        return total

    def _factors(self, Y: Array, lattice: Lattice) -> tuple[Array, Array]:
        """κ_k(absent, y_k) and κ_k(present, y_k)."""
        return np.maximum(self.factor(lattice.absent, Y), TINY), np.maximum(self.factor(lattice.present, Y), TINY)

    def _corners(self, lattice: Lattice) -> tuple[Array, Array, Array]:
        """κ_k between out and out, out and in, in and in, each (K,)."""
        low, high = lattice
        return self.factor(low, low), np.maximum(self.factor(low, high), TINY), self.factor(high, high)

    def _both_random(self, lattice: Lattice, mixture: Mixture) -> Iterator[tuple[int, Any, Any]]:
        """For each node: Π_j E κ_j(x_j, x'_j) when x' is drawn at every other node (Q,), and its factors (Q, K)."""
        none, one, both = self._corners(lattice)
        a, b = mixture.absent, mixture.present
        for i in range(len(a)):
            factor = np.multiply.outer(a[i] * a, none) + np.multiply.outer(b[i] * b, both)
            factor = factor + np.multiply.outer(a[i] * b + b[i] * a, one)
            yield i, factor.prod(1), factor


@dataclass(frozen=True)
class Constant(ProductKernel):
    """k(s, t) = 1: the unknown level of the outcome."""

    adds_up = True

    def factor(self, x: Array, y: Array) -> Array:
        return np.ones(np.broadcast_shapes(x.shape, y.shape))

    def evaluate(self, X: Array, Y: Array) -> Array:
        return np.ones((len(X), len(Y)))

    def mean(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        return np.full(len(Y), mixture.overall_chances(len(lattice.absent)).sum())

    def main(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        return np.zeros(Y.shape)

    def pairs(self, Y: Array, lattice: Lattice, mixture: Mixture) -> PairEffects:
        return none_of_pairs(Y)

    def main_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        return np.zeros(len(lattice.absent))

    def pair_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        return np.zeros((len(lattice.absent),) * 2)

    def export(self) -> list[dict[str, Any]]:
        return [{"part": "constant", "variance": 1.0}]


@dataclass(frozen=True)
class RBF(ProductKernel):
    """k(x, y) = exp(−Σ_k r_k (x_k − y_k)²) (paper, section 3.2, with one rate r_k per task)."""

    rates: Array  # (K,)

    def factor(self, x: Array, y: Array) -> Array:
        return np.asarray(np.exp(-self.rates * (x - y) ** 2))

    def evaluate(self, X: Array, Y: Array) -> Array:
        """Return the kernel by way of a matrix product."""
        scaled_x, scaled_y = X * np.sqrt(self.rates), Y * np.sqrt(self.rates)
        distance = scaled_x @ scaled_y.T
        distance *= -2
        distance += (scaled_x**2).sum(1)[:, None]
        distance += (scaled_y**2).sum(1)[None, :]
        return self.of(distance)

    def of(self, distance: Array) -> Array:
        """Return the kernel at weighted squared distances Σ_k r_k (x_k − y_k)², which are overwritten."""
        # Rounding can leave a distance slightly below zero.
        np.maximum(distance, 0.0, out=distance)
        return np.exp(np.negative(distance, out=distance), out=distance)

    def diag(self, X: Array) -> Array:
        return np.ones(len(X))

    def export(self) -> list[dict[str, Any]]:
        return [{"part": "rbf", "variance": 1.0, "weights": self.rates}]


@dataclass(frozen=True)
class Sum(Kernel):
    """A weighted sum of kernels; every method is the sum of theirs."""

    parts: tuple[Kernel, ...]
    variances: tuple[float, ...]

    def evaluate(self, X: Array, Y: Array) -> Array:
        """Return the sum in row blocks, so that only the result is large."""
        out = np.empty((len(X), len(Y)))
        rows = max(1, BLOCK_BYTES // (8 * max(1, len(Y))))
        for start in range(0, len(X), rows):
            block = slice(start, start + rows)
            out[block] = sum(v * part.evaluate(X[block], Y) for v, part in self._terms())
        return out

    def diag(self, X: Array) -> Array:
        return np.asarray(sum(v * part.diag(X) for v, part in self._terms()))

    def mean(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        return np.asarray(sum(v * part.mean(Y, lattice, mixture) for v, part in self._terms()))

    def main(self, Y: Array, lattice: Lattice, mixture: Mixture) -> Array:
        return np.asarray(sum(v * part.main(Y, lattice, mixture) for v, part in self._terms()))

    def pairs(self, Y: Array, lattice: Lattice, mixture: Mixture) -> PairEffects:
        terms = [(v, part.pairs(Y, lattice, mixture)) for v, part in self._terms() if not part.adds_up]

        def effects(some: slice, others: slice) -> Array:
            total = None
            for variance, of in terms:  # in place: these arrays are the largest there are
                effect = of(some, others)
                effect *= variance
                total = effect if total is None else np.add(total, effect, out=total)
            return none_of_pairs(Y)(some, others) if total is None else total

        return effects

    def main_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        return np.asarray(sum(v * part.main_prior(lattice, mixture) for v, part in self._terms()))

    def pair_prior(self, lattice: Lattice, mixture: Mixture) -> Array:
        return np.asarray(sum(v * part.pair_prior(lattice, mixture) for v, part in self._terms()))

    def export(self) -> list[dict[str, Any]] | None:
        """Return all summands with their variances; None where one of them cannot be sent."""
        found = []
        for variance, part in self._terms():
            own = part.export()
            if own is None:
                return None
            found += [each | {"variance": variance * each["variance"]} for each in own]
        return found

    def _terms(self) -> list[tuple[float, Kernel]]:
        return [(v, part) for v, part in zip(self.variances, self.parts, strict=True) if v > 0]


def none_of_pairs(Y: Array) -> PairEffects:
    """Return the joint effects where no two tasks have one."""
    return lambda some, others: np.zeros((len(Y), Y[:1, some].shape[1], Y[:1, others].shape[1]))


def _slope(low: Array, high: Array) -> float:
    """The greatest Σ_j |f_j'| / f_j of factors that go from ``low`` to ``high`` (…, K)."""
    return float((np.abs(high - low) / np.minimum(high, low)).sum(-1).max())


def _nodes(mixture: Mixture) -> Iterator[tuple[Any, Any]]:
    return zip(mixture.absent, mixture.present, strict=True)


def _real(values: Any) -> Array:
    """Values that are real but for rounding, where nodes are complex."""
    return np.asarray(np.real(values))
