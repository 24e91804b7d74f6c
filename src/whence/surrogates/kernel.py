"""Kernel ridge regression as in the paper, and what it shares with the combined surrogate.

Both kernel surrogates are Gaussian processes on subsets (:mod:`.posterior`) that differ in the kernel and in how it is
chosen. :class:`KernelSurrogate` has one RBF or polynomial kernel, alpha and gamma by closed-form leave-one-out;
``settings="paper"`` for the paper's values. The richer one is in :mod:`.combined`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from whence.surrogates.coordinates import Coordinates, merge_replicates
from whence.surrogates.kernels import RBF, Kernel, ProductKernel
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.posterior import Posterior
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate
from whence.surrogates.sum_kernels import Polynomial
from whence.surrogates.tuning import grid_search, tuning_sample

# Leave-one-out over the grid factors the matrix anew for every value: beyond this many runs, a sample of them tunes.
GRID_RUNS = 600


@dataclass(frozen=True)
class Group:
    """Targets that share one posterior (one kernel)."""

    targets: np.ndarray[Any, np.dtype[np.intp]]
    posterior: Posterior


def groups_with(groups: tuple[Group, ...], targets: ArrayLike) -> tuple[Group, ...]:
    """Return the groups that any of these targets is in."""
    return tuple(group for group in groups if np.isin(group.targets, targets).any())


class PosteriorSurrogate(Surrogate):
    """What both kernel surrogates do once fitted: predict, and give effects in closed form."""

    groups_: tuple[Group, ...]
    coordinates_: Coordinates

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new run."""
        S = self._subsets(X)
        mean, std = self._predict(self.coordinates_(S), return_std)
        if self.single_target_:
            mean, std = mean[:, 0], None if std is None else std[:, 0]
        return (mean, std) if return_std else mean

    def only(self, targets: ArrayLike) -> PosteriorSurrogate:
        """Return the surrogate that computes these targets alone, and NaN for the others: faster where many are."""
        narrowed = copy(self)
        narrowed.groups_ = groups_with(self.groups_, targets)
        return narrowed

    def product_part(self, X: ArrayLike) -> Array:
        """Return the predictions (n, T) of the kernel model whose effects are known in closed form."""
        coordinates = self.coordinates_(self._subsets(X))
        return self._by_target(lambda p: p.predict_mean(coordinates), (len(coordinates),))

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the expected outcome (T,) over the subsets of a mixture."""
        lattice = self.coordinates_.lattice()
        return self._by_target(lambda p: p.mean_outcome(lattice, mixture), ())

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of tasks (K, T) or pairs (K, K, T), and their posterior std."""
        lattice, shape = self.coordinates_.lattice(), (self.n_features_in_,) * order
        both = self._by_target(lambda p: np.stack(p.effects(order, lattice, mixture)), (2, *shape))
        return both[0], both[1]

    def remainder(self) -> Remainder | None:
        """Return None: the kernel model is all that is predicted."""
        return None

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return the posterior std (c, T) of the combinations ``contrasts`` (c, n) of g at n subsets."""
        coordinates = self.coordinates_(self._subsets(X))

        def std(posterior: Posterior) -> Array:
            variance = np.einsum("ci,ci->c", contrasts @ posterior.covariance(coordinates), contrasts)
            return np.asarray(np.sqrt(np.maximum(variance, 0.0))[:, None] * posterior.scale)

        return self._by_target(std, (len(contrasts),))

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Return the posterior covariance of g between subsets (n, n) and the noise of one run, averaged over targets.

        Both are relative to the variance of the process.
        """
        coordinates = self.coordinates_(self._subsets(X))
        shares = np.array([len(group.targets) for group in self.groups_]) / self.n_targets_
        posteriors = [group.posterior for group in self.groups_]
        covariance = sum(share * p.covariance(coordinates) for share, p in zip(shares, posteriors, strict=True))
        return np.asarray(covariance), float(shares @ [p.alpha for p in posteriors])

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the kernel model as plain data: its prediction is a sum over runs, given by their "rows"."""
        coordinates = self.coordinates_
        where = {x.tobytes(): row for row, x in reversed(list(enumerate(coordinates(subsets))))}
        rows = [where.get(x.tobytes()) for x in self.groups_[0].posterior.X]
        groups = exported_groups(self.groups_, places)
        if None in rows or groups is None:
            return None
        return {
            "kind": "posterior",
            "rows": np.array(rows, np.intp),
            "coordinates": vars(coordinates),
            "groups": groups,
        }

    def _predict(self, coordinates: Array, with_std: bool) -> tuple[Array, Array | None]:
        shape = (len(coordinates),)
        if not with_std:
            return self._by_target(lambda p: p.predict_mean(coordinates), shape), None

        def both(posterior: Posterior) -> Array:
            mean, variance = posterior.predict(coordinates)
            return np.stack([mean, np.sqrt(variance + posterior.alpha)[:, None] * posterior.scale])

        moments = self._by_target(both, (2, *shape))
        return moments[0], moments[1]

    def _by_target(self, compute: Any, shape: tuple[int, ...]) -> Array:
        """Collect ``compute(posterior)`` of shape (…, targets of the group) into (…, T)."""
        out = np.full((*shape, self.n_targets_), np.nan)
        for group in self.groups_:
            out[..., group.targets] = compute(group.posterior)
        return out

    def _subsets(self, X: ArrayLike) -> Array:
        check_is_fitted(self, "groups_")
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _training_table(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
        """Validate, remember the shape of y, and merge replicates: distinct subsets, mean outcomes, counts."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.single_target_ = y.ndim == 1
        Y = np.asarray(y, np.float64).reshape(len(X), -1)
        self.n_targets_ = Y.shape[1]
        return merge_replicates(X, Y, weights)


