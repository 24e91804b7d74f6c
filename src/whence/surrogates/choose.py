"""``whence.fit``: average surrogates by how they cross-validate, say how good that is, and hand back a :class:`Model`.

Targets measured in different runs are different tables: each such group gets its own surrogate. All weights look at the
training runs only. Beside true runs, ``fit`` takes estimates of many more subsets (:mod:`.rungs`, :mod:`.fused`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.errors import DataWarning, InputError, some_of
from whence.evaluation import SizeOnly, noise_ceiling
from whence.outcomes import Outcomes
from whence.progress import track
from whence.shown import Shown
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.averaged import AveragedSurrogate, average_of
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.crossvalidation import (
    FEWEST_TO_CHECK,
    Held,
    Trial,
    averaged_trial,
    cross_validated,
    fitted,
    held_runs,
    mean_of_defined,
    predict_with_std,
)
from whence.surrogates.fused import FusedSurrogate
from whence.surrogates.kernels import Array
from whence.surrogates.protocol import as_surrogate
from whence.surrogates.range import Range, outside, warn_outside
from whence.surrogates.rank_fused import ESTIMATES, FUSED, RANK_FUSED, RankFusedSurrogate, fusion_candidates
from whence.surrogates.rungs import Rung, learn_rungs
from whence.surrogates.trust import FEWEST_TO_FUSE, UNCHECKED, trust, trust_in_estimates

CANDIDATES: Mapping[str, Any] = {
    "additive": AdditiveSurrogate("ridge"),
    "kernel": CombinedSurrogate("raw"),
    "kernel on ranks": CombinedSurrogate("rank"),
}
# Weights before any run. The fused surrogate contains "estimates" and "kernel": it learns by itself what estimates
# are worth, and a few held-out runs are a worse judge of that.
PRIOR = {FUSED: 2.0, RANK_FUSED: 4.0, ESTIMATES: 4.0}
AVERAGE, TRUE_RUNS = "average", "true runs alone"
DESCRIPTIONS = {
    "additive": "tuned ridge regression: every task adds its own effect, no interactions",
    "kernel": "a Gaussian process over linear, pairwise, RBF and subset-size kernels with a relevance per task",
    "kernel on ranks": "a Gaussian process over linear, pairwise, RBF and subset-size kernels, on ranks of outcomes",
    FUSED: "estimates times a learned slope, plus a Gaussian process on what they leave over",
    RANK_FUSED: "the same on ranks of outcomes and estimates",
    ESTIMATES: "estimates, shifted and scaled to the true runs",
    AVERAGE: "surrogates weighted by how well each predicts held-out runs",
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
    def members(self) -> dict[str, Any]:
        """The fitted surrogates that it is an average of, or itself alone."""
        if isinstance(self.surrogate, AveragedSurrogate):
            return self.surrogate.members_
        return {self.name: self.surrogate}

    @property
    def weights(self) -> dict[str, Array]:
        """The weight of every member for every target, (T,)."""
        if isinstance(self.surrogate, AveragedSurrogate):
            return dict(zip(self.surrogate.members, self.surrogate.weights, strict=True))
        return {self.name: np.ones(len(self.targets))}

    @property
    def chosen(self) -> Trial | None:
        """The trial of the surrogate that is used; None without cross-validation."""
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
    def is_complete(self) -> bool:
        """Whether every subset of the tasks was run; the empty one may be missing."""
        runs = self.outcomes
        return runs.is_binary and runs.n_tasks < 30 and self.n_subsets >= 2**runs.n_tasks - 1

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

        A warning names the subsets outside the range of the runs and says why (:func:`.range.outside`).

        Parameters
        ----------
        subsets : (n, K) array of 0/1 or weights, or a list of lists of task names
        """
        S = self.rows(subsets)
        found = self.predict_quietly(S, return_std)
        warn_outside(outside(self, S, found[1] if return_std else None))
        return found

    @cached_property
    def range(self) -> Range | None:
        """What the runs and the estimates span; None without any."""
        return Range.of(self.subsets)

    def predict_quietly(self, S: Array, return_std: bool = False) -> Any:
        """Return what `predict` does for an array of subsets, without looking whether they are in range."""
        mean, std = np.full((2, len(S), self.outcomes.n_targets), np.nan)
        for part in self.parts:
            if return_std:
                mean[:, part.targets], std[:, part.targets] = predict_with_std(part.surrogate, S)
                std[:, part.targets] *= part.factor
            else:
                mean[:, part.targets] = part.surrogate.predict(S).reshape(len(S), -1)
        return (mean, std) if return_std else mean

    def only(self, targets: ArrayLike) -> Model:
        """Return the model that predicts these targets (their columns) alone, and NaN for the others.

        A search for the best subset asks for thousands of predictions of one target.
        """
        parts = [part for part in self.parts if np.isin(part.targets, targets).any()]
        narrowed = [
            replace(part, surrogate=part.surrogate.only(np.flatnonzero(np.isin(part.targets, targets))))
            if hasattr(part.surrogate, "only")
            else part
            for part in parts
        ]
        return replace(self, parts=tuple(narrowed))

    def covariance(self, subsets: ArrayLike) -> tuple[Array, float]:
        """Return the posterior covariance between subsets (n, n) and the noise of one run, averaged over targets.

        Both are relative to the variance of the outcome; :func:`whence.suggest` plans runs with them.
        """
        S = self.rows(subsets)
        covariance, noise = np.zeros((len(S), len(S))), 0.0
        for part in self.parts:
            share = len(part.targets) / self.outcomes.n_targets
            own_covariance, own_noise = as_surrogate(part.surrogate).covariance(S)
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
            fusion = {f"lds_{name}": pooled("lds", name) for name in (FUSED, ESTIMATES)}
            fusion["lds_true_runs"] = pooled("lds", TRUE_RUNS)
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
            if part.name == AVERAGE:
                shares = {name: float(share.mean()) for name, share in part.weights.items()}
                listed = sorted(shares.items(), key=lambda item: -item[1])
                lines.append(f"Average{whose}: {', '.join(f'{name} {share:.0%}' for name, share in listed)}.")
            else:
                what = DESCRIPTIONS.get(part.name, repr(part.surrogate))
                lines.append(f"Surrogate{whose}: {part.name} ({what}).")
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
            f"residual error {q['residual_error']:.2f} of the variance{intervals}. "
            f"{trust(q['lds'], self.n_subsets, complete=self.is_complete)}"
        )


