"""Mixtures: shares of one budget. Drawing them, within bounds and like measured ones, and searching for the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whence.designs.subsets import Design, count_of, generator_of, tasks_of
from whence.errors import InputError
from whence.outcomes.checks import places

Array = NDArray[np.float64]
DRAWS = 20_000
# Shares of the total weight that one transfer may move, from coarse to fine.
TRANSFERS = (0.1, 0.05, 0.02, 0.01)
SLACK = 1e-9
MOST_TOWARDS = 300  # runs that a mixture may be moved towards


@dataclass(frozen=True)
class Dirichlet:
    """Mixtures: weights that sum to 1, drawn from a Dirichlet distribution.

    With one seed, the rows for a smaller ``n`` are the first rows for a larger one.

    Parameters
    ----------
    concentration : float
        1 spreads mixtures evenly over all there are; less favours few sources, more favours equal shares.
    bounds : sequence of (least, most), optional
        Bounds on the weight of each task; by default 0 to 1.

    Examples
    --------
    >>> Dirichlet(bounds=[(0.2, 0.5), (0, 1), (0, 0.3)]).draw(3, 2, seed=0).sum(axis=1).round(9).tolist()
    [1.0, 1.0]
    """

    concentration: float = 1.0
    bounds: Sequence[tuple[float, float]] = ()

    def __post_init__(self) -> None:
        if not self.concentration > 0:
            raise InputError(
                f"The 'concentration' parameter of Dirichlet must be above 0. Got {self.concentration} instead."
            )

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Array:
        """Random mixtures, shape (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks, max(2, len(self.bounds)))
        n = count_of(self, n_tasks, n, np.inf)
        limits = np.array(self.bounds or [(0.0, 1.0)] * n_tasks, dtype=np.float64)
        if limits.shape != (n_tasks, 2):
            raise InputError(f"Bounds must be a least and a most weight for each of {n_tasks} tasks.")
        polytope = Polytope(limits[:, 0], limits[:, 1])
        polytope.check()
        drawn = generator_of(self, seed).dirichlet(np.full(n_tasks, self.concentration), n)
        least = polytope.least
        return polytope.nearest(least + (1 - least.sum()) * drawn)


def with_bounds(design: Design, bounds: Mapping[str, tuple[float, float]], names: Sequence[str]) -> Design:
    """The design, its weights within the bounds of the tasks that have some."""
    if not bounds:
        return design
    if not isinstance(design, Dirichlet):
        raise InputError("Bounds are for weights of mixtures: draw these with the design dirichlet.")
    found = dict(zip(places(bounds, names, "task"), bounds.values(), strict=True))
    return replace(design, bounds=tuple(found.get(at, (0.0, 1.0)) for at in range(len(names))))


@dataclass(frozen=True, eq=False)
class Polytope:
    """Mixtures that are allowed: weights between bounds that sum to 1, of few enough sources, within a budget."""

    least: Array  # (K,)
    most: Array  # (K,)
    costs: Array | None = None  # (K,) of a mixture that is this source alone
    budget: float = np.inf
    largest: int | None = None  # number of sources

    def check(self) -> None:
        """Raise where no mixture is allowed."""
        if (self.least > self.most + SLACK).any() or (self.least < 0).any() or (self.most > 1 + SLACK).any():
            raise InputError("Bounds of a weight must be a least and a most, from 0 to 1, in this order.")
        if self.least.sum() > 1 + SLACK:
            raise InputError(f"No mixture meets the constraints: the least weights sum to {self.least.sum():.4g}.")
        most = np.sort(self.most)[::-1][: self.largest].sum()
        if most < 1 - SLACK:
            of = f" of {self.largest} sources" if self.largest is not None else ""
            raise InputError(f"No mixture meets the constraints: the most weights{of} sum to {most:.4g}.")
        if self.largest is not None and (self.least > 0).sum() > self.largest:
            raise InputError(f"No mixture meets the constraints: more than {self.largest} sources must have weight.")
        if self.costs is not None and (cost := self.cheapest() @ self.costs) > self.budget * (1 + SLACK):
            raise InputError(
                f"No mixture meets the constraints: the cheapest costs {cost:g}, and the budget is {self.budget:g}."
            )

    def cheapest(self) -> Array:
        """The mixture (K,) of least cost within the bounds."""
        costs = np.zeros(len(self.least)) if self.costs is None else self.costs
        found, left = self.least.copy(), 1 - self.least.sum()
        for task in np.argsort(costs, kind="stable"):
            more = min(left, self.most[task] - found[task])
            found[task], left = found[task] + more, left - more
        return found

    def nearest(self, rows: Array) -> Array:
        """Rows (n, K) brought into the bounds: the nearest weights that sum to 1, within the budget."""
        if self.largest is not None:
            rank = np.argsort(np.argsort(-rows - 2 * (self.least > 0), axis=1), axis=1)
            rows = np.where(rank < self.largest, rows, 0.0)
        most = np.where(rows > 0, self.most, self.least) if self.largest is not None else self.most
        low, high = np.full((len(rows), 1), -2.0), np.full((len(rows), 1), 2.0)
        for _ in range(60):  # one level for all weights of a row, found by halving
            middle = (low + high) / 2
            over = np.clip(rows + middle, self.least, most).sum(1, keepdims=True) > 1
            low, high = np.where(over, low, middle), np.where(over, middle, high)
        found = np.clip(rows + low, self.least, most)
        return self._affordable(found)

    def _affordable(self, rows: Array) -> Array:
        """Rows within the budget: mixed with the cheapest mixture, as little as it takes."""
        if self.costs is None or not np.isfinite(self.budget):
            return rows
        cheapest, prices = self.cheapest(), rows @ self.costs
        gap = np.maximum(prices - cheapest @ self.costs, 1e-300)
        share = np.clip((prices - self.budget) / gap, 0, 1)[:, None]
        return np.asarray((1 - share) * rows + share * cheapest)

    def allow(self, rows: Array) -> NDArray[np.bool_]:
        """Which rows are allowed, (n,)."""
        inside = ((rows >= self.least - 1e-6) & (rows <= self.most + 1e-6)).all(1)
        few = (rows > SLACK).sum(1) <= (rows.shape[1] if self.largest is None else self.largest)
        cheap = True if self.costs is None else rows @ self.costs <= self.budget * (1 + 1e-6)
        return np.asarray(inside & few & cheap)


