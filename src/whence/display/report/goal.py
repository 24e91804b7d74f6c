"""A mean of targets as one more target of a page.

It is what `whence.select` optimises for several targets. Predictions and effects of a surrogate are linear in the
outcomes, so the mean of predictions has the mean of the effects. How the errors of targets correlate is unknown: stds
are added as if fully correlated, and held-out runs then show by how much they are too wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whence.answers.objective import MEAN, Objective, objective_of
from whence.answers.optimism import expected_of_chosen
from whence.answers.selection import Selection, select
from whence.errors import InputError
from whence.outcomes import Outcomes
from whence.surrogates.crossvalidation import FEWEST_TO_CHECK, Held, Trial, predict_with_std, trial
from whence.surrogates.kernels import Array
from whence.surrogates.mixture import Mixture
from whence.surrogates.model import Model, Part
from whence.surrogates.protocol import Moments, Places, Remainder, Surrogate, as_surrogate

WEIGHTED = "weighted mean"
MOST_TARGETS = 60  # a search asks for the predictions of all of them


class MeanOfTargets(Surrogate):
    """A weighted sum of the targets of fitted surrogates, plus an offset."""

    def __init__(self, parts: tuple[Part, ...], coef: Array, offset: float) -> None:
        self.parts = parts
        self.coef = coef  # (T,) of all targets
        self.offset = offset

    @cached_property
    def members_(self) -> dict[str, Surrogate]:
        return {str(at): as_surrogate(part.surrogate, len(part.targets)) for at, part in enumerate(self.parts)}

    def fit(self, X: object, y: object) -> MeanOfTargets:
        """Return self: its parts are fitted already."""
        return self

    def _mean(self, of: Callable[[Surrogate], Array]) -> Array:
        return self._sum([of(member) for member in self.members_.values()], self.coef)

    def _std(self, of: Callable[[Surrogate], Array]) -> Array:
        wide = zip(self.members_.values(), self.parts, strict=True)
        return self._sum([of(member) * part.factor for member, part in wide], np.abs(self.coef))

    def _sum(self, found: Sequence[Array], coef: Array) -> Array:
        return np.asarray(sum(own @ coef[part.targets] for own, part in zip(found, self.parts, strict=True)))[..., None]

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the mean of the predictions (n, 1); with ``return_std`` also that of the stds of a new run."""
        S = np.asarray(X, np.float64)
        mean = self.offset + self._mean(lambda member: member.predict(S).reshape(len(S), -1))
        return (mean, self._std(lambda member: predict_with_std(member, S)[1])) if return_std else mean

    def effects(self, order: int, mixture: Mixture) -> Moments:
        """Return the means of the effects and of their stds."""
        found = {member: member.effects(order, mixture) for member in self.members_.values()}
        return self._mean(lambda member: found[member][0]), self._std(lambda member: found[member][1])

    def mean_outcome(self, mixture: Mixture) -> Array:
        """Return the mean of the expected outcomes."""
        return self.offset + self._mean(lambda member: member.mean_outcome(mixture))

    def remainder(self) -> Remainder | None:
        """Return the mean of the remainders; None if no surrogate has any."""
        rests = [member.remainder() for member in self.members_.values()]
        if not any(rests):
            return None
        return lambda S: self._sum(
            [
                np.zeros((len(S), len(part.targets))) if rest is None else rest(S)
                for rest, part in zip(rests, self.parts, strict=True)
            ],
            self.coef,
        )

    def contrast_std(self, X: ArrayLike, contrasts: Array) -> Array:
        """Return the mean of the stds."""
        return self._std(lambda member: member.contrast_std(X, contrasts))

    def covariance(self, X: ArrayLike) -> tuple[Array, float]:
        """Raise: runs are planned by the targets themselves."""
        raise InputError("A mean of targets has no covariance of its own.")

    def export(self, subsets: Array, places: Places) -> dict[str, object]:
        """Return which targets it is made of, whose surrogates the page has, and how."""
        columns = np.flatnonzero(self.coef)
        return {"kind": "mean", "columns": columns.tolist(), "coef": self.coef[columns], "offset": self.offset}


