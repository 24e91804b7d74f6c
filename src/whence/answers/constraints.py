"""Constraints: which subsets may be chosen, and whether any can."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from whence.designs.mixtures import Polytope
from whence.errors import InputError
from whence.outcomes import Outcomes
from whence.surrogates.kernels import Array
from whence.surrogates.range import Range

Indices = NDArray[np.intp]
LEAST_INCLUDED = 0.01  # share of a source that must be in a mixture


@dataclass(frozen=True)
class Constraints:
    """Which subsets may be chosen."""

    include: Array  # (K,) 0/1
    exclude: Array  # (K,) 0/1
    smallest: int
    largest: int
    costs: Array  # (K,)
    budget: float

    @property
    def free(self) -> Indices:
        """The tasks that may be in or out."""
        return np.flatnonzero((self.include == 0) & (self.exclude == 0))

    def cheapest(self) -> Array:
        """Return the cheapest subset of the smallest size (K,); if it is not allowed, none is."""
        subset, free = self.include.copy(), self.free
        missing = max(0, self.smallest - int(subset.sum()))
        subset[free[np.argsort(self.costs[free], kind="stable")][:missing]] = 1
        return subset

    def within(self, runs: Range) -> Constraints:
        """Return those of these constraints that the range of the runs meets too; themselves where none does."""
        narrower = replace(
            self,
            include=np.maximum(self.include, (runs.least == 1) & (self.exclude == 0)),
            exclude=np.maximum(self.exclude, (runs.most == 0) & (self.include == 0)),
            smallest=max(self.smallest, int(runs.smallest)),
            largest=min(self.largest, int(runs.largest)),
        )
        return narrower if narrower.allow(narrower.cheapest()[None])[0] else self

    def allow(self, subsets: Array) -> Array:
        """Return which rows are allowed, (n,) bool."""
        sizes = subsets.sum(1)
        return np.asarray(
            (sizes >= self.smallest)
            & (sizes <= self.largest)
            & (subsets @ self.costs <= self.budget * (1 + 1e-12))
            & (subsets[:, self.include == 1] == 1).all(1)
            & (subsets[:, self.exclude == 1] == 0).all(1)
        )


def constraints_of(
    runs: Outcomes,
    size: int | None,
    max_size: int | None,
    costs: Mapping[str, float] | None,
    budget: float | None,
    include: Iterable[str],
    exclude: Iterable[str],
) -> Constraints:
    """Check that the constraints make sense and that some subset meets them."""
    n_tasks = runs.n_tasks
    must, must_not = mask_of(runs, include), mask_of(runs, exclude)
    both = [name for name, a, b in zip(runs.task_names, must, must_not, strict=True) if a and b]
    if both:
        raise InputError(f"A task cannot be both included and excluded. Got {', '.join(both)}.")
    if size is not None and max_size is not None:
        raise InputError("Give {size} or {max_size}, not both.", size=None, max_size=None)
    for name, value in (("size", size), ("max_size", max_size)):
        if value is not None and not (isinstance(value, Integral) and 1 <= value <= n_tasks):
            raise InputError(
                f"must be from 1 to {n_tasks}, the number of tasks. Got {value} instead.", parameter=name, of="select"
            )
    price = _prices(runs, costs, budget)
    largest = size if size is not None else max_size if max_size is not None else n_tasks
    smallest = size if size is not None else 1
    constraints = Constraints(must, must_not, smallest, largest, price, np.inf if budget is None else budget)
    cheapest = constraints.cheapest()
    if not constraints.allow(cheapest[None])[0]:
        raise InputError(
            "No subset meets the constraints: "
            f"{int(must.sum())} tasks must be in, {len(constraints.free)} are free, "
            f"{smallest} to {largest} are wanted, and the cheapest such subset costs {cheapest @ price:g}"
            + (f" of a budget of {budget:g}." if budget is not None else ".")
        )
    return constraints


def mixtures_of(
    runs: Outcomes,
    span: Range | None,
    *,
    size: int | None,
    max_size: int | None,
    costs: Mapping[str, float] | None,
    budget: float | None,
    include: Iterable[str],
    exclude: Iterable[str],
    bounds: Mapping[str, tuple[float, float]] | None,
    total: float | None,
    available: Mapping[str, float] | None,
) -> Polytope:
    """Return the mixtures that the constraints allow; those in the ``span`` of the runs, where there are any."""
    must, must_not = mask_of(runs, include), mask_of(runs, exclude)
    if must_not.all():
        raise InputError("Every task is excluded. Leave at least one in.")
    if available and not total:
        raise InputError("Available tokens need a total: give {total} too.", total=None)
    least = np.where(must == 1, LEAST_INCLUDED, 0.0)
    most = 1 - must_not
    for name, (low, high) in (bounds or {}).items():
        scale = 100 if max(low, high) > 1 else 1
        at = int(runs.subset([name]).argmax())
        least[at], most[at] = max(least[at], low / scale), min(most[at], high / scale)
    for name, tokens in (available or {}).items():
        at = int(runs.subset([name]).argmax())
        most[at] = min(most[at], tokens / (total or 1))
    allowed = Polytope(
        least,
        most,
        None if costs is None else _prices(runs, costs, budget) * (total or 1),
        np.inf if budget is None else budget,
        size if size is not None else max_size,
    )
    allowed.check()
    if span is None:
        return allowed
    lowest = np.where(span.least <= most, np.maximum(least, span.least), least)
    highest = np.where(span.most >= lowest, np.minimum(most, span.most), most)
    narrow = replace(allowed, least=lowest, most=highest)
    try:
        narrow.check()
    except InputError:
        return allowed
    return narrow


def _prices(runs: Outcomes, costs: Mapping[str, float] | None, budget: float | None) -> Array:
    """Return the cost of every task (K,)."""
    if (costs is None) != (budget is None):
        raise InputError("Costs and a budget go together. Give both, or neither.")
    price = np.zeros(runs.n_tasks)
    for name, cost in (costs or {}).items():
        if not 0 <= cost < np.inf:
            raise InputError(f"The cost of task {name!r} must be zero or more, and finite. Got {cost} instead.")
        price += cost * runs.subset([name])
    return price


def mask_of(runs: Outcomes, names: Iterable[str]) -> Array:
    """Return 1 for the named tasks and 0 for the others, (K,)."""
    names = [names] if isinstance(names, str) else list(names)
    return runs.subset(names) if names else np.zeros(runs.n_tasks)
