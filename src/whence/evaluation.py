"""Evaluation: how well a surrogate predicts unseen runs, beside what is trivial and what is possible.

The last step of the flow. Everything here is a pure function of a model (anything with ``predict``) or of its
predictions and of a table of held-out outcomes. A score is never read alone: `size_only` says what the number
of tasks predicts by itself, `within_size_lds` what is left of a score when it is taken away, `noise_ceiling`
what training noise leaves room for, and `repeated_splits` whether two methods differ by more than the luck of
one split.

Nothing is dropped silently. Where an outcome was not measured (NaN), each target is judged on its measured
rows. A target whose measured outcome does not vary has no score: it is NaN, left out of the mean, and
counted by ``n_undefined``. A prediction that does not vary where the outcome does is a failure of the model,
and counts as a correlation of 0.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from whence.errors import InputError, did_you_mean, some_of
from whence.outcomes import Outcomes

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """Score of each target, and its mean.

    Attributes
    ----------
    per_target : ndarray of shape (T,)
        NaN where undefined; each function says when.
    mean : float
        Over the targets that have a score; NaN where none has.
    target_names : tuple of str

    Examples
    --------
    >>> Score(np.array([0.5, np.nan]), 0.5, ("loss", "acc"))
    Score: 0.5 over 1 of 2 targets; 1 undefined
    """

    per_target: Floats
    mean: float
    target_names: tuple[str, ...]

    @property
    def n_undefined(self) -> int:
        """Number of targets without a score."""
        return int(np.isnan(self.per_target).sum())

    def __repr__(self) -> str:
        return f"Score: {self.mean:.4g} {_out_of(self.per_target)}"


def spearman_per_target(predicted: ArrayLike, measured: ArrayLike) -> Floats:
    """Spearman correlation of each column, with average ranks for ties.

    Parameters
    ----------
    predicted : array-like of shape (m, T)
        No missing values.
    measured : array-like of shape (m, T)
        NaN where not measured: such rows do not count for that target.

    Returns
    -------
    ndarray of shape (T,)
        NaN where fewer than two rows are measured, or where the predictions or the measured values of those
        rows are all equal.

    Examples
    --------
    >>> spearman_per_target([[1, 1], [2, 1], [3, 1]], [[0.1, 0.1], [0.7, 0.2], [0.9, 0.3]])
    array([ 1., nan])
    """
    truth = np.asarray(measured, dtype=np.float64)
    guess = _checked(predicted, truth.shape)
    missing = np.isnan(truth)
    if missing.any():
        guess = np.where(missing, np.nan, guess)
    return _pearson(_ranks(guess), _ranks(truth))


def lds(model: Any, held_out: Outcomes) -> Score:
    """Linear datamodeling score: Spearman correlation of predicted and measured outcomes, per target.

    Ilyas et al. (2022); section 4 of the paper. All targets count: one whose measured outcome is constant is
    undefined, one whose prediction is constant although the outcome varies scores 0.

    Parameters
    ----------
    model : object with ``predict``, or array-like of shape (m, T)
        A model, or its predictions for the rows of ``held_out``.
    held_out : Outcomes
        Runs that the model has not seen. Replicates are rows of their own.

    Returns
    -------
    Score

    Examples
    --------
    >>> held_out = Outcomes([[1, 0], [0, 1], [1, 1]], [0.9, 0.8, 0.5])
    >>> lds([3.0, 2.0, 1.0], held_out)
    Score: 1 over 1 of 1 targets; 0 undefined
    """
    predicted = _predictions(model, held_out)
    return _score(
        _failures_as_zero(spearman_per_target(predicted, held_out.values), held_out.values), held_out
    )


def within_size_lds(model: Any, held_out: Outcomes) -> Score:
    """Spearman correlation among subsets of one size, averaged over sizes by their number of pairs.

    What is left of the `lds` when the number of tasks explains nothing. (Regressing the size out of the
    outcomes instead creates rank correlation where they are heavy-tailed.) A size counts for a target if the
    measured outcome varies within it; a constant prediction there scores 0.

    Parameters
    ----------
    model : object with ``predict``, or array-like of shape (m, T)
        A model, or its predictions for the rows of ``held_out``.
    held_out : Outcomes
        Runs that the model has not seen. The size of a subset is the sum of its weights.

    Returns
    -------
    Score
        Undefined where the measured outcome varies within no size.

    Examples
    --------
    >>> held_out = Outcomes([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1]], [0.9, 0.8, 0.5, 0.4])
    >>> lds([-1, -1, -2, -2], held_out), within_size_lds([-1, -1, -2, -2], held_out)
    (Score: 0.8944 over 1 of 1 targets; 0 undefined, Score: 0 over 1 of 1 targets; 0 undefined)
    """
    predicted = _predictions(model, held_out)
    sizes = _sizes(held_out.subsets)
    weighted, pairs = np.zeros(held_out.n_targets), np.zeros(held_out.n_targets)
    for size in np.unique(sizes):
        rows = sizes == size
        measured = held_out.values[rows]
        scores = _failures_as_zero(spearman_per_target(predicted[rows], measured), measured)
        count = np.sum(~np.isnan(measured), axis=0)
        share = np.where(np.isnan(scores), 0.0, count * (count - 1) / 2)
        weighted += share * np.nan_to_num(scores)
        pairs += share
    return _score(_ratio(weighted, pairs), held_out)


def residual_error(model: Any, held_out: Outcomes) -> Score:
    """Mean squared error over the variance of the measured outcome, per target.

    0 is perfect, and 1 is as good as the mean of the held-out outcomes themselves.

    Parameters
    ----------
    model : object with ``predict``, or array-like of shape (m, T)
        A model, or its predictions for the rows of ``held_out``.
    held_out : Outcomes
        Runs that the model has not seen.

    Returns
    -------
    Score
        Undefined where the measured outcome is constant.

    Examples
    --------
    >>> held_out = Outcomes([[1, 0], [0, 1]], [1.0, 3.0])
    >>> residual_error([1.0, 2.0], held_out).per_target
    array([0.5])
    """
    predicted = _predictions(model, held_out)
    measured = ~np.isnan(held_out.values)
    truth = np.where(measured, held_out.values, 0.0)
    mean = _ratio(truth.sum(axis=0), measured.sum(axis=0))
    squared_error = np.where(measured, truth - predicted, 0.0) ** 2
    squared_spread = np.where(measured, truth - mean, 0.0) ** 2
    ratio = _ratio(squared_error.sum(axis=0), squared_spread.sum(axis=0))
    return _score(np.where(_varies(held_out.values), ratio, np.nan), held_out)


def coverage(model: Any, held_out: Outcomes, level: float = 0.9) -> Score:
    """Share of measured values within the central interval that the model predicts for them.

    The interval is that of a normal distribution, mean ± z·std. A model that knows what it does not know has
    a coverage near ``level``; below it, its intervals are too narrow.

    Parameters
    ----------
    model : object with ``predict(subsets, return_std=True)``
        The standard deviation must be that of a new run, noise included.
    held_out : Outcomes
        Runs that the model has not seen.
    level : float
        Probability that a run should lie in the interval.

    Returns
    -------
    Score
        Undefined where nothing was measured or a measured row has no standard deviation (NaN). The mean is
        over measured values, not over targets.

    Examples
    --------
    >>> from whence.surrogates.additive import AdditiveSurrogate
    >>> model = AdditiveSurrogate("ols").fit([[0], [0], [1], [1]], [0.0, 2.0, 3.0, 5.0])
    >>> coverage(model, Outcomes([[0], [1]], [9.0, 4.0])).mean
    0.5
    """
    if not 0 < level < 1:
        raise InputError(f"The 'level' of coverage must lie between 0 and 1. Got {level!r} instead.")
    if not _has_std(model):
        raise InputError(
            "The model of coverage must predict a standard deviation: predict(subsets, return_std=True). "
            f"{type(model).__name__} does not."
        )
    return _coverage(*_predictions_with_std(model, held_out), held_out, level)


def loo_correlation(scores: ArrayLike, outcomes: Outcomes, *, kind: str = "pearson") -> Score:
    """Correlation over tasks of attribution scores with true leave-one-out changes F(1) − F(1 − e_k).

    Replicates are averaged. A score that does not vary where the changes do is a failure and counts as 0.

    Parameters
    ----------
    scores : array-like of shape (K, T), or (K,) for one target
        Change of the outcome when a task joins, as from `whence.attribute`.
    outcomes : Outcomes
        Must hold the full set and the K subsets that lack one task; other rows do not matter.
    kind : {'pearson', 'spearman'}
        Which correlation.

    Returns
    -------
    Score
        Undefined where the changes do not vary, and where the full set was not measured. A task whose
        leave-one-out run is not measured for a target does not count for that target.

    Examples
    --------
    >>> runs = Outcomes([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]], [1.0, 0.4, 0.7, 0.9])
    >>> loo_correlation([6.0, 3.0, 1.0], runs)
    Score: 1 over 1 of 1 targets; 0 undefined
    """
    if kind not in ("pearson", "spearman"):
        raise InputError(
            f"The 'kind' of loo_correlation must be 'pearson' or 'spearman'. Got {kind!r} instead."
        )
    changes = _leave_one_out_changes(outcomes)
    guess = _checked(scores, changes.shape, "The scores", "one row per task and one column per target")
    guess = np.where(np.isnan(changes), np.nan, guess)
    scale = _ranks if kind == "spearman" else np.asarray
    correlation = _pearson(scale(guess), scale(changes))
    return _score(_failures_as_zero(correlation, changes), outcomes)


@dataclass(frozen=True, eq=False, repr=False)
class Ceiling:
    """Highest Spearman correlation that training noise leaves room for, with intervals.

    Attributes
    ----------
    per_target : ndarray of shape (T,)
        NaN where replicates do not tell.
    low, high : ndarray of shape (T,)
        Bounds of the interval of each target.
    mean, mean_low, mean_high : float
        Over the targets that have a ceiling, and the bounds of its interval.
    target_names : tuple of str
    reason : str
        Why no target has a ceiling; empty where one has.

    Examples
    --------
    >>> noise_ceiling(Outcomes([[1, 0], [0, 1], [1, 1]], [0.9, 0.8, 0.5])).reason[:45]
    'No subset was measured more than once, so tha'
    """

    per_target: Floats
    low: Floats
    high: Floats
    mean: float
    mean_low: float
    mean_high: float
    target_names: tuple[str, ...]
    reason: str = ""

    @property
    def n_undefined(self) -> int:
        """Number of targets without a ceiling."""
        return int(np.isnan(self.per_target).sum())

    def __repr__(self) -> str:
        if self.reason:
            return f"Ceiling: unknown. {self.reason}"
        interval = f"{self.mean_low:.4g} to {self.mean_high:.4g}"
        return f"Ceiling: {self.mean:.4g} ({interval}) {_out_of(self.per_target)}"


def noise_ceiling(outcomes: Outcomes, *, n_boot: int = 200, seed: int = 0) -> Ceiling:
    """Spearman correlation with one measured run that no predictor of the subset can be expected to exceed.

    Let R be the rank of a run among all runs. Given the subset, two runs of it are independent draws, so the
    correlation of their ranks is r = Var(E[R | subset]) / Var(R). Of everything that a subset determines,
    E[R | subset] correlates best with R, by √r. The Spearman correlation of a predictor is the correlation of
    its own ranks with R, so √r bounds it whatever the distribution of the noise. The expected outcome itself
    reaches √r but for the difference between its rank and E[R | subset]: about 0.01 for normal outcomes, and
    up to 0.05 for outcomes of two values.

    Var(R) comes from all subsets, each with equal weight, and the noise within a subset from those measured
    more than once, which are taken to be typical. Intervals (95%) come from resampling subsets, those with
    and without replicates apart. The root of a noisy r is too small on average, or too large near 0; so
    before the mean over targets is taken, the estimates of r are pulled together until their variance is what
    the resamples leave to true differences between targets.

    Parameters
    ----------
    outcomes : Outcomes
        Some subsets measured more than once.
    n_boot : int
        Number of resamples.
    seed : int
        Same seed, same interval.

    Returns
    -------
    Ceiling
        Undefined for a target that does not vary, or for which fewer than two subsets have replicates. A
        target whose replicates agree no more than by chance has a ceiling of 0.

    Examples
    --------
    >>> subsets = np.repeat([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], 2, axis=0)
    >>> noise_ceiling(Outcomes(subsets, [1.0, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0, 4.1]))
    Ceiling: 0.9632 (0.712 to 1) over 1 of 1 targets; 0 undefined
    """
    if n_boot < 2:
        raise InputError(f"The 'n_boot' of noise_ceiling must be at least 2. Got {n_boot!r} instead.")
    means, within, counts = _rank_moments(outcomes)
    once, twice = counts > 0, counts > 1
    # What adds up to r, subset by subset: numbers, ranks, their squares, noise, and the part of the noise
    # that the mean of the replicates no longer shows.
    parts = (once, means, means**2, twice, within, within * (1 - 1 / np.maximum(counts, 1)))
    agreement = _agreement(np.ones((1, len(counts))), parts)[0]
    agreement[(twice.sum(axis=0) < 2) | ~_varies(outcomes.values)] = np.nan
    defined = ~np.isnan(agreement)
    drawn = _agreement(_resampled(twice[:, defined], n_boot, seed), [part[:, defined] for part in parts])
    low, high = np.full((2, len(agreement)), np.nan)
    mean, mean_low, mean_high, reason = np.nan, np.nan, np.nan, _why_no_ceiling(twice)
    if defined.any():
        low[defined], high[defined] = np.nanquantile(_root(drawn), [0.025, 0.975], axis=0)
        mean, mean_low, mean_high = _mean_ceiling(agreement[defined], drawn)
        reason = ""
    names = outcomes.target_names
    return Ceiling(_root(agreement), low, high, mean, mean_low, mean_high, names, reason)


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
        sizes = _sizes(train.subsets)
        model = cls(np.zeros((3, train.n_targets)), float(sizes.min()), float(sizes.max()))
        basis = model._basis(sizes)
        values = np.where(measured, train.values, 0.0)
        seen = np.array([measured[sizes == size].any(axis=0) for size in np.unique(sizes)]).sum(axis=0)
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
        return np.asarray(self._basis(_sizes(np.asarray(subsets, dtype=np.float64))) @ self.coef)

    def _basis(self, sizes: Floats) -> Floats:
        middle, half = (self.smallest + self.largest) / 2, (self.largest - self.smallest) / 2 or 1.0
        at = (sizes - middle) / half
        inside = np.clip(at, -1.0, 1.0)
        return np.column_stack([np.ones_like(at), at, inside**2 + 2 * inside * (at - inside)])


def size_only(train: Outcomes, held_out: Outcomes) -> Floats:
    """Predictions of `SizeOnly`: what the number of tasks alone says about each held-out run.

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


