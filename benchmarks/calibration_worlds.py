"""Worlds whose truth is known: set functions, what a run of them looks like, and their effects by 2^K enumeration.

What :mod:`calibration` judges whence by. Nothing here uses whence, so that the truth is independent of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np

SetFunction = Callable[[np.ndarray], np.ndarray]  # subsets (n, K) to values (n,)
NOISE = 0.3  # std of a run relative to that of the function
TRIALS = 20  # of a success rate
SKEW = 0.7  # std of the logarithm of skewed outcomes
BLOCK = 1 << 15


def additive(K: int, rng: np.random.Generator) -> SetFunction:
    effects = rng.normal(size=K)
    return lambda S: S @ effects


def pairs(K: int, rng: np.random.Generator) -> SetFunction:
    effects, together = rng.normal(size=K), rng.normal(size=(K, K)) * (rng.random((K, K)) < 3 / K)
    return lambda S: S @ effects + np.einsum("ij,ij->i", S @ together, S)


def product(K: int, rng: np.random.Generator) -> SetFunction:
    factors = rng.normal(size=K) / np.sqrt(K) * 1.4
    return lambda S: np.exp(S @ factors)


def smooth(K: int, rng: np.random.Generator) -> SetFunction:
    """A draw from a Gaussian process with an RBF kernel, by random Fourier features."""
    relevance = rng.gamma(1.0, 1.0, K)
    directions, phases = rng.normal(size=(K, 200)) * np.sqrt(relevance)[:, None] * 2 / np.sqrt(K), rng.random(200) * 7
    weights = rng.normal(size=200)
    return lambda S: np.cos(S @ directions + phases) @ weights


def saturating(K: int, rng: np.random.Generator) -> SetFunction:
    effects = rng.gamma(0.5, 1.0, K)
    return lambda S: 1 - np.exp(-3 * (S @ effects) / effects.sum())


def best(K: int, rng: np.random.Generator) -> SetFunction:
    """The best of the tasks that are in: the first of them changes more than all that follow."""
    quality = rng.random(K)
    return lambda S: (S * quality).max(1)


def coverage(K: int, rng: np.random.Generator) -> SetFunction:
    """How much is covered, of 60 items of which each task covers a quarter."""
    covers, worth = (rng.random((K, 60)) < 0.25).astype(float), rng.random(60)
    return lambda S: (S @ covers > 0) @ worth


def threshold(K: int, rng: np.random.Generator) -> SetFunction:
    """Steps: each of five votes of a few tasks passes its threshold or not."""
    votes = rng.normal(size=(K, 5)) * (rng.random((K, 5)) < 0.6)
    bounds, weights = votes.sum(0) / 2, rng.normal(size=5)
    return lambda S: (S @ votes > bounds) @ weights


SHAPES = {f.__name__: f for f in (additive, pairs, product, smooth, saturating, best, coverage, threshold)}
OUTCOMES = ("gaussian", "noiseless", "heteroscedastic", "skewed", "heavy-tailed", "success rates")


@dataclass(frozen=True)
class World:
    """Targets f_1 … f_T of standard spread, seen through runs of one kind of outcome."""

    n_tasks: int
    functions: tuple[SetFunction, ...]
    outcome: str

    @classmethod
    def draw(cls, shape: str, outcome: str, n_tasks: int, n_targets: int, rng: np.random.Generator) -> World:
        S = rng.integers(0, 2, (2000, n_tasks)).astype(float)
        shared = standardized(SHAPES[shape](n_tasks, rng), S)
        if n_targets == 1:
            return cls(n_tasks, (shared,), outcome)
        own = [standardized(SHAPES[shape](n_tasks, rng), S) for _ in range(n_targets)]
        return cls(n_tasks, tuple(standardized(_sum(shared, f), S) for f in own), outcome)

    def mean(self, S: np.ndarray) -> np.ndarray:
        """Return the expected outcome of a run, (n, T)."""
        f = np.column_stack(
            [np.concatenate([f(S[i : i + BLOCK]) for i in range(0, len(S), BLOCK)]) for f in self.functions]
        )
        if self.outcome == "skewed":
            return np.exp(SKEW * f + NOISE**2 / 2)
        return rate(f) if self.outcome == "success rates" else f

    def run(self, S: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the outcomes of one new run per row, (n, T)."""
        f = np.column_stack([f(S) for f in self.functions])
        noise = rng.normal(size=f.shape)
        if self.outcome == "success rates":
            return rng.binomial(TRIALS, rate(f)) / TRIALS
        if self.outcome == "skewed":
            return np.exp(SKEW * f + NOISE * noise)
        if self.outcome == "heavy-tailed":
            noise = rng.standard_t(3, size=f.shape) / np.sqrt(3)
        width = {"noiseless": 0.0, "heteroscedastic": NOISE * 2 * rate(f)}.get(self.outcome, NOISE)
        return f + width * noise


