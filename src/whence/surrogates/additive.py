"""Additive surrogate: one coefficient per task, g(s) = intercept + Σ_k coef_k s_k.

The linear surrogate of the paper, but with its penalty tuned, so that kernels are compared with the best that
tasks acting alone can do. It is also the door for influence functions, TracIn, TRAK and any other method that
gives one score per task: `AdditiveSurrogate.from_coefficients` makes of them a surrogate like any other.

Ridge and least squares share one singular value decomposition of the centred subsets. In its basis every
penalty is a division, so that neither the search for the penalty nor the intervals need another
factorisation, however many targets there are.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from whence.errors import InputError
from whence.surrogates.lasso import lasso
from whence.surrogates.mixture import Mixture
from whence.surrogates.protocol import Moments, Places, Surrogate
from whence.surrogates.ridge import Centred, Spectrum, centred, in_units, leave_one_out, log_evidence

Floats = NDArray[np.float64]

# Ridge penalties tried, as multiples of the mean eigenvalue of XᵀX (of those above 0): from next to no effect
# to least squares in all but name. A stronger penalty would predict no better, and be needlessly sure of 0.
# Descending, so that of equally good penalties the strongest is taken.
_RIDGE_GRID = np.geomspace(30.0, 1e-4, 25)


class AdditiveSurrogate(Surrogate):
    """Linear surrogate of a set function, with intervals; many targets cost little more than one.

    Rows with the same subset are merged first: weights add up and outcomes are averaged. A row of weight 2 is
    thus the same as two rows, and leave-one-out leaves out a whole subset, never one of its replicates.

    Parameters
    ----------
    penalty : {'ridge', 'ols', 'lasso'}
        What is added to the weighted sum of squared residuals: α‖coef‖², nothing, or α‖coef‖₁ (there the sum
        is divided by twice the total weight, as in `sklearn.linear_model.Lasso`).
    alpha : float or None
        Strength of the penalty, which 'ols' does not have. None tunes it for each target: ridge averages penalties by
        their evidence, which few runs need, lasso takes that of 5-fold cross-validation. Weights whose spreads differ
        much are first divided by their spread, its root or not at all, whichever has most evidence.
    features : (K, p), optional
        Descriptions of the tasks (`.features.task_features`), for a tuned ridge. Tasks with similar features are then
        expected to have similar effects, as strongly as the evidence supports.

    Attributes
    ----------
    coef_ : ndarray of shape (K, T)
        Effect of each task on each target. Tasks come first, the transpose of scikit-learn's convention, as
        everywhere in this library; T is 1 where ``y`` was 1-D.
    intercept_ : ndarray of shape (T,)
        Prediction for the empty subset.
    alpha_ : ndarray of shape (T,)
        The penalty used, 0 for 'ols'; where ridge averages several, that of least leave-one-out error.
    coef_std_ : ndarray of shape (K, T)
        Standard deviation of each coefficient, see Notes.
    noise_std_ : ndarray of shape (T,)
        Standard deviation of a measured run around g, interactions that g cannot express included.

    Notes
    -----
    With X the centred subsets, w their weights and h_i the leverage of subset i, the coefficients have the
    covariance

    - ridge: σ²(XᵀWX + αI)⁻¹, the posterior under the prior for which α is the right penalty. There, the
      leave-one-out residual e_i has variance σ²/(w_i(1 − h_i)), so that σ² is the mean of w_i(1 − h_i)e_i².
      Where α is tuned, few runs leave much doubt about it, and one that came out too large would make all
      coefficients surely small. So variances are means over all penalties tried, each weighted by its
      marginal likelihood, and the squared distance of its coefficients from ``coef_`` is added.
    - ols: σ²(XᵀWX)⁺ with σ² the residual sum of squares over its degrees of freedom. What the design never
      varies (the common level of all tasks in a fixed-size design, a task in every run) is set to 0 by the
      pseudo-inverse and counts as known.
    - lasso: that of least squares on the tasks with a coefficient other than 0. It is approximate, and too
      small: it ignores that these tasks were selected and that the others were set to 0.

    σ² is the variance of the mean of a distinct subset times its weight, so that replicates of one subset do
    not pass for evidence about others. ``noise_std_`` is that of a single run, scatter of replicates
    included. Where no degree of freedom is left (as many effects as distinct subsets, or a single subset),
    the scatter of replicates stands in for σ², and without replicates both are NaN.

    Examples
    --------
    >>> subsets = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
    >>> surrogate = AdditiveSurrogate("ols").fit(subsets, [3.0, 1.0, 4.0, 0.0])
    >>> surrogate.coef_.ravel().round(6), surrogate.predict([[1, 1]]).round(6)
    (array([3., 1.]), array([4.]))
    """

    coef_: Floats
    intercept_: Floats
    alpha_: Floats
    coef_std_: Floats
    noise_std_: Floats
    n_features_in_: int
    _one_target: bool
    _subset_mean: Floats  # (K,)
    _total_weight: float
    _variance: Floats  # (T,), σ² of the Notes
    _unit: Floats  # (K,) or (K, D), what columns were multiplied with before one penalty was put on all
    _basis: Floats  # (D, rank), directions that the subsets then vary in
    _gradient: Floats  # (rank, T), of the squared residuals along them where all coefficients are 0, halved
    _spectrum: Floats  # (rank,), eigenvalues of XᵀWX along them
    _alphas: Floats  # (A,), penalties tried
    _beliefs: Floats  # (A, T), how likely each is
    _variances: Floats  # (A, T), σ² under each
    _active: list[tuple[NDArray[np.intp], Floats]]  # lasso: tasks with an effect, covariance over σ²

    def __init__(
        self, penalty: str = "ridge", *, alpha: float | None = None, features: ArrayLike | None = None
    ) -> None:
        self.penalty = penalty
        self.alpha = alpha
        self.features = features

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> AdditiveSurrogate:
        """Fitted surrogate, this object itself, from subsets X (m, K) and outcomes y (m,) or (m, T).

        A row of weight w counts as w equal rows; rows of weight 0 vanish.
        """
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (weights < 0).any() or not weights.any():
            raise InputError(
                "The 'sample_weight' of AdditiveSurrogate must be at least 0, and above 0 somewhere. "
                f"Got {weights.min():g} to {weights.max():g} instead."
            )
        self._one_target = y.ndim == 1
        runs = centred(X, y.reshape(len(y), -1).astype(np.float64, copy=False), weights)
        self._subset_mean, self._total_weight = runs.subset_mean, float(runs.weights.sum())
        tuned = self.penalty == "ridge" and self.alpha is None
        features = None if self.features is None else np.asarray(self.features, dtype=np.float64)
        found = Spectrum.of(runs, np.ones(X.shape[1]))
        if tuned:
            found = Spectrum.of_most_evidence(runs, _RIDGE_GRID, features)
        self._unit, self._spectrum, self._basis, self._active = found.unit, found.s**2, found.basis, []
        if self.penalty == "lasso":
            self._fit_lasso(runs)
        else:
            self._fit_quadratic(runs, found)
        self.intercept_ = runs.value_mean - runs.subset_mean @ self.coef_
        # m subsets with σ² each and the scatter of their replicates, shared out over all runs: the expected
        # squared distance of one run from g, whether it comes from noise or from interactions.
        self.noise_std_ = np.sqrt((len(runs.X) * self._variance + runs.scatter) / self._total_weight)
        self.coef_std_ = np.sqrt(self._variance_along(np.eye(len(self.coef_))))
        return self

    @classmethod
    def from_coefficients(
        cls, coef: ArrayLike, intercept: ArrayLike = 0.0, std: ArrayLike | None = None
    ) -> AdditiveSurrogate:
        """Surrogate with given scores (K,) or (K, T), so that any attribution method meets the same evaluation.

        The intercept moves no rank and no attribution; ``std`` of the scores is unknown (NaN) where not given, and so
        is the predictive one: scores say nothing about training noise.

        Examples
        --------
        >>> AdditiveSurrogate.from_coefficients([3.0, 1.0]).predict([[1, 1], [0, 1]])
        array([4., 1.])
        """
        scores = np.array(coef, dtype=np.float64)
        if scores.ndim not in (1, 2) or scores.size == 0 or not np.isfinite(scores).all():
            raise InputError(
                "The 'coef' of from_coefficients must be finite numbers of shape (K,) or (K, T), a row per "
                f"task. Got shape {scores.shape} with {np.sum(~np.isfinite(scores))} not finite instead."
            )
        given = np.full(scores.shape, np.nan) if std is None else np.array(std, dtype=np.float64)
        if given.shape != scores.shape or (given < 0).any():
            raise InputError(
                f"The 'std' of from_coefficients must have the shape of 'coef', {scores.shape}, and no "
                f"number below 0. Got shape {given.shape} with {np.sum(given < 0)} below 0 instead."
            )
        surrogate = cls()
        surrogate._one_target = scores.ndim == 1
        surrogate.coef_ = scores.reshape(len(scores), -1)
        surrogate.coef_std_ = given.reshape(len(scores), -1)
        surrogate.n_features_in_, n_targets = surrogate.coef_.shape
        surrogate.intercept_ = _per_target(intercept, n_targets)
        surrogate.alpha_ = surrogate.noise_std_ = surrogate._variance = np.full(n_targets, np.nan)
        surrogate._subset_mean, surrogate._total_weight = np.zeros(len(scores)), np.nan
        surrogate._unit, surrogate._active = np.ones(len(scores)), []
        surrogate._spectrum, surrogate._basis = np.zeros(0), np.zeros((len(scores), 0))
        surrogate._gradient = np.zeros((0, n_targets))
        surrogate._alphas, surrogate._beliefs = np.zeros(0), np.zeros((0, n_targets))
        surrogate._variances = surrogate._beliefs
        return surrogate

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predicted outcomes, (m,) or (m, T) as y was; with ``return_std`` also the std of a new run.

        That std holds doubt about the coefficients and the noise of a run together.

        Examples
        --------
        >>> surrogate = AdditiveSurrogate("ols").fit([[0], [1], [2], [3]], [0.0, 2.0, 2.0, 4.0])
        >>> mean, std = surrogate.predict([[4]], return_std=True)
        >>> mean.round(6), std.round(3)
        (array([5.]), array([1.]))
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        shape = (len(X),) if self._one_target else (len(X), self.coef_.shape[1])
        mean = (X @ self.coef_ + self.intercept_).reshape(shape)
        if not return_std:
            return mean
        of_mean = self._variance_along(X - self._subset_mean) + self._variance / self._total_weight
        return mean, np.sqrt(of_mean + self.noise_std_**2).reshape(shape)

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Effects of tasks (K, T) or pairs (K, K, T), and their std.

        Where tasks do not interact, the others matter only if they are drawn otherwise with the task than without it;
        pairs do nothing, and are known to.
        """
        check_is_fitted(self)
        n_tasks, n_targets = self.coef_.shape
        if order > 1:
            return np.zeros((n_tasks,) * order + (n_targets,)), np.zeros((n_tasks,) * order + (n_targets,))
        total, with_it, _, without_it = (float(part.sum().real) for part in mixture.moments(n_tasks - 1))
        if mixture.same_others:
            return self.coef_ * total, self.coef_std_ * abs(total)
        directions = np.full((n_tasks, n_tasks), with_it - without_it)
        np.fill_diagonal(directions, total)
        given = np.isnan(self._total_weight)  # coefficients that were given, each with its own std
        variance = directions**2 @ self.coef_std_**2 if given else self._variance_along(directions)
        return directions @ self.coef_, np.sqrt(variance)

    def mean_outcome(self, mixture: Mixture) -> Floats:
        """Mean of g (T,) over the subsets of a mixture."""
        check_is_fitted(self)
        chance = mixture.overall_chances(len(self.coef_))
        share = chance @ np.linspace(0, 1, len(chance))
        return np.asarray(chance.sum() * self.intercept_ + share * self.coef_.sum(axis=0))

    def remainder(self) -> None:
        """Nothing: effects in closed form are all there is."""

    def contrast_std(self, X: ArrayLike, contrasts: Floats) -> Floats:
        """Std (c, T) of the combinations ``contrasts`` (c, n) of g at n subsets."""
        along = contrasts @ (np.asarray(X, dtype=np.float64) - self._subset_mean)
        of_level = contrasts.sum(axis=1, keepdims=True) ** 2 * self._variance / self._total_weight
        return np.asarray(np.sqrt(self._variance_along(along) + of_level))

    def run_variance(self, targets: Places) -> dict[str, Floats]:
        """Return what the variance of a new run, (s − center)ᵀ Q (s − center) + constant, is made of, as arrays.

        It is the square of the std that `predict` gives, for those who compute it elsewhere. Q is given as its lower
        triangle, or so that what targets share is given once: with s − center times "unit", B diag(Σ_a spread_a /
        (spectrum + penalty_a)) Bᵀ + rest · (I − B Bᵀ) + Σ_a share_a m_a m_aᵀ, where m_a is how far a penalty alone
        moves the coefficients from their mean over penalties: B gradient / (spectrum + penalty_a) less that mean.
        """
        check_is_fitted(self)
        constant = self._variance[targets] / self._total_weight + self.noise_std_[targets] ** 2
        common = {"center": self._subset_mean, "constant": constant}
        if self._active:
            forms = np.zeros((len(targets), len(self.coef_), len(self.coef_)))
            for form, t in zip(forms, targets, strict=True):
                active, covariance = self._active[t]
                form[np.ix_(active, active)] = covariance * self._variance[t]
            first, second = np.tril_indices(len(self.coef_))
            return common | {"quadratic": forms[:, first, second]}
        spread = (self._beliefs * self._variances)[:, targets].T
        return common | {
            "unit": self._unit,
            "gradient": self._gradient[:, targets].T,
            "basis": self._basis,
            "spectrum": self._spectrum,
            "penalties": self._alphas,
            "shares": self._beliefs[:, targets].T,
            "spread": spread,
            "rest": (spread / self._alphas).sum(1) if self.penalty == "ridge" else np.zeros(len(targets)),
        }

    def covariance(self, X: ArrayLike) -> tuple[Floats, float]:
        """Covariance of g between subsets (n, n) over the variance of a run, averaged over targets; and 1."""
        centred = in_units(np.asarray(X, dtype=np.float64) - self._subset_mean, self._unit)
        along = centred @ self._basis
        alpha = 0.0 if self.penalty == "lasso" else self.alpha_
        spread = (1 / (self._spectrum[:, None] + alpha)).mean(axis=1)
        covariance = (along * spread) @ along.T + 1 / self._total_weight
        if self.penalty == "ridge":
            # What the runs say nothing about is as uncertain as the prior.
            covariance += (centred @ centred.T - along @ along.T) * (1 / self.alpha_).mean()
        return np.asarray(covariance), 1.0

    def export(self, subsets: Floats, places: Places) -> dict[str, Any]:
        """The mean as intercept + coef · s, the variance of a run as (s − center)ᵀ Q (s − center) + constant."""
        return {
            "kind": "additive",
            "coef": self.coef_[:, places].T,
            "intercept": self.intercept_[places],
            "noise": self.noise_std_[places] ** 2,
            **self.run_variance(places),
        }

    def _check_parameters(self) -> None:
        if self.penalty not in ("ridge", "ols", "lasso"):
            raise InputError(
                "The 'penalty' parameter of AdditiveSurrogate must be 'ridge', 'ols' or 'lasso'. "
                f"Got {self.penalty!r} instead."
            )
        if self.alpha is not None and not (isinstance(self.alpha, Real) and 0 < self.alpha < np.inf):
            raise InputError(
                "The 'alpha' parameter of AdditiveSurrogate must be None or a number above 0. "
                f"Got {self.alpha!r} instead; for no penalty at all use penalty='ols'."
            )

    def _fit_quadratic(self, runs: Centred, spectrum: Spectrum) -> None:
        """Set the coefficients and variances of ridge or least squares."""
        n_subsets, n_targets = runs.Y.shape
        unit, U, s, _ = spectrum
        Z = U.T @ runs.Y
        residual = runs.Y - U @ Z
        if self.penalty == "ols":
            self._alphas, best = np.zeros(1), np.zeros(n_targets, dtype=np.intp)
            self._variances = runs.variance((residual**2).sum(axis=0), n_subsets - len(s) - 1)[None]
        else:
            scale = self._spectrum.mean() if len(s) else 1.0
            self._alphas = scale * _RIDGE_GRID if self.alpha is None else np.array([self.alpha], dtype=np.float64)
            losses, squares = leave_one_out(self._alphas, U, s, Z, residual, runs.weights)
            best = np.argmin(losses, axis=0)
            # Nothing can be left out of a single subset.
            self._variances = runs.variance(squares, n_subsets if n_subsets > 1 else 0)
        self._beliefs = np.ones((1, n_targets))
        if len(self._alphas) > 1:
            self._beliefs = scipy.special.softmax(log_evidence(self._alphas, spectrum, runs), axis=0)
        self._variance = (self._beliefs * self._variances).sum(axis=0)
        self.alpha_ = self._alphas[best]
        self._gradient = s[:, None] * Z
        self.coef_ = in_units((self._basis @ (self._gradient * self._shrinkage())).T, unit.T).T

    def _shrinkage(self) -> Floats:
        """What the gradient along every direction is multiplied with, (rank, T): the mean over penalties."""
        return np.asarray(1 / (self._spectrum[:, None] + self._alphas) @ self._beliefs)

    def _fit_lasso(self, runs: Centred) -> None:
        """Set the coefficients, their active sets and variances, target by target."""
        n_subsets, n_targets = runs.Y.shape
        root = np.sqrt(runs.weights)[:, None]
        X, Y = runs.X / root, runs.Y / root
        largest = np.abs(runs.X.T @ runs.Y).max(axis=0) / self._total_weight
        self.coef_, self.alpha_ = np.empty((X.shape[1], n_targets)), np.empty(n_targets)
        squares, freedom = np.empty(n_targets), np.empty(n_targets)
        for t in range(n_targets):
            self.alpha_[t], coef = lasso(X, Y[:, t], runs.weights, self.alpha, largest[t])
            self.coef_[:, t] = coef
            active = np.flatnonzero(coef)
            columns = runs.X[:, active]
            residual = runs.Y[:, t] - columns @ coef[active]
            squares[t], freedom[t] = residual @ residual, n_subsets - len(active) - 1
            covariance = np.linalg.pinv(columns.T @ columns, hermitian=True)
            self._active.append((active, np.asarray(covariance, dtype=np.float64)))
        self._variance = runs.variance(squares, freedom)

    def _variance_along(self, directions: Floats) -> Floats:
        """Variance of directions · coef, shape (n, T), for directions of shape (n, K)."""
        if self._active:
            spreads = [
                np.einsum("nk,kl,nl->n", directions[:, active], covariance, directions[:, active])
                for active, covariance in self._active
            ]
            return np.asarray(self._variance * np.column_stack(spreads))
        directions = in_units(directions, self._unit)
        along = directions @ self._basis
        leverage = along**2 @ (1 / (self._spectrum[:, None] + self._alphas))
        if self.penalty == "ridge":
            # What the runs say nothing about is as uncertain as the prior.
            unseen = np.maximum((directions**2).sum(axis=1) - (along**2).sum(axis=1), 0.0)
            leverage += unseen[:, None] / self._alphas
        total = leverage @ (self._beliefs * self._variances)
        if len(self._alphas) > 1:
            mean = self._shrinkage()
            for alpha, belief in zip(self._alphas, self._beliefs, strict=True):
                moved = self._gradient * (1 / (self._spectrum[:, None] + alpha) - mean)
                total += belief * (along @ moved) ** 2
        return np.asarray(total)


def _per_target(intercept: ArrayLike, n_targets: int) -> Floats:
    values = np.asarray(intercept, dtype=np.float64)
    if values.shape not in ((), (1,), (n_targets,)) or not np.isfinite(values).all():
        raise InputError(
            f"The 'intercept' of from_coefficients must be a finite number, or one per target ({n_targets}). "
            f"Got shape {values.shape} with {np.sum(~np.isfinite(values))} not finite instead."
        )
    return np.broadcast_to(values, (n_targets,)).copy()
