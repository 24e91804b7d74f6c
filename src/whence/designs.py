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

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError

Subsets = NDArray[np.float64]
Rows = NDArray[np.bool_]

_MOST_LISTED = 2**20  # families up to this size are numbered and shuffled; larger ones are sampled


class Design(Protocol):
    """Anything that draws subsets of tasks."""

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Subsets of the tasks, one per row.

        Parameters
        ----------
        n_tasks : int
            Number of tasks K.
        n : int or None
            Number of subsets; None means all of them, for designs that list a fixed family.
        seed : int
            Same seed, same rows.

        Returns
        -------
        ndarray of shape (n, K), float64
            1 where the task is in the subset, 0 where it is not.
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
        n_tasks = _tasks(self, n_tasks)
        n = _count(self, n_tasks, n, 2**n_tasks - (not self.allow_empty))
        rng = _generator(self, seed)

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
        _whole(self.size, "size", type(self).__name__)

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Distinct random subsets of one size, shape (n, K); see `Design.draw`."""
        n_tasks = _tasks(self, n_tasks, self.size)
        total = comb(n_tasks, self.size)
        n = _count(self, n_tasks, n, total)
        rng = _generator(self, seed)
        if total <= _MOST_LISTED:
            return _unrank(n_tasks, self.size, rng.permutation(total)[:n]).astype(np.float64)

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
        n_tasks = _tasks(self, n_tasks)
        total = 1 + n_tasks * (n_tasks > 1)
        index = _listed(self, n_tasks, n, seed, total)
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
        n_tasks = _tasks(self, n_tasks)
        total = 1 + n_tasks * (n_tasks > 1) + comb(n_tasks, 2) * (n_tasks > 2)
        index = _listed(self, n_tasks, n, seed, total)
        first, second = (
            np.concatenate([np.arange(-1, n_tasks), pairs]) for pairs in np.triu_indices(n_tasks, 1)
        )
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
        n_tasks = _tasks(self, n_tasks)
        if 2**n_tasks > _MOST_LISTED:
            raise InputError(
                f"Exhaustive lists at most {_MOST_LISTED:,} subsets (20 tasks), and {n_tasks} tasks have "
                f"2^{n_tasks}: draw some of them with Bernoulli(0.5) instead."
            )
        index = _listed(self, n_tasks, n, seed, 2**n_tasks - (not self.allow_empty))
        bits = np.arange(n_tasks)[::-1]
        codes = 2**n_tasks - 1 - index
        return np.asarray(codes[:, None] >> bits & 1, dtype=np.float64)


@dataclass(frozen=True)
class Balanced:
    """Subsets with exactly ``size`` tasks that show every task, and every pair of tasks, about equally often.

    Guaranteed: rows are distinct, and the numbers of subsets in which two tasks appear differ by at most one.
    Best effort: the sum of squared pair counts is made small by trading tasks between two subsets, with
    restarts, until it meets its lower bound or a fixed effort (a few seconds at most) is spent. Where a
    perfect design exists and is small (7 subsets of 3 out of 7 tasks, 13 of 4 out of 13), every pair usually
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

    size: int

    def __post_init__(self) -> None:
        _whole(self.size, "size", type(self).__name__)

    def draw(self, n_tasks: int, n: int | None = None, *, seed: int = 0) -> Subsets:
        """Distinct subsets of one size with even task and pair counts, shape (n, K); see `Design.draw`."""
        n_tasks = _tasks(self, n_tasks, self.size)
        total = comb(n_tasks, self.size)
        n = _count(self, n_tasks, n, total)
        rng = _generator(self, seed)
        if 2 * n <= total:
            return _exchange(n_tasks, self.size, n, rng).astype(np.float64)
        # Past half of all subsets it is easier to say which are left out: their counts are just as even.
        rows = _unrank(n_tasks, self.size, rng.permutation(total))
        left_out = {row.tobytes() for row in _exchange(n_tasks, self.size, total - n, rng)}
        return rows[[row.tobytes() not in left_out for row in rows]].astype(np.float64)


