"""Averaging: one surrogate made of several, each weighted by how well it predicts held-out runs.

What :func:`whence.fit` hands back. With few runs, choosing the candidate that cross-validation likes best throws away
what the others know; with many, the weight goes to the best one by itself. Predictions and effects are linear in the
weights, so that effects stay exact where those of the members are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate

AVERAGE = "average"
# A member's weight is its held-out mean squared error to the power −(SHARPNESS + n / RUNS), with n held-out subsets.
# −n/2 would be the likelihood of independent Gaussian errors, but members err together. Ten runs already tell a bad
# member; what is left at 150 runs is still worth averaging (`benchmarks/weights.py`).
SHARPNESS, RUNS = 5.0, 15
# Estimates have a large prior weight, which a few held-out runs must not undo: with them, n²/(n + FEW) · TEMPER.
TEMPER, FEW = 0.5, 20
# A target's own errors count for this much, the mean over targets for the rest.
OWN = 0.5
# Errors in the outcome itself count for this much, those in its normal scores for the rest. Normal scores do not let
# one run decide, but where outcomes lie in two heaps, they do not see what is lost in the gap between them.
OUTRIGHT = 0.3
# Members of less weight than this for every target are left out.
LEAST_WEIGHT = 0.02


def power(n_subsets: int) -> float:
    """Return how sharply held-out errors on this many subsets weigh members that saw runs alone."""
    return SHARPNESS + n_subsets / RUNS


def power_beside_estimates(n_subsets: int) -> float:
    """Return how sharply they weigh members some of which have estimates as well."""
    return TEMPER * n_subsets**2 / (n_subsets + FEW)


def weights_by_error(squares: Array, prior: Array, power: float) -> Array:
    """Return the weight of every member for every target, (C, T).

    Parameters
    ----------
    squares : (C, T)
        Mean squared errors on held-out runs, in normal scores of the outcome.
    prior : (C,)
        Weights before any run.
    power : float
        How much errors count.

    Examples
    --------
    >>> weights_by_error(np.array([[0.1], [0.2]]), np.array([0.5, 0.5]), 5.0).round(2).ravel().tolist()
    [0.97, 0.03]
    """
    logs = np.log(squares + 1e-6)
    logs = OWN * logs + (1 - OWN) * logs.mean(1, keepdims=True)
    belief = np.log(prior)[:, None] - power * logs
    weights = np.exp(belief - belief.max(0))
    return np.asarray(weights / weights.sum(0))


def mixed(values: Array, stds: Array, weights: Array) -> Moments:
    """Return the mean and the std of mixtures: values and stds (C, …, T), weights (C, T).

    What members disagree about is uncertain, whatever each of them believes.
    """
    mean = np.einsum("c...t,ct->...t", values, weights)
    second = np.einsum("c...t,ct->...t", stds**2 + (values - mean) ** 2, weights)
    return mean, np.sqrt(second)


class AveragedSurrogate(Surrogate):
    """A weighted average of surrogates, with its own weights for every target.

    Parameters
    ----------
    members : mapping of str to Surrogate
    weights : (C, T)
        Of every member for every target; each column adds up to 1.

    Attributes
    ----------
    members_ : dict of str to Surrogate
        Fitted.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> members = {"linear": whence.AdditiveSurrogate("ols"), "kernel": whence.KernelSurrogate()}
    >>> model = AveragedSurrogate(members, np.array([[0.5], [0.5]])).fit(S, S @ np.arange(4.0))
    >>> float(abs(model.predict(S) - S @ np.arange(4.0)).max()) < 0.1
    True
    """

    def __init__(self, members: Mapping[str, Surrogate], weights: Array) -> None:
        self.members = members
        self.weights = weights

    def __sklearn_clone__(self) -> AveragedSurrogate:
        return AveragedSurrogate(self.members, self.weights)

    def fit(self, X: Any, y: Any) -> AveragedSurrogate:
        """Return self, every member fitted to subsets X (m, K) and outcomes y (m,) or (m, T)."""
        self.members_ = {name: clone(member).fit(X, y) for name, member in self.members.items()}
        self.n_features_in_, self.single_target_ = np.shape(X)[1], np.ndim(y) == 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new run."""
        S = np.asarray(X, np.float64)
        if not return_std:
            mean = self._sum(lambda member: member.predict(S).reshape(len(S), -1))
            return mean[:, 0] if self.single_target_ else mean
        mean, std = self._moments(lambda member: member.predict(S, return_std=True), (len(S),))
        return (mean[:, 0], std[:, 0]) if self.single_target_ else (mean, std)

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of tasks (K, T) or pairs (K, K, T) in closed form, and their std.

        A member that adds up tasks says nothing about pairs: how uncertain these are is up to the others.
        """
        shape = (self.n_features_in_,) * order
        values, stds = self._each(lambda member: member.effects(order, mixture), shape)
        mean = np.einsum("c...t,ct->...t", values, self.weights)
        seeing = (stds > 0).reshape(len(stds), -1).any(1)
        if seeing.all() or not seeing.any():
            return mixed(values, stds, self.weights)
        share = self.weights[seeing] / np.maximum(self.weights[seeing].sum(0), 1e-300)
        return mean, np.sqrt(np.einsum("c...t,ct->...t", stds[seeing] ** 2 + (values[seeing] - mean) ** 2, share))

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the expected outcome (T,) over the subsets of a mixture."""
        return self._sum(lambda member: member.mean_outcome(mixture))

    def remainder(self) -> Remainder | None:
        """Return the weighted sum of the members' remainders; None where none has any."""
        rests = [
            (member.remainder(), share) for member, share in zip(self.members_.values(), self.weights, strict=True)
        ]
        known = [(rest, share) for rest, share in rests if rest is not None]
        return (lambda S: np.asarray(sum(share * rest(S) for rest, share in known))) if known else None

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return the std (c, T) of the combinations ``contrasts`` (c, n) of outcomes at n subsets."""
        S = np.asarray(X, np.float64)

        def moments(member: Surrogate) -> Moments:
            return contrasts @ member.predict(S).reshape(len(S), -1), member.contrast_std(S, contrasts)

        return self._moments(moments, (len(contrasts),))[1]

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Return the covariance between subsets (n, n) and the noise of one run, averaged over targets.

        Members give theirs in units of their own; the std of their predictions brings them to one.
        """
        S = np.asarray(X, np.float64)
        covariance, noise = np.zeros((len(S), len(S))), 0.0
        for member, share in zip(self.members_.values(), self.weights, strict=True):
            own, own_noise = member.covariance(S)
            std = member.predict(S, return_std=True)[1].reshape(len(S), -1)
            unit = float((std**2 * share).mean()) / (float(np.diag(own).mean()) + own_noise)
            covariance += unit * own
            noise += unit * own_noise
        scale = float(covariance.trace()) / len(S) + noise
        if scale == 0:  # all outcomes are alike: the units are, too
            first: tuple[Array, float] = next(iter(self.members_.values())).covariance(S)
            return first
        return covariance / scale, noise / scale

    def only(self, targets: ArrayLike) -> AveragedSurrogate:
        """Return the average of what the members need for these targets alone."""
        narrowed = copy(self)
        narrowed.members_ = {name: member.only(targets) for name, member in self.members_.items()}
        return narrowed

    def unseen(self) -> AveragedSurrogate:
        """Return the average of the members as they would predict subsets that they know no estimates of."""
        other = copy(self)
        other.members_ = {name: member.unseen() for name, member in self.members_.items()}
        return other

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the members and their weights as plain data; None where a page cannot predict one of them."""
        members = [member.export(subsets, places) for member in self.members_.values()]
        if None in members:
            return None
        return {"kind": "averaged", "members": members, "weights": self.weights[:, places].T}

    def _sum(self, compute: Callable[[Surrogate], Array]) -> Array:
        values = np.stack([compute(member) for member in self.members_.values()])
        return np.asarray(np.einsum("c...t,ct->...t", values, self.weights))

    def _each(self, compute: Callable[[Surrogate], Moments], shape: tuple[int, ...]) -> Moments:
        """What ``compute`` gives of every member: values and stds, both (C, …, T)."""
        found = np.array([compute(member) for member in self.members_.values()])
        found = found.reshape(len(found), 2, *shape, self.weights.shape[1])
        return found[:, 0], found[:, 1]

    def _moments(self, compute: Callable[[Surrogate], Moments], shape: tuple[int, ...]) -> Moments:
        return mixed(*self._each(compute, shape), self.weights)


def fitted_average(names: Sequence[str], weights: Array, fit: Callable[[str], Surrogate]) -> tuple[str, Any]:
    """Return the average of the members that matter, or the only one that does, and its name.

    Parameters
    ----------
    names : sequence of str
        Of members; ``fit`` returns one of them, fitted.
    weights : (C, T)
    """
    kept = [c for c, share in enumerate(weights) if (share >= LEAST_WEIGHT).any()]
    members = {names[c]: fit(names[c]) for c in kept}
    if len(members) == 1:
        return next(iter(members.items()))
    average = AveragedSurrogate(members, weights[kept] / weights[kept].sum(0))
    average.members_ = members
    one = next(iter(members.values()))
    average.n_features_in_, average.single_target_ = one.n_features_in_, weights.shape[1] == 1
    return AVERAGE, average