def rate(f: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-1.5 * f))


def standardized(f: SetFunction, S: np.ndarray) -> SetFunction:
    """Return f with mean 0 and standard deviation 1 over the subsets."""
    values = f(S)
    center, spread = values.mean(), values.std()
    return lambda S: (f(S) - center) / (spread or 1.0)


def _sum(f: SetFunction, g: SetFunction) -> SetFunction:
    return lambda S: f(S) + g(S)


def draw_subsets(design: str, K: int, n: int, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Return n rows: n / replicates subsets that are in or out by coin flips, or all of one size."""
    order = rng.random((max(2, n // replicates), K))
    S = order.argsort(1).argsort(1) < max(2, K // 3) if design == "fixed size" else order < 0.5
    return np.repeat(S.astype(float), replicates, axis=0)


def all_subsets(K: int) -> np.ndarray:
    return (np.arange(2**K)[:, None] >> np.arange(K)[::-1] & 1).astype(float)


def effects_and_pairs(world: World, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Return effects (K, T) and pairs (K, K, T) by Shapley or Banzhaf, from the expected outcomes of all subsets.

    Both are sums over subsets of outcomes times a weight, which depends on the size and on which of the tasks are in.
    """
    K, T = world.n_tasks, len(world.functions)
    values, together = np.zeros((K, T)), np.zeros((K, K, T))
    every, weight = all_subsets(K), {"shapley": _shapley, "banzhaf": _banzhaf}[rule]
    for start in range(0, len(every), BLOCK):
        S = every[start : start + BLOCK]
        out, size, f = 1 - S, S.sum(1).astype(int), world.mean(S)
        values += S.T @ (weight(size - 1, K)[:, None] * f) - out.T @ (weight(size, K)[:, None] * f)
        for t in range(T):
            both, one, none = (weight(size - n, K - 1) * f[:, t] for n in (2, 1, 0))
            apart = (S.T * one) @ out
            together[:, :, t] += (S.T * both) @ S - apart - apart.T + (out.T * none) @ out
    together[np.arange(K), np.arange(K)] = 0.0
    return values, together


def inclusion(world: World, size: int) -> np.ndarray:
    """Return the mean over the subsets of one size that have a task, less the mean over all of that size, (K, T)."""
    S = all_subsets(world.n_tasks)
    S = S[S.sum(1) == size]
    f = world.mean(S)
    return S.T @ f / S.sum(0)[:, None] - f.mean(0)


def _shapley(size: np.ndarray, K: int) -> np.ndarray:
    """Return how likely it is that in a random order so many of the others come before a given one of K tasks."""
    known = np.array([factorial(s) * factorial(K - s - 1) / factorial(K) for s in range(K)])
    return np.where((size >= 0) & (size < K), known[np.clip(size, 0, K - 1)], 0.0)


def _banzhaf(size: np.ndarray, K: int) -> np.ndarray:
    return np.where((size >= 0) & (size < K), 0.5 ** (K - 1), 0.0)
