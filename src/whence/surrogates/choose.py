"""``whence.fit``: choose a surrogate by cross-validation, say which and how good, and hand back a :class:`Model`.

Targets measured in different runs are different tables: each such group gets its own surrogate. All choices look at the
training runs only. Beside true runs, ``fit`` takes estimates of many more subsets (:mod:`.rungs`, :mod:`.fused`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.errors import DataWarning, InputError, some_of
from whence.evaluation import SizeOnly, noise_ceiling
from whence.outcomes import Outcomes
from whence.progress import track
from whence.shown import Shown
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.crossvalidation import (
    Trial,
    cross_validated,
    fitted,
    folds_of,
    mean_of_defined,
    predict_with_std,
)
from whence.surrogates.fused import ESTIMATES, FUSED, fusion_candidates, trust_in_estimates
from whence.surrogates.kernels import Array
from whence.surrogates.rungs import Rung, learn_rungs

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
    FUSED: "estimates times a learned slope, plus a Gaussian process on what they leave over",
    ESTIMATES: "estimates, shifted and scaled to the true runs",
}
SIZE_ONLY = "size only"
FEWEST_RUNS = 3


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
class Model(Shown):
    """A fitted surrogate together with the table it was fitted to: what predictions and attributions are made from."""

    outcomes: Outcomes
    parts: tuple[Part, ...]
    rungs: tuple[Rung, ...] = ()  # estimates that it was fitted with

    @property
    def subsets(self) -> Array:
        """The subsets that are known something about, (n, K): of runs, and of estimates."""
        return np.concatenate([self.outcomes.subsets, *(rung.model.subsets for rung in self.rungs)])

    @property
    def n_subsets(self) -> int:
        """How many different subsets were run."""
        return len(np.unique(self.outcomes.subsets, axis=0))

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
                mean[:, part.targets], std[:, part.targets] = predict_with_std(part.surrogate, S)
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

    def quality(self) -> dict[str, float]:
        """Return cross-validated scores (means over targets) of the chosen surrogate and of what it has to beat."""

        def pooled(score: str, name: str | None = None) -> float:
            values = [
                getattr(trial, score)
                for part in self.parts
                for trial in part.trials
                if trial.name == (name or part.name)
            ]
            return float(mean_of_defined(np.concatenate(values))) if values else np.nan

        fusion = {}
        if self.rungs:
            alone = max(np.nan_to_num(pooled("lds", name), nan=-np.inf) for name in CANDIDATES)
            fusion = {f"lds_{name}": pooled("lds", name) for name in (FUSED, ESTIMATES)}
            fusion["lds_true_runs"] = float(alone) if np.isfinite(alone) else np.nan
        return {
            "lds": pooled("lds"),
            "residual_error": pooled("residual_error"),
            "coverage_90": pooled("coverage"),
            "lds_tuned_linear": pooled("lds", "additive"),
            "lds_size_only": pooled("lds", SIZE_ONLY),
            "noise_ceiling": noise_ceiling(self.outcomes).mean,
            **fusion,
        }

    def __str__(self) -> str:
        trust_lines = [trust_in_estimates(self)] if self.rungs else []
        return "\n".join([repr(self.outcomes), *self._choices(), *trust_lines, self._quality_in_words()])

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
            f"residual error {q['residual_error']:.2f} of the variance{intervals}. {trust(q['lds'], self.n_subsets)}"
        )


UNCHECKED = "Not checked on held-out runs: treat every number as a guess."
TRUST = (
    (0.8, "Predictions can be relied on within the range of the runs."),
    (0.5, "Good for ranking subsets; check the chosen one with a real run."),
    (0.25, "Weak: trust only the largest effects, and measure more runs."),
    (-np.inf, "Too weak to act on: the runs do not determine these outcomes."),
)


# A rank correlation over fewer subsets than this is itself uncertain.
FEW_SUBSETS = 20


def trust(correlation: float, n_subsets: int) -> str:
    """Return in words what a rank correlation on held-out runs of so many subsets allows; NaN where there were none.

    Examples
    --------
    >>> trust(0.6, 50)
    'Good for ranking subsets; check the chosen one with a real run.'
    """
    words = next((words for bound, words in TRUST if correlation >= bound), UNCHECKED)
    if words != UNCHECKED and n_subsets < FEW_SUBSETS:
        words += f" Judged by {n_subsets} subsets only, so this score is itself uncertain."
    return words


def fit(
    outcomes: Outcomes, *, estimates: Any = None, surrogate: Any = None, n_folds: int | None = 5, seed: int = 0
) -> Model:
    """Return a :class:`Model` of the outcomes: the surrogate that predicts held-out runs best.

    Parameters
    ----------
    outcomes : Outcomes
        Runs; rows with a missing outcome are used for the targets they have.
    estimates : Outcomes, Model, outcome function, or mapping of names to these, optional
        Estimates of the same targets for many more subsets, by something cheaper than a run. The runs are then the
        truth that estimates are held against, and few will do, or none. A Model is one fitted to estimates; an outcome
        function (`whence.TaskVectors`, `whence.OneStep`, …) makes its own, at the runs and at subsets like them.
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

    With four true runs, and estimates of all subsets that are half as large as the truth:

    >>> true_runs = whence.Outcomes(S[::8], 2 * runs.values[::8], task_names=list("abcde"))
    >>> whence.fit(true_runs, estimates=runs).predict([["a"], ["b", "c"]]).round(0).ravel().tolist()
    [2.0, -2.0]
    """
    if n_folds is None and surrogate is None and estimates is None:
        raise InputError("Without cross-validation (n_folds=None) there is nothing to choose by. Give a surrogate.")
    if n_folds is not None and n_folds < 2:
        raise InputError(f"The 'n_folds' parameter of fit must be at least 2, or None. Got {n_folds} instead.")
    if surrogate is not None and estimates is not None:
        raise InputError("With estimates, the surrogate is the fused one: give 'estimates' or 'surrogate', not both.")
    measured = ~np.isnan(outcomes.values)
    rungs: tuple[Rung, ...] = ()
    if estimates is None:
        _refuse_unanswerable(outcomes, measured)
        for sentence in outcomes.concerns():
            warnings.warn(sentence, DataWarning, stacklevel=2)
    else:
        rungs = learn_rungs(estimates, outcomes, seed=seed)
    candidates = dict(CANDIDATES) if surrogate is None else {type(surrogate).__name__: surrogate}
    patterns, which = np.unique(measured.T, axis=0, return_inverse=True)
    parts = []
    for index in track(range(len(patterns)), "Fitting targets"):
        targets = np.flatnonzero(which.ravel() == index)
        table = outcomes.rows(patterns[index]).targets([outcomes.target_names[t] for t in targets])
        fusion, alone = fusion_candidates(rungs, targets, table) if rungs else ({}, {})
        parts.append(_fit_part(table, targets, fusion | candidates, alone, n_folds, seed))
    return Model(outcomes, tuple(parts), rungs)


def _fit_part(
    table: Outcomes,
    targets: NDArray[np.intp],
    candidates: Mapping[str, Any],
    yardsticks: Mapping[str, Any],
    n_folds: int | None,
    seed: int,
) -> Part:
    """Cross-validate the candidates on complete runs, and fit the best on all of them; without, the first.

    Yardsticks are cross-validated too, and not chosen. Where there are estimates, true runs are few, and none can be
    spared for large folds.
    """
    name = next(iter(candidates))
    trials: tuple[Trial, ...] = ()
    fused = FUSED if FUSED in candidates else ESTIMATES
    folds = None if n_folds is None else folds_of(table, n_folds, seed, fold_size=2 if fused in candidates else 4)
    if folds is not None:
        makers: dict[str, Callable[[Outcomes], Any]] = {SIZE_ONLY: SizeOnly.fit}
        makers.update({key: partial(fitted, each) for key, each in (*yardsticks.items(), *candidates.items())})
        trials = tuple(
            cross_validated(key, makers[key], table, folds) for key in track(list(makers), "Cross-validating")
        )
        errors = {
            trial.name: float(mean_of_defined(trial.score_error)) + HANDICAP.get(trial.name, 0.0)
            for trial in trials
            if trial.name in candidates
        }
        if fused in errors:
            # It learns by itself what estimates are worth; a few held-out runs are a worse judge of that.
            errors[fused] -= 1 / table.n_runs
        name = min(errors, key=errors.__getitem__)
    return Part(targets, fitted(candidates[name], table), name, trials)


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
