"""Selection: the subset to use, by predicted outcome under constraints.

Exact where that is feasible (all subsets tried, or a mixed-integer program for additive surrogates), otherwise greedy
additions, removals and swaps from several starts; the result says which. It stays inside the range of the runs. What
the chosen subset is really worth is in :mod:`whence.answers.optimism`, what to measure next in
:mod:`whence.answers.suggestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.answers.attribution import attribute
from whence.answers.constraints import Constraints, constraints_of, mixtures_of
from whence.answers.effects import as_model
from whence.answers.objective import Objective, objective_of
from whence.answers.optimism import expected_of_chosen
from whence.answers.search import search
from whence.designs.mixtures import best_mixture
from whence.errors import InputError
from whence.outcomes.subset import in_words
from whence.shown import Shown
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model
from whence.surrogates.range import Range, outside, warn_outside

if TYPE_CHECKING:
    import pandas as pd

MOST_RISK = 1e6


@dataclass(frozen=True)
class Selection(Shown):
    """The chosen subset, what is predicted for it, and what it is compared with.

    Attributes
    ----------
    subset : (K,)
        0/1, or weights for mixtures.
    tasks : tuple of str
        The names of the tasks in it.
    predicted, std : (T,)
        Predicted outcome of every target, and the std of a new run, as for any other subset.
    expected, low, high : (T,)
        The outcome to expect of a subset that was chosen as the best of many, corrected by how such
        predictions turned out on held-out runs, and the 90% interval of a new run of it.
    objective : str
        What was optimised, in words.
    value, best_run : float
        The objective for this subset, and for the best measured run that meets the constraints (NaN if none does).
    how : str
        How the search was done.
    """

    subset: Array
    tasks: tuple[str, ...]
    predicted: Array
    std: Array
    expected: Array
    low: Array
    high: Array
    target_names: tuple[str, ...]
    objective: str
    value: float
    best_run: float
    how: str

    @property
    def in_words(self) -> str:
        """The chosen tasks, of a mixture with their weights, the largest first."""
        weights = self.subset[self.subset > 0]
        if (weights == 1).all():
            return ", ".join(self.tasks) or "(no task)"
        return in_words(weights, self.tasks, binary=False)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per target: what is predicted for the chosen subset, and what to expect."""
        import pandas as pd

        columns = ("predicted", "std", "expected", "low", "high")
        return pd.DataFrame({"target": self.target_names, **{name: getattr(self, name) for name in columns}})

    def __str__(self) -> str:
        lines = [
            self.in_words,
            f"  {self.objective}: {self.value:.6g}; {self.how}",
        ]
        if not np.isnan(self.best_run):
            lines.append(f"  best measured run that meets the constraints: {self.best_run:.6g}")
        columns = (self.target_names, self.predicted, self.expected, self.low, self.high)
        for name, mean, expected, low, high in list(zip(*columns, strict=True))[:10]:
            lines.append(f"  {name}: predicted {mean:.6g}; expect {expected:.6g} (90% of runs {low:.6g} to {high:.6g})")
        return "\n".join(lines)


def select(
    model: Any,
    *,
    size: int | None = None,
    max_size: int | None = None,
    costs: Mapping[str, float] | None = None,
    budget: float | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
    total: float | None = None,
    available: Mapping[str, float] | None = None,
    target: str | None = None,
    weights: Mapping[str, float] | None = None,
    worst: bool = False,
    risk: float = 0.0,
    by: str = "prediction",
    extrapolate: bool = False,
    seed: int = 0,
) -> Selection:
    """Return the best subset under constraints, by predicted outcome.

    By default it stays within the range of the runs: no more and no fewer tasks than they have, no task that no run
    had, and every task that all runs had; for mixtures, an average of some of the runs. Constraints that lead outside
    are obeyed, with a warning.

    Parameters
    ----------
    model : Model, or a fitted surrogate
    size, max_size : int, optional
        The exact or the largest number of tasks (in a mixture: sources with weight). At least one is always chosen.
    costs, budget : mapping from task to cost, float
        The chosen tasks cost at most the budget; a task without a cost is free. A source of a mixture costs its weight
        times its cost, or with ``total`` its tokens times the cost per token.
    include, exclude : iterable of str
        Tasks that must, or must not, be in. An included source gets at least a hundredth of a mixture.
    bounds : mapping from source to (least, most), optional
        Bounds on the weights of a mixture, as shares or percent.
    total, available : float, mapping from source to float
        Total tokens, and tokens available in each source, which limit its weight.
    target : str, optional
        The target to optimise; the mean over all targets if not given, or "mean" (they must then agree on direction).
    weights : mapping from target to weight, optional
        Optimise the weighted mean of these targets instead, each in standard deviations of the runs.
    worst : bool
        Optimise the target that does worst, in standard deviations of the runs.
    risk : float
        Optimise the prediction minus ``risk`` standard deviations (plus, where lower is better).
    by : {"prediction", "attribution"}
        "attribution" takes the ``size`` tasks with the best inclusion scores, as in the paper.
    extrapolate : bool
        Consider subsets outside the range of the runs as well.
    seed : int
        Random starts of the search, where not all subsets can be tried.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> runs = whence.Outcomes(subsets=S, values=S[:, 0] + S[:, 1] - S[:, 2], task_names=list("abcd"), maximize=True)
    >>> select(whence.fit(runs), size=2).tasks
    ('a', 'b')
    """
    model = as_model(model)
    if not 0 <= risk <= MOST_RISK:
        more = "zero or more" if not risk > 0 else f"at most {MOST_RISK:g}, where the prediction hardly counts"
        raise InputError(f"must be {more}. Got {risk} instead.", parameter="risk", of="select")
    if by not in ("prediction", "attribution"):
        raise InputError(f"The 'by' parameter of select must be 'prediction' or 'attribution'. Got {by!r} instead.")
    objective = objective_of(model, target, weights, worst)
    limits: dict[str, Any] = {"size": size, "max_size": max_size, "costs": costs, "budget": budget}
    limits |= {"include": include, "exclude": exclude, "bounds": bounds, "total": total, "available": available}
    field = field_of(model, limits, extrapolate)
    if by == "attribution":
        chosen, how = _top_by_attribution(model, field, size, objective), "the tasks of best inclusion score"
    else:
        chosen, how = field.best(objective, risk, seed)
    return _result(model, chosen, objective, risk, how, field.allow(model.outcomes.subsets))


