"""Selection: the subset to use, by predicted outcome under constraints.

Exact where that is feasible (all subsets tried, or a mixed-integer program for additive surrogates), otherwise greedy
additions, removals and swaps from several starts; the result says which. It stays inside the range of the runs. What
the chosen subset is really worth is in :mod:`whence.answers.optimism`, what to measure next in
:mod:`whence.answers.suggestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.answers.attribution import attribute
from whence.answers.constraints import Constraints, constraints_of, mask_of
from whence.answers.effects import as_model
from whence.answers.optimism import expected_of_chosen
from whence.answers.search import objective_columns, search
from whence.designs.mixtures import best_mixture
from whence.errors import InputError
from whence.shown import Shown
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model
from whence.surrogates.range import outside, warn_outside

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
        What to act on: the outcome to expect of a subset that was chosen as the best of many, corrected by how such
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

    def __str__(self) -> str:
        lines = [
            f"{', '.join(self.tasks) or '(no task)'}",
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
    target: str | None = None,
    risk: float = 0.0,
    by: str = "prediction",
    extrapolate: bool = False,
    seed: int = 0,
) -> Selection:
    """Return the best subset under constraints, by predicted outcome.

    Unless told otherwise, it is one like the runs: with no more and no fewer tasks than they have (or as much weight,
    in all and of each task), none that no run had, and all that every run had. Constraints that ask for another one are
    obeyed, with a warning.

    Parameters
    ----------
    model : Model, or a fitted surrogate
    size, max_size : int, optional
        Exactly, or at most, so many tasks. At least one task is always chosen.
    costs, budget : mapping from task to cost, float
        The chosen tasks may cost at most the budget; a task without a cost is free.
    include, exclude : iterable of str
        Tasks that must, or must not, be in.
    target : str, optional
        The target to optimise; the mean over all targets if not given (they must then agree on the direction).
    risk : float
        Optimise the prediction less ``risk`` standard deviations (in the unfavourable direction).
    by : {"prediction", "attribution"}
        "attribution" takes the ``size`` tasks of best inclusion score, as in the paper.
    extrapolate : bool
        Consider subsets outside the range of the runs as well.
    seed : int
        Of the random starts, where not all subsets can be tried.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> runs = whence.Outcomes(subsets=S, values=S[:, 0] + S[:, 1] - S[:, 2], task_names=list("abcd"), maximize=True)
    >>> select(whence.fit(runs), size=2).tasks
    ('a', 'b')
    """
    model = as_model(model)
    goodness, objective = _objective(model, target, risk)
    if not model.outcomes.is_binary:
        if any(v is not None for v in (size, max_size, costs, budget)) or by == "attribution" or tuple(include):
            raise InputError(
                "Mixture weights can be selected with exclude, target and risk only: sizes, costs, include and "
                "{by} are about tasks that are in or out.",
                by="attribution",
            )
        excluded = mask_of(model.outcomes, exclude)
        if excluded.all():
            raise InputError("Every task is excluded. Leave at least one in.")
        bounds = None if extrapolate or model.range is None else (model.range.least, model.range.most)
        chosen, how = best_mixture(goodness, model.subsets, excluded, np.random.default_rng(seed), bounds)
        allowed = (model.outcomes.subsets[:, excluded == 1] == 0).all(1)
    else:
        constraints = constraints_of(model.outcomes, size, max_size, costs, budget, include, exclude)
        if model.range is not None and not extrapolate:
            constraints = constraints.within(model.range)
        if by == "attribution":
            chosen = _top_by_attribution(model, constraints, size, target)
            how = "the tasks of best inclusion score"
        elif by == "prediction":
            chosen, how = search(model, goodness, constraints, target, risk, seed)
        else:
            raise InputError(f"The 'by' parameter of select must be 'prediction' or 'attribution'. Got {by!r} instead.")
        allowed = constraints.allow(model.outcomes.subsets)
    return _result(model, chosen, goodness, objective, how, allowed, target)


def _objective(model: Model, target: str | None, risk: float) -> tuple[Callable[[Array], Array], str]:
    """A function from subsets to what is to be maximised, and its name in words."""
    if not 0 <= risk <= MOST_RISK:
        more = "zero or more" if not risk > 0 else f"at most {MOST_RISK:g}, where the prediction hardly counts"
        raise InputError(f"must be {more}. Got {risk} instead.", parameter="risk", of="select")
    columns, sign = objective_columns(model, target)
    name = target if target is not None else model.target_names[0]
    words = f"predicted {name}" if len(columns) == 1 else f"mean prediction over {len(columns)} targets"
    if risk:
        words += f" less {risk:g} std"

    asked = model.only(columns)

    def goodness(subsets: Array) -> Array:
        if not risk:
            return np.asarray(sign * asked.predict_quietly(subsets)[:, columns].mean(1))
        mean, std = asked.predict_quietly(subsets, return_std=True)
        if np.isnan(std[:, columns]).any():
            raise InputError(
                "needs a predicted std, and this surrogate has none. Use {risk}.", parameter="risk", risk=0
            )
        return np.asarray(sign * mean[:, columns].mean(1) - risk * std[:, columns].mean(1))

    return goodness, words


def _top_by_attribution(model: Model, constraints: Constraints, size: int | None, target: str | None) -> Array:
    if size is None or np.isfinite(constraints.budget):
        raise InputError(
            "Selecting by attribution takes the best tasks up to a size: give {size}, and no {budget}.",
            size=None,
            budget=None,
        )
    columns, sign = objective_columns(model, target)
    scores = sign * attribute(model, "inclusion").scores[:, columns].mean(1)
    scores[constraints.include == 1] = np.inf
    scores[constraints.exclude == 1] = -np.inf
    chosen = np.zeros(len(scores))
    chosen[np.argsort(-scores, kind="stable")[:size]] = 1
    return chosen


def _result(
    model: Model,
    subset: Array,
    goodness: Callable[[Array], Array],
    objective: str,
    how: str,
    allowed_runs: Array,
    target: str | None,
) -> Selection:
    columns, sign = objective_columns(model, target)
    predicted, std = model.predict_quietly(subset[None], return_std=True)
    warn_outside(outside(model, subset[None], std), stacklevel=4)
    expected, low, high = expected_of_chosen(model, subset)
    measured = sign * model.outcomes.values[allowed_runs][:, columns].mean(1)
    measured = measured[~np.isnan(measured)]
    return Selection(
        subset=subset,
        tasks=tuple(model.outcomes.names_of(subset)),
        predicted=predicted[0],
        std=std[0],
        expected=expected,
        low=low,
        high=high,
        target_names=model.target_names,
        objective=objective,
        value=float(sign * goodness(subset[None])[0]),
        best_run=float(sign * measured.max()) if len(measured) else np.nan,
        how=how,
    )
