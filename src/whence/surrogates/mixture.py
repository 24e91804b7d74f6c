"""Mixtures: over which subsets of the other tasks an effect is averaged.

The effect of task k is Σ u·E[g(s with k)] − Σ v·E[g(s without k)], the other tasks being drawn at random and
independently. Every rule of attribution is such a sum (:mod:`whence.answers.rules`), and every surrogate with effects
in closed form (:mod:`.protocol`) takes one. Two kinds of draws are enough:

- every other task is in with probability q, for some *nodes* q with weights u = v;
- the subset has exactly n of K tasks. Draws with q = n / K, given that their size is n, are such subsets, and
  conditioning on a size is a Fourier inversion: E[g | n] = 1/N Σ_θ e^{−iθn} E_q[g·e^{iθ|s|}] / P(n). A task that is in
  then counts q·e^{iθ} instead of q, so that a product over tasks stays one, at N complex nodes. All terms are at most 1
  in size: nothing cancels but a factor of P(n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, xlog1py, xlogy
from scipy.stats import binom

from whence.errors import InputError

Array = NDArray[np.float64]
Weights = np.ndarray[Any, Any]  # (Q,) real, or complex where the size is fixed


@dataclass(frozen=True, eq=False)
class Mixture:
    """Draws of the tasks that are not asked about, as Q nodes with weights.

    Attributes
    ----------
    absent, present : (Q,)
        What a task counts that is out, and one that is in: 1 − q and q, or (1 − q) and q·e^{iθ}.
    inside, outside : (Q,)
        Weights of the outcome with the task that is asked about, and without it. Both have the same total.
    overall : (Q,)
        Weights of the outcome itself, whose mean is the baseline of the rule.
    size : int, optional
        The one size of all subsets, where it is fixed.
    """

    absent: Weights
    present: Weights
    inside: Weights
    outside: Weights
    overall: Weights
    size: int | None = None

    @classmethod
    def over(cls, nodes: Any, weights: Any, overall: Any = None) -> Mixture:
        """Return Σ_q w_q E_q over probabilities ``nodes``; ``overall`` are the weights of the baseline, if others.

        >>> Mixture.over([0.5], [1.0]).present.tolist()
        [0.5]
        """
        nodes, weights = np.asarray(nodes, np.float64), np.asarray(weights, np.float64)
        overall = weights if overall is None else np.asarray(overall, np.float64)
        return cls(1 - nodes, nodes, weights, weights, overall)

    @classmethod
    def of_size(cls, n_tasks: int, size: int) -> Mixture:
        """Return subsets of exactly ``size`` tasks: those with the task asked about, less all of them.

        >>> mixture = Mixture.of_size(6, 2)
        >>> [float(part.sum().real.round(6)) for part in mixture.moments(5)]
        [0.666667, 0.133333, 0.666667, 0.266667]
        """
        rate = size / n_tasks
        chance = binom.pmf(np.arange(n_tasks + 1), n_tasks, rate)
        n_nodes = _enough_nodes(chance, size)
        angles = 2 * np.pi * np.arange(n_nodes) / n_nodes
        overall = np.exp(-1j * angles * size) / (n_nodes * chance[size])
        outside = (1 - rate) * overall
        inside = outside * np.exp(1j * angles)
        return cls(np.full(n_nodes, 1 - rate), rate * np.exp(1j * angles), inside, outside, overall, size)

    @property
    def same_others(self) -> bool:
        """Whether the other tasks are drawn alike with and without the task asked about."""
        return self.inside is self.outside

    def normalised(self, n_others: int) -> tuple[Weights, Weights, Weights, Weights]:
        """Return (q, inside, outside, overall) as if each node drew ``n_others`` tasks with probability q.

        q is complex where the size is fixed; what absent and present lack to 1 goes into the weights.
        """
        mass = self.absent + self.present
        total = mass**n_others
        return self.present / mass, self.inside * total, self.outside * total, self.overall * total

    def moments(self, n_others: int) -> tuple[Weights, Weights, Weights, Weights]:
        """Return the terms of the total weight inside, of another task's presence there, and of both outside."""
        q, inside, outside, _ = self.normalised(n_others)
        return inside, inside * q, outside, outside * q

    @property
    def pair_weights(self) -> Array:
        """The weights of a pair's second difference, whose four terms need the same draws of the other tasks."""
        if not self.same_others:
            raise InputError("Pairs of tasks cannot be averaged over subsets of one size: adding a task changes it.")
        return np.asarray(self.inside)

    def fewer(self, slope: float) -> Mixture:
        """Return as few nodes as give the same mean of Π_j f_j(q) but for rounding; itself where it needs all of them.

        ``slope`` bounds Σ_j |f_j'| / f_j for factors f_j that are positive and linear in q: the 2n-th derivative of
        their product, by which a Gauss rule of n nodes errs, is at most slope²ⁿ times the product. The rule is that of
        the weights themselves (Golub & Welsch 1969).

        >>> nodes, weights = np.polynomial.legendre.leggauss(64)
        >>> len(Mixture.over((nodes + 1) / 2, weights / 2).fewer(2.0).present)
        8
        """
        if not self.same_others or (self.inside <= 0).any():
            return self
        n = np.arange(1, len(self.present))
        with np.errstate(divide="ignore"):
            log_error = 2 * n * np.log(slope) + 4 * gammaln(n + 1) - np.log(2 * n + 1) - 3 * gammaln(2 * n + 1)
        enough = n[log_error < np.log(1e-16)]
        if not len(enough):
            return self
        jacobi, basis = np.zeros((enough[0], enough[0])), [np.sqrt(self.inside / self.inside.sum())]
        for i in range(enough[0]):
            against = np.array(basis)
            rest = self.present * basis[-1]
            jacobi[i, i] = basis[-1] @ rest
            for _ in range(2):  # twice, so that it stays orthogonal
                rest = rest - against.T @ (against @ rest)
            if i + 1 < enough[0]:
                jacobi[i, i + 1] = jacobi[i + 1, i] = norm = np.sqrt(rest @ rest)
                basis.append(rest / norm)
        nodes, vectors = np.linalg.eigh(jacobi)
        return Mixture.over(nodes, self.inside.sum() * vectors[0] ** 2)

    def pair_chances(self, n_others: int) -> Array:
        """Return the weight of 0 … ``n_others`` other tasks being in, for pairs."""
        return np.asarray(self.pair_weights @ binom.pmf(np.arange(n_others + 1)[None], n_others, self.present[:, None]))

    def overall_chances(self, n_tasks: int) -> Array:
        """Return the weight of 0 … K tasks being in."""
        count = np.arange(n_tasks + 1)
        if self.size is not None:
            return np.asarray(count == self.size, np.float64)
        return np.asarray(self.overall @ binom.pmf(count[None], n_tasks, self.present[:, None]))

    def size_chances(self, n_others: int) -> tuple[Array, Array]:
        """Return the weight of 0 … ``n_others`` other tasks being in, with and without the task asked about."""
        count = np.arange(n_others + 1)
        if self.size is not None:
            scale = 1 - self.size / (n_others + 1)
            return np.asarray(scale * (count == self.size - 1)), np.asarray(scale * (count == self.size))
        chance = np.asarray(self.inside @ binom.pmf(count[None], n_others, self.present[:, None]))
        return chance, chance

    def log_chances(self, n_others: int) -> tuple[Array, Array]:
        """Return the logarithms of the weight of a single subset of 0 … ``n_others`` others, with and without.

        In logarithms, since a single subset of a thousand tasks has a probability below the smallest float.
        """
        if self.size is None:
            log = _log_mixture(self.present, self.inside, np.arange(n_others + 1), n_others)
            return log, log
        count = np.arange(n_others + 1)
        log_each = -_log_comb(n_others, count)
        with np.errstate(divide="ignore"):
            inside, outside = (np.log(chance) + log_each for chance in self.size_chances(n_others))
        return inside, outside

    def log_overall(self, n_tasks: int) -> Array:
        """Return the logarithms of the weight of a single subset of 0 … K tasks in the baseline."""
        if self.size is None:
            return _log_mixture(self.present, self.overall, np.arange(n_tasks + 1), n_tasks)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.overall_chances(n_tasks)) - _log_comb(n_tasks, np.arange(n_tasks + 1)))

    def draw(self, n_tasks: int, n_samples: int, seed: int) -> tuple[Array, Array]:
        """Return random subsets, (n_samples, K), and log(n_samples · density) of each."""
        rng = np.random.default_rng(seed)
        if self.size is not None:
            points = (rng.random((n_samples, n_tasks)).argsort(1) < self.size).astype(np.float64)
            return points, np.full(n_samples, np.log(n_samples) - _log_comb(n_tasks, np.array(self.size)))
        share = np.abs(self.inside) / np.abs(self.inside).sum()
        q = rng.choice(self.present, n_samples, p=share)
        points = (rng.random((n_samples, n_tasks)) < q[:, None]).astype(np.float64)
        return points, np.log(n_samples) + _log_mixture(self.present, share, points.sum(1), n_tasks)


def _enough_nodes(chance: Array, size: int) -> int:
    """The least odd number of nodes at which other sizes, n ± N …, weigh less than rounding beside size n.

    Odd, since at θ = π a task that changes nothing would count 0.
    """
    n_tasks = len(chance) - 1
    for n_nodes in range(1, n_tasks + 1, 2):
        aliases = chance[size % n_nodes :: n_nodes].sum() - chance[size]
        if aliases < 1e-15 * chance[size]:
            return n_nodes
    return n_tasks + 1 + n_tasks % 2


def _log_mixture(nodes: Weights, weights: Weights, sizes: Weights, n_tasks: int) -> Array:
    """Log Σ_q w_q q^size (1 − q)^(n_tasks − size) for every size."""
    logs = xlogy(sizes, nodes[:, None]) + xlog1py(n_tasks - sizes, -nodes[:, None])
    return np.asarray(logsumexp(logs, axis=0, b=weights[:, None]))


def _log_comb(n: int, k: Weights) -> Array:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
