"""Pareto front: the trade-offs between targets from which nothing can be gained without losing something else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whence.answers.effects import as_model
from whence.answers.objective import objective_of
from whence.answers.selection import field_of
from whence.errors import InputError
from whence.shown import Shown
from whence.surrogates.kernels import Array

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 2000  # of mixtures, for each of many searches
STEPS = {2: 8, 3: 4}  # how finely the weights of so many targets are spread; more targets: 2
LIMITS = ("size", "max_size", "costs", "budget", "include", "exclude", "bounds", "total", "available")


@dataclass(frozen=True, eq=False)
class Front(Shown):
    """Subsets (n, K) of which none is predicted to be better in all targets, best first in the first of them.

    Attributes
    ----------
    subsets : (n, K)
    predicted, std : (n, T)
        For all targets of the model.
    targets : tuple of str
        Those that are traded against each other.
    """

    subsets: Array
    predicted: Array
    std: Array
    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    maximize: tuple[bool, ...]
    targets: tuple[str, ...]
    how: str

    def to_frame(self) -> pd.DataFrame:
        """Return one row per subset: a column per task, then the predicted targets."""
        import pandas as pd

        frame = pd.DataFrame(self.subsets, columns=list(self.task_names))
        for name in self.targets:
            frame[f"predicted {name}"] = self.predicted[:, self.target_names.index(name)]
        return frame

    def __str__(self) -> str:
        return f"best trade-offs between {', '.join(self.targets)}:\n{self.to_frame().to_string(index=False)}"


def pareto(
    model: Any,
    *,
    targets: str | Iterable[str] | None = None,
    risk: float = 0.0,
    extrapolate: bool = False,
    seed: int = 0,
    **constraints: Any,
) -> Front:
    """Return the best trade-offs between targets, by predicted outcome.

    Found by optimising many weightings of the targets, of their mean and of the one that does worst.

    Parameters
    ----------
    model : Model
    targets : sequence of str, optional
        Targets to trade against each other; by default all.
    risk, extrapolate, seed, **constraints
        As for `whence.select`: ``size``, ``max_size``, ``costs``, ``budget``, ``include``, ``exclude``, ``bounds``,
        ``total``, ``available``.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(3)
    >>> runs = whence.Outcomes(S, S[:, :2] - S[:, 1::-1] / 2, list("abc"), ["x", "y"], maximize=True)
    >>> front = pareto(whence.fit(runs, surrogate=whence.AdditiveSurrogate("ols")), exclude=["c"])
    >>> front.subsets.astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 0]]
    """
    model = as_model(model)
    if unknown := [name for name in constraints if name not in LIMITS]:
        raise InputError(f"There is no parameter '{unknown[0]}' of pareto. Constraints are: {', '.join(LIMITS)}.")
    names = list(model.target_names if targets is None else model.outcomes.targets(targets).target_names)
    if len(names) < 2:
        raise InputError("A trade-off needs at least two targets. For one target, use select.")
    limits = {"include": (), "exclude": ()} | dict.fromkeys(LIMITS[:4] + LIMITS[6:]) | constraints
    field = field_of(model, limits, extrapolate, DRAWS)
    steps = STEPS.get(len(names), 2)
    shares = [share for share in product(range(steps + 1), repeat=len(names)) if sum(share) == steps]
    if len(names) > 6:
        shares = [tuple(steps * int(name == other) for other in names) for name in names]
    found = []
    for share in shares:
        weights = {name: weight for name, weight in zip(names, share, strict=True) if weight}
        for worst in (False, True) if len(weights) > 1 else (False,):
            objective = objective_of(model, None, weights, worst)
            found.append(field.best(objective, risk, seed)[0])
    subsets = np.unique(np.array(found).round(12), axis=0)
    predicted, std = model.predict_quietly(subsets, return_std=True)
    goal = objective_of(model, None, dict.fromkeys(names, 1.0))
    good = goal.sign * predicted[:, goal.columns]
    keep = np.flatnonzero(~_dominated(good))
    keep = keep[np.argsort(-good[keep, 0], kind="stable")]
    return Front(
        subsets[keep],
        predicted[keep],
        std[keep],
        model.task_names,
        model.target_names,
        model.maximize,
        tuple(names),
        f"the best of {len(found)} weightings of the targets",
    )


def _dominated(good: Array) -> NDArray[np.bool_]:
    """Which rows (n, T), higher being better, another row is at least as good as in all targets, and better in one."""
    rounding = 1e-9 * abs(good).max(0)  # differences this small are none
    atleast = (good[:, None] >= good[None] - rounding).all(2)
    better = (good[:, None] > good[None] + rounding).any(2)
    return np.asarray((atleast & better).any(0))