class Field(NamedTuple):
    """What may be chosen: which rows are allowed, and the search for the best of them."""

    allow: Callable[[Array], Any]  # (n, K) to (n,) bool
    best: Callable[[Objective, float, int], tuple[Array, str]]
    constraints: Constraints | None  # on subsets; None for mixtures


def field_of(model: Model, limits: Mapping[str, Any], extrapolate: bool, draws: int | None = None) -> Field:
    """Return what constraints allow, inside the range of the runs unless one is to extrapolate.

    Every search for the best mixture starts from ``draws`` random ones.
    """
    span = None if extrapolate else model.range
    if not model.outcomes.is_binary:
        return _mixtures(model, span, limits, draws)
    limits = dict(limits)
    shares = [limits.pop(name) for name in ("bounds", "total", "available")]
    if any(value is not None for value in shares):
        raise InputError("Bounds, a total and available tokens are for mixtures; in these runs tasks are in or out.")
    return _subsets(model, span, limits)


def _subsets(model: Model, span: Range | None, limits: Mapping[str, Any]) -> Field:
    constraints = constraints_of(model.outcomes, **limits)
    constraints = constraints if span is None else constraints.within(span)

    def best(objective: Objective, risk: float, seed: int) -> tuple[Array, str]:
        # The exact search of additive effects is for a mean of targets, and not for what is no sum.
        target = None if len(objective.columns) > 1 else model.target_names[int(objective.columns[0])]
        curved = risk if objective.is_mean else 1.0
        return search(model, objective.goodness(model, risk), constraints, target, curved, seed)

    return Field(constraints.allow, best, constraints)


def _mixtures(model: Model, span: Range | None, limits: Mapping[str, Any], draws: int | None) -> Field:
    """The field of mixtures; weights of other totals are searched at their usual one."""
    unit = float(np.median(model.subsets.sum(1)))
    scaled = None if span is None else replace(span, least=span.least / unit, most=np.minimum(span.most / unit, 1))
    polytope = mixtures_of(model.outcomes, scaled, **limits)

    def best(objective: Objective, risk: float, seed: int) -> tuple[Array, str]:
        goodness = objective.goodness(model, risk)
        rng = np.random.default_rng(seed)
        chosen, how = best_mixture(
            lambda rows: goodness(unit * rows),
            model.subsets / unit,
            polytope,
            rng,
            between=span is not None,
            draws=draws,
        )
        return unit * chosen, how

    return Field(lambda rows: polytope.allow(rows / unit), best, None)


def _top_by_attribution(model: Model, field: Field, size: int | None, objective: Objective) -> Array:
    constraints = field.constraints
    if constraints is None:
        raise InputError("Selecting with {by} is for tasks that are in or out, not for mixtures.", by="attribution")
    if size is None or np.isfinite(constraints.budget):
        raise InputError(
            "Selecting by attribution takes the best tasks up to a size: give {size}, and no {budget}.",
            size=None,
            budget=None,
        )
    scores = (objective.sign * attribute(model, "inclusion").scores[:, objective.columns] / objective.scale).mean(1)
    scores[constraints.include == 1] = np.inf
    scores[constraints.exclude == 1] = -np.inf
    chosen = np.zeros(len(scores))
    chosen[np.argsort(-scores, kind="stable")[:size]] = 1
    return chosen


def _result(model: Model, subset: Array, objective: Objective, risk: float, how: str, allowed_runs: Array) -> Selection:
    predicted, std = model.predict_quietly(subset[None], return_std=True)
    warn_outside(outside(model, subset[None], std), stacklevel=4)
    expected, low, high = expected_of_chosen(model, subset)
    measured = objective.of(model.outcomes.values[allowed_runs])
    measured = measured[~np.isnan(measured)]
    value = objective.goodness(model, risk)(subset[None])[0]
    return Selection(
        subset=subset,
        tasks=tuple(model.outcomes.names_of(subset)),
        predicted=predicted[0],
        std=std[0],
        expected=expected,
        low=low,
        high=high,
        target_names=model.target_names,
        objective=objective.words + (f" less {risk:g} std" if risk else ""),
        value=float(objective.shown * value),
        best_run=float(objective.shown * measured.max()) if len(measured) else np.nan,
        how=how,
    )