@dataclass(frozen=True, eq=False)
class Comparison:
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
            name: [_mean(row) for row in getattr(self, name)]
            for name in ("lds", "residual_error", "coverage", "seconds")
        }
        message = [messages.get(method, "") for method in self.methods]
        index = pd.Index(self.methods, name="method")
        return pd.DataFrame({**columns, "failed": failed, "message": message}, index=index)

    def difference(
        self, a: str, b: str, *, metric: str = "lds", level: float = 0.95
    ) -> tuple[float, float, float]:
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
            raise InputError(
                f"The 'metric' of difference must be 'lds' or 'residual_error'. Got {metric!r} instead."
            )
        for name in (a, b):
            if name not in self.methods:
                raise InputError(f"No method is called '{name}'. {did_you_mean(name, self.methods)}")
        scores = getattr(self, metric)
        gaps = scores[self.methods.index(a)] - scores[self.methods.index(b)]
        gaps = gaps[~np.isnan(gaps)]
        mean = _mean(gaps)
        if len(gaps) < 2:
            return mean, np.nan, np.nan
        error = float(np.std(gaps, ddof=1) * np.sqrt(1 / len(gaps) + self.n_test / self.n_train))
        half = float(scipy.stats.t.ppf((1 + level) / 2, len(gaps) - 1)) * error
        return mean, mean - half, mean + half


