"""Scores of predictions against held-out runs: rank correlation, residual error, coverage, leave-one-out."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from whence.errors import InputError, some_of
from whence.evaluation.size import size_groups
from whence.evaluation.statistics import (
    Floats,
    failures_as_zero,
    mean_defined,
    out_of,
    pearson,
    ranks,
    ratio,
    rounding,
    varies,
)
from whence.outcomes import Outcomes
from whence.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AND_COLUMNS = "one row per run and one column per target"


@dataclass(frozen=True, eq=False, repr=False)
class Score(Shown):
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

    def to_frame(self) -> pd.DataFrame:
        """Return a row per target."""
        import pandas as pd

        return pd.DataFrame({"target": self.target_names, "score": self.per_target})

    def __repr__(self) -> str:
        return f"Score: {self.mean:.4g} {out_of(self.per_target)}"


def spearman_per_target(predicted: ArrayLike, measured: ArrayLike) -> Floats:
    """Spearman correlation of each column, with average ranks for ties.

    Predictions that differ by rounding alone are ties, so that replicates are, whatever the processor.

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
    guess = checked(predicted, truth.shape)
    missing = np.isnan(truth)
    if missing.any():
        guess = np.where(missing, np.nan, guess)
    return pearson(ranks(guess, rounding(guess)), ranks(truth))


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
    predicted = predictions(model, held_out)
    return _score(failures_as_zero(spearman_per_target(predicted, held_out.values), held_out.values), held_out)


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
        Runs that the model has not seen. The size of a subset is the sum of its weights; those of mixtures
        count as equal within 1% of the largest.

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
    predicted = predictions(model, held_out)
    sizes = size_groups(held_out.subsets)
    weighted, pairs = np.zeros(held_out.n_targets), np.zeros(held_out.n_targets)
    for size in np.unique(sizes):
        rows = sizes == size
        measured = held_out.values[rows]
        scores = failures_as_zero(spearman_per_target(predicted[rows], measured), measured)
        count = np.sum(~np.isnan(measured), axis=0)
        share = np.where(np.isnan(scores), 0.0, count * (count - 1) / 2)
        weighted += share * np.nan_to_num(scores)
        pairs += share
    return _score(ratio(weighted, pairs), held_out)


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
    predicted = predictions(model, held_out)
    measured = ~np.isnan(held_out.values)
    truth = np.where(measured, held_out.values, 0.0)
    mean = ratio(truth.sum(axis=0), measured.sum(axis=0))
    squared_error = np.where(measured, truth - predicted, 0.0) ** 2
    squared_spread = np.where(measured, truth - mean, 0.0) ** 2
    error = ratio(squared_error.sum(axis=0), squared_spread.sum(axis=0))
    return _score(np.where(varies(held_out.values), error, np.nan), held_out)


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
    if not has_std(model):
        raise InputError(
            "The model of coverage must predict a standard deviation: predict(subsets, return_std=True). "
            f"{type(model).__name__} does not."
        )
    return coverage_of(*predictions_with_std(model, held_out), held_out, level)


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
        raise InputError(f"The 'kind' of loo_correlation must be 'pearson' or 'spearman'. Got {kind!r} instead.")
    changes = _leave_one_out_changes(outcomes)
    guess = checked(scores, changes.shape, "The scores", "one row per task and one column per target")
    guess = np.where(np.isnan(changes), np.nan, guess)
    scale = ranks if kind == "spearman" else np.asarray
    correlation = pearson(scale(guess), scale(changes))
    return _score(failures_as_zero(correlation, changes), outcomes)


def predictions(model: Any, held_out: Outcomes) -> Floats:
    """Predictions of shape (m, T), from a model or as given."""
    predicted = _asked(model)(held_out.subsets) if hasattr(model, "predict") else model
    return checked(predicted, held_out.values.shape)


def predictions_with_std(model: Any, held_out: Outcomes) -> tuple[Floats, Floats]:
    """Predictions and their standard deviation, both of shape (m, T)."""
    predicted, std = _asked(model)(held_out.subsets, return_std=True)
    shape = held_out.values.shape
    return checked(predicted, shape), shaped(std, shape, "The standard deviations")


def _asked(model: Any) -> Any:
    """The model's way to predict; runs that were made need no warning that they are unlike the others."""
    return getattr(model, "predict_quietly", model.predict)


def has_std(model: Any) -> bool:
    """Return whether the model can predict a standard deviation."""
    return hasattr(model, "predict") and "return_std" in inspect.signature(model.predict).parameters


def checked(array: Any, shape: tuple[int, ...], what: str = "The predictions", why: str = _ROWS_AND_COLUMNS) -> Floats:
    """The array as finite numbers of this shape, or an error that says what it should have been."""
    values = shaped(array, shape, what, why)
    if not np.isfinite(values).all():
        row, target = np.argwhere(~np.isfinite(values))[0]
        raise InputError(
            f"{what} must be finite numbers. Got {np.sum(~np.isfinite(values))} that are not, "
            f"the first in row {row} of target {target}."
        )
    return values


def shaped(array: Any, shape: tuple[int, ...], what: str, why: str = _ROWS_AND_COLUMNS) -> Floats:
    """The array as numbers of this shape, or an error that says what it should have been."""
    values = np.asarray(array, dtype=np.float64)
    # scikit-learn regressors fitted on one target return one dimension.
    if values.shape == shape[:1] and shape[1:] == (1,):
        values = values[:, None]
    if len(shape) != 2 or values.shape != shape:
        raise InputError(f"{what} must have shape {shape}, {why}. Got shape {values.shape} instead.")
    return values


def _score(per_target: Floats, held_out: Outcomes) -> Score:
    return Score(per_target, mean_defined(per_target), held_out.target_names)


def coverage_of(predicted: Floats, std: Floats, held_out: Outcomes, level: float) -> Score:
    """Coverage of intervals given as arrays of shape (m, T)."""
    measured = ~np.isnan(held_out.values)
    z = float(scipy.special.ndtri((1 + level) / 2))
    inside = np.abs(held_out.values - predicted) <= z * std + rounding(held_out.values)
    unknown = (measured & np.isnan(std)).any(axis=0)
    count = np.where(unknown, 0, measured.sum(axis=0))
    hits = np.where(unknown, 0, inside.sum(axis=0))
    overall = float(hits.sum() / count.sum()) if count.any() else np.nan
    return Score(ratio(hits.astype(np.float64), count), overall, held_out.target_names)


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
