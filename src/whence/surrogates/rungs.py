"""Rungs: cheap estimates as functions of the subset, learned from tables of them or from what makes them.

What :mod:`.fused` builds on. A table of estimates is a table of outcomes like any other, and is learned by the same
surrogates; having many rows, it is learned well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.designs import Bernoulli, FixedSize
from whence.errors import DataWarning, InputError, some_of
from whence.outcomes import Outcomes
from whence.outcomes.plan import ORIGIN
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.crossvalidation import CHOICE_RUNS
from whence.surrogates.kernels import Array
from whence.surrogates.mixture import Mixture
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate
from whence.surrogates.warp import RankScale

if TYPE_CHECKING:
    from whence.surrogates.model import Model

BLOCK_ROWS = 64
MOST_NAMED = 4  # targets that an error tells to keep
ROUNDING = 1e-5  # of the widest estimate, that sums in single precision may be off by
# How many subsets an outcome function is asked for: a number per task, within bounds.
SUBSETS_PER_TASK, FEWEST_SUBSETS, MOST_SUBSETS = 20, 200, 1000
# Fresh subsets at which the uncertainty of a rung is typical of new ones.
TYPICAL_SUBSETS = 64


@dataclass(frozen=True, eq=False)
class Rung:
    """One kind of estimates as a function of the subset: the surrogates learned from its table, target by target.

    ``level`` and ``spread`` (T,) are the mean and the standard deviation of what it expects of the subsets in its
    table, and ``signal`` (T,) says from 0 to 1 how clearly the estimates depend on the subset at all. A surrogate
    knows the subsets of its own table better than any others. An ``unseen`` rung predicts these as it would if their
    estimates had been held out, so that what is learned from them holds for new subsets.
    """

    name: str
    model: Model
    columns: NDArray[np.intp]  # (T,) of the targets in the model
    level: Array
    spread: Array
    signal: Array
    held: Mapping[bytes, Array]  # what was expected of each subset of the table when it was held out, for all targets
    typical: Array  # (T,) variance of expectations at new subsets like those of the table
    unseen: bool = False
    scale: RankScale | None = None  # of the estimates, where they are wanted as normal scores

    @classmethod
    def of(cls, name: str, model: Model, columns: NDArray[np.intp]) -> Rung:
        """Return the rung of a model fitted to estimates, for some of its targets."""
        expected = model.predict_quietly(model.outcomes.subsets)[:, columns]
        pairs = zip(model.outcomes.subsets + 0.0, model.held_out()[0], strict=True)
        held = {subset.tobytes(): predicted for subset, predicted in pairs}
        signal = _signal(model)[columns]
        rung = cls(name, model, columns, expected.mean(0), expected.std(0), signal, held, np.zeros(0))
        return replace(rung, typical=(rung.moments(_like(model))[1] ** 2).mean(0))

    def at(self, targets: NDArray[np.intp]) -> Rung:
        """Return the rung of some of the targets."""
        return replace(
            self,
            columns=self.columns[targets],
            level=self.level[targets],
            spread=self.spread[targets],
            signal=self.signal[targets],
            typical=self.typical[targets],
        )

    def on_ranks(self) -> Rung:
        """Return the rung of the same estimates as normal scores."""
        values = self.model.outcomes.values[:, self.columns]
        scale, _ = RankScale.learn(np.where(np.isnan(values), np.nanmedian(values, axis=0), values))
        ranked = replace(self, scale=scale)
        scores = ranked.predict(self.model.outcomes.subsets)
        typical = (ranked.moments(_like(self.model))[1] ** 2).mean(0)
        return replace(ranked, level=scores.mean(0), spread=scores.std(0), typical=typical)

    def predict(self, S: Array) -> Array:
        """Return the estimates (n, T) that are expected for subsets."""
        predicted = self._expected(S)
        return predicted if self.scale is None else self.scale.score(predicted)

    def _expected(self, S: Array) -> Array:
        predicted = np.asarray(self.model.predict_quietly(S)[:, self.columns])
        if self.unseen:
            for row, subset in enumerate(S + 0.0):
                held = self.held.get(subset.tobytes(), np.full(self.model.outcomes.n_targets, np.nan))[self.columns]
                predicted[row] = np.where(np.isnan(held), predicted[row], held)
        return predicted

    def moments(self, S: Array) -> Moments:
        """Return the estimates (n, T) that are expected, and how uncertain these expectations are."""
        mean, std = self._expected(S), np.empty((len(S), len(self.columns)))
        for start in range(0, len(S), BLOCK_ROWS):
            block = S[start : start + BLOCK_ROWS]
            std[start : start + BLOCK_ROWS] = self.contrast_std(block, np.eye(len(block)))
        if self.scale is None:
            return mean, std
        score = self.scale.score
        return score(mean), (score(mean + std) - score(mean - std)) / 2

    def remainder(self) -> Remainder | None:
        """Return what the estimates have beyond effects in closed form; None where that is nothing."""
        if all(part.surrogate.remainder() is None for part in self.model.parts):
            return None

        def own(surrogate: Surrogate, S: Array) -> Array:
            rest = surrogate.remainder()
            return np.zeros(1) if rest is None else rest(S)

        return lambda S: self._collect(lambda surrogate: own(surrogate, S), (len(S),))

    def mean_outcome(self, mixture: Mixture) -> Array:
        return self._collect(lambda surrogate: surrogate.mean_outcome(mixture), ())

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the effects of tasks or pairs on the estimates, and their std."""
        shape = (self.model.outcomes.n_tasks,) * order
        both = self._collect(lambda surrogate: np.stack(surrogate.effects(order, mixture)), (2, *shape))
        return both[0], both[1] * self._factor()

    def contrast_std(self, S: Array, contrasts: Array) -> Array:
        return self._collect(lambda s: s.contrast_std(S, contrasts), (len(contrasts),)) * self._factor()

    def correlation(self, S: Array) -> Array:
        """Return the posterior covariance between subsets (n, n), its diagonal being 1 on average."""
        found = self.model.covariance(S)[0]
        return found / max(float(np.diag(found).mean()), 1e-300)

    def only(self, targets: ArrayLike) -> Rung:
        """Return the rung that need not compute other targets than these."""
        return replace(self, model=self.model.only(self.columns[np.asarray(targets, np.intp)]))

    def export(self, places: Places) -> dict[str, Any] | None:
        """Return the estimates as plain data, with the table they were learned from; None where a page cannot.

        How uncertain a model of estimates is that was itself fused, a page cannot compute.
        """
        if self.unseen or self.model.rungs:
            return None
        table, wanted = self.model.outcomes, self.columns[places]
        surrogates = []
        for part in self.model.parts:
            own = np.flatnonzero(np.isin(part.targets, wanted))
            if not len(own):
                continue
            surrogate = part.surrogate.export(table.subsets, own)
            if surrogate is None:
                return None
            targets = [int(np.flatnonzero(wanted == t)[0]) for t in part.targets[own]]
            surrogates.append({"targets": targets, "factor": part.factor[own], **surrogate})
        subsets = table.subsets.astype(bool) if table.is_binary else table.subsets
        found = {"level": self.level[places], "model": {"subsets": subsets, "surrogates": surrogates}}
        if self.scale is not None:
            found["scale"] = {"scores": self.scale.scores[:, places].T, "outcomes": self.scale.outcomes[:, places].T}
        return found

    def _factor(self) -> Array:
        factor = np.ones(self.model.outcomes.n_targets)
        for part in self.model.parts:
            factor[part.targets] = part.factor
        return factor[self.columns]

    def _collect(self, compute: Callable[[Any], Array], shape: tuple[int, ...]) -> Array:
        """Collect ``compute(surrogate)`` of shape (…, targets of a part) into (…, T)."""
        out = np.full((*shape, self.model.outcomes.n_targets), np.nan)
        for part in self.model.parts:
            out[..., part.targets] = compute(part.surrogate)
        return out[..., self.columns]