def repeated_splits(
    outcomes: Outcomes,
    methods: Mapping[str, Callable[[Outcomes], Any]],
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
    methods : mapping of str to callable
        Each takes the training table and returns a model, as `whence.fit` and `SizeOnly.fit` do.
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
    >>> rng = np.random.default_rng(0)
    >>> subsets = rng.integers(0, 2, (40, 6))
    >>> runs = Outcomes(subsets, subsets.sum(axis=1) + 0.1 * rng.normal(size=40))
    >>> result = repeated_splits(runs, {"size only": SizeOnly.fit})
    >>> result.to_frame().loc["size only", "lds"] > 0.9
    np.True_
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
        n_undefined[split] = np.sum(~_varies(held_out.values))
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


def _judged(method: Callable[[Outcomes], Any], train: Outcomes, held_out: Outcomes) -> list[float]:
    start = time.perf_counter()
    model = method(train)
    seconds = time.perf_counter() - start
    covered = np.nan
    if _has_std(model):
        predicted, std = _predictions_with_std(model, held_out)
        covered = _coverage(predicted, std, held_out, 0.9).mean
    else:
        predicted = _predictions(model, held_out)
    return [lds(predicted, held_out).mean, residual_error(predicted, held_out).mean, covered, seconds]


def _train_size(n_subsets: int, n_splits: int, train_fraction: float, train_size: int | None) -> int:
    if n_splits < 1:
        raise InputError(f"The 'n_splits' of repeated_splits must be at least 1. Got {n_splits!r} instead.")
    if train_size is None and not 0 < train_fraction < 1:
        raise InputError(
            "The 'train_fraction' of repeated_splits must lie between 0 and 1. "
            f"Got {train_fraction!r} instead."
        )
    wanted = round(train_fraction * n_subsets) if train_size is None else train_size
    if not 1 <= wanted <= n_subsets - 2:
        raise InputError(
            "A split needs at least one distinct subset to learn from and two to judge by. "
            f"Got {wanted} to learn from, of {n_subsets} in the table; change 'train_fraction' or "
            "'train_size', or measure more subsets."
        )
    return wanted


# ---- predictions -----------------------------------------------------------------------------------------


def _predictions(model: Any, held_out: Outcomes) -> Floats:
    """Predictions of shape (m, T), from a model or as given."""
    predicted = model.predict(held_out.subsets) if hasattr(model, "predict") else model
    return _checked(predicted, held_out.values.shape)


def _predictions_with_std(model: Any, held_out: Outcomes) -> tuple[Floats, Floats]:
    predicted, std = model.predict(held_out.subsets, return_std=True)
    shape = held_out.values.shape
    return _checked(predicted, shape), _shaped(std, shape, "The standard deviations")


def _has_std(model: Any) -> bool:
    return hasattr(model, "predict") and "return_std" in inspect.signature(model.predict).parameters


_ROWS_AND_COLUMNS = "one row per run and one column per target"


def _checked(
    array: Any, shape: tuple[int, ...], what: str = "The predictions", why: str = _ROWS_AND_COLUMNS
) -> Floats:
    values = _shaped(array, shape, what, why)
    if not np.isfinite(values).all():
        row, target = np.argwhere(~np.isfinite(values))[0]
        raise InputError(
            f"{what} must be finite numbers. Got {np.sum(~np.isfinite(values))} that are not, "
            f"the first in row {row} of target {target}."
        )
    return values


def _shaped(array: Any, shape: tuple[int, ...], what: str, why: str = _ROWS_AND_COLUMNS) -> Floats:
    values = np.asarray(array, dtype=np.float64)
    # scikit-learn regressors fitted on one target return one dimension.
    if values.shape == shape[:1] and shape[1:] == (1,):
        values = values[:, None]
    if len(shape) != 2 or values.shape != shape:
        raise InputError(f"{what} must have shape {shape}, {why}. Got shape {values.shape} instead.")
    return values


# ---- columns of numbers, NaN where not measured ----------------------------------------------------------


def _ranks(columns: Floats) -> Floats:
    """Average ranks within each column, NaN for NaN; a third of the time of scipy.stats.rankdata."""
    rows = np.ascontiguousarray(columns.T)
    order = np.argsort(rows, axis=1)
    ordered = np.take_along_axis(rows, order, axis=1)
    starts = np.ones(rows.shape, dtype=np.bool_)  # of runs of equal numbers
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.broadcast_to(np.arange(1.0, rows.shape[1] + 1), rows.shape)
    if not starts.all():
        ends = np.ones_like(starts)
        ends[:, :-1] = starts[:, 1:]
        first = np.maximum.accumulate(np.where(starts, places, 0.0), axis=1)
        last = np.minimum.accumulate(np.where(ends, places, np.inf)[:, ::-1], axis=1)[:, ::-1]
        places = (first + last) / 2
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, places, axis=1)
    ranks[np.isnan(rows)] = np.nan
    return ranks.T


