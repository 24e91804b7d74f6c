"""True outcomes by fitting any scikit-learn estimator on groups of examples; needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils.validation import has_fit_parameter

from whence.arrays import Floats
from whence.errors import InputError, did_you_mean
from whence.estimators.subsets import SubsetLike, as_subset
from whence.models.targets import outcome_names

Group = tuple[Any, Any]  # inputs (n, ...) and labels (n,)
Scorer = Callable[[Any, Any, Any], float]  # (fitted estimator, inputs, labels), higher is better
Metrics = str | Scorer | list[str] | Mapping[str, Scorer]


class Refit:
    """Outcome function that fits a clone of the estimator on the examples of a subset, and scores it.

    A classifier that has seen one class only is the one that always says so; scikit-learn's would refuse to be fitted.
    Where a subset has weights other than 0 and 1, examples are weighted by them.

    Parameters
    ----------
    estimator : scikit-learn estimator or pipeline
        Cloned for every subset; its ``random_state``, wherever it has one, is the seed of the run.
    tasks : mapping of str to (inputs, labels)
        The groups of examples that subsets are made of: arrays, sparse matrices, data frames, or lists of text.
    targets : (inputs, labels), or mapping of str to those
        What it is scored on.
    metrics : str, callable, list of str, or mapping of str to callable, optional
        Names of scikit-learn's scorers, or functions of (fitted estimator, inputs, labels); higher is better.
        By default accuracy for classifiers and R² for regressors.
    empty : float, optional
        Value of the empty subset, from which nothing can be learned; NaN by default.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    >>> outcome = Refit(LogisticRegression(), {"low": (X[:2], y[:2]), "high": (X[2:], y[2:])}, (X, y))
    >>> outcome(["low", "high"]), outcome(["low"])
    ({'accuracy': 1.0}, {'accuracy': 0.5})
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        tasks: Mapping[str, Group],
        targets: Group | Mapping[str, Group],
        metrics: Metrics | None = None,
        *,
        empty: float | None = None,
    ) -> None:
        if not tasks:
            raise InputError("There must be at least one task. Got none.")
        self.estimator = estimator
        self.task_names = tuple(map(str, tasks))
        groups = [_checked(group, f"tasks[{name!r}]") for name, group in tasks.items()]
        self._inputs, self._labels = (_stacked(parts) for parts in zip(*groups, strict=True))
        self._owner = np.repeat(np.arange(len(groups)), [len(labels) for _, labels in groups])
        given = targets if isinstance(targets, Mapping) else {"target": targets}
        self.targets = {str(name): _checked(group, f"target[{name!r}]") for name, group in given.items()}
        self.scorers = _scorers(("accuracy" if is_classifier(estimator) else "r2") if metrics is None else metrics)
        self.empty = np.nan if empty is None else float(empty)
        self.maximize = tuple(name for metric in self.scorers for name in outcome_names(metric, self.targets))
        self.provenance = {"outcomes": "retraining", "estimator": " ".join(repr(estimator).split())}

    def __call__(self, subset: SubsetLike, seed: int = 0) -> dict[str, float]:
        """Scores of one subset: weights (K,), or the names of its tasks."""
        row = as_subset(subset, self.task_names)[0]
        if not row.any():
            return dict.fromkeys(self.maximize, self.empty)
        fitted = self._fitted(row, seed)
        return {
            name: float(score(fitted, *self.targets[target]))
            for metric, score in self.scorers.items()
            for target, name in zip(self.targets, outcome_names(metric, self.targets), strict=True)
        }

    def _fitted(self, row: Floats, seed: int) -> BaseEstimator:
        weights = row[self._owner]
        inside = np.flatnonzero(weights)
        inputs, labels = _rows(self._inputs, inside), _rows(self._labels, inside)
        if is_classifier(self.estimator) and np.ndim(labels) == 1 and len(np.unique(labels)) == 1:
            # Fitted on all examples, those of the subset being the only ones that count: so it knows of all classes.
            return DummyClassifier(strategy="prior").fit(self._inputs, self._labels, sample_weight=weights)
        model = clone(self.estimator)
        states = [name for name in model.get_params() if name == "random_state" or name.endswith("__random_state")]
        model.set_params(**dict.fromkeys(states, int(seed) % 2**32))
        if np.isin(row, (0.0, 1.0)).all():
            return model.fit(inputs, labels)
        if not has_fit_parameter(model, "sample_weight"):
            raise InputError(
                f"{type(model).__name__} takes no sample_weight, so tasks can only be in or out (1 or 0). "
                f"Got a weight of {row[~np.isin(row, (0.0, 1.0))][0]:g}."
            )
        return model.fit(inputs, labels, sample_weight=weights[inside])


def _checked(group: object, where: str) -> Group:
    """Return the inputs and labels of a group, as things that have rows."""
    if not (isinstance(group, (tuple, list)) and len(group) == 2):
        raise InputError(f"{where} must be a pair (inputs, labels). Got {type(group).__name__}.")
    inputs, labels = (part if hasattr(part, "shape") else np.asarray(part) for part in group)
    if inputs.shape[0] != labels.shape[0] or not labels.shape[0]:
        found = f"{inputs.shape[0]} inputs and {labels.shape[0]} labels"
        raise InputError(f"{where} must have as many labels as inputs, and at least one. Got {found}.")
    return inputs, labels


def _stacked(parts: Any) -> Any:
    """Rows of all groups, one after the other, in the form they came in."""
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    if hasattr(parts[0], "tocsr"):
        from scipy.sparse import vstack

        return vstack(parts).tocsr()
    return np.concatenate(parts)


def _rows(data: Any, index: NDArray[np.intp]) -> Any:
    return data.iloc[index] if hasattr(data, "iloc") else data[index]


def _scorers(given: Metrics) -> dict[str, Scorer]:
    """Scorers by name."""
    if isinstance(given, Mapping):
        return dict(given)
    if callable(given):
        return {getattr(given, "__name__", "score"): given}
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in get_scorer_names():
            raise InputError(f"scikit-learn has no scorer {name!r}. {did_you_mean(name, get_scorer_names())}")
    return {name: get_scorer(name) for name in names}
