"""What a surrogate is: a scikit-learn regressor that knows the effects of tasks and how uncertain it is.

Everything in :mod:`whence.answers` and on the report's page is made from the members of :class:`Surrogate`. To add a
surrogate, write a class with all of them (leaving one out is an error when it is made) and one line in
``tests/test_surrogate_protocol.py``. Predictions and effects are linear in the outcomes, so that a weighted sum of
surrogates has the weighted sums of theirs, and their remainders likewise.

Any other regressor takes part through :class:`Plain`: all it predicts is a remainder, and its uncertainty is unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, clone

from whence.errors import InputError
from whence.evaluation.scores import has_std
from whence.surrogates.mixture import Array, Mixture

Moments = tuple[Array, Array]  # values and their std, of one shape
Remainder = Callable[[Array], Array]  # subsets (n, K) to outcomes (n, T)
Places = NDArray[np.intp]  # of targets within a surrogate, in order


class Surrogate(RegressorMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A regressor from subsets (m, K) to T outcomes whose effects are known in closed form, up to a remainder.

    All arrays have the targets on their last axis, also where there is only one; ``predict`` alone drops it where ``y``
    was 1-D, as scikit-learn does.
    """

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Any:
        """Return self, fitted to subsets X (m, K) and outcomes y (m,) or (m, T)."""

    @abstractmethod
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new run."""

    @abstractmethod
    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of tasks (order 1) or pairs (order 2) in closed form, and their posterior std.

        Values (K, T) or (K, K, T) are those of ``predict`` less the remainder. The std is NaN where it is not known.
        """

    @abstractmethod
    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the expected outcome (T,) over the subsets of a mixture, of ``predict`` less the remainder."""

    @abstractmethod
    def remainder(self) -> Remainder | None:
        """Return what ``predict`` has beyond the closed form, as a function of subsets; None where that is nothing.

        Its effects are summed over all subsets, or sampled (:mod:`whence.answers.effects`).
        """

    @abstractmethod
    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return the posterior std (c, T) of the combinations ``contrasts`` (c, n) of the outcomes of n subsets."""

    @abstractmethod
    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Return the posterior covariance between subsets (n, n) and the noise of one run, averaged over targets.

        Both are relative to the variance of the outcome.
        """

    @abstractmethod
    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return what a page needs to predict the targets in ``places``: words, numbers, arrays, and dicts of these.

        ``subsets`` (m, K) are the runs that the page holds; "rows" are places among them. None where the page's script
        has no counterpart to this surrogate, or it was fitted to other runs.
        """

    def only(self, targets: ArrayLike) -> Surrogate:
        """Return a surrogate that need not compute other targets than these: NaN there, where that is faster."""
        return self

    def unseen(self) -> Surrogate:
        """Return the surrogate as it would predict subsets if nothing else, as estimates, had been known of them."""
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class Plain(Surrogate):
    """Any fitted regressor as a surrogate: without closed form, all that it predicts is its remainder."""

    def __init__(self, regressor: Any, n_targets: int = 1) -> None:
        self.regressor = regressor
        self.n_targets = n_targets

    @property
    def n_features_in_(self) -> int:
        return int(self.regressor.n_features_in_)

    def fit(self, X: Any, y: Any) -> Plain:
        """Return self, with a copy of the regressor fitted to subsets and outcomes."""
        self.regressor = clone(self.regressor).fit(X, y)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return what the regressor predicts; its std is unknown (NaN) where it has none."""
        if not return_std:
            return np.asarray(self.regressor.predict(X))
        if has_std(self.regressor):
            return self.regressor.predict(X, return_std=True)
        mean = np.asarray(self.regressor.predict(X))
        return mean, np.full(mean.shape, np.nan)

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return zeros, with an unknown std."""
        shape = (self.n_features_in_,) * order + (self.n_targets,)
        return np.zeros(shape), np.full(shape, np.nan)

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return zeros: there is no closed form."""
        return np.zeros(self.n_targets)

    def remainder(self) -> Remainder:
        """Return the predictions."""
        return lambda S: np.asarray(self.regressor.predict(S), np.float64).reshape(len(S), -1)

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return NaN: not known."""
        return np.full((len(contrasts), self.n_targets), np.nan)

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Raise: there is no posterior."""
        name = type(self.regressor).__name__
        raise InputError(f"A {name} has no posterior covariance. Use whence.fit's own choice.")

    def export(self, subsets: Array, places: Places) -> None:
        """Return None: no page knows the surrogates of other libraries."""


def as_surrogate(regressor: Any, n_targets: int = 1) -> Surrogate:
    """Return the surrogate itself, or any other fitted regressor of T targets as one.

    >>> from sklearn.linear_model import LinearRegression
    >>> as_surrogate(LinearRegression().fit([[0], [1]], [1.0, 3.0])).remainder()(np.array([[0.5]])).tolist()
    [[2.0]]
    """
    return regressor if isinstance(regressor, Surrogate) else Plain(regressor, n_targets)