def parse_design(text: str) -> Design:
    """Design named by a short text, as on the command line.

    Parameters
    ----------
    text : str
        ``bernoulli:0.5``, ``fixed:7``, ``balanced:7``, ``loo``, ``lto`` or ``all``.

    Returns
    -------
    Design

    Examples
    --------
    >>> parse_design("fixed:7")
    FixedSize(size=7)
    """
    name, _, argument = text.strip().lower().partition(":")
    try:
        match name, argument:
            case "loo", "":
                return LeaveOneOut()
            case "lto", "":
                return LeaveTwoOut()
            case "all", "":
                return Exhaustive()
            case "bernoulli", _:
                return Bernoulli(float(argument))
            case "fixed", _:
                return FixedSize(int(argument))
            case "balanced", _:
                return Balanced(int(argument))
    except InputError:
        raise
    except ValueError:
        pass
    raise InputError(
        "A design must be bernoulli:P (P between 0 and 1), fixed:SIZE, balanced:SIZE, loo, lto or all. "
        f"Got '{text}' instead."
    )


def _whole(value: Any, parameter: str, owner: str, least: int = 1) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(
            f"The '{parameter}' parameter of {owner} must be an integer of at least {least}. "
            f"Got {value!r} instead."
        )
    return int(value)


def _tasks(design: Design, n_tasks: Any, least: int = 1) -> int:
    n_tasks = _whole(n_tasks, "n_tasks", f"{type(design).__name__}.draw")
    if n_tasks < least:
        raise InputError(f"{design} needs at least {least} tasks. Got n_tasks={n_tasks} instead.")
    return int(n_tasks)


def _count(design: Design, n_tasks: int, n: Any, total: int) -> int:
    n = _whole(n, "n", f"{type(design).__name__}.draw")
    if n > total:
        raise InputError(
            f"{design} has {total} distinct subsets of {n_tasks} tasks, fewer than the n={n} asked for: "
            f"ask for at most {total}."
        )
    return int(n)


def _generator(design: Design, seed: Any) -> np.random.Generator:
    return np.random.default_rng(_whole(seed, "seed", f"{type(design).__name__}.draw", least=0))


def _listed(design: Design, n_tasks: int, n: int | None, seed: int, total: int) -> NDArray[np.int64]:
    """Positions in a listed family: all in order, or the first and a random choice of the others."""
    rng = _generator(design, seed)
    if n is None:
        return np.arange(total)
    return np.append(0, 1 + rng.permutation(total - 1))[: _count(design, n_tasks, n, total)]


