"""Allowed runs: subsets of tasks under constraints, mixtures within bounds, or the rows of a list.

Every kind of space draws allowed rows, finds neighbours of a row, and checks rows; this is all that the rules that
choose runs (:mod:`.goals`) need. The balanced start is here too: rows that together are most informative about tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from whence.answers.constraints import Constraints, constraints_of, mask_of
from whence.errors import InputError
from whence.outcomes import Outcomes
from whence.outcomes.checks import as_numbers
from whence.outcomes.table import distinct_rows
from whence.surrogates.kernels import Array

LISTED = 4096  # rows up to which all allowed subsets are looked at
DRAWN = 1000  # rows that stand for a larger space
NEIGHBOURS = 200
TRANSFERS = (0.1, 0.03)  # shares of a mixture that move from one source to another
CLOSE = 1e-9
LEAST_WEIGHT = 0.01  # of a source of a mixture that must be in it


class Space(Protocol):
    """Rows (n, K) that may be run."""

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Return about n distinct allowed rows; all of them if there are not many more."""
        ...

    def near(self, row: Array, rng: np.random.Generator) -> Array:
        """Return allowed rows that differ a little from one, (n, K)."""
        ...

    def allow(self, rows: Array) -> Array:
        """Return which rows are allowed, (n,) bool."""
        ...


@dataclass(frozen=True)
class Subsets:
    """Subsets of tasks under constraints."""

    constraints: Constraints

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Return all allowed subsets if there are at most 4096, else random ones: coin flips, and of all sizes."""
        limits, free = self.constraints, self.constraints.free
        fixed = int(limits.include.sum())
        sizes = range(max(0, limits.smallest - fixed), min(len(free), limits.largest - fixed) + 1)
        if sum(comb(len(free), size) for size in sizes) <= LISTED:
            chosen = [members for size in sizes for members in combinations(free, size)]
        else:
            flips = np.clip(rng.binomial(len(free), 0.5, n), sizes[0], sizes[-1])
            wanted = np.where(rng.random(n) < 0.5, flips, rng.integers(sizes[0], sizes[-1] + 1, n))
            chosen = [tuple(self._affordable(rng.permutation(free), int(size))) for size in wanted]
        rows = np.repeat(limits.include[None], len(chosen), axis=0)
        for row, members in zip(rows, chosen, strict=True):
            row[list(members)] = 1
        found = np.unique(rows[self.allow(rows)], axis=0)
        return found if len(found) else limits.cheapest()[None]

    def _affordable(self, order: Array, size: int) -> list[int]:
        """Return the first tasks of an order that fit into the cost limit together."""
        limits = self.constraints
        members: list[int] = []
        cost = float(limits.include @ limits.costs)
        for task in order:
            if len(members) < size and cost + limits.costs[task] <= limits.budget:
                members.append(int(task))
                cost += limits.costs[task]
        return members

    def near(self, row: Array, rng: np.random.Generator) -> Array:
        """Return the allowed subsets that are one addition, removal or swap away."""
        free = self.constraints.free
        flips = np.repeat(row[None], len(free), axis=0)
        flips[np.arange(len(free)), free] = 1 - row[free]
        inside, outside = free[row[free] == 1], free[row[free] == 0]
        swaps = np.array([(a, b) for a in inside for b in outside], dtype=int).reshape(-1, 2)
        swaps = swaps[rng.permutation(len(swaps))[:NEIGHBOURS]]
        swapped = np.repeat(row[None], len(swaps), axis=0)
        swapped[np.arange(len(swaps)), swaps[:, 0]] = 0
        swapped[np.arange(len(swaps)), swaps[:, 1]] = 1
        found = np.vstack([flips, swapped])
        return np.asarray(found[self.allow(found)])

    def allow(self, rows: Array) -> Array:
        """Return which subsets meet the constraints, (n,) bool."""
        return self.constraints.allow(rows)


@dataclass(frozen=True)
class Mixtures:
    """Weights that add up to 1, each within its bounds, under a limit of their cost."""

    least: Array
    most: Array
    costs: Array
    max_cost: float

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Return random mixtures, from even ones to ones of few sources, moved into their bounds."""
        spread = np.exp(rng.uniform(np.log(0.3), np.log(5.0), (n, 1)))
        drawn = self._bounded(rng.gamma(np.broadcast_to(spread, (n, len(self.least)))) + 1e-12)
        drawn = drawn[self.allow(drawn)]
        return drawn if len(drawn) else self.cheapest()[None]

    def near(self, row: Array, rng: np.random.Generator) -> Array:
        """Return mixtures in which one source takes over some weight of another, and ones that are jittered."""
        pairs = np.array([(a, b) for a in range(len(row)) for b in range(len(row)) if a != b])
        pairs = pairs[rng.permutation(len(pairs))[:NEIGHBOURS]]
        moved = []
        for share in TRANSFERS:
            rows = np.repeat(row[None], len(pairs), axis=0)
            at = np.arange(len(pairs))
            room = np.minimum(row[pairs[:, 0]] - self.least[pairs[:, 0]], self.most[pairs[:, 1]] - row[pairs[:, 1]])
            rows[at, pairs[:, 0]] -= np.clip(share, 0, room)
            rows[at, pairs[:, 1]] += np.clip(share, 0, room)
            moved.append(rows[room > CLOSE])
        jittered = self._bounded(row * rng.gamma(8.0, 1 / 8, (NEIGHBOURS, len(row))) + 1e-12)
        found = np.vstack([*moved, jittered])
        return np.asarray(found[self.allow(found)])

    def allow(self, rows: Array) -> Array:
        """Return which rows are mixtures within bounds and cost, (n,) bool."""
        inside = ((rows >= self.least - CLOSE) & (rows <= self.most + CLOSE)).all(1)
        return np.asarray(inside & (abs(rows.sum(1) - 1) < 1e-6) & (rows @ self.costs <= self.max_cost + CLOSE))

    def cheapest(self) -> Array:
        """Return the mixture of least cost, (K,)."""
        row, left = self.least.copy(), 1 - self.least.sum()
        for source in np.argsort(self.costs, kind="stable"):
            given = min(left, self.most[source] - self.least[source])
            row[source] += given
            left -= given
        return row

    def _bounded(self, rows: Array) -> Array:
        """Return rows scaled so that they add up to 1 within the bounds: what a bound cuts off goes to the others."""
        room = self.most - self.least
        weight = rows / rows.sum(1, keepdims=True)
        left, given = np.full((len(rows), 1), 1 - self.least.sum()), np.zeros_like(rows)
        for _ in range(len(self.least)):
            open_ = given < room - 1e-15
            share = np.where(open_, weight, 0.0)
            total = share.sum(1, keepdims=True)
            more = np.divide(left * share, total, out=np.zeros_like(share), where=total > 0)
            given = np.minimum(given + more, room)
            left = 1 - self.least.sum() - given.sum(1, keepdims=True)
            if (left <= 1e-12).all():
                break
        return self.least + given