def mixtures_like(runs: Array, n: int, rng: np.random.Generator) -> Array:
    """Return n mixtures between and around the measured ones: random averages of two runs, weights jittered."""
    first, second = runs[rng.integers(len(runs), size=(2, n))]
    share = rng.random((n, 1))
    mixed = (share * first + (1 - share) * second) * rng.gamma(4.0, 0.25, (n, runs.shape[1]))
    total = mixed.sum(1, keepdims=True)
    wanted = (share * first + (1 - share) * second).sum(1, keepdims=True)
    return np.asarray(mixed * np.divide(wanted, total, out=np.zeros_like(total), where=total > 0))


def averages_of(runs: Array, n: int, rng: np.random.Generator) -> Array:
    """Return n random averages of two to four runs: mixtures in the hull of the runs, between and not beyond them."""
    shares = rng.dirichlet(np.ones(4), n) * (np.arange(4) < rng.integers(2, 5, (n, 1)))
    shares /= shares.sum(1, keepdims=True)
    return np.asarray((shares[:, :, None] * runs[rng.integers(len(runs), size=(n, 4))]).sum(1))


def best_mixture(
    goodness: Callable[[Array], Array],
    runs: Array,
    polytope: Polytope,
    rng: np.random.Generator,
    *,
    between: bool,
    draws: int | None = None,
) -> tuple[Array, str]:
    """Return the allowed mixture (K,) of greatest goodness that was found, and how, in words.

    Runs that are allowed and random mixtures come first; then weight moves while that improves. With ``between``, only
    averages of runs are considered, where any of them is allowed; else all that is.
    """
    draws = draws or DRAWS
    if between:
        pool = np.vstack([runs, averages_of(runs, draws, rng)])
        pool = pool[polytope.allow(pool)]
        between = len(pool) > 0
    if not between:
        drawn = polytope.nearest(mixtures_like(runs, draws, rng))
        pool = np.vstack([runs, drawn, polytope.nearest(runs)])
        pool = pool[polytope.allow(pool)]
    towards = runs[rng.permutation(len(runs))[:MOST_TOWARDS]]
    values = goodness(pool)
    current, value = pool[values.argmax()], values.max()
    for share in TRANSFERS:
        while True:
            moves = current + share * (towards - current) if between else _transfers(current, share, polytope)
            allowed = moves[polytope.allow(moves)]
            values = goodness(allowed) if len(allowed) else np.array([-np.inf])
            if values.max() <= value + 1e-9 * abs(value):
                break
            current, value = allowed[values.argmax()], values.max()
    return np.where(current > SLACK, current, 0.0), f"best of {len(pool):,} mixtures, improved by transfers of weight"


def _transfers(current: Array, share: float, polytope: Polytope) -> Array:
    """The mixtures in which one source gives a share, or all above its least, to another; within the budget."""
    taking = np.flatnonzero(polytope.most > 0)
    giver, taker = (grid.ravel() for grid in np.meshgrid(taking, taking))
    giver, taker = giver[giver != taker], taker[giver != taker]
    moves = np.repeat(current[None], len(giver), axis=0)
    room = np.minimum(current[giver] - polytope.least[giver], polytope.most[taker] - current[taker])
    moved = np.clip(share, 0, np.maximum(room, 0))
    moves[np.arange(len(giver)), giver] -= moved
    moves[np.arange(len(giver)), taker] += moved
    return polytope._affordable(moves)