def fit(
    outcomes: Outcomes, *, estimates: Any = None, surrogate: Any = None, n_folds: int | None = 5, seed: int = 0
) -> Model:
    """Return a :class:`Model` of the outcomes: surrogates averaged by how well each predicts held-out runs.

    Parameters
    ----------
    outcomes : Outcomes
        Runs; rows with a missing outcome are used for the targets they have.
    estimates : Outcomes, Model, outcome function, or mapping of names to these, optional
        Estimates of the same targets for many more subsets, by something cheaper than a run. The runs are then the
        truth that estimates are held against, and few will do, or none. A Model is one fitted to estimates; an outcome
        function (`whence.TaskVectors`, `whence.OneStep`, …) makes its own, at the runs and at subsets like them.
    surrogate : scikit-learn regressor, optional
        Use this one instead of the average; it is still cross-validated.
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
        fusion = fusion_candidates(rungs, targets) if rungs else {}
        parts.append(_fit_part(table, targets, candidates, fusion, n_folds, seed))
    return Model(outcomes, tuple(parts), rungs)


def _fit_part(
    table: Outcomes,
    targets: NDArray[np.intp],
    candidates: Mapping[str, Any],
    fusion: Mapping[str, Any],
    n_folds: int | None,
    seed: int,
) -> Part:
    """Fit the candidates to complete runs and average them by how they cross-validate."""
    held = (
        None
        if n_folds is None
        else held_runs(table, n_folds, seed, fewest=FEWEST_TO_FUSE if fusion else FEWEST_TO_CHECK)
    )
    if held is None:
        name, candidate = _unchecked(candidates, fusion, len(targets))
        return Part(targets, fitted(candidate, table), name, ())
    every = {**fusion, **candidates}
    makers: dict[str, Callable[[Outcomes], Any]] = {SIZE_ONLY: SizeOnly.fit}
    makers.update({name: partial(_fitted_unseen, each) for name, each in every.items()})
    trials = {name: cross_validated(name, make, held) for name, make in track(list(makers.items()), "Cross-validating")}
    weights = np.ones((1, len(targets)))
    if len(every) > 1:
        trials[AVERAGE], weights = _averaged(AVERAGE, every, trials, held)
    if fusion:
        trials[TRUE_RUNS], _ = _averaged(TRUE_RUNS, candidates, trials, held)
    candidate = average_of(every, weights)
    name = AVERAGE if isinstance(candidate, AveragedSurrogate) else next(n for n, c in every.items() if c is candidate)
    return Part(targets, fitted(candidate, table), name, tuple(trials.values()))


def _unchecked(candidates: Mapping[str, Any], fusion: Mapping[str, Any], n_targets: int) -> tuple[str, Any]:
    """What to fit where nothing can be held out: estimates if there are any, else all candidates alike."""
    if fusion:
        return ESTIMATES, fusion[ESTIMATES]
    if len(candidates) == 1:
        return next(iter(candidates.items()))
    return AVERAGE, AveragedSurrogate(candidates, np.full((len(candidates), n_targets), 1 / len(candidates)))


def _averaged(name: str, members: Mapping[str, Any], trials: Mapping[str, Trial], held: Held) -> tuple[Trial, Array]:
    prior = np.array([PRIOR.get(member, 1.0) for member in members])
    return averaged_trial(name, [trials[member] for member in members], prior / prior.sum(), held)


def _fitted_unseen(candidate: Any, table: Outcomes) -> Any:
    """The candidate fitted to the table, for subsets that it must not know the estimates of either."""
    surrogate = fitted(candidate, table)
    return surrogate.unseen() if isinstance(surrogate, FusedSurrogate | RankFusedSurrogate) else surrogate


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