def _varies(columns: Floats) -> NDArray[np.bool_]:
    """Whether a column holds two different numbers, shape (T,)."""
    largest = np.fmax.reduce(columns, axis=0, initial=-np.inf)
    smallest = np.fmin.reduce(columns, axis=0, initial=np.inf)
    return np.asarray(largest > smallest)


def _pearson(a: Floats, b: Floats) -> Floats:
    """Correlation of each pair of columns, NaN where one does not vary; both lack the same cells."""
    present = ~np.isnan(a)
    count = present.sum(axis=0)
    left = np.where(present, a - _ratio(np.nansum(a, axis=0), count), 0.0)
    right = np.where(present, b - _ratio(np.nansum(b, axis=0), count), 0.0)
    product = np.einsum("mt,mt->t", left, right)
    norms = np.sqrt(np.einsum("mt,mt->t", left, left) * np.einsum("mt,mt->t", right, right))
    defined = _varies(a) & _varies(b)
    return np.clip(_ratio(product, np.where(defined, norms, 0.0)), -1.0, 1.0)


def _ratio(above: Floats, below: NDArray[Any]) -> Floats:
    """Quotient of each pair, NaN where the divisor is 0."""
    quotient = np.full(np.shape(above), np.nan)
    np.divide(above, below, out=quotient, where=np.not_equal(below, 0))
    return quotient


