"""The combined surrogate: constant + linear + pairs + RBF + subset size, tuned by its evidence.

What :func:`whence.fit` usually chooses. The family of kernels and its marginal likelihood are in :mod:`.tuning`, the
rank scale of outcomes in :mod:`.warp`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from whence.surrogates import priors
from whence.surrogates.coordinates import TRANSFORMS, Coordinates, is_binary
from whence.surrogates.inducing import InducingPosterior
from whence.surrogates.kernel import Group, PosteriorSurrogate, exported_groups, groups_with, one_of
from whence.surrogates.mixture import Array
from whence.surrogates.posterior import CALIBRATION_RUNS
from whence.surrogates.protocol import Places, Remainder
from whence.surrogates.tuning import CombinedKernel
from whence.surrogates.warp import RankScale

# Up to this many runs, one thread is faster than several.
SMALL_RUNS = 1000
# Runs that tune the hyperparameters of one target, and steps; half as many from where others ended.
OWN_RUNS, OWN_STEPS = 100, 6
# Own hyperparameters need one factorisation per target: limits on the number of targets, and on bytes of factors.
OWN_TARGETS = 40
OWN_BYTES = 1 << 29
# Looking for the libraries that use threads takes longer than a small fit: once is enough.
THREADS = ThreadpoolController()


class Tuned(NamedTuple):
    """Hyperparameters that were found: the transform of weights, those shared by all targets, and of each target."""

    transform: str
    shared: Array
    own: dict[int, Array]


class CombinedSurrogate(PosteriorSurrogate):
    """A Gaussian process with the kernel constant + linear + pairs + RBF + subset size, tuned by its evidence.

    Every task has a relevance that scales it in all parts, so tasks that do not matter drop out. Hyperparameters are
    shared by the targets first; each target then gets its own, kept close to the shared ones by a prior.

    Parameters
    ----------
    outcome_scale : {"raw", "rank"}
        "rank" models normal scores of the outcomes, which suits heavy-tailed or saturating metrics. Predictions are
        always on the outcome's own scale.
    weight_scale : {"auto", "identity", "sqrt", "log", "both"}
        Of mixture weights; "auto" takes the one of greatest evidence. 0/1 tables need none.
    own : bool
        Whether each target gets its own hyperparameters (only for a moderate number of targets).
    random_state : int
        Seeds the sample of runs on which very large tables are tuned.
    start : Tuned, optional
        Where tuning begins: ``tuned_`` of another fit to nearly the same runs.
    noise_prior : (float, float)
        Mean and std of the prior of the logarithm of the noise variance, for outcomes of unit variance.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> S = rng.integers(0, 2, (60, 6)).astype(float)
    >>> y = S[:, 0] - 2 * S[:, 1] * S[:, 2]
    >>> model = CombinedSurrogate().fit(S, y)
    >>> float(abs(model.predict(S) - y).max()) < 0.1
    True
    """

    def __init__(
        self,
        outcome_scale: Literal["raw", "rank"] = "raw",
        *,
        weight_scale: str = "auto",
        own: bool = True,
        random_state: int = 0,
        start: Tuned | None = None,
        noise_prior: tuple[float, float] = priors.LEARNED["noise"],
    ) -> None:
        self.outcome_scale = outcome_scale
        self.weight_scale = weight_scale
        self.own = own
        self.random_state = random_state
        self.start = start
        self.noise_prior = noise_prior

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> CombinedSurrogate:
        """Return self, fitted to subsets X (m, K) and outcomes y (m,) or (m, T)."""
        one_of("outcome_scale", self.outcome_scale, ("raw", "rank"), type(self).__name__)
        one_of("weight_scale", self.weight_scale, ("auto", *TRANSFORMS), type(self).__name__)
        S, Y, counts = self._training_table(X, y, sample_weight)
        spread = Y.std(0)
        varies = spread > 1e-12 * np.abs(Y).max(0)
        if self.outcome_scale == "rank":
            self.scale_, Z = RankScale.learn(Y)
        else:
            Z = (Y - Y.mean(0)) / np.where(varies, spread, 1.0)

        # Matrices of a few hundred rows are slower on several threads, and far slower on a busy machine.
        with THREADS.limit(limits=1):
            self.coordinates_, self.family_, thetas = self._tune(S, Z, counts, varies)
        with THREADS.limit(limits=1 if len(S) <= SMALL_RUNS else None):
            posteriors = self._condition(S, Z, counts, thetas)
            self.groups_ = tuple(
                Group(g.targets, g.posterior.given(Y[:, g.targets]).calibrated(self.random_state)) for g in posteriors
            )
            if self.outcome_scale == "rank":
                self.score_groups_ = tuple(
                    Group(g.targets, g.posterior.calibrated(self.random_state)) for g in posteriors
                )
                # On a flat stretch of outcomes the map says "certain"; a new run is never that certain.
                some = self._scores(self.coordinates_(S[:CALIBRATION_RUNS]))
                self.least_std_ = 0.1 * np.median(self.scale_.around(*some)[1], axis=0)
        self.theta_ = tuple(theta for _, theta in thetas)
        return self

    def _condition(
        self, S: Array, Z: Array, counts: Array, thetas: list[tuple[NDArray[np.intp], Array]]
    ) -> list[Group]:
        """The process given the outcomes Z, one posterior for each group of targets."""
        X, family = self.coordinates_(S), self.family_
        processes = ((family.kernel(theta), family.noise(theta)) for _, theta in thetas)
        return [
            Group(targets, InducingPosterior.condition(*process, X, Z[:, targets], counts))
            for (targets, _), process in zip(thetas, processes, strict=True)
        ]

    def _tune(
        self, S: Array, Z: Array, counts: Array, varies: NDArray[np.bool_]
    ) -> tuple[Coordinates, CombinedKernel, list[tuple[NDArray[np.intp], Array]]]:
        """Coordinates, family, and the hyperparameters of every group of targets that shares them."""
        coordinates, family, shared = self._tune_shared(S, Z[:, varies], counts)
        self.tuned_ = Tuned(coordinates.transform, shared, {})
        n_targets = Z.shape[1]
        if not self.own or not 1 < n_targets <= OWN_TARGETS or n_targets * 8 * len(S) ** 2 > OWN_BYTES:
            return coordinates, family, [(np.arange(n_targets), shared)]
        X, moving = coordinates(S), np.flatnonzero(varies)

        def tune(t: int) -> Array:
            start = shared if self.start is None else self.start.own.get(t, shared)
            return self._tune_own(family, shared, start, X, Z[:, [t]], counts)

        own = [tune(int(t)) for t in moving]
        self.tuned_.own.update(zip(moving.tolist(), own, strict=True))
        thetas = [(np.array([t]), theta) for t, theta in zip(moving, own, strict=True)]
        if len(moving) < n_targets:
            thetas.append((np.flatnonzero(~varies), shared))
        return coordinates, family, thetas

    def _tune_shared(self, S: Array, Z: Array, counts: Array) -> tuple[Coordinates, CombinedKernel, Array]:
        """Choose the transform of the weights and the hyperparameters shared by all targets, by evidence."""
        transforms: tuple[str, ...] = (self.weight_scale,)
        if self.weight_scale == "auto":
            mixture = not is_binary(S) and S.min() >= 0
            transforms = TRANSFORMS if mixture else ("identity",)
            if self.start is not None:
                transforms = (self.start.transform,)
        best = None
        for transform in transforms:
            coordinates = Coordinates.learn(S, transform)
            family = self._family(S, coordinates)
            mean, std = family.prior()
            theta = mean
            value = 0.0
            if Z.shape[1]:
                X = coordinates(S)
                start = None if self.start is None else self.start.shared
                theta, value = family.fit(
                    X, Z, counts, mean=mean, std=std, max_iter=60, seed=self.random_state, start=start
                )
            value += priors.WEIGHT_SCALES[transform]
            if best is None or value < best[0]:
                best = (value, coordinates, family, theta)
        assert best is not None
        return best[1:]

    def _tune_own(
        self, family: CombinedKernel, shared: Array, start: Array, X: Array, z: Array, counts: Array
    ) -> Array:
        """Hyperparameters of one target, drawn towards the shared ones."""
        std, seed = np.minimum(family.prior()[1], priors.OWN), self.random_state
        steps = OWN_STEPS if self.start is None else OWN_STEPS // 2
        found, _ = family.fit(
            X, z, counts, mean=shared, std=std, max_iter=steps, max_runs=OWN_RUNS, seed=seed, start=start
        )
        return found

    def _family(self, S: Array, coordinates: Coordinates) -> CombinedKernel:
        if not is_binary(S):
            return CombinedKernel(len(coordinates.center), noise_prior=self.noise_prior)
        n_tasks, sizes = S.shape[1], S.sum(1)
        one_size, unit = None, float(sizes.std())
        if np.ptp(sizes) == 0:
            # The unit is how far sizes of as many tasks would spread if each were in by the flip of a coin.
            one_size, share = float(sizes[0]), float(sizes[0]) / n_tasks
            unit = max(float(np.sqrt(n_tasks * share * (1 - share))), 0.5)
        return CombinedKernel(
            n_tasks,
            coordinates.scale,
            float(coordinates.center.sum()),
            size_unit=unit,
            one_size=one_size,
            noise_prior=self.noise_prior,
        )

    def remainder(self) -> Remainder | None:
        """Return what the rank scale adds to the kernel model; None without it."""
        if self.outcome_scale == "raw":
            return None
        return lambda S: np.asarray(self.predict(S)).reshape(len(S), -1) - self.product_part(S)

    def export(self, subsets: Array, places: Places) -> dict[str, Any] | None:
        """Return the kernel model as plain data, on ranks with the map to outcomes."""
        found = super().export(subsets, places)
        if self.outcome_scale == "raw" or found is None:
            return found
        return found | {
            "kind": "ranks",
            "groups": exported_groups(self.score_groups_, places),
            "scores": self.scale_.scores[:, places].T,
            "outcomes": self.scale_.outcomes[:, places].T,
            "least_std": self.least_std_[places],
            "scale": self._by_target(lambda posterior: posterior.scale, ())[places],  # of the process of outcomes
        }

    def _predict(self, coordinates: Array, with_std: bool) -> tuple[Array, Array | None]:
        if self.outcome_scale == "raw":
            return super()._predict(coordinates, with_std)
        if not with_std:
            return self.scale_.outcome(self._mean_scores(coordinates)), None
        outcome, std = self.scale_.around(*self._scores(coordinates))
        return outcome, np.maximum(std, self.least_std_)

    def only(self, targets: ArrayLike) -> CombinedSurrogate:
        """Return the surrogate that computes these targets alone, and NaN for the others: faster where many are."""
        narrowed = cast(CombinedSurrogate, super().only(targets))
        if self.outcome_scale == "rank":
            narrowed.score_groups_ = groups_with(self.score_groups_, targets)
        return narrowed

    def _mean_scores(self, coordinates: Array) -> Array:
        """Mean in normal scores, (n, T)."""
        scores = np.full((len(coordinates), self.n_targets_), np.nan)
        for group in self.score_groups_:
            scores[:, group.targets] = group.posterior.predict_mean(coordinates)
        return scores

    def _scores(self, coordinates: Array) -> Array:
        """Mean and std of a new run in normal scores, (2, n, T)."""
        scores = np.full((2, len(coordinates), self.n_targets_), np.nan)
        for group in self.score_groups_:
            mean, variance = group.posterior.predict(coordinates)
            std = np.sqrt(variance + group.posterior.alpha)[:, None] * group.posterior.scale
            scores[..., group.targets] = mean, std
        return scores