def goal_of(model: Model, weights: Mapping[str, float] | None = None) -> Objective | None:
    """Return the mean that a page shows next to its targets: weighted, or plain; None if there is none.

    There is none for a single target, for targets with different directions, for very many, if hardly any run has all
    targets, or if a target or a task has its name; "mean/loss" is a mean as well.
    """
    taken = {*model.target_names, *model.task_names, *(name.split("/")[0] for name in model.target_names)}
    if weights and WEIGHTED in taken:
        raise InputError(f"A page with weights of targets names their mean {WEIGHTED!r}. Rename that column.")
    several = 1 < len(model.target_names) <= MOST_TARGETS and len(set(model.maximize)) == 1 and MEAN not in taken
    if not weights and not several:
        return None
    found = objective_of(model, None, weights)
    known = np.isfinite(found.of(model.outcomes.values)).sum()
    if weights and known < FEWEST_TO_CHECK:
        raise InputError(f"A weighted mean needs runs with all of its outcomes. Got {known}.")
    return found if known >= FEWEST_TO_CHECK else None


def with_goal(model: Model, goal: Objective) -> Model:
    """Return the model with the mean as its last target."""
    runs = model.outcomes
    coef = np.zeros(runs.n_targets)
    coef[goal.columns] = goal.shown * goal.weights * goal.sign / goal.scale
    parts = tuple(part for part in model.parts if coef[part.targets].any())
    mean = MeanOfTargets(parts, coef, -float(coef[goal.columns] @ goal.level))
    name = MEAN if goal.is_mean else WEIGHTED
    extended = replace(
        runs,
        values=np.column_stack([runs.values, goal.shown * goal.of(runs.values)]),
        target_names=(*runs.target_names, name),
        maximize=(*runs.maximize, goal.shown > 0),
    )
    chosen = parts[0].name if len({part.name for part in parts}) == 1 else name
    last = Part(np.array([runs.n_targets]), mean, chosen, _trials(extended, mean, chosen, not model.rungs))
    return replace(model, outcomes=extended, parts=(*model.parts, last))


def selection_for_goal(model: Model, shown: Model, weights: Mapping[str, float] | None, seed: int) -> Selection:
    """Return what `whence.select` chooses for the mean, with what to expect of the mean as the last target."""
    found = select(model, weights=weights, seed=seed)
    predicted, std = shown.predict_quietly(found.subset[None], return_std=True)
    expected, low, high = expected_of_chosen(shown, found.subset)
    return replace(found, predicted=predicted[0], std=std[0], expected=expected, low=low, high=high)


def _trials(extended: Outcomes, mean: MeanOfTargets, chosen: str, alone: bool) -> tuple[Trial, ...]:
    """What every candidate that all parts have tried said of the mean of runs that were held out."""
    tried = [{one.name: one for one in part.trials} for part in mean.parts]
    asked = {name: [own.get(name) for own in tried] for name in tried[0]}
    asked[chosen] = [part.chosen for part in mean.parts]
    found = (_trial(name, extended, mean, [one for one in tried if one], alone) for name, tried in asked.items())
    return tuple(one for one in found if one is not None)


def _trial(name: str, extended: Outcomes, mean: MeanOfTargets, tried: list[Trial], alone: bool) -> Trial | None:
    """The trial of a mean; None if some part lacks one, or too few runs were held out in all."""
    if len(tried) < len(mean.parts):
        return None
    # The runs that trials count, among all.
    columns = [extended.values[:, at] for at in (*(int(part.targets[0]) for part in mean.parts), -1)]
    (*firsts, own) = (np.flatnonzero(~np.isnan(column)) for column in columns)
    rows = [first[one.runs] for first, one in zip(firsts, tried, strict=True)]
    common = reduce(np.intersect1d, [*rows, own])
    if len(np.unique(extended.subsets[common], axis=0)) < FEWEST_TO_CHECK:
        return None
    at = [np.searchsorted(each, common) for each in rows]
    said = mean.offset + mean._sum([one.predicted[i] for one, i in zip(tried, at, strict=True)], mean.coef)
    std = mean._sum([(one.std * one.factor)[i] for one, i in zip(tried, at, strict=True)], np.abs(mean.coef))
    folds = np.unique(tried[0].folds[at[0]], return_inverse=True)[1].ravel()
    table = extended.rows(common).targets(extended.target_names[-1])
    return trial(name, Held(table, folds, np.searchsorted(own, common), alone), said, std, 0.0)