def _failures_as_zero(scores: Floats, measured: Floats) -> Floats:
    """Correlations with 0 instead of NaN where the measured values do vary."""
    return np.where(np.isnan(scores) & _varies(measured), 0.0, scores)


def _mean(scores: Floats) -> float:
    """Mean of what is not NaN; NaN where nothing is left."""
    defined = scores[~np.isnan(scores)]
    return float(defined.mean()) if len(defined) else np.nan


def _out_of(per_target: Floats) -> str:
    n_targets, n_undefined = len(per_target), int(np.isnan(per_target).sum())
    return f"over {n_targets - n_undefined} of {n_targets} targets; {n_undefined} undefined"


def _score(per_target: Floats, held_out: Outcomes) -> Score:
    return Score(per_target, _mean(per_target), held_out.target_names)


def _coverage(predicted: Floats, std: Floats, held_out: Outcomes, level: float) -> Score:
    measured = ~np.isnan(held_out.values)
    z = float(scipy.stats.norm.ppf((1 + level) / 2))
    inside = np.abs(held_out.values - predicted) <= z * std
    unknown = (measured & np.isnan(std)).any(axis=0)
    count = np.where(unknown, 0, measured.sum(axis=0))
    hits = np.where(unknown, 0, inside.sum(axis=0))
    overall = float(hits.sum() / count.sum()) if count.any() else np.nan
    return Score(_ratio(hits.astype(np.float64), count), overall, held_out.target_names)