def exported_groups(groups: tuple[Group, ...], places: Places) -> list[dict[str, Any]] | None:
    """Return the processes of the targets in ``places`` as plain data; None where a page cannot compute them."""
    found = []
    for group in groups:
        kept = np.isin(group.targets, places)
        if kept.any():
            process = group.posterior.export(kept)
            if process is None:
                return None
            found.append({"targets": np.searchsorted(places, group.targets[kept]).tolist(), **process})
    return found


class KernelSurrogate(PosteriorSurrogate):
    """Kernel ridge regression from subsets to outcomes (paper, section 3.2).

    g(s) = level + Σ_i θ_i k(s_i, s) with θ = (K + alpha·I)⁻¹ (F − level).

    Parameters
    ----------
    kernel : {"rbf", "poly"} or a subclass of ProductKernel
        exp(−gamma·‖s − t‖²), (s·t + coef0)^degree, or ``kernel(rates)`` with the rate gamma for every task.
    settings : {"tuned", "paper"}
        "tuned": alpha and gamma that are not given are chosen by closed-form leave-one-out, shared by all targets, and
        outcomes are centred. "paper": alpha = 0.1, gamma = 1/K, nothing centred.
    alpha, gamma : float, optional
        Fix a value instead of choosing it.
    alphas, gammas : sequence of float, optional
        The values to choose from; gammas default to multiples of 1 / median squared distance.
    degree, coef0 : int from 1 to 3, float
        Of the polynomial kernel.

    Examples
    --------
    >>> S = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> xor = np.array([0.0, 1.0, 1.0, 0.0])
    >>> KernelSurrogate(alpha=1e-8, gamma=1.0).fit(S, xor).predict(S).round(3).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """

    def __init__(
        self,
        kernel: Literal["rbf", "poly"] | type[ProductKernel] = "rbf",
        *,
        settings: Literal["tuned", "paper"] = "tuned",
        alpha: float | None = None,
        gamma: float | None = None,
        alphas: Any = None,
        gammas: Any = None,
        degree: int = 2,
        coef0: float = 0.0,
    ) -> None:
        self.kernel = kernel
        self.settings = settings
        self.alpha = alpha
        self.gamma = gamma
        self.alphas = alphas
        self.gammas = gammas
        self.degree = degree
        self.coef0 = coef0

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> KernelSurrogate:
        """Return self, fitted to subsets X (m, K) and outcomes y (m,) or (m, T)."""
        self._check_parameters()
        S, Y, counts = self._training_table(X, y, sample_weight)
        paper = self.settings == "paper"
        self.coordinates_ = Coordinates.learn(S, standardize=False)
        candidates = self._candidates(S)
        if self.alpha is not None:
            alphas = [float(self.alpha)]
        elif paper:
            alphas = [0.1]
        else:
            alphas = list(10.0 ** np.arange(-4, 1.5, 0.5) if self.alphas is None else self.alphas)
        which, self.alpha_ = 0, float(alphas[0])
        if len(candidates) * len(alphas) > 1:
            rows, targets = tuning_sample(Y, GRID_RUNS, seed=0)
            grams = (each.evaluate(S[rows], S[rows]) for each in candidates.values())
            level = np.average(Y[rows], axis=0, weights=counts[rows])
            which, self.alpha_ = grid_search(grams, (Y[rows] - level)[:, targets], alphas, counts[rows])
        self.gamma_, kernel = list(candidates.items())[which]
        posterior = Posterior.condition(kernel, self.alpha_, S, Y, counts, center=not paper).calibrated()
        self.groups_ = (Group(np.arange(self.n_targets_), posterior),)
        self.dual_coef_ = posterior.dual[:, 0] if self.single_target_ else posterior.dual
        return self

    def _candidates(self, S: Array) -> dict[float | None, Kernel]:
        """The kernels to choose from, by their gamma."""
        ones = np.ones(S.shape[1])
        if self.kernel == "poly":
            return {None: Polynomial(self.degree, ones, self.coef0)}
        if self.gamma is not None:
            gammas = [float(self.gamma)]
        elif self.settings == "paper":
            gammas = [1 / S.shape[1]]
        elif self.gammas is not None:
            gammas = [float(gamma) for gamma in self.gammas]
        else:
            sample = S[:500]
            squared = (sample**2).sum(1)
            distance = squared[:, None] + squared[None, :] - 2 * sample @ sample.T
            positive = distance[distance > 1e-12]
            typical = float(np.median(positive)) if len(positive) else 1.0
            gammas = [multiple / typical for multiple in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)]
        product: Any = RBF if self.kernel == "rbf" else self.kernel
        return {gamma: product(gamma * ones) for gamma in gammas}

    def _check_parameters(self) -> None:
        if not (isinstance(self.kernel, type) and issubclass(self.kernel, ProductKernel)):
            one_of("kernel", self.kernel, ("rbf", "poly"), type(self).__name__)
        one_of("settings", self.settings, ("tuned", "paper"), type(self).__name__)
        if self.degree not in (1, 2, 3):
            raise ValueError(
                f"The 'degree' parameter of KernelSurrogate must be 1, 2 or 3. Got {self.degree!r} instead."
            )
        for name in ("alpha", "gamma"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"The '{name}' parameter of KernelSurrogate must be positive. Got {value!r} instead.")


def one_of(name: str, value: Any, allowed: tuple[str, ...], owner: str) -> None:
    """Raise unless the value is one of the allowed ones."""
    if value not in allowed:
        options = ", ".join(map(repr, allowed))
        raise ValueError(f"The '{name}' parameter of {owner} must be one of {options}. Got {value!r} instead.")
