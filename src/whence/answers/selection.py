"""Selection: the subset to use, by predicted outcome under constraints.

Exact where that is feasible (all subsets tried, or a mixed-integer program for additive surrogates), otherwise greedy
additions, removals and swaps from several starts; the result says which. It stays inside the range of the runs. What
the chosen subset is really worth is in :mod:`whence.answers.optimism`, what to measure next in
:mod:`whence.answers.suggestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from whence.answers.attribution import attribute
from whence.answers.constraints import Constraints, Indices, constraints_of, mask_of
from whence.answers.effects import as_model
from whence.answers.optimism import expected_of_chosen
from whence.designs.mixtures import best_mixture
from whence.errors import InputError
from whence.shown import Shown
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model
from whence.surrogates.range import outside, warn_outside

EXHAUSTIVE_SUBSETS = 200_000
STARTS = 8
# Of all swaps of one task for another, so many are tried at a time: those whose two halves promise most.
SWAPS = 300


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
            chosen, how = _search(model, goodness, constraints, target, risk, seed)
        else:
            raise InputError(f"The 'by' parameter of select must be 'prediction' or 'attribution'. Got {by!r} instead.")
        allowed = constraints.allow(model.outcomes.subsets)
    return _result(model, chosen, goodness, objective, how, allowed, target)


def _objective(model: Model, target: str | None, risk: float) -> tuple[Callable[[Array], Array], str]:
    """A function from subsets to what is to be maximised, and its name in words."""
    if not risk >= 0:
        raise InputError(f"must be zero or more. Got {risk} instead.", parameter="risk", of="select")
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


def objective_columns(model: Model, target: str | None) -> tuple[Indices, int]:
    """Return the columns of the targets to optimise and +1 (higher is better) or −1."""
    if target is not None:
        if target not in model.target_names:
            raise InputError(f"There is no target {target!r}. The targets are: {', '.join(model.target_names[:20])}.")
        columns = np.array([model.target_names.index(target)])
    else:
        columns = np.arange(len(model.target_names))
    directions = {model.maximize[c] for c in columns}
    if len(directions) > 1:
        raise InputError(
            "Some targets are to be maximised and some minimised. Name the one to optimise with {target}.", target=None
        )
    return columns, 1 if directions.pop() else -1


def _search(
    model: Model,
    goodness: Callable[[Array], Array],
    constraints: Constraints,
    target: str | None,
    risk: float,
    seed: int,
) -> tuple[Array, str]:
    free = constraints.free
    fixed = int(constraints.include.sum())
    counts = range(max(0, constraints.smallest - fixed), min(len(free), constraints.largest - fixed) + 1)
    total = sum(comb(len(free), n) for n in counts)
    if total <= EXHAUSTIVE_SUBSETS:
        return _best_of_all(goodness, constraints, free, counts), f"best of all {total:,} allowed subsets"
    surrogates = [part.surrogate for part in model.parts]
    if not risk and all(isinstance(surrogate, AdditiveSurrogate) for surrogate in surrogates):
        return _best_additive(model, constraints, target), "exact: the best sum of additive effects"
    chosen, starts = _greedy_swaps(model, goodness, constraints, seed)
    return (
        chosen,
        f"greedy with swaps, best of {starts} starts ({total:.1e} allowed subsets are too many to try)",
    )


def _best_of_all(
    goodness: Callable[[Array], Array], constraints: Constraints, free: Indices, counts: Iterable[int]
) -> Array:
    best, best_value = constraints.include, -np.inf
    for count in counts:
        members = np.array(list(combinations(free, count)), dtype=int).reshape(comb(len(free), count), count)
        for start in range(0, len(members), 20_000):
            block = members[start : start + 20_000]
            subsets = np.repeat(constraints.include[None], len(block), axis=0)
            subsets[np.arange(len(block))[:, None], block] = 1
            subsets = subsets[constraints.allow(subsets)]
            if len(subsets):
                values = goodness(subsets)
                if values.max() > best_value:
                    best, best_value = subsets[values.argmax()], values.max()
    return best


def _best_additive(model: Model, constraints: Constraints, target: str | None) -> Array:
    """Maximise a sum of task effects: by sorting, or under a budget by a mixed-integer program, exact either way."""
    columns, sign = objective_columns(model, target)
    effects = np.zeros((model.outcomes.n_tasks, model.outcomes.n_targets))
    for part in model.parts:
        effects[:, part.targets] = part.surrogate.coef_
    gain = sign * effects[:, columns].mean(1)
    if not np.isfinite(constraints.budget):
        chosen, free = constraints.include.copy(), constraints.free
        best_first = free[np.argsort(-gain[free], kind="stable")]
        fixed = int(chosen.sum())
        wanted = np.clip((gain[free] > 0).sum(), constraints.smallest - fixed, constraints.largest - fixed)
        chosen[best_first[: int(wanted)]] = 1
        return chosen
    rows = [
        LinearConstraint(np.ones((1, len(gain))), constraints.smallest, constraints.largest),
        LinearConstraint(constraints.costs[None], -np.inf, constraints.budget),
    ]
    found = milp(
        -gain,
        integrality=np.ones(len(gain), dtype=int),
        bounds=Bounds(constraints.include, 1 - constraints.exclude),
        constraints=rows,
        options={"mip_rel_gap": 0.0},
    )
    return np.asarray(found.x, np.float64).round()


def _greedy_swaps(
    model: Model, goodness: Callable[[Array], Array], constraints: Constraints, seed: int
) -> tuple[Array, int]:
    """Climb from several starts: the best single addition, removal or swap, until none improves."""
    rng = np.random.default_rng(seed)
    starts = _starts(model, goodness, constraints, rng)
    best, best_value = starts[0], -np.inf
    for start in starts:
        current, value = start, goodness(start[None])[0]
        while True:
            moves = _moves(current, constraints, goodness)
            if not len(moves):
                break
            values = goodness(moves)
            if values.max() <= value + 1e-12 * abs(value):
                break
            current, value = moves[values.argmax()], values.max()
        if value > best_value:
            best, best_value = current, value
    return best, len(starts)


def _moves(subset: Array, constraints: Constraints, goodness: Callable[[Array], Array]) -> Array:
    """The allowed subsets one addition, removal or swap away; of very many swaps the most promising, also at once."""
    inside = np.flatnonzero((subset == 1) & (constraints.include == 0))
    outside = np.flatnonzero((subset == 0) & (constraints.exclude == 0))
    flips = np.concatenate([inside, outside])
    single = np.repeat(subset[None], len(flips), axis=0)
    single[np.arange(len(flips)), flips] = 1 - subset[flips]
    drop, add = (grid.ravel() for grid in np.meshgrid(inside, outside))
    moves = [single]
    if len(drop) > SWAPS:
        promise = np.zeros(len(subset))
        promise[flips] = goodness(single)
        affordable = subset @ constraints.costs + constraints.costs[add] - constraints.costs[drop] <= constraints.budget
        best = np.argsort(-np.where(affordable, promise[drop] + promise[add], -np.inf), kind="stable")[:SWAPS]
        drop, add = drop[best], add[best]
        moves.append(
            _several(subset, *(tasks[np.argsort(-promise[tasks], kind="stable")] for tasks in (inside, outside)))
        )
    swap = np.repeat(subset[None], len(drop), axis=0)
    swap[np.arange(len(drop)), drop] = 0
    swap[np.arange(len(drop)), add] = 1
    found = np.vstack([*moves, swap])
    return np.asarray(found[constraints.allow(found)])


def _several(subset: Array, drop: Indices, add: Indices) -> Array:
    """The subsets that lose, gain or swap the first 2, 4, 8, … of the tasks to drop and to add."""
    found = []
    for count in 2 ** np.arange(1, int(np.log2(len(subset))) + 1):
        for lost, gained in ((drop[:count], add[:0]), (drop[:0], add[:count]), (drop[:count], add[:count])):
            moved = subset.copy()
            moved[lost], moved[gained] = 0, 1
            found.append(moved)
    return np.array(found)


def _starts(
    model: Model, goodness: Callable[[Array], Array], constraints: Constraints, rng: np.random.Generator
) -> list[Array]:
    """The best allowed subsets of runs, and random allowed subsets filled up task by task."""
    runs = np.unique(model.subsets, axis=0)
    runs = runs[constraints.allow(runs)]
    starts = list(runs[np.argsort(-goodness(runs))[: STARTS // 2]]) if len(runs) else []
    free = constraints.free
    while len(starts) < STARTS:
        subset = constraints.include.copy()
        # Cheap tasks first fill up a tight budget; otherwise the order is random.
        order = free[np.argsort(constraints.costs[free] * (0.5 + rng.random(len(free))) + 1e-9 * rng.random(len(free)))]
        wanted = rng.integers(constraints.smallest, constraints.largest + 1)
        for task in order:
            if subset.sum() >= wanted:
                break
            subset[task] = 1
            if subset @ constraints.costs > constraints.budget:
                subset[task] = 0
        starts.append(subset if constraints.allow(subset[None])[0] else constraints.cheapest())
    return starts


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
