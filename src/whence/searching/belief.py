"""Predictions from the runs so far: a Gaussian process over all allowed rows, and how likely a row is to fail.

Decisions use the kernel of :mod:`whence.surrogates.combined`, tuned again for each decision. That takes hundredths of a
second, and found the best rows sooner than the average that gives the answers (benchmarks/results/search.md). The best
row is searched for on two scales: outcomes, and their ranks, which a few very bad runs do not distort. How sure it is
to be the best is told by processes with drawn hyperparameters (:mod:`.drawn`). With estimates from a cheaper rung, all
this is the fused surrogate, on one scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from sklearn.linear_model import LogisticRegression

from whence.errors import counted, some_of
from whence.outcomes.table import distinct_rows
from whence.searching.drawn import DrawnProcess
from whence.surrogates import priors
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.kernels import Array
from whence.surrogates.rungs import Rung
from whence.surrogates.warp import RankScale

FEWEST = 3  # runs before anything can be learned
# Prior of the logarithm of the variance of noise, for outcomes of unit variance, when the best row is searched for:
# with that for predicting new runs, more of what few runs show is taken for noise, and the best row is found later.
LITTLE_NOISE = (-3.0, 1.5)
# With few runs a process is too sure of itself, less so where its hyperparameters are drawn, and not with estimates.
# Set on simulated functions and on tables, where what is said to be 90% sure then is (benchmarks/results/search.md).
TUNED, DRAWN_ONES = 2.0, 1.0
INVERSE_PENALTY = 10.0  # of the logistic regression of failures on tasks
LAST = 1e12  # what rows that will rather fail are worth less


@dataclass(frozen=True)
class Known:
    """Finished runs with their values, runs that failed, and rows that are running."""

    rows: Array  # (n, K)
    values: Array  # (n, T)
    failed: Array  # (f, K)
    running: Array  # (r, K)

    @property
    def deterministic(self) -> bool:
        """Whether some row was run more than once, always with the same outcome."""
        first, group = distinct_rows(self.rows)
        repeated = np.bincount(group) > 1 if len(group) else np.zeros(0, bool)
        again = np.isin(group, np.flatnonzero(repeated))
        return bool(repeated.any() and (self.values[again] == self.values[first[group[again]]]).all())

    def chance(self, rows: Array) -> Array:
        """Return the probability that rows succeed, (n,), from the failures so far."""
        if not len(self.failed):
            return np.ones(len(rows))
        if not len(self.rows):
            apart = abs(rows[:, None] - self.failed[None]).sum(2).min(1)
            return np.asarray(apart / (1 + apart))
        tried = np.vstack([self.rows, self.failed])
        outcome = np.repeat([1.0, 0.0], [len(self.rows), len(self.failed)])
        return np.asarray(LogisticRegression(C=INVERSE_PENALTY).fit(tried, outcome).predict_proba(rows)[:, 1])

    def weighed(self, worth: Array, rows: Array) -> Array:
        """Return the worth of rows times their probability of success.

        Rows that are more likely to fail than to succeed come last.
        """
        chance = self.chance(rows)
        return np.asarray(np.where(chance < 0.5, worth * chance - LAST, worth * chance))

    def stretch(self, runs_per_task: float) -> float:
        """Return what the std of a process is multiplied with before it says how sure it is: 1 + (c K / runs)²."""
        return 1.0 + float(runs_per_task * self.rows.shape[1] / len(self.rows)) ** 2

    def failures_in_words(self, task_names: tuple[str, ...]) -> str:
        """Return a sentence about the failed runs and what they have in common; empty if none failed."""
        if not len(self.failed):
            return ""
        total = len(self.failed) + len(self.rows)
        said = f"{len(self.failed)} of {counted(total, 'run')} failed"
        alone = (self.failed > 0).all(0) & ~(self.rows > 0).any(0)
        if len(self.failed) > 1 and alone.any() and len(self.rows):
            named = some_of([task_names[k] for k in np.flatnonzero(alone)], 3)
            return f"{said}: every run with {named}, and no other. Such rows are avoided."
        return f"{said}. Similar rows are avoided, if the failures depend on the tasks."


@dataclass(frozen=True)
class Belief:
    """The Gaussian process behind decisions, given the runs; running rows count with their predicted outcome."""

    known: Known
    goodness: Array  # (n, T): the outcomes, in the units that the goal needs
    rungs: tuple[Rung, ...] = ()  # estimates of the same
    guesses: tuple[Array, Array] | None = None  # rows (g, K) of runs that were stopped, and what they would have given
    noise_prior: tuple[float, float] = priors.LEARNED["noise"]
    drawn: bool = False  # whether hyperparameters are drawn

    def with_guesses(self, rows: Array, goodness: Array) -> Belief:
        """Return the same with the extrapolated outcomes of runs that were stopped early, where not NaN."""
        told = ~np.isnan(goodness)
        return replace(self, guesses=(rows[told], goodness[told][:, None]))

    @cached_property
    def scales(self) -> tuple[Belief, ...]:
        """The same on two scales: what was measured, and normal scores of its ranks."""
        if self.rungs:
            return (self,)
        n_runs, scores = len(self.goodness), RankScale.learn(self._told)[1]
        guesses = None if self.guesses is None else (self.guesses[0], scores[n_runs:])
        return self, replace(self, goodness=scores[:n_runs], guesses=guesses)

    def standardized(self, values: Array) -> Array:
        """Return values (n, T) of this scale in units of the std of what is known."""
        return np.asarray((values - self._told.mean(0)) / np.maximum(self._told.std(0), 1e-300))

    @property
    def _told(self) -> Array:
        return self.goodness if self.guesses is None else np.vstack([self.goodness, self.guesses[1]])

    @cached_property
    def surrogate(self) -> CombinedSurrogate | DrawnProcess | FusedSurrogate:
        """The surrogate, fitted to the runs, then again with its own predictions for the running rows."""
        rows, goodness = self.known.rows, self._told
        if self.guesses is not None:
            rows = np.vstack([rows, self.guesses[0]])
        fitted = self._fitted(rows, goodness)
        if not len(self.known.running):
            return fitted
        believed = np.reshape(fitted.predict(self.known.running), (-1, goodness.shape[1]))
        return self._fitted(np.vstack([rows, self.known.running]), np.vstack([goodness, believed]))

    def _fitted(self, rows: Array, goodness: Array) -> CombinedSurrogate | DrawnProcess | FusedSurrogate:
        if self.rungs:
            return FusedSurrogate(self.rungs).fit(rows, goodness)
        if self.drawn:
            return DrawnProcess.learn(rows, goodness, self.noise_prior)
        return CombinedSurrogate(noise_prior=self.noise_prior).fit(rows, goodness)

    @cached_property
    def noise(self) -> Array:
        """The variance of noise (T,): it is the same everywhere, so its share of the variance of one new run tells."""
        row = self.known.rows[:1]
        std = self.surrogate.predict(row, return_std=True)[1].reshape(-1)
        own, noise = self.surrogate.covariance(row)
        return np.asarray(noise / max(float(own[0, 0]) + noise, 1e-300) * std**2)

    def moments(self, rows: Array) -> tuple[Array, Array]:
        """Return the mean (n, T) and the std (n, T) of outcomes without noise."""
        mean, std = (part.reshape(len(rows), -1) for part in self.surrogate.predict(rows, return_std=True))
        return mean, np.sqrt(np.maximum(std**2 - self.noise, 1e-12 * std**2))

    def joint(self, rows: Array) -> tuple[Array, Array, float]:
        """Return the mean (n, T), the covariance (n, n) relative to a unit variance, and its noise, for T targets.

        The variance of target t is the covariance times ``unit``² of it, by `unit`.
        """
        covariance, noise = self.surrogate.covariance(rows)
        return self.surrogate.predict(rows).reshape(len(rows), -1), covariance, noise

    def unit(self, rows: Array, covariance: Array, noise: float) -> Array:
        """Return what turns a relative std into that of each target, (T,)."""
        std = self.surrogate.predict(rows, return_std=True)[1].reshape(len(rows), -1)
        return np.asarray(np.median(std / np.sqrt(np.maximum(np.diag(covariance), 0) + noise)[:, None], axis=0))
