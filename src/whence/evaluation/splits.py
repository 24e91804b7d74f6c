"""Repeated splits: several methods on the same runs, and the difference between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from whence.errors import InputError, did_you_mean
from whence.evaluation.scores import (
    coverage_of,
    has_std,
    lds,
    predictions,
    predictions_with_std,
    residual_error,
)
from whence.evaluation.statistics import Floats, mean_defined, varies
from whence.outcomes import Outcomes
from whence.shown import Shown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """Scores of several methods on the same splits.

    Attributes
    ----------
    methods : tuple of str
        M names.
    lds, residual_error, coverage, seconds : ndarray of shape (M, S)
        Mean score over targets on each split, and the time to fit. NaN where the method failed; coverage also
        where it gives no standard deviation.
    n_undefined : ndarray of shape (S,)
        How many targets did not vary among the held-out rows of each split.
    failures : tuple of (method, split, message)
        What was raised, and where.
    n_train, n_test : int
        Distinct subsets on each side of a split.

    Examples
    --------
    >>> from whence.evaluation import SizeOnly
    >>> runs = Outcomes([[0, 0], [0, 1], [1, 0], [1, 1]], [0.0, 2.0, 1.0, 3.0])
    >>> result = repeated_splits(runs, {"size": SizeOnly.fit, "none": lambda train: None}, train_size=2)
    >>> result.to_frame()["failed"].to_dict()
    {'size': 0, 'none': 5}
    >>> result.difference("size", "size")
    (0.0, 0.0, 0.0)
    """

    methods: tuple[str, ...]
    lds: Floats
    residual_error: Floats
    coverage: Floats
    seconds: Floats
    n_undefined: NDArray[np.int64]
    failures: tuple[tuple[str, int, str], ...]
    n_train: int
    n_test: int

    def __str__(self) -> str:
        return self.to_frame().to_string()

    def to_frame(self) -> pd.DataFrame:
        """Table with a row per method: means over the splits on which it did not fail, and how many it did.

        Returns
        -------
        DataFrame
            Columns lds, residual_error, coverage, seconds, failed, and message (of the first failure).
        """
        import pandas as pd

        messages = {name: message for name, _, message in reversed(self.failures)}
        failed = [sum(name == method for name, _, _ in self.failures) for method in self.methods]
        columns = {
            name: [mean_defined(row) for row in getattr(self, name)]
            for name in ("lds", "residual_error", "coverage", "seconds")
        }
        message = [messages.get(method, "") for method in self.methods]
        index = pd.Index(self.methods, name="method")
        return pd.DataFrame({**columns, "failed": failed, "message": message}, index=index)

    def difference(self, a: str, b: str, *, metric: str = "lds", level: float = 0.95) -> tuple[float, float, float]:
        """Mean of a − b over splits, and the bounds of its interval.

        Splits of one table share most of their training rows, so that their scores are correlated and the
        plain standard error s/√S is far too small. Nadeau & Bengio (2003) use s·√(1/S + n_test/n_train)
        instead, here with a t distribution of S − 1 degrees of freedom.

        Parameters
        ----------
        a, b : str
            Methods. Splits on which either failed do not count.
        metric : {'lds', 'residual_error'}
            Of lds more is better, of residual_error less.
        level : float
            Probability that the interval should have.

        Returns
        -------
        mean, low, high : float
            Bounds are NaN with fewer than two splits.
        """
        if metric not in ("lds", "residual_error"):
            raise InputError(f"The 'metric' of difference must be 'lds' or 'residual_error'. Got {metric!r} instead.")
        for name in (a, b):
            if name not in self.methods:
                raise InputError(f"No method is called '{name}'. {did_you_mean(name, self.methods)}")
        scores = getattr(self, metric)
        gaps = scores[self.methods.index(a)] - scores[self.methods.index(b)]
        gaps = gaps[~np.isnan(gaps)]
        mean = mean_defined(gaps)
        if len(gaps) < 2:
            return mean, np.nan, np.nan
        error = float(np.std(gaps, ddof=1) * np.sqrt(1 / len(gaps) + self.n_test / self.n_train))
        half = float(scipy.special.stdtrit(len(gaps) - 1, (1 + level) / 2)) * error
        return mean, mean - half, mean + half


def repeated_splits(
    outcomes: Outcomes,
    methods: Mapping[str, Any],
    *,
    n_splits: int = 5,
    train_fraction: float = 0.7,
    train_size: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Comparison:
    """Scores of methods that learn from the same runs and are judged on the same others, split by split.

    Splits are by distinct subset: replicates of a subset are all in training or all held out. A method that
    raises is reported as failed on that split, with its message.

    Parameters
    ----------
    outcomes : Outcomes
        All runs.
    methods : mapping of str to callable, or to a model
        Each takes the training table and returns a model, as `whence.fit` and `SizeOnly.fit` do, or is one already,
        such as the scores of a baseline.
    n_splits : int
        Number of random splits S.
    train_fraction : float
        Share of the distinct subsets to learn from.
    train_size : int, optional
        Number of distinct subsets to learn from, instead of the share.
    seed : int
        Same seed, same splits.
    progress : callable, optional
        Called with (done, total) after each fit.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> from whence.evaluation import SizeOnly
    >>> rng = np.random.default_rng(0)
    >>> subsets = rng.integers(0, 2, (40, 6))
    >>> runs = Outcomes(subsets, subsets.sum(axis=1) + 0.1 * rng.normal(size=40))
    >>> result = repeated_splits(runs, {"size only": SizeOnly.fit})
    >>> bool(result.to_frame().loc["size only", "lds"] > 0.9)
    True
    """
    distinct = outcomes.distinct()[0]
    places = {row.tobytes(): place for place, row in enumerate(distinct)}
    group = np.array([places[row.tobytes()] for row in outcomes.subsets], dtype=np.intp)
    n_train = _train_size(len(distinct), n_splits, train_fraction, train_size)
    if not methods:
        raise InputError("The 'methods' of repeated_splits must name at least one method. Got none.")
    scores = np.full((4, len(methods), n_splits), np.nan)
    n_undefined = np.zeros(n_splits, dtype=np.int64)
    failures: list[tuple[str, int, str]] = []
    rng = np.random.default_rng(seed)
    for split in range(n_splits):
        training = np.isin(group, rng.permutation(len(distinct))[:n_train])
        train, held_out = outcomes.rows(training), outcomes.rows(~training)
        n_undefined[split] = np.sum(~varies(held_out.values))
        for place, (name, method) in enumerate(methods.items()):
            try:
                scores[:, place, split] = _judged(method, train, held_out)
            except Exception as error:  # whatever a method raises is its result
                failures.append((name, split, f"{type(error).__name__}: {error}"))
            if progress is not None:
                progress(split * len(methods) + place + 1, n_splits * len(methods))
    correlation, distance, covered, seconds = scores
    n_test = len(distinct) - n_train
    return Comparison(
        tuple(methods), correlation, distance, covered, seconds, n_undefined, tuple(failures), n_train, n_test
    )


@dataclass(frozen=True, eq=False)
class GivenScores:
    """Model that adds up given scores of tasks: coef_ (K, T), intercept_ (T,)."""

    coef_: Floats
    intercept_: Floats

    def predict(self, subsets: ArrayLike) -> Floats:
        """Sum of the scores of the tasks in each subset, (n, T)."""
        return np.asarray(np.asarray(subsets, dtype=np.float64) @ self.coef_ + self.intercept_)


def scored(coef: ArrayLike) -> Callable[[Outcomes], GivenScores]:
    """Method for `repeated_splits` that predicts with given scores (K, T), at the mean level of the training runs.

    Examples
    --------
    >>> runs = Outcomes([[0, 0], [0, 1], [1, 0], [1, 1]], [5.0, 6.0, 7.0, 8.0])
    >>> scored([[2.0], [1.0]])(runs).predict([[1, 1]])
    array([[8.]])
    """
    scores = np.asarray(coef, dtype=np.float64)

    def method(train: Outcomes) -> GivenScores:
        return GivenScores(scores, np.nanmean(train.values - train.subsets @ scores, axis=0))

    return method


def _judged(method: Any, train: Outcomes, held_out: Outcomes) -> list[float]:
    start = time.perf_counter()
    model = method(train) if callable(method) else method
    seconds = time.perf_counter() - start
    covered = np.nan
    if has_std(model):
        predicted, std = predictions_with_std(model, held_out)
        covered = coverage_of(predicted, std, held_out, 0.9).mean
    else:
        predicted = predictions(model, held_out)
    return [lds(predicted, held_out).mean, residual_error(predicted, held_out).mean, covered, seconds]


def _train_size(n_subsets: int, n_splits: int, train_fraction: float, train_size: int | None) -> int:
    if n_splits < 1:
        raise InputError(f"The 'n_splits' of repeated_splits must be at least 1. Got {n_splits!r} instead.")
    if train_size is None and not 0 < train_fraction < 1:
        raise InputError(
            f"must lie between 0 and 1. Got {train_fraction!r} instead.",
            parameter="train_fraction",
            of="repeated_splits",
        )
    wanted = round(train_fraction * n_subsets) if train_size is None else train_size
    if not 1 <= wanted <= n_subsets - 2:
        raise InputError(
            "A split needs at least one distinct subset to learn from and two to judge by. "
            f"Got {wanted} to learn from, of {n_subsets} in the table; change {{train_fraction}}, or "
            "measure more subsets.",
            train_fraction=None,
        )
    return wanted
