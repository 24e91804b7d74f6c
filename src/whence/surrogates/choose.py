"""``whence.fit``: choose a surrogate by cross-validation, say which and how good, and hand back a :class:`Model`.

Targets measured in different runs are different tables: each such group gets its own surrogate. All choices look at the
training runs only, and a subset's replicates are always held out together.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from whence.errors import DataWarning, InputError, some_of
from whence.evaluation import SizeOnly, lds, noise_ceiling, residual_error
from whence.evaluation.scores import has_std
from whence.evaluation.statistics import ratio
from whence.outcomes import Outcomes
from whence.progress import track
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.kernels import Array
from whence.surrogates.posterior import HALF_WIDTH, interval_factor
from whence.surrogates.warp import RankScale

CANDIDATES: Mapping[str, Any] = {
    "additive": AdditiveSurrogate("ridge"),
    "kernel": CombinedSurrogate("raw"),
    "kernel on ranks": CombinedSurrogate("rank"),
}
# What is added to a candidate's error before the least one is chosen: "kernel" keeps effects exact and contains the
# additive surrogate, so the others must be better by more than the noise of cross-validation.
HANDICAP = {"additive": 0.02, "kernel on ranks": 0.01}
DESCRIPTIONS = {
    "additive": "tuned ridge regression: every task adds its own effect, no interactions",
    "kernel": "a Gaussian process over linear, pairwise, RBF and subset-size kernels with a relevance per task",
    "kernel on ranks": "a Gaussian process over linear, pairwise, RBF and subset-size kernels, on ranks of outcomes",
}
SIZE_ONLY = "size only"
CHOICE_RUNS = 2000
FEWEST_RUNS = 3
FEWEST_TO_CHOOSE = 6


@dataclass(frozen=True)
class Trial:
    """How one candidate predicted held-out runs in cross-validation; arrays are per target."""

    name: str
    lds: Array
    score_error: Array  # mean absolute error in normal scores of the outcome, by which surrogates are chosen
    residual_error: Array
    coverage: Array
    factor: Array  # what its std has to be multiplied with for intervals to hold
    seconds: float
    runs: NDArray[np.intp]  # (n,) rows of the table that took part
    predicted: Array  # (n, T) what it said of them when they were held out
    std: Array  # (n, T)


@dataclass(frozen=True)
class Part:
    """The surrogate of the targets that were measured in the same runs."""

    targets: NDArray[np.intp]
    surrogate: Any
    name: str
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Trial | None:
        """The trial of the surrogate that was chosen; None without cross-validation."""
        return next((trial for trial in self.trials if trial.name == self.name), None)

    @property
    def factor(self) -> Array:
        return np.ones(len(self.targets)) if self.chosen is None else self.chosen.factor


@dataclass(frozen=True)
class Model:
    """A fitted surrogate together with the table it was fitted to: what predictions and attributions are made from."""

    outcomes: Outcomes
    parts: tuple[Part, ...]

    @property
    def task_names(self) -> tuple[str, ...]:
        return self.outcomes.task_names

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.outcomes.target_names

    @property
    def maximize(self) -> tuple[bool, ...]:
        return self.outcomes.maximize

    def predict(self, subsets: ArrayLike | Sequence[Sequence[str]], return_std: bool = False) -> Any:
        """Return predicted outcomes (n, T); with ``return_std`` also the std of a new measured run, (n, T).

        Parameters
        ----------
        subsets : (n, K) array of 0/1 or weights, or a list of lists of task names
        """
        S = self.rows(subsets)
        mean, std = np.empty((2, len(S), self.outcomes.n_targets))
        for part in self.parts:
            if return_std:
                mean[:, part.targets], std[:, part.targets] = _predict_with_std(part.surrogate, S)
                std[:, part.targets] *= part.factor
            else:
                mean[:, part.targets] = part.surrogate.predict(S).reshape(len(S), -1)
        return (mean, std) if return_std else mean

    def covariance(self, subsets: ArrayLike) -> tuple[Array, float]:
        """Return the posterior covariance between subsets (n, n) and the noise of one run, averaged over targets.

        Both are relative to the variance of the outcome; :func:`whence.suggest` plans runs with them.
        """
        S = self.rows(subsets)
        covariance, noise = np.zeros((len(S), len(S))), 0.0
        for part in self.parts:
            if not hasattr(part.surrogate, "covariance"):
                raise InputError(
                    f"A {type(part.surrogate).__name__} has no posterior covariance. Use whence.fit's own choice."
                )
            share = len(part.targets) / self.outcomes.n_targets
            own_covariance, own_noise = part.surrogate.covariance(S)
            covariance += share * own_covariance
            noise += share * own_noise
        return covariance, noise

    def rows(self, subsets: Any) -> Array:
        """Return subsets as an array (n, K), whether given as numbers, a DataFrame, weights by name or task names."""
        if isinstance(subsets, str | Mapping):
            subsets = [subsets]
        if hasattr(subsets, "columns"):
            missing = [name for name in self.task_names if name not in subsets.columns]
            if missing:
                raise InputError(f"A table of subsets must have a column per task. Got none for {some_of(missing)}.")
            rows = np.asarray(subsets[list(self.task_names)], np.float64)
        elif isinstance(subsets, np.ndarray):
            rows = np.atleast_2d(np.asarray(subsets, np.float64))
        else:
            given: list[Any] = list(subsets)
            single = bool(given) and np.isscalar(given[0])
            rows = np.array([self.outcomes.subset(one) for one in ([given] if single else given)])
            rows = rows.reshape(-1, self.outcomes.n_tasks)
        if rows.shape[1] != self.outcomes.n_tasks:
            raise InputError(
                f"Subsets must have one column per task ({self.outcomes.n_tasks}). Got {rows.shape[1]} instead."
            )
        return rows

    def held_out(self) -> tuple[Array, Array]:
        """Return what cross-validation predicted for every run without it, and the std of a new run, both (m, T).

        NaN where a run was not held out: not measured, or left over where there are thousands.
        """
        predicted, std = np.full((2, *self.outcomes.values.shape), np.nan)
        for part in self.parts:
            if part.chosen is not None:
                measured = np.flatnonzero(~np.isnan(self.outcomes.values[:, part.targets[0]]))
                at = np.ix_(measured[part.chosen.runs], part.targets)
                predicted[at], std[at] = part.chosen.predicted, part.chosen.std * part.chosen.factor
        return predicted, std

    def report(self, path: str | os.PathLike[str], *, rule: str | None = None, seed: int = 0) -> None:
        """Write one self-contained HTML page with every answer; see `whence.report.write_report`."""
        from whence.report import write_report

        write_report(self, path, rule=rule, seed=seed)

    def quality(self) -> dict[str, float]:
        """Return cross-validated scores (means over targets) of the chosen surrogate and of what it has to beat."""

        def pooled(score: str, name: str | None = None) -> float:
            values = [
                getattr(trial, score)
                for part in self.parts
                for trial in part.trials
                if trial.name == (name or part.name)
            ]
            return _mean(np.concatenate(values)) if values else np.nan

        return {
            "lds": pooled("lds"),
            "residual_error": pooled("residual_error"),
            "coverage_90": pooled("coverage"),
            "lds_tuned_linear": pooled("lds", "additive"),
            "lds_size_only": pooled("lds", SIZE_ONLY),
            "noise_ceiling": noise_ceiling(self.outcomes).mean,
        }

    def __str__(self) -> str:
        return "\n".join([repr(self.outcomes), *self._choices(), self._quality_in_words()])

    def _repr_html_(self) -> str:
        from whence.notebook import model_html

        return model_html(self)

    def _choices(self) -> list[str]:
        lines = []
        for part in self.parts:
            whose = "" if len(self.parts) == 1 else f" for {some_of([self.target_names[t] for t in part.targets])}"
            what = DESCRIPTIONS.get(part.name, repr(part.surrogate))
            lines.append(f"Chosen{whose}: {part.name} ({what}).")
        return lines

    def _quality_in_words(self) -> str:
        q = self.quality()
        if np.isnan(q["lds"]):
            return UNCHECKED
        yardsticks = {
            "lds_tuned_linear": "tuned linear",
            "lds_size_only": "subset size alone",
            "noise_ceiling": "noise ceiling",
        }
        beside = ", ".join(f"{words} {q[key]:.2f}" for key, words in yardsticks.items() if not np.isnan(q[key]))
        intervals = "" if np.isnan(q["coverage_90"]) else f", 90% intervals hold {q['coverage_90']:.0%}"
        return (
            f"On held-out runs: rank correlation {q['lds']:.2f} ({beside}), "
            f"residual error {q['residual_error']:.2f} of the variance{intervals}. {trust(q['lds'])}"
        )


UNCHECKED = "Not checked on held-out runs: treat every number as a guess."
TRUST = (
    (0.8, "Predictions can be relied on within the range of the runs."),
    (0.5, "Good for ranking subsets; check the chosen one with a real run."),
    (0.25, "Weak: trust only the largest effects, and measure more runs."),
    (-np.inf, "Too weak to act on: the runs do not determine these outcomes."),
)


def trust(correlation: float) -> str:
    """Return in words what a rank correlation on held-out runs allows; NaN where there were none."""
    return next((words for bound, words in TRUST if correlation >= bound), UNCHECKED)


def fit(outcomes: Outcomes, *, surrogate: Any = None, n_folds: int | None = 5, seed: int = 0) -> Model:
    """Return a :class:`Model` of the outcomes: the surrogate that predicts held-out runs best.

    Parameters
    ----------
    outcomes : Outcomes
        Runs; rows with a missing outcome are used for the targets they have.
    surrogate : scikit-learn regressor, optional
        Use this one instead of choosing; it is still cross-validated.
    n_folds : int
        Folds of the cross-validation, split by distinct subset; None fits the given surrogate without it.
    seed : int
        Of the folds.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(5)
    >>> runs = whence.Outcomes(subsets=S, values=S[:, 0] - S[:, 1] * S[:, 2], task_names=list("abcde"))
    >>> model = whence.fit(runs)
    >>> model.predict([["a"], ["a", "b", "c"]]).round(1).ravel().tolist()
    [1.0, 0.0]
    """
    if n_folds is None and surrogate is None:
        raise InputError("Without cross-validation (n_folds=None) there is nothing to choose by. Give a surrogate.")
    if n_folds is not None and n_folds < 2:
        raise InputError(f"The 'n_folds' parameter of fit must be at least 2, or None. Got {n_folds} instead.")
    measured = ~np.isnan(outcomes.values)
    _refuse_unanswerable(outcomes, measured)
    for sentence in outcomes.concerns():
        warnings.warn(sentence, DataWarning, stacklevel=2)
    candidates = dict(CANDIDATES) if surrogate is None else {type(surrogate).__name__: surrogate}
    patterns, which = np.unique(measured, axis=1, return_inverse=True)
    parts = []
    for index in track(range(patterns.shape[1]), "Fitting targets"):
        targets = np.flatnonzero(which.ravel() == index)
        table = outcomes.rows(patterns[:, index]).targets([outcomes.target_names[t] for t in targets])
        parts.append(_fit_part(table, targets, candidates, n_folds, seed))
    return Model(outcomes, tuple(parts))


def _fit_part(
    table: Outcomes, targets: NDArray[np.intp], candidates: Mapping[str, Any], n_folds: int | None, seed: int
) -> Part:
    """Cross-validate the candidates on complete runs, and fit the best on all of them."""
    subset_id = np.unique(table.subsets, axis=0, return_inverse=True)[1].ravel()
    n_distinct = int(subset_id.max()) + 1
    name = next(iter(candidates))
    trials: tuple[Trial, ...] = ()
    if n_folds is not None and n_distinct >= FEWEST_TO_CHOOSE:
        order = np.random.default_rng(seed).permutation(n_distinct)[:CHOICE_RUNS]
        fold_of_subset = np.full(n_distinct, -1)
        # Ranks within a fold say nothing when it holds one or two subsets.
        fold_of_subset[order] = np.arange(len(order)) % min(n_folds, max(2, len(order) // 4))
        folds = fold_of_subset[subset_id]
        makers: dict[str, Callable[[Outcomes], Any]] = {SIZE_ONLY: SizeOnly.fit}
        makers.update({key: partial(_fitted, candidate) for key, candidate in candidates.items()})
        trials = tuple(_trial(key, makers[key], table, folds) for key in track(list(makers), "Cross-validating"))
        errors = {
            trial.name: _mean(trial.score_error) + HANDICAP.get(trial.name, 0.0)
            for trial in trials
            if trial.name in candidates
        }
        name = min(errors, key=errors.__getitem__)
    return Part(targets, _fitted(candidates[name], table), name, trials)


def _fitted(candidate: Any, table: Outcomes) -> Any:
    values = table.values[:, 0] if table.n_targets == 1 else table.values
    return clone(candidate).fit(table.subsets, values)


def _trial(name: str, make: Callable[[Outcomes], Any], table: Outcomes, folds: NDArray[np.intp]) -> Trial:
    """Score one way of fitting on runs it has not seen, fold by fold (fold −1 takes no part)."""
    began = time.perf_counter()
    taken = np.flatnonzero(folds >= 0)
    table, folds = table.rows(taken), folds[taken]
    predicted, std = np.empty((2, *table.values.shape))
    held_out = [folds == fold for fold in range(folds.max() + 1)]
    for held in held_out:
        predicted[held], std[held] = _predict_with_std(make(table.rows(~held)), table.subsets[held])
    residual = table.values - predicted
    # Across folds, predictions differ by the mean of the runs they saw, which is lower where the held-out ones are
    # higher: ranks are compared within a fold. Coverage in a fold uses the factor that the other folds ask for.
    ranked = np.array([lds(predicted[held], table.rows(held)).per_target for held in held_out])
    inside = np.empty(residual.shape)
    for held in held_out:
        width = HALF_WIDTH * std[held] * interval_factor(residual[~held], std[~held])
        inside[held] = np.where(np.isnan(width), np.nan, np.abs(residual[held]) <= width)
    scale, scores = RankScale.learn(table.values)
    return Trial(
        name=name,
        lds=_mean_of_defined(ranked),
        score_error=np.abs(scale.score(predicted) - scores).mean(0),
        residual_error=residual_error(predicted, table).per_target,
        coverage=inside.mean(0),
        factor=interval_factor(residual, std),
        seconds=time.perf_counter() - began,
        runs=taken,
        predicted=predicted,
        std=std,
    )


def _mean_of_defined(scores: Array) -> Array:
    """The mean over axis 0 of what is not NaN; NaN where nothing is."""
    defined = np.isfinite(scores)
    count = defined.sum(0)
    total = np.where(defined, scores, 0.0).sum(0)
    return np.asarray(ratio(total, count))


def _predict_with_std(model: Any, S: Array) -> tuple[Array, Array]:
    """Predictions and std (n, T); NaN std from a regressor that has none."""
    if has_std(model):
        mean, std = model.predict(S, return_std=True)
    else:
        mean = np.asarray(model.predict(S))
        std = np.full(mean.shape, np.nan)
    return mean.reshape(len(S), -1), std.reshape(len(S), -1)


def _mean(per_target: Array) -> float:
    """The mean over the targets that have a score; NaN when none has."""
    return float(_mean_of_defined(per_target))


def _refuse_unanswerable(outcomes: Outcomes, measured: NDArray[np.bool_]) -> None:
    counts = measured.sum(0)
    empty = [name for name, count in zip(outcomes.target_names, counts, strict=True) if count == 0]
    if empty:
        raise InputError(f"No run has a measured value of {some_of(empty)}. Leave the target out, or measure it.")
    few = [name for name, count in zip(outcomes.target_names, counts, strict=True) if count < FEWEST_RUNS]
    if few:
        raise InputError(f"At least {FEWEST_RUNS} measured runs are needed. Got fewer for {some_of(few)}.")
    if len(np.unique(outcomes.subsets, axis=0)) < 2:
        raise InputError("All runs have the same subset of tasks: nothing can be said about any task. Vary the tasks.")