def _signal(model: Model) -> Array:
    """How clearly outcomes depend on the subset (T,): from 0 where held-out ranks are at random, to 1."""
    signal = np.ones(model.outcomes.n_targets)
    for part in model.parts:
        if part.chosen is not None:
            # In standard errors of a rank correlation of unrelated numbers; one is nothing, four are clear.
            errors = np.nan_to_num(part.chosen.lds) * np.sqrt(len(part.chosen.runs))
            signal[part.targets] = np.clip((errors - 1) / 3, 0.0, 1.0)
    return signal


def _like(model: Model) -> Array:
    """New subsets like those that a model knows: parts of two of them, or mixtures halfway between."""
    rows, rng = model.subsets, np.random.default_rng(0)
    first, second = rng.integers(len(rows), size=(2, TYPICAL_SUBSETS))
    if not model.outcomes.is_binary:
        return np.asarray((rows[first] + rows[second]) / 2)
    return np.asarray(np.where(rng.random((TYPICAL_SUBSETS, rows.shape[1])) < 0.5, rows[first], rows[second]))


def learn_rungs(estimates: Any, truth: Outcomes, *, seed: int) -> tuple[Rung, ...]:
    """Return the rungs of what `whence.fit` is given as estimates, with the targets of the true runs.

    Parameters
    ----------
    estimates : Outcomes, Model, outcome function, or mapping of names to these
    truth : Outcomes
        The true runs, of which there may be none.
    seed : int
        Of cross-validation, and of the subsets that outcome functions are asked for.
    """
    from whence.surrogates.fit import fit
    from whence.surrogates.model import Model

    given = dict(estimates) if isinstance(estimates, Mapping) else {"estimates": estimates}
    if not given:
        raise InputError("There are no estimates in the mapping. Name at least one table, or leave 'estimates' out.")
    rungs = []
    for name, each in given.items():
        if isinstance(each, Model):
            _refuse_other(name, each.outcomes, truth)
            _refuse_model(name, each, truth)
            model = each
        else:
            table = each if isinstance(each, Outcomes) else _estimated(name, each, truth, seed)
            _refuse_other(name, table, truth)
            order = [table.task_names.index(task) for task in truth.task_names]
            table = replace(
                table.targets(truth.target_names), subsets=table.subsets[:, order], task_names=truth.task_names
            ).on_simplex()
            if table.n_runs > CHOICE_RUNS:
                # Too many to hold each of them out once: those of the true runs stay out altogether.
                run = {row.tobytes() for row in truth.subsets + 0.0}
                table = table.rows(np.array([row.tobytes() not in run for row in table.subsets + 0.0]))
            if flat := [name for name, own in zip(table.target_names, table.values.T, strict=True) if _is_flat(own)]:
                words = f"The {name} are the same for all subsets, so that they say nothing of: {some_of(flat)}."
                warnings.warn(words, DataWarning, stacklevel=3)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Targets with the same value in every run", DataWarning)
                model = _as_sum(table) or fit(table, seed=seed)
        columns = np.array([model.target_names.index(target) for target in truth.target_names])
        rungs.append(Rung.of(str(name), model, columns))
    return tuple(rungs)


