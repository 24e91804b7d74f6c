"""The model: fitted surrogates together with the table they were fitted to, which every answer is read from."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.errors import DataWarning, InputError, some_of
from whence.evaluation import noise_ceiling
from whence.outcomes import Outcomes
from whence.outcomes.checks import check_weights
from whence.outcomes.simplex import near_totals, on_simplex
from whence.shown import Shown
from whence.surrogates.averaged import AVERAGE, AveragedSurrogate
from whence.surrogates.crossvalidation import Trial, mean_of_defined, predict_with_std
from whence.surrogates.kernels import Array
from whence.surrogates.protocol import Surrogate, as_surrogate
from whence.surrogates.range import Range, outside, warn_outside
from whence.surrogates.rank_fused import ESTIMATES, FUSED, RANK_FUSED
from whence.surrogates.rungs import Rung
from whence.surrogates.trust import UNCHECKED, trust, trust_in_estimates

TRUE_RUNS, COMPONENTS = "true runs alone", "shared components"
DESCRIPTIONS = {
    "additive": "tuned ridge regression: every task adds its own effect, no interactions",
    "kernel": "a Gaussian process over linear, pairwise, RBF and subset-size kernels with a relevance per task",
    "kernel on ranks": "a Gaussian process over linear, pairwise, RBF and subset-size kernels, on ranks of outcomes",
    FUSED: "estimates times a learned slope, plus a Gaussian process on what they leave over",
    RANK_FUSED: "the same on ranks of outcomes and estimates",
    ESTIMATES: "estimates, shifted and scaled to the true runs",
    COMPONENTS: "Gaussian processes of what the targets have in common, on ranks of outcomes",
    AVERAGE: "surrogates weighted by how well each predicts held-out runs",
}
SIZE_ONLY = "size only"
# Set by benchmarks/calibration.py, so that 90% intervals of Shapley values and pairs hold 90% over its worlds.
EFFECTS_WIDER, EFFECTS_FEW = 1.15, 6


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
        """What the std of a new run is multiplied with, (T,), so that intervals hold on held-out runs."""
        return np.ones(len(self.targets)) if self.chosen is None else self.chosen.factor

    @property
    def effect_factor(self) -> Array:
        """What the std of effects is multiplied with, (T,).

        Held-out runs show errors that scatter; those that a smooth surrogate makes alike everywhere add up in effects,
        the more so with few runs.
        """
        if self.chosen is None:
            return self.factor
        return np.asarray(self.factor * EFFECTS_WIDER * np.sqrt(1 + EFFECTS_FEW / len(self.chosen.runs)))


@dataclass(frozen=True)
class Model(Shown):
    """A fitted surrogate together with the table it was fitted to: what predictions and attributions are made from.

    ``print`` shows what it is made of and how far to trust it.

    Attributes
    ----------
    outcomes : Outcomes
        The runs.
    parts : tuple
        Fitted surrogates, each of some of the targets.
    rungs : tuple
        Estimates that it was fitted with.

    Examples
    --------
    >>> import whence
    >>> subsets = whence.Exhaustive().draw(4)
    >>> model = whence.fit(whence.Outcomes(subsets, subsets @ [1, 2, 0, -1], ["web", "code", "law", "ads"], ["loss"]))
    >>> model.predict([["web", "code"], ["ads"]]).round(2).tolist()
    [[3.0], [-1.0]]
    >>> model.quality()["lds"] > 0.9, model.quality()["noise_ceiling"]
    (True, nan)
    """

    outcomes: Outcomes
    parts: tuple[Part, ...]
    rungs: tuple[Rung, ...] = ()  # estimates that it was fitted with

    @property
    def subsets(self) -> Array:
        """The subsets (n, K) of runs and of estimates."""
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

    def unseen(self) -> Model:
        """Return the model as it would predict subsets whose estimates had been held out with their runs."""
        parts = (
            replace(part, surrogate=part.surrogate.unseen()) if isinstance(part.surrogate, Surrogate) else part
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

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
        """Return subsets as an array (n, K), whether given as numbers, a DataFrame, weights by name or task names.

        Weights of a mixture are scaled to the total of the runs, which is 1 for shares and percent; a warning says so
        where they had another total.
        """
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
            given = [given] if given and np.isscalar(given[0]) else given
            self._refuse_names(given)
            rows = np.array([self.outcomes.subset(one) for one in given]).reshape(-1, self.outcomes.n_tasks)
        if rows.shape[1] != self.outcomes.n_tasks:
            raise InputError(
                f"Subsets must have one column per task ({self.outcomes.n_tasks}). Got {rows.shape[1]} instead."
            )
        check_weights(rows, self.task_names)
        return self._on_simplex(rows) if self.outcomes.is_mixture else rows

    def _refuse_names(self, given: list[Any]) -> None:
        """Raise where weights are needed and names alone are given."""
        for one in given if not self.outcomes.is_binary and self.outcomes.n_runs else ():
            names = [one] if isinstance(one, str) else [] if isinstance(one, Mapping) else list(one)
            if names and all(isinstance(name, str) for name in names):
                raise InputError(f"This table has mixture weights: give them, as in {{{names[0]!r}: 0.7, …}}.")

    def _on_simplex(self, rows: Array) -> Array:
        totals = rows.sum(1)
        if not totals.all():
            raise InputError("The weights of a mixture must not all be 0.")
        usual = float(np.median(self.outcomes.subsets.sum(1)))
        if (odd := ~near_totals(totals, of=(usual, 100.0 * usual))).any():
            which = f"row {np.flatnonzero(odd)[0]}" if len(rows) > 1 else "the mixture"
            warnings.warn(
                f"The weights of {which} sum to {totals[odd][0]:.4g}, and are scaled to sum to {usual:.4g}.",
                DataWarning,
                stacklevel=4,
            )
        return rows if np.allclose(totals, usual, rtol=1e-12, atol=0) else usual * on_simplex(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, without pickle; `whence.load` reads it."""
        from whence.surrogates.saving import save

        save(self, path)

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
        """Return cross-validated scores (means over targets) of the chosen surrogate and of what it has to beat.

        Between ``lds_low`` and ``lds_high`` lies the rank correlation on new runs in four of five cases.
        """

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
        checked = [(len(part.targets), part.chosen.interval.mean) for part in self.parts if part.chosen is not None]
        ends = np.array([mean for _, mean in checked]).reshape(-1, 2)
        low, high = np.average(ends, axis=0, weights=[n for n, _ in checked]) if checked else (np.nan, np.nan)
        return {
            "lds": pooled("lds"),
            "lds_low": float(low),
            "lds_high": float(high),
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
                shares = {name: float(share.mean()) for name, share in part.weights.items() if share.mean() >= 0.005}
                listed = sorted(shares.items(), key=lambda item: -item[1])
                lines.append(f"Average{whose}: {', '.join(f'{name} {share:.0%}' for name, share in listed)}.")
            else:
                what = f"{part.name} ({DESCRIPTIONS[part.name]})" if part.name in DESCRIPTIONS else repr(part.surrogate)
                lines.append(f"Surrogate{whose}: {what}.")
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
            f"On held-out runs: rank correlation {q['lds']:.2f} (on new runs probably {q['lds_low']:.2f} to "
            f"{q['lds_high']:.2f}; {beside}), "
            f"residual error {q['residual_error']:.2f} of the variance{intervals}. "
            f"{trust(q['lds'], self.n_subsets, error=q['residual_error'], complete=self.is_complete)}"
        )
