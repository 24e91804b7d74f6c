"""Designs: which tasks are in which run.

The first step of the flow. A design turns a number of tasks into subsets, an ``(n, K)`` array of 0 and 1 with
one row per run; an outcome function then gives each row its value. Random designs (`Bernoulli`, `FixedSize`)
spread runs over all subsets, `Balanced` spreads them evenly over tasks and pairs of tasks, and `LeaveOneOut`,
`LeaveTwoOut` and `Exhaustive` list a fixed family. A design of your own is any object with the same ``draw``.

What every design here keeps: rows are distinct, none is the empty set unless ``allow_empty=True``, and the
same ``(n_tasks, n, seed)`` gives the same rows. All but `Balanced` also keep what they have when extended:
with one seed, the rows for a smaller ``n`` are the first rows for a larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from whence.designs.balanced import Rows, even_rows, unrank
from whence.errors import InputError, whole_number

Subsets = NDArray[np.float64]

_MOST_LISTED = 2**20  # families up to this size are numbered and shuffled; larger ones are sampled


class Design(Protocol):
    """Anything that draws subsets of tasks."""

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Subsets of K tasks, (n, K): 1 where the task is in, 0 where it is not. Same seed, same rows.

        With n None, all subsets of a design that lists a fixed family.
        """
        ...