@dataclass(frozen=True)
class Listed:
    """The rows of a list, and no others."""

    rows: Array

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Return all rows, or n of very many."""
        few = len(self.rows) <= max(n, LISTED)
        return self.rows if few else self.rows[np.sort(rng.choice(len(self.rows), n, replace=False))]

    def near(self, row: Array, rng: np.random.Generator) -> Array:
        """Return the rows at the least distance from one."""
        return np.asarray(self.rows[np.argsort(abs(self.rows - row).sum(1), kind="stable")[: NEIGHBOURS // 3]])

    def allow(self, rows: Array) -> Array:
        """Return which rows are on the list, (n,) bool."""
        known = {row.tobytes() for row in self.rows}
        return np.array([row.tobytes() in known for row in np.add(rows, 0.0, order="C")], dtype=bool)


def make_space(
    task_names: tuple[str, ...],
    *,
    size: int | None = None,
    max_size: int | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    costs: Mapping[str, float] | None = None,
    max_cost: float | None = None,
    mixture: bool = False,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    candidates: Outcomes | ArrayLike | None = None,
) -> Space:
    """Return the space that the constraints allow; an empty one is refused."""
    names = Outcomes(np.zeros((0, len(task_names))), np.zeros((0, 1)), task_names, ["outcome of a run"])
    if (costs is None) != (max_cost is None):
        raise InputError(
            "Costs need a limit, and a limit needs costs: give {costs} and {max_cost}.", costs=None, max_cost=None
        )
    if bounds and not mixture:
        raise InputError("Bounds are about weights: give {mixture} too.", mixture=True)
    if mixture and candidates is None:
        if size is not None or max_size is not None:
            raise InputError("Sizes are about tasks that are in or out. Bound the weights of a mixture with {bounds}.",
                             bounds=None)  # fmt: skip
        return _mixtures(names, include, exclude, costs, max_cost, bounds or {})
    whole = constraints_of(names, size, max_size, costs, max_cost, include, exclude)
    if candidates is None:
        return Subsets(whole)
    rows, _ = as_numbers(getattr(candidates, "subsets", candidates), "candidates")
    if rows.ndim != 2 or rows.shape[1] != len(task_names):
        raise InputError(f"must have a column per task ({len(task_names)}). Got shape {rows.shape} instead.",
                         parameter="candidates", of="search")  # fmt: skip
    rows = rows[distinct_rows(rows)[0]] + 0.0
    allowed = rows[whole.allow(rows)] if np.isin(rows, (0.0, 1.0)).all() else rows
    if not len(allowed):
        raise InputError(f"None of the {len(rows)} candidates meets the constraints.")
    return Listed(allowed)


def _mixtures(
    names: Outcomes,
    include: Iterable[str],
    exclude: Iterable[str],
    costs: Mapping[str, float] | None,
    max_cost: float | None,
    bounds: Mapping[str, tuple[float, float]],
) -> Mixtures:
    least, most, price = np.zeros(names.n_tasks), np.ones(names.n_tasks), np.zeros(names.n_tasks)
    for name, cost in (costs or {}).items():
        price += cost * names.subset([name])
    for name, given in bounds.items():
        at = names.subset([name]) == 1
        try:
            low, high = (float(end) for end in given)
        except (TypeError, ValueError):
            low, high = np.nan, np.nan
        if not 0 <= low <= high <= 1:
            raise InputError(f"The bounds of {name!r} must be two weights from 0 to 1, the lower first. Got {given!r}.")
        least[at], most[at] = low, high
    most[mask_of(names, exclude) == 1] = 0
    must = mask_of(names, include) == 1
    least[must] = np.maximum(least[must], LEAST_WEIGHT)
    if (crossed := least > most + CLOSE).any():
        at = names.task_names[int(crossed.argmax())]
        raise InputError(f"No mixture meets the constraints: {at!r} must have some weight and is excluded.")
    if not least.sum() <= 1 + CLOSE <= most.sum() + 2 * CLOSE:
        raise InputError(
            "No mixture meets the constraints: weights add up to 1, and the bounds allow "
            f"{least.sum():g} to {most.sum():g}."
        )
    space = Mixtures(least, most, price, np.inf if max_cost is None else float(max_cost))
    if not space.allow(space.cheapest()[None])[0]:
        raise InputError(
            f"No mixture meets the constraints: the cheapest costs {space.cheapest() @ price:g} of {max_cost:g}."
        )
    return space


def balanced_start(space: Space, n: int, rng: np.random.Generator) -> Array:
    """Return n allowed rows that together are most informative about every task, (n, K), or all if there are fewer.

    Each is the drawn row about which a linear model of the earlier rows is least certain (a greedy D-optimal design).
    The first is one of the largest subsets, or the most even mixture.
    """
    pool = space.draw(DRAWN, rng)
    features = np.column_stack([np.ones(len(pool)), pool - pool.mean(0)])
    scale = np.sqrt(np.maximum((features**2).mean(0), 1e-12))
    features /= scale
    information = 0.01 * np.eye(features.shape[1])
    chosen: list[int] = []
    luck = 1 + 1e-3 * rng.random(len(pool))
    extent = -(pool**2).sum(1) if isinstance(space, Mixtures) else pool.sum(1)
    first = int(rng.choice(np.flatnonzero(extent == extent.max())))
    for _ in range(min(n, len(pool))):
        unknown = np.einsum("ij,jk,ik->i", features, np.linalg.inv(information), features) * luck
        unknown[chosen] = -1
        pick = int(unknown.argmax()) if chosen else first
        chosen.append(pick)
        information += np.outer(features[pick], features[pick])
    return np.asarray(pool[chosen])
