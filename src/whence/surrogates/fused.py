"""Fusion: one surrogate from cheap estimates of many subsets and true outcomes of a few.

Beside the other surrogates: :func:`whence.fit` makes one when it is given ``estimates``. Each kind of estimates (a
*rung*: one step, GradEx, merging …) is learned from its own table first, so that it is a function c_r(s) of any subset.
The truth then is (autoregressive co-kriging, Kennedy & O'Hagan 2000)

    f_t(s) = Σ_r ρ_rt · (c_rt(s) − mean) + δ_t(s),    δ_t a Gaussian process, as in :mod:`.combined`

with slopes ρ that say how far the estimates are trusted (:mod:`.slopes`). Whatever is asked about f is a linear
functional of it, so that predictions and the effects of tasks and pairs are sums of those of the parts: exact where
these are exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.special import stdtrit

from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import Coordinates, merge_replicates
from whence.surrogates.crossvalidation import FEWEST_TO_CHOOSE
from whence.surrogates.kernel import Group, PosteriorSurrogate
from whence.surrogates.kernels import Array, Constant
from whence.surrogates.mixture import Mixture
from whence.surrogates.posterior import HALF_WIDTH, LEVEL, Posterior
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate
from whence.surrogates.rungs import Rung
from whence.surrogates.slopes import Slopes, learn_slopes, pooled_variance, tamed, typical_ratio

if TYPE_CHECKING:
    from whence.outcomes import Outcomes
    from whence.surrogates.choose import Model

FUSED, ESTIMATES = "fused", "estimates"  # what the surrogates with and without a kernel are called
# A kernel on what the estimates leave over takes so many true runs of different subsets; with fewer, it adds noise.
KERNEL_RUNS = 8
# With so many, cross-validation can tell how far off it is.
CHECKED_RUNS = 10
# So many runs is it worth that estimates, before any run, may be as far off as they vary.
DOUBT = 2
# So often are slopes and kernel fitted in turn.
ROUNDS = 2
# Noise of a run relative to the uncertainty of the level, before any run has been seen.
LEVEL_NOISE = 10.0


class FusedSurrogate(Surrogate):
    """The truth as estimates, each times a learned slope, plus a Gaussian process on what they leave over.

    Parameters
    ----------
    rungs : tuple of Rung
        The estimates, for the targets that are fitted.
    kernel : bool
        Whether what the estimates leave over depends on the subset; else it is a level and noise.
    random_state : int

    Attributes
    ----------
    slopes_ : Slopes
        Of every rung and target, with their uncertainty.
    residual_ : PosteriorSurrogate
        Of what the estimates leave over.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(6)
    >>> cheap = whence.fit(whence.Outcomes(S, S @ np.arange(6.0)), surrogate=whence.AdditiveSurrogate("ols"))
    >>> truth = 3 + 2 * S @ np.arange(6.0)
    >>> rung = Rung.of("half", cheap, np.array([0]))
    >>> fused = FusedSurrogate((rung,)).fit(S[::9], truth[::9])
    >>> float(abs(fused.predict(S) - truth).max()) < 0.5
    True
    """

    def __init__(self, rungs: tuple[Rung, ...], *, kernel: bool = True, random_state: int = 0) -> None:
        self.rungs = rungs
        self.kernel = kernel
        self.random_state = random_state

    def __sklearn_clone__(self) -> FusedSurrogate:
        """The same surrogate, not fitted. Its rungs stay as they are: true runs have no part in them."""
        return FusedSurrogate(self.rungs, kernel=self.kernel, random_state=self.random_state)

    def fit(self, X: ArrayLike, y: ArrayLike) -> FusedSurrogate:
        """Return self, fitted to subsets X (m, K) and true outcomes y (m,) or (m, T); m may be 0."""
        S, Y = np.asarray(X, np.float64), np.asarray(y, np.float64)
        self.single_target_ = Y.ndim == 1
        self.n_features_in_, self.n_targets_ = S.shape[1], len(self.rungs[0].columns)
        S, Y, counts, C = self._merged(S, Y.reshape(len(S), self.n_targets_))
        spread = np.stack([rung.spread for rung in self.rungs])
        unit = typical_ratio(C, Y, spread)
        with_kernel = self.kernel and len(S) >= KERNEL_RUNS
        residual: PosteriorSurrogate = _Level().fit(S, Y, counts)
        self.slopes_ = _slopes(residual, C, Y, unit, spread)
        for _ in range(ROUNDS):
            residual = CombinedSurrogate(random_state=self.random_state) if with_kernel else _Level()
            residual.fit(S, tamed(Y - self._sloped(C)), counts)
            self.slopes_ = _slopes(residual, C, Y, unit, spread)
        rest = tamed(Y - self._sloped(C))
        if with_kernel:
            # A slope, a level and a kernel were fitted to the same runs that say how far off they are (Student's t).
            wider = float(stdtrit(len(S) - 3, (1 + LEVEL) / 2)) / HALF_WIDTH
            self.residual_ = _over(residual, lambda p, t: _wider(p.given(rest[:, t]).calibrated(), wider))
        else:
            scale = self._level_std(rest, spread) / np.sqrt(LEVEL_NOISE)
            self.residual_ = _over(residual, lambda p, t: replace(p.given(rest[:, t]), scale=scale[t]))
        self.carried_ = tuple(_over(residual, lambda p, t, c=values: p.given(c[:, t])) for values in C)
        return self

    def _level_std(self, rest: Array, spread: Array) -> Array:
        """How far off estimates are that were shifted and scaled to the runs (T,), as 90% intervals need it.

        Before any run they may be as far off as they vary, which counts as much as `DOUBT` runs; a slope and a level
        were taken from the same runs (Student's t).
        """
        free = max(len(rest) - 2, 0) + DOUBT
        doubt = DOUBT * self._sloped(spread) ** 2
        squares = ((rest - rest.mean(0)) ** 2).sum(0)
        return np.asarray(np.sqrt((squares + doubt) / free) * stdtrit(free, (1 + LEVEL) / 2) / HALF_WIDTH)

    def _merged(self, S: Array, Y: Array) -> tuple[Array, Array, Array, Array]:
        """Distinct subsets, their mean outcomes and numbers of runs, and the centred estimates there, (R, m, T)."""
        if not len(S):
            # As if one run had come out at the mean of the estimates: it fixes the level, and tells nothing of slopes.
            level = np.mean([rung.level for rung in self.rungs], axis=0)[None]
            return np.zeros((1, S.shape[1])), level, np.ones(1), np.zeros((len(self.rungs), *level.shape))
        S, Y, counts = merge_replicates(S, Y)
        return S, Y, counts, np.stack([rung.predict(S) - rung.level for rung in self.rungs])

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new true run."""
        S = np.asarray(X, np.float64)
        if return_std:
            estimates = [_shifted(rung.moments(S), rung.level) for rung in self.rungs]
            carried = [known.predict(S) for known in self.carried_]
            mean, std = self._fused(estimates, self.residual_.predict(S, return_std=True), carried)
            return (mean[:, 0], std[:, 0]) if self.single_target_ else (mean, std)
        mean = self._sloped(np.stack([rung.predict(S) - rung.level for rung in self.rungs]))
        mean += self.residual_.predict(S)
        return mean[:, 0] if self.single_target_ else mean

    def remainder(self) -> Remainder | None:
        """Return the remainders of the rungs, each times its slope; None where no rung has one."""
        rests = [rung.remainder() for rung in self.rungs]
        if all(rest is None for rest in rests):
            return None
        nothing = np.zeros(self.n_targets_)
        return lambda S: self._sloped(
            np.stack([np.broadcast_to(rest(S) if rest else nothing, (len(S), self.n_targets_)) for rest in rests])
        )

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the expected outcome (T,) over the subsets of a mixture."""
        estimates = np.stack([rung.mean_outcome(mixture) - rung.level for rung in self.rungs])
        return self._sloped(estimates) + self.residual_.mean_outcome(mixture)

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of tasks (K, T) or pairs (K, K, T), and their posterior std."""
        estimates = [rung.effects(order, mixture) for rung in self.rungs]
        carried = [known.effects(order, mixture)[0] for known in self.carried_]
        return self._fused(estimates, self.residual_.effects(order, mixture), carried)

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return the posterior std (c, T) of the combinations ``contrasts`` (c, n) of outcomes at n subsets."""
        S = np.asarray(X, np.float64)
        estimates = [(contrasts @ rung.predict(S), rung.contrast_std(S, contrasts)) for rung in self.rungs]
        residual = (contrasts @ self.residual_.predict(S), self.residual_.contrast_std(S, contrasts))
        return self._fused(estimates, residual, [contrasts @ known.predict(S) for known in self.carried_])[1]

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Return the posterior covariance between subsets (n, n) and the noise of a true run, averaged over targets.

        Both are relative to the variance of the outcome, as far as estimates and runs show it.
        """
        S = np.asarray(X, np.float64)
        slopes, coordinates = self.slopes_, self.residual_.coordinates_(S)
        scale = self.residual_._by_target(lambda posterior: posterior.scale, ())
        spread = np.stack([rung.spread for rung in self.rungs])
        unit = np.maximum(scale**2 + ((slopes.mean * spread) ** 2).sum(0), 1e-300)
        covariance, noise = np.zeros((len(S), len(S))), 0.0
        for group in self.residual_.groups_:
            share = float((scale**2 / unit)[group.targets].sum()) / self.n_targets_
            covariance += share * group.posterior.covariance(coordinates)
            noise += share * group.posterior.alpha
        apart = []
        for slope, rung, known in zip(slopes.mean, self.rungs, self.carried_, strict=True):
            mean, std = rung.moments(S)
            covariance += float((std**2 * slope**2 / unit).mean()) * rung.correlation(S)
            apart.append((mean - rung.level - known.predict(S)) / np.sqrt(unit))
        for r, s in np.ndindex(len(apart), len(apart)):
            covariance += (apart[r] * slopes.covariance[:, r, s]) @ apart[s].T / self.n_targets_
        return covariance, noise

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the rungs with their slopes, and what they leave over, as plain data."""
        rest = [each.export(subsets, places) for each in (self.residual_, *self.carried_)]
        rungs = [rung.export(places) for rung in self.rungs]
        if None in rest or None in rungs:
            return None
        one = {"factor": np.ones(len(places))}
        residual, *carried = [(each or {}) | one for each in rest]
        slopes = [{"slope": slope[places]} for slope in self.slopes_.mean]
        return {
            "kind": "fused",
            "residual": residual,
            "carried": carried,
            "rungs": [(rung or {}) | slope for rung, slope in zip(rungs, slopes, strict=True)],
            "covariance": self.slopes_.covariance[places],
        }

    def _sloped(self, estimates: Array) -> Array:
        """Σ_r ρ_rt · estimates (R, …, T)."""
        return np.asarray(np.einsum("r...t,rt->...t", estimates, self.slopes_.mean))

    def _fused(self, estimates: list[Moments], residual: Moments, carried: list[Array]) -> Moments:
        """A linear functional of the truth and its std, from the same functional of all parts.

        The uncertainty of a slope counts by how far the functional of its estimates c lies from what the true runs say
        of it: ``carried`` is the functional of the process δ, if c at the true runs were its data.
        """
        mean = self._sloped(np.stack([value for value, _ in estimates])) + residual[0]
        variance = residual[1] ** 2
        for slope, (_, std) in zip(self.slopes_.mean, estimates, strict=True):
            variance = variance + (slope * std) ** 2
        apart = np.stack([value - known for (value, _), known in zip(estimates, carried, strict=True)])
        variance = variance + np.einsum("r...t,trs,s...t->...t", apart, self.slopes_.covariance, apart)
        return mean, np.sqrt(variance)


class _Level(PosteriorSurrogate):
    """What estimates leave over, where it does not depend on the subset: a level, and noise."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> _Level:
        self.n_features_in_, self.n_targets_, self.single_target_ = X.shape[1], y.shape[1], False
        self.coordinates_ = Coordinates.learn(X, standardize=False)
        posterior = Posterior.condition(Constant(), LEVEL_NOISE, X, y, sample_weight)
        self.groups_ = (Group(np.arange(self.n_targets_), posterior),)
        return self


def _slopes(residual: PosteriorSurrogate, C: Array, Y: Array, unit: Array, spread: Array) -> Slopes:
    """Slopes of the truth Y (m, T) on estimates C (R, m, T), given the process of what they leave over."""
    white_c, white_y, scale = np.empty_like(C), np.empty_like(Y), np.empty(Y.shape[1])
    # What is known of the size of residuals before there are any: that of the estimates, brought to the truth's scale.
    expected = (unit[:, None] * spread).mean(0) ** 2
    for group in residual.groups_:
        posterior, at = group.posterior, group.targets
        size = float(np.einsum("ij,ij->", posterior.factor, posterior.factor)) / len(posterior.X)
        scale[at] = np.sqrt(pooled_variance(posterior.scale**2 * size, expected[at], len(Y)) / size)
        white_y[:, at] = _whitened(posterior, Y[:, at])
        for white, values in zip(white_c, C, strict=True):
            white[:, at] = _whitened(posterior, values[:, at])
    return learn_slopes(white_c, white_y, scale, unit)


def _whitened(posterior: Posterior, values: Array) -> Array:
    centred = values - np.average(values, axis=0, weights=posterior.counts)
    return np.asarray(solve_triangular(posterior.factor, centred, lower=True))


def _over(surrogate: PosteriorSurrogate, change: Callable[..., Posterior]) -> PosteriorSurrogate:
    """The same surrogate with other posteriors: ``change(posterior, its targets)``."""
    other = copy.copy(surrogate)
    other.groups_ = tuple(Group(g.targets, change(g.posterior, g.targets)) for g in surrogate.groups_)
    return other


def _wider(posterior: Posterior, factor: float) -> Posterior:
    return replace(posterior, scale=posterior.scale * factor)


def _shifted(moments: Moments, level: Array) -> Moments:
    return moments[0] - level, moments[1]


def fusion_candidates(
    rungs: tuple[Rung, ...], targets: NDArray[np.intp], table: Outcomes
) -> tuple[dict[str, FusedSurrogate], dict[str, FusedSurrogate]]:
    """Return the fused surrogate of some targets by what it is called, and what it is to be compared with."""
    own = tuple(rung.at(targets) for rung in rungs)
    alone = {ESTIMATES: FusedSurrogate(own, kernel=False)}
    if len(np.unique(table.subsets, axis=0)) < CHECKED_RUNS:
        return alone, {}
    return {FUSED: FusedSurrogate(own)}, alone


def typical_slopes(model: Model) -> dict[str, float]:
    """Return the slope of every rung, the median over targets; 0 for those where true runs alone are used."""
    slopes = np.zeros((len(model.rungs), model.outcomes.n_targets))
    for part in model.parts:
        if isinstance(part.surrogate, FusedSurrogate):
            slopes[:, part.targets] = part.surrogate.slopes_.mean
    return {rung.name: float(slope) for rung, slope in zip(model.rungs, np.median(slopes, axis=1), strict=True)}


def trust_in_estimates(model: Model) -> str:
    """Return in words how far estimates are trusted, and what held-out true runs say of that."""
    if any(isinstance(part.surrogate, FusedSurrogate) for part in model.parts):
        slopes = typical_slopes(model)
        each = [f"{slope:.2g}" if len(slopes) == 1 else f"{slope:.2g} with {name}" for name, slope in slopes.items()]
        said = [f"where they move by 1, the truth moves by {', '.join(each)}"]
    else:
        said = ["none, as true runs alone predict as well without them"]
    scores = model.quality()
    words = {"lds_fused": "fused", "lds_estimates": "estimates alone", "lds_true_runs": "true runs alone"}
    known = ", ".join(f"{what} {scores[key]:.2f}" for key, what in words.items() if not np.isnan(scores[key]))
    if known:
        said.append(f"on held-out true runs, the rank correlation is: {known}")
    else:
        said.append(f"not checked, which takes {FEWEST_TO_CHOOSE} true runs of different subsets")
    return f"Trust in the estimates: {'; '.join(said)}."