@dataclass(frozen=True)
class Bernoulli:
    """Subsets in which each task is present with the same probability, independently.

    Repeats are drawn again, so the inclusion frequency drifts from ``keep_prob`` when ``n`` comes close to
    the number of subsets there are.

    Parameters
    ----------
    keep_prob : float
        Probability that a task is in a subset (the paper's sampling ratio), strictly between 0 and 1.
    allow_empty : bool
        Whether the empty set may be drawn.

    Examples
    --------
    >>> Bernoulli(0.5).draw(4, 3, seed=0).shape
    (3, 4)
    """

    keep_prob: float = 0.5
    allow_empty: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.keep_prob, Real) and 0 < float(self.keep_prob) < 1):
            raise InputError(
                "The 'keep_prob' parameter of Bernoulli must be a number strictly between 0 and 1. "
                f"Got {self.keep_prob!r} instead."
            )

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Distinct random subsets, shape (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks)
        n = count_of(self, n_tasks, n, 2**n_tasks - (not self.allow_empty))
        rng = generator_of(self, seed)

        def propose(rows: int) -> Rows:
            drawn = rng.random((rows, n_tasks)) < self.keep_prob
            return drawn if self.allow_empty else drawn[drawn.any(axis=1)]

        # Rare subsets may never come: enough tries for n near 2^K at small K, and only seconds at large K.
        tries = 20 * n + min(1_000_000, 200_000_000 // n_tasks)
        found = _distinct(propose, n_tasks, n, tries=tries)
        if len(found) < n:
            raise InputError(
                f"{self} gave only {len(found)} distinct subsets of {n_tasks} tasks in {tries:,} draws, "
                f"fewer than the n={n} asked for: move keep_prob towards 0.5 or ask for fewer."
            )
        return found.astype(np.float64)


@dataclass(frozen=True)
class FixedSize:
    """Subsets with exactly ``size`` tasks, all equally likely.

    Outcomes then differ by which tasks are present and not by how many, so that knowing the effect of size is
    not mistaken for attribution.

    Parameters
    ----------
    size : int
        Number of tasks in each subset.

    Examples
    --------
    >>> FixedSize(2).draw(4, 6, seed=0).sum(axis=1)
    array([2., 2., 2., 2., 2., 2.])
    """

    size: int

    def __post_init__(self) -> None:
        whole_number(self.size, "size", of=type(self).__name__)

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Distinct random subsets of one size, shape (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks, self.size)
        total = comb(n_tasks, self.size)
        n = count_of(self, n_tasks, n, total)
        rng = generator_of(self, seed)
        if total <= _MOST_LISTED:
            return unrank(n_tasks, self.size, rng.permutation(total)[:n]).astype(np.float64)

        def propose(rows: int) -> Rows:
            smallest = np.argpartition(rng.random((rows, n_tasks)), self.size - 1, axis=1)[:, : self.size]
            chosen = np.zeros((rows, n_tasks), dtype=bool)
            np.put_along_axis(chosen, smallest, True, axis=1)
            return chosen

        return _distinct(propose, n_tasks, n).astype(np.float64)


@dataclass(frozen=True)
class LeaveOneOut:
    """The full set first, then the full set without each task: K + 1 subsets (one when K is 1).

    With ``n``, the full set and a random choice of the others.

    Examples
    --------
    >>> LeaveOneOut().draw(3)
    array([[1., 1., 1.],
           [0., 1., 1.],
           [1., 0., 1.],
           [1., 1., 0.]])
    """

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Full set, then each task removed, shape (K + 1, K) or (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks)
        index = _listed(self, n_tasks, n, seed, 1 + n_tasks * (n_tasks > 1))
        return _without(n_tasks, index - 1, index - 1)


@dataclass(frozen=True)
class LeaveTwoOut:
    """The full set, then without each task, then without each pair: 1 + K + K(K-1)/2 subsets.

    With ``n``, the full set and a random choice of the others. A row left empty (K of 1 or 2) is not listed.

    Examples
    --------
    >>> LeaveTwoOut().draw(4).shape
    (11, 4)
    """

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Full set, then each task and each pair removed, shape (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks)
        total = 1 + n_tasks * (n_tasks > 1) + comb(n_tasks, 2) * (n_tasks > 2)
        index = _listed(self, n_tasks, n, seed, total)
        first, second = (np.concatenate([np.arange(-1, n_tasks), pairs]) for pairs in np.triu_indices(n_tasks, 1))
        return _without(n_tasks, first[index], second[index])


@dataclass(frozen=True)
class Exhaustive:
    """All subsets, the full set first: the 2^K truth for small K.

    With ``n``, the full set and a random choice of the others.

    Parameters
    ----------
    allow_empty : bool
        Whether the empty set is one of them.

    Examples
    --------
    >>> Exhaustive().draw(2)
    array([[1., 1.],
           [1., 0.],
           [0., 1.]])
    """

    allow_empty: bool = False

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """All subsets, shape (2^K - 1, K) or (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks)
        if 2**n_tasks > _MOST_LISTED:
            raise InputError(
                f"Exhaustive lists at most {_MOST_LISTED:,} subsets (20 tasks), and {n_tasks} tasks have "
                f"2^{n_tasks}: draw some of them with Bernoulli(0.5) instead."
            )
        index = _listed(self, n_tasks, n, seed, 2**n_tasks - (not self.allow_empty))
        codes = 2**n_tasks - 1 - index
        return np.asarray(codes[:, None] >> np.arange(n_tasks)[::-1] & 1, dtype=np.float64)


@dataclass(frozen=True)
class Balanced(FixedSize):
    """Subsets with exactly ``size`` tasks that show every task, and every pair of tasks, about equally often.

    Guaranteed: rows are distinct, and the numbers of subsets in which two tasks appear differ by at most one.
    Best effort: pair counts are made even by a search of a few seconds at most, see `whence.designs.balanced`. Where
    a perfect design exists and is small (7 subsets of 3 out of 7 tasks, 13 of 4 out of 13), every pair mostly
    appears equally often. Drawing more rows gives other rows.

    Parameters
    ----------
    size : int
        Number of tasks in each subset.

    Examples
    --------
    >>> fano = Balanced(3).draw(7, 7, seed=0)
    >>> pairs = fano.T @ fano
    >>> int(pairs[0, 1]), int(pairs.min()), int(pairs[0, 0])
    (1, 1, 3)
    """

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Distinct subsets of one size with even task and pair counts, shape (n, K); see `Design.draw`."""
        n_tasks = tasks_of(self, n_tasks, self.size)
        n = count_of(self, n_tasks, n, comb(n_tasks, self.size))
        return even_rows(n_tasks, self.size, n, generator_of(self, seed)).astype(np.float64)


def tasks_of(design: object, value: object, least: int = 1) -> int:
    """Check the number of tasks that a design is asked for."""
    n_tasks = whole_number(value, "n_tasks", of=f"{type(design).__name__}.draw")
    if n_tasks < least:
        raise InputError(f"{design} needs at least {least} tasks. Got n_tasks={n_tasks} instead.")
    return n_tasks


def count_of(design: object, n_tasks: int, value: object, total: float) -> int:
    """Check the number of rows that a design is asked for."""
    n = whole_number(value, "n", of=f"{type(design).__name__}.draw")
    if n > total:
        raise InputError(
            f"{design} has {total} distinct subsets of {n_tasks} tasks, fewer than the n={n} asked for: "
            f"ask for at most {total}."
        )
    return n


def generator_of(design: object, seed: object) -> np.random.Generator:
    """Random numbers of a design."""
    return np.random.default_rng(whole_number(seed, "seed", 0, of=f"{type(design).__name__}.draw"))


def _listed(design: Design, n_tasks: int, n: int | None, seed: int, total: int) -> NDArray[np.int64]:
    """Positions in a listed family: all in order, or the first and a random choice of the others."""
    rng = generator_of(design, seed)
    if n is None:
        return np.arange(total)
    return np.append(0, 1 + rng.permutation(total - 1))[: count_of(design, n_tasks, n, total)]


def _without(n_tasks: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> Subsets:
    """Rows of ones with two tasks removed each (the same one twice for one; -1 for none), shape (n, K)."""
    rows = np.ones((len(first), n_tasks + 1))
    rows[np.arange(len(first)), first] = 0  # -1 lands in the last column, which is cut off
    rows[np.arange(len(first)), second] = 0
    return rows[:, :n_tasks]


def _distinct(propose: Callable[[int], Rows], n_tasks: int, n: int, *, tries: float = np.inf) -> Rows:
    """First ``n`` distinct rows of a stream, or those found within ``tries`` rows, shape (<= n, K).

    The stream is read row by row whatever the size of the pieces: so the first rows stay when n grows.
    """
    found: dict[bytes, Rows] = {}
    while len(found) < n and tries > 0:
        piece = int(min(max(n - len(found), 256), 1 + 4_000_000 // n_tasks, tries))
        tries -= piece
        rows = propose(piece)
        for key, row in zip(np.packbits(rows, axis=1), rows, strict=True):
            if len(found) == n:
                break
            found.setdefault(key.tobytes(), row)
    return np.array(list(found.values()), dtype=bool).reshape(len(found), n_tasks)