def _sizes(subsets: Floats) -> Floats:
    # Weights of a mixture add up to 1 but for the last digits, which must not make sizes of their own.
    return np.round(np.sum(subsets, axis=1, dtype=np.float64), 9)


# ---- leave-one-out and replicates ------------------------------------------------------------------------


def _leave_one_out_changes(outcomes: Outcomes) -> Floats:
    """F(1) − F(1 − e_k) of each task and target, shape (K, T)."""
    subsets, means, _ = outcomes.distinct()
    places = {row.tobytes(): place for place, row in enumerate(subsets)}
    full = np.ones(outcomes.n_tasks)
    wanted = {"the full set": full}
    for name, row in zip(outcomes.task_names, 1.0 - np.eye(outcomes.n_tasks), strict=True):
        wanted[f"all tasks but {name}"] = row
    missing = [what for what, row in wanted.items() if row.tobytes() not in places]
    if missing:
        raise InputError(
            "The outcomes of loo_correlation must hold the full set and every subset that lacks one task. "
            f"{len(missing)} of {len(wanted)} are missing: {some_of(missing)}. "
            "Measure them with the LeaveOneOut design."
        )
    found = means[[places[row.tobytes()] for row in wanted.values()]]
    return np.asarray(found[0] - found[1:])


def _rank_moments(outcomes: Outcomes) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Mean rank, variance of the rank and number of runs of each distinct subset, of shape (d, T) each.

    Ranks are scaled to [-1/2, 1/2]. Means are 0 for subsets not measured, variances for those measured once.
    """
    if not outcomes.n_runs:
        return np.zeros((0, outcomes.n_targets)), np.zeros((0, outcomes.n_targets)), outcomes.distinct()[2]
    ranks = _ranks(outcomes.values)
    n_measured = np.sum(~np.isnan(ranks), axis=0)
    ranks = (ranks - 0.5) / np.maximum(n_measured, 1) - 0.5
    _, means, counts = Outcomes(outcomes.subsets, ranks).distinct()
    _, squares, _ = Outcomes(outcomes.subsets, ranks**2).distinct()
    unbiased = counts / np.maximum(counts - 1, 1)
    within = np.where(counts > 1, np.maximum(squares - means**2, 0.0) * unbiased, 0.0)
    return np.nan_to_num(means), within, counts


def _agreement(draws: Floats, parts: Any) -> Floats:
    """Correlation r of the ranks of two runs of one subset, shape (B, T), for B draws of the subsets."""
    n, ranks, squares, n_twice, noise, unseen = (draws @ part for part in parts)
    between = _ratio(squares - _ratio(ranks**2, n), n - 1)
    return 1 - _ratio(_ratio(noise, n_twice), between + _ratio(unseen, n))


def _resampled(twice: NDArray[np.bool_], n_boot: int, seed: int) -> Floats:
    """How often each subset is drawn, shape (B, d)."""
    rng = np.random.default_rng(seed)
    replicated = np.any(twice, axis=1)
    draws = np.zeros((n_boot, len(replicated)))
    for stratum in (replicated, ~replicated):
        if size := int(stratum.sum()):
            draws[:, stratum] = rng.multinomial(size, np.full(size, 1 / size), size=n_boot)
    return draws


def _root(agreement: Floats) -> Floats:
    return np.asarray(np.sqrt(np.maximum(agreement, 0.0)))


def _mean_ceiling(agreement: Floats, drawn: Floats) -> tuple[float, float, float]:
    """Mean of √r over targets and the bounds of its interval, from r, shape (T,), and draws of it, (B, T)."""
    drawn = drawn[~np.isnan(drawn).all(axis=1)]
    level, noise = agreement.mean(), float(np.nanvar(drawn, axis=0).mean())
    spread = float(agreement.var())
    true_share = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    narrowed = level + np.sqrt(true_share) * (agreement - level)
    shift = 1.96 * float(np.std(np.nanmean(drawn, axis=1)))
    shifted = np.clip(narrowed + np.array([[0.0], [-shift], [shift]]), -1.0, 1.0)
    # Chance agreement comes out below 0 as often as above it, and has to cancel out.
    signed = np.sign(shifted) * np.sqrt(np.abs(shifted))
    mean, low, high = np.maximum(signed.mean(axis=1), 0.0).tolist()
    return mean, low, high


def _why_no_ceiling(replicated: NDArray[np.bool_]) -> str:
    most = int(replicated.sum(axis=0).max(initial=0))
    if most == 0:
        return (
            "No subset was measured more than once, so that training noise cannot be told from the effect of "
            "the tasks; measure some subsets again with another seed."
        )
    if most == 1:
        return "Only one subset was measured more than once; measure others again with another seed."
    return "No target varies among the measured runs."