def _is_flat(values: Array) -> bool:
    known = values[~np.isnan(values)]
    return len(known) > 1 and np.ptp(known) == 0


def _as_sum(table: Outcomes) -> Model | None:
    """Return the model of estimates that are a level and one number per task, as scores are; None of any others."""
    from whence.surrogates.fit import fit

    if table.n_runs <= table.n_tasks + 1 or np.isnan(table.values).any():
        return None
    centred = table.values - table.values.mean(0)
    subsets = table.subsets - table.subsets.mean(0)
    rest = centred - subsets @ np.linalg.lstsq(subsets, centred, rcond=None)[0]
    if np.abs(rest).max() > ROUNDING * np.abs(centred).max():
        return None
    return fit(table, surrogate=AdditiveSurrogate("ols"), n_folds=None)


def _refuse_other(name: str, table: Outcomes, truth: Outcomes) -> None:
    """Raise where estimates are not of the tasks and targets of the true runs."""
    if odd := sorted(set(table.task_names) ^ set(truth.task_names)):
        raise InputError(f"The {name} and the true runs must have the same tasks. They differ in: {some_of(odd)}.")
    if missing := [target for target in truth.target_names if target not in table.target_names]:
        shared = [target for target in truth.target_names if target in table.target_names]
        raise InputError(
            f"The {name} must have the targets of the true runs. There is no {some_of(missing)}, "
            f"only {some_of(table.target_names)}." + " Give {outcomes}." * (0 < len(shared) <= MOST_NAMED),
            outcomes=shared,
        )
    if not truth.n_runs and not table.is_binary:
        raise InputError(f"The {name} have mixture weights, and need at least one true run beside them.")
    if table.n_runs and table.is_binary != truth.is_binary:
        words = {True: "tasks in or out (0/1)", False: "mixture weights"}
        raise InputError(
            f"The {name} are of {words[table.is_binary]} and the true runs of {words[truth.is_binary]}. "
            "Both must be of one kind."
        )
    both = (part for part in ORIGIN.values() if part in table.provenance and part in truth.provenance)
    if differing := [part for part in both if table.provenance[part] != truth.provenance[part]]:
        told = f"The {name} are not of what the runs were trained with. These differ: {some_of(differing)}."
        warnings.warn(told, DataWarning, stacklevel=4)


