"""Objectives: what is to be as good as possible, of one target or of several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whence.answers.search import objective_columns
from whence.errors import InputError
from whence.outcomes.checks import places
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

MEAN = "mean"


@dataclass(frozen=True, eq=False)
class Objective:
    """A number to maximise, made of the targets of a run.

    Targets of other units or directions are compared in standard deviations of the runs from their mean, each counted
    so that higher is better.

    Attributes
    ----------
    words : str
    columns : (C,)
        The targets it is made of.
    sign, scale, level, weights : (C,)
        Each target is first sign · (value − level) / scale, and then the weighted mean or the worst is taken.
    worst : bool
    shown : int
        What the objective is multiplied with where people see it: −1 for a mean that is to be minimised.
    """

    words: str
    columns: NDArray[np.intp]
    sign: Array
    scale: Array
    level: Array
    weights: Array
    worst: bool
    shown: int

    @property
    def is_mean(self) -> bool:
        """Whether it is the plain mean of its targets, in their own unit."""
        return not self.worst and bool((self.scale == 1).all())

    def of(self, values: Array) -> Array:
        """Return the objective (n,) of outcomes (n, T)."""
        good = self.sign * (values[:, self.columns] - self.level) / self.scale
        return np.asarray(good.min(1) if self.worst else good @ self.weights)

    def goodness(self, model: Model, risk: float) -> Callable[[Array], Array]:
        """Return the function from subsets to the objective of what is predicted, less ``risk`` std of every target."""
        asked = model.only(self.columns)

        def good(subsets: Array) -> Array:
            if not risk:
                return self.of(asked.predict_quietly(subsets))
            mean, std = asked.predict_quietly(subsets, return_std=True)
            if np.isnan(std[:, self.columns]).any():
                raise InputError(
                    "needs a predicted std, and this surrogate has none. Use {risk}.", parameter="risk", risk=0
                )
            mean[:, self.columns] -= risk * self.sign * std[:, self.columns]
            return self.of(mean)

        return good


def objective_of(
    model: Model, target: str | None, weights: Mapping[str, float] | None = None, worst: bool = False
) -> Objective:
    """Return the objective: a target, the mean of all (also "mean"), a weighted sum of some, or the worst of them."""
    if target is not None and (weights or worst):
        raise InputError(
            "Give {target} for one outcome, or {weights} or {worst} for several.", target=None, weights=None, worst=True
        )
    target = None if target == MEAN and MEAN not in model.target_names else target
    if not weights and not worst:
        columns, way = objective_columns(model, target)
        n = len(columns)
        name = model.target_names[int(columns[0])]
        words = f"predicted {name}" if n == 1 else f"mean prediction over {n} targets"
        one = np.ones(n)
        return Objective(words, columns, way * one, one, 0 * one, one / n, worst=False, shown=way)
    if weights:
        runs = model.outcomes
        weights = {name: weight for given, weight in weights.items() for name in runs.targets(given).target_names}
    names = list(weights or model.target_names)
    share = np.array(list((weights or dict.fromkeys(names, 1.0)).values()), dtype=np.float64)
    if not (np.isfinite(share) & (share > 0)).all():
        raise InputError("Weights of targets must be above 0, and finite. Leave out a target that does not count.")
    at = np.array(places(names, model.target_names, "target"), dtype=np.intp)
    sign = np.where(np.array(model.maximize)[at], 1.0, -1.0)
    values = model.outcomes.values[:, at]
    spread = np.nanstd(values, axis=0)
    of = ", ".join(names) if weights is None else ", ".join(f"{w:g} × {name}" for name, w in weights.items())
    words = f"the worst of {of}" if worst else f"the weighted mean of {of}"
    words += ", in standard deviations of the runs, higher is better"
    scale = np.where(spread > 0, spread, 1.0) / (share if worst else 1.0)
    return Objective(words, at, sign, scale, np.nanmean(values, axis=0), share / share.sum(), worst=worst, shown=1)
