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
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import stdtrit

from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.coordinates import Coordinates, merge_replicates
from whence.surrogates.kernel import Group, PosteriorSurrogate
from whence.surrogates.kernels import Array, Constant
from whence.surrogates.mixture import Mixture
from whence.surrogates.posterior import HALF_WIDTH, LEVEL, Posterior
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate
from whence.surrogates.remainders import remainder_effects
from whence.surrogates.rungs import Rung
from whence.surrogates.slopes import USELESS, Slopes, learn_slopes, pooled_variance, tamed, typical_ratio

# A kernel on the residuals of estimates needs this many true runs of different subsets.
KERNEL_RUNS = 4
# So many runs is it worth that estimates, before any run, may be as far off as they vary.
DOUBT = 2
# With this many runs, predicted residuals are shrunk by half.
CONFIRMING_RUNS = 9
# So often are slopes and kernel fitted in turn.
ROUNDS = 2
# Subsets of every table at which kinds of estimates are compared with each other.
OVERLAP_SUBSETS = 100
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
    useless : float
        How likely it is, before any run, that the estimates say nothing about a target.
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

    def __init__(
        self, rungs: tuple[Rung, ...], *, kernel: bool = True, useless: float = USELESS, random_state: int = 0
    ) -> None:
        self.rungs = rungs
        self.kernel = kernel
        self.useless = useless
        self.random_state = random_state

    def __sklearn_clone__(self) -> FusedSurrogate:
        """The same surrogate, not fitted. Its rungs stay as they are: true runs have no part in them."""
        return FusedSurrogate(self.rungs, kernel=self.kernel, useless=self.useless, random_state=self.random_state)

    def fit(self, X: ArrayLike, y: ArrayLike) -> FusedSurrogate:
        """Return self, fitted to subsets X (m, K) and true outcomes y (m,) or (m, T); m may be 0."""
        S, Y = np.asarray(X, np.float64), np.asarray(y, np.float64)
        self.single_target_ = Y.ndim == 1
        self.n_features_in_, self.n_targets_ = S.shape[1], len(self.rungs[0].columns)
        S, Y, counts, C = self._merged(S, Y.reshape(len(S), self.n_targets_))
        spread = np.stack([rung.spread for rung in self.rungs])
        # How widely the truth spreads over subsets: that of few runs is drawn towards that of the estimates.
        expected = (typical_ratio(C, Y, spread)[:, None] * spread).mean(0)
        scale = expected if len(Y) < 2 else np.sqrt(pooled_variance(tamed(Y).var(0), expected**2, len(Y)))
        overlap = self._overlap(S)
        signal = np.array([rung.signal.mean() for rung in self.rungs])
        with_kernel = self.kernel and len(S) >= KERNEL_RUNS
        residual: PosteriorSurrogate = _Level().fit(S, Y, counts)
        self.slopes_ = _slopes(residual, C, tamed(Y), spread, scale, overlap, signal, self.useless)
        for _ in range(ROUNDS if with_kernel else 0):
            residual = CombinedSurrogate(random_state=self.random_state)
            residual.fit(S, tamed(Y - self._sloped(C)), counts)
            self.slopes_ = _slopes(residual, C, tamed(Y), spread, scale, overlap, signal, self.useless)
        rest = tamed(Y - self._sloped(C))
        if with_kernel:
            # A slope, a level and a kernel were fitted to the same runs that say how far off they are (Student's t).
            wider = float(stdtrit(len(S) - 3, (1 + LEVEL) / 2)) / HALF_WIDTH
            found = _over(residual, lambda p, t: _wider(p.given(rest[:, t]).calibrated(), wider))
            share = _believed(self.slopes_.useful, len(S))
            self.residual_ = _over(found, lambda p, t: replace(p, dual=share[t] * p.dual))
        else:
            scale = self._level_std(rest, spread) / np.sqrt(LEVEL_NOISE)
            self.residual_ = _over(residual, lambda p, t: replace(p.given(rest[:, t]), scale=scale[t]))
        self.usual_ = self._usual_error()
        self.carried_ = tuple(_over(residual, lambda p, t, c=values: p.given(c[:, t])) for values in C)
        return self

    def _usual_error(self) -> Array:
        """Variance (T,) that estimates usually have at new subsets, as far as it is in the noise of residuals.

        Residuals are those of new subsets. Their noise is a run's own and this.
        """
        noise = self.residual_._by_target(lambda posterior: posterior.alpha * posterior.scale**2, ())
        usual = sum(slope**2 * rung.typical for slope, rung in zip(self.slopes_.mean, self.rungs, strict=True))
        return np.asarray(np.minimum(0.5 * noise, usual))

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
        unseen = [replace(rung, unseen=True) for rung in self.rungs]
        return S, Y, counts, np.stack([rung.predict(S) - rung.level for rung in unseen])

    def _overlap(self, S: Array) -> Array:
        """Correlation of the kinds of estimates with each other, over some of the subsets of their tables, (R, R)."""
        if len(self.rungs) == 1:
            return np.ones((1, 1))
        subsets = np.concatenate([S, *(rung.model.outcomes.subsets[:OVERLAP_SUBSETS] for rung in self.rungs)])
        values = np.stack(
            [(rung.predict(subsets) - rung.level) / np.maximum(rung.spread, 1e-300) for rung in self.rungs]
        )
        values -= values.mean(1, keepdims=True)
        products = np.einsum("rit,sit->rs", values, values)
        size = np.sqrt(np.maximum(np.diag(products), 1e-300))
        return np.asarray(products / np.outer(size, size))

    def unseen(self) -> FusedSurrogate:
        """Return the same surrogate, as it would predict subsets if their estimates had been held out too."""
        other = copy.copy(self)
        other.rungs = tuple(replace(rung, unseen=True) for rung in self.rungs)
        return other

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return predicted outcomes, (n,) or (n, T) as y was; with ``return_std`` also the std of a new true run."""
        S = np.asarray(X, np.float64)
        if return_std:
            estimates = [_shifted(rung.moments(S), rung.level) for rung in self.rungs]
            carried = [known.predict(S) for known in self.carried_]
            mean, std = self._fused(estimates, self.residual_.predict(S, return_std=True), carried)
            std = np.sqrt(np.maximum(std**2 - self.usual_, 0.0))
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
        rests = [_rest(rung, order, mixture) for rung in self.rungs]
        return self._fused(estimates, self.residual_.effects(order, mixture), carried, rests)

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
        noise -= float((self.usual_ / unit).mean())
        apart = []
        for slope, rung, known in zip(slopes.mean, self.rungs, self.carried_, strict=True):
            mean, std = rung.moments(S)
            covariance += float((std**2 * slope**2 / unit).mean()) * rung.correlation(S)
            apart.append((mean - rung.level - known.predict(S)) / np.sqrt(unit))
        for r, s in np.ndindex(len(apart), len(apart)):
            covariance += (apart[r] * slopes.covariance[:, r, s]) @ apart[s].T / self.n_targets_
        return covariance, noise

    def only(self, targets: ArrayLike) -> FusedSurrogate:
        """Return the fusion of what the rungs and the process need for these targets alone."""
        narrowed = copy.copy(self)
        narrowed.rungs = tuple(rung.only(targets) for rung in self.rungs)
        narrowed.residual_ = self.residual_.only(targets)
        narrowed.carried_ = tuple(known.only(targets) for known in self.carried_)
        return narrowed

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the rungs with their slopes, and what they leave over, as plain data."""
        residual = self.residual_.export(subsets, places)
        rungs = [rung.export(places) for rung in self.rungs]
        if residual is None or None in rungs:
            return None
        n_runs = len(self.residual_.groups_[0].posterior.X)
        return {
            "kind": "fused",
            "residual": residual,
            # The same process given the estimates at the runs.
            "carried": [
                {
                    "dual": known._by_target(lambda p: p.dual, (n_runs,))[:, places].T,
                    "level": known._by_target(lambda p: p.level, ())[places],
                }
                for known in self.carried_
            ],
            "rungs": rungs,
            "slopes": self.slopes_.mean[:, places].T,
            "covariance": self.slopes_.covariance[places],
            "usual": self.usual_[places],
        }

    def _sloped(self, estimates: Array) -> Array:
        """Σ_r ρ_rt · estimates (R, …, T)."""
        return np.asarray(np.einsum("r...t,rt->...t", estimates, self.slopes_.mean))

    def _fused(
        self, estimates: list[Moments], residual: Moments, carried: list[Array], rests: list[Array] | None = None
    ) -> Moments:
        """A linear functional of the truth and its std, from the same functional of all parts.

        The uncertainty of a slope counts by how far the functional of its estimates c lies from what the true runs say
        of it: ``carried`` is the functional of the process δ, if c at the true runs were its data. ``rests`` are what
        estimates have beyond the given values.
        """
        mean = self._sloped(np.stack([value for value, _ in estimates])) + residual[0]
        variance = residual[1] ** 2
        for slope, (_, std) in zip(self.slopes_.mean, estimates, strict=True):
            variance = variance + (slope * std) ** 2
        whole = [value for value, _ in estimates]
        if rests is not None:
            whole = [value + rest for value, rest in zip(whole, rests, strict=True)]
        apart = np.stack([value - known for value, known in zip(whole, carried, strict=True)])
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