def _refuse_model(name: str, model: Model, truth: Outcomes) -> None:
    """Raise where a model of estimates lacks what fusion needs of it."""
    if model.task_names != truth.task_names:
        raise InputError(f"The model of {name} has the tasks in another order than the runs. Give the table.")
    if odd := [part.name for part in model.parts if not isinstance(part.surrogate, Surrogate)]:
        raise InputError(f"A {odd[0]} predicts no std. Fit the {name} without 'surrogate'.")
    values = model.outcomes.targets(truth.target_names).values
    if empty := [truth.target_names[t] for t in np.flatnonzero(np.isnan(values).all(0))]:
        raise InputError(f"The model of {name} was fitted without any value of {some_of(empty)}. Give one that has.")


def _estimated(name: str, outcome_fn: Any, truth: Outcomes, seed: int) -> Outcomes:
    """Estimates at the true runs and at subsets like them, by an outcome function."""
    from whence.measuring import measure

    if not callable(outcome_fn) and not hasattr(outcome_fn, "batch"):
        raise InputError(
            f"The {name} must be a table of outcomes, a model fitted to one, or an outcome function. "
            f"Got {type(outcome_fn).__name__} instead."
        )
    if not truth.is_binary:
        raise InputError("Estimates of mixtures have to be given as a table: measure the mixtures that matter to you.")
    n_tasks = truth.n_tasks
    sizes = truth.subsets.sum(1)
    n = int(np.clip(SUBSETS_PER_TASK * n_tasks, FEWEST_SUBSETS, MOST_SUBSETS))
    if truth.n_runs and np.ptp(sizes) == 0:
        size = int(sizes[0])
        drawn = FixedSize(size).draw(n_tasks, min(n, comb(n_tasks, size)), seed=seed)
    else:
        keep_prob = float(np.clip(truth.subsets.mean(), 0.1, 0.9)) if truth.n_runs else 0.5
        drawn = Bernoulli(keep_prob).draw(n_tasks, min(n, 2**n_tasks - 1), seed=seed)
    subsets = np.unique(np.concatenate([truth.subsets, drawn]), axis=0)
    # An outcome function that names its tasks has them in an order of its own.
    names = list(getattr(outcome_fn, "task_names", None) or truth.task_names)
    if odd := sorted(set(names) ^ set(truth.task_names)):
        raise InputError(f"The {name} and the true runs must have the same tasks. They differ in: {some_of(odd)}.")
    own = subsets[:, [truth.task_names.index(task) for task in names]]
    return measure(outcome_fn, own, tasks=names, engine="inline", seed=seed, progress=False)
