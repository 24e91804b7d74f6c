"""Search: the allowed subset of best prediction, exact where that is feasible, else by climbing from several starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from math import comb

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.special import gammaln, logsumexp

from whence.answers.constraints import Constraints, Indices
from whence.errors import InputError
from whence.outcomes.checks import columns_of, places
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

EXHAUSTIVE_SUBSETS = 200_000
STARTS = 8
START_RUNS = 2000  # runs among which the best start a search
# Swaps of one task for another that are tried at a time: those whose two halves promise most.
SWAPS = 300


def objective_columns(model: Model, target: str | None) -> tuple[Indices, int]:
    """Return the columns of the targets to optimise and +1 (higher is better) or −1."""
    if target is not None:
        columns = np.array(places(columns_of(target, model.target_names), model.target_names, "target"))
    else:
        columns = np.arange(len(model.target_names))
    directions = {model.maximize[c] for c in columns}
    if len(directions) > 1:
        raise InputError(
            "Some targets are to be maximised and some minimised. Name the one to optimise with {target}, or optimise "
            "all of them with {worst} or {weights}.",
            target=None,
            worst=True,
            weights=None,
        )
    return columns, 1 if directions.pop() else -1


def search(
    model: Model,
    goodness: Callable[[Array], Array],
    constraints: Constraints,
    target: str | None,
    risk: float,
    seed: int,
) -> tuple[Array, str]:
    """Return the allowed subset (K,) of greatest goodness, and how it was found."""
    free = constraints.free
    fixed = int(constraints.include.sum())
    counts = range(max(0, constraints.smallest - fixed), min(len(free), constraints.largest - fixed) + 1)
    digits = _log10_of_subsets(len(free), np.array(counts))
    if digits < 18 and (total := sum(comb(len(free), n) for n in counts)) <= EXHAUSTIVE_SUBSETS:
        return _best_of_all(goodness, constraints, free, counts), f"best of all {total:,} allowed subsets"
    surrogates = [part.surrogate for part in model.parts]
    if not risk and all(isinstance(surrogate, AdditiveSurrogate) for surrogate in surrogates):
        return _best_additive(model, constraints, target), "exact: the best sum of additive effects"
    chosen, starts = _greedy_swaps(model, goodness, constraints, seed)
    return (
        chosen,
        f"greedy with swaps, best of {starts} starts ({10 ** (digits % 1):.1f}e+{int(digits):02d} allowed subsets are "
        "too many to try)",
    )


def _log10_of_subsets(n_free: int, counts: Indices) -> float:
    """Logarithm of the number of subsets with this many of the free tasks: a thousand tasks have 10³⁰⁰."""
    logs = gammaln(n_free + 1) - gammaln(counts + 1) - gammaln(n_free - counts + 1)
    return float(logsumexp(logs) / np.log(10))


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
    runs = model.subsets[constraints.allow(model.subsets)]
    if len(runs) > START_RUNS:
        runs = runs[rng.choice(len(runs), START_RUNS, replace=False)]
    runs = np.unique(runs, axis=0)
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