def _slopes(
    residual: PosteriorSurrogate,
    C: Array,
    Y: Array,
    spread: Array,
    scale: Array,
    overlap: Array,
    signal: Array,
    useless: float,
) -> Slopes:
    """Slopes of the truth Y (m, T) on estimates C (R, m, T), given the process of what they leave over."""
    white_c, white_y = np.empty_like(C), np.empty_like(Y)
    for group in residual.groups_:
        posterior, at = group.posterior, group.targets
        size = np.sqrt(float(np.einsum("ij,ij->", posterior.factor, posterior.factor)) / len(posterior.X))
        white_y[:, at] = size * _whitened(posterior, Y[:, at])
        for white, values in zip(white_c, C, strict=True):
            white[:, at] = size * _whitened(posterior, values[:, at])
    return learn_slopes(white_c, white_y, spread, scale, overlap, signal, useless)


def _rest(rung: Rung, order: int, mixture: Mixture) -> Array:
    """Effects of what the estimates of a rung have beyond their closed form."""
    remainder = rung.remainder()
    if remainder is None:
        return np.zeros(1)
    return remainder_effects(remainder, rung.model.outcomes.n_tasks, mixture, order)[0]


def _believed(useful: Array, n_runs: int) -> Array:
    """Share (T,) of what a process says of residuals that is taken over.

    Kernels tuned on a handful of runs say more than these know. That costs nothing where estimates are useless, since
    there is nothing else to go by, and much where they are good.
    """
    return np.asarray(1 - useful * CONFIRMING_RUNS**2 / (CONFIRMING_RUNS**2 + n_runs**2))


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