def _without(n_tasks: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> Subsets:
    """Rows of ones with two tasks removed each (the same one twice for one; -1 for none), shape (n, K)."""
    rows = np.ones((len(first), n_tasks + 1))
    rows[np.arange(len(first)), first] = 0  # -1 lands in the last column, which is cut off
    rows[np.arange(len(first)), second] = 0
    return rows[:, :n_tasks]


def _unrank(n_tasks: int, size: int, ranks: NDArray[np.int64]) -> Rows:
    """Subsets of one size by their place in the combinatorial number system, shape (n, K)."""
    if 2 * size > n_tasks:  # the smaller side keeps every binomial below C(K, size)
        return ~_unrank(n_tasks, n_tasks - size, ranks)
    rows = np.zeros((len(ranks), n_tasks), dtype=bool)
    left = np.asarray(ranks, dtype=np.int64)
    for chosen in range(size, 0, -1):
        below = np.array([comb(task, chosen) for task in range(n_tasks)], dtype=np.int64)
        task = np.searchsorted(below, left, side="right") - 1
        rows[np.arange(len(rows)), task] = True
        left = left - below[task]
    return rows


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


def _exchange(n_tasks: int, size: int, n: int, rng: np.random.Generator) -> Rows:
    """Distinct subsets with even task counts and, as far as a fixed effort goes, pairs, shape (n, K)."""
    best, best_loss = np.zeros((0, n_tasks), dtype=bool), np.inf
    if n == 0:
        return best
    # A task meets others (its count) * (size - 1) times; spread evenly, this bounds the loss from below.
    meetings = (n * size // n_tasks + (np.arange(n_tasks) < n * size % n_tasks)) * (size - 1)
    whole, extra = np.divmod(meetings, max(n_tasks - 1, 1))
    least = (whole**2 * (n_tasks - 1) + extra * (2 * whole + 1)).sum()
    # A pair of subsets costs about 30 microseconds, and more when their difference is wide.
    width = min(size, n_tasks - size)
    effort = min(100 * n * (n - 1), max(2 * n, int(40_000 / (1 + (width / 40) ** 2))))
    while True:
        rows = _deal(n_tasks, size, n, rng)
        pairs = rows.T.astype(np.float64) @ rows
        np.fill_diagonal(pairs, 0)
        stalled, loss = 0, np.inf
        while stalled < 20:  # moves that change nothing wander over plateaus, so one idle pass is not the end
            effort -= _exchange_pass(rows, pairs, rng, effort)
            stalled = 0 if (pairs**2).sum() < loss else stalled + 1
            loss = min(loss, (pairs**2).sum())
            if loss < best_loss:
                best, best_loss = rows.copy(), loss
            if best_loss <= least or effort <= 0:
                return best


def _deal(n_tasks: int, size: int, n: int, rng: np.random.Generator) -> Rows:
    """Distinct subsets whose task counts differ by at most one, shape (n, K)."""
    for _ in range(100):
        rows = np.zeros((n, n_tasks), dtype=bool)
        dealt = np.zeros(n_tasks)
        for row in rows:
            least_dealt = np.argsort(dealt + rng.random(n_tasks) / 2)[:size]
            row[least_dealt] = True
            dealt[least_dealt] += 1
        seen = Counter(row.tobytes() for row in rows)
        if all(seen[row.tobytes()] == 1 or _separate(rows, at, seen, rng) for at, row in enumerate(rows)):
            return rows
    raise InputError(
        f"No {n} distinct subsets of {size} out of {n_tasks} tasks with even task counts were found: "
        "try another seed or FixedSize."
    )


def _separate(rows: Rows, at: int, seen: Counter[bytes], rng: np.random.Generator) -> bool:
    """Whether a repeated row could be made distinct, by trading one task with another row."""
    for other in rng.permutation(len(rows)):
        ours, theirs = np.flatnonzero(rows[at] & ~rows[other]), np.flatnonzero(rows[other] & ~rows[at])
        for give in rng.permutation(ours):
            for take in rng.permutation(theirs):
                if _trade(rows, at, other, give, take, seen):
                    return True
    return False


def _trade(rows: Rows, a: int, b: int, give: int, take: int, seen: Counter[bytes]) -> bool:
    """Whether row a could give one task to row b for another without making a row that is there already."""
    both = [a, b]
    before = [rows[at].tobytes() for at in both]
    rows[np.ix_(both, [give, take])] ^= True
    after = [rows[at].tobytes() for at in both]
    if any(seen[key] for key in after):
        rows[np.ix_(both, [give, take])] ^= True
        return False
    seen.subtract(before)
    seen.update(after)
    return True


def _exchange_pass(rows: Rows, pairs: NDArray[np.float64], rng: np.random.Generator, effort: int) -> int:
    """How many pairs of rows were visited; in each, the best trade is made in place if it does no harm.

    With P the tasks of row a only, Q those of row b only (q each), L the pair counts and u the sum of L over
    P minus that over Q, trading i in P for j in Q changes the sum of L² over pairs by
    2 (u_j - u_i - 2 L_ij + 2 (q - 1)).
    """
    n = len(rows)
    visits = min(n * (n - 1) // 2, effort)
    seen = Counter(row.tobytes() for row in rows)
    first = rng.integers(n, size=visits)
    second = (first + rng.integers(1, max(n, 2), size=visits)) % n
    for a, b in zip(first, second, strict=True):
        only_a, only_b = np.flatnonzero(rows[a] & ~rows[b]), np.flatnonzero(rows[b] & ~rows[a])
        q = len(only_a)
        if q < 2:  # trading the only difference renames the rows
            continue
        both = np.concatenate([only_a, only_b])
        block = pairs[np.ix_(both, both)]
        u = block[:, :q].sum(axis=1) - block[:, q:].sum(axis=1)
        change = u[q:] - u[:q, None] - 2 * block[:q, q:] + 2 * (q - 1)
        i, j = divmod(int(np.argmin(change + rng.random((q, q)) / 2)), q)
        give, take = only_a[i], only_b[j]
        if change[i, j] > 0 or not _trade(rows, a, b, give, take, seen):
            continue
        rest_a, rest_b = np.delete(only_a, i), np.delete(only_b, j)
        for task, gains, loses in ((give, rest_b, rest_a), (take, rest_a, rest_b)):
            pairs[task, gains] += 1
            pairs[gains, task] += 1
            pairs[task, loses] -= 1
            pairs[loses, task] -= 1
    return visits
