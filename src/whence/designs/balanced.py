"""Subsets of one size in which tasks, and pairs of tasks, come equally often: the search behind `Balanced`.

Subsets are dealt like cards, so that no task is ahead of another by more
than one. Then two subsets at a time trade one task for another, which leaves sizes and task counts as they
are, wherever that does not raise the loss: the sum of squared pair counts, least where pairs are most even.
"""

from __future__ import annotations

from collections import Counter
from math import comb

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError

Rows = NDArray[np.bool_]


def even_rows(n_tasks: int, size: int, n: int, rng: np.random.Generator) -> Rows:
    """Distinct subsets with even task counts and, with limited effort, even pair counts, shape (n, K).

    >>> even_rows(4, 2, 2, np.random.default_rng(0)).sum(axis=0)
    array([1, 1, 1, 1])
    """
    total = comb(n_tasks, size)
    if 2 * n <= total:
        return _exchange(n_tasks, size, n, rng)
    # Past half of all subsets it is easier to say which are left out: their counts are just as even.
    rows = unrank(n_tasks, size, rng.permutation(total))
    left_out = {row.tobytes() for row in _exchange(n_tasks, size, total - n, rng)}
    return rows[[row.tobytes() not in left_out for row in rows]]


def unrank(n_tasks: int, size: int, ranks: NDArray[np.int64]) -> Rows:
    """Subsets of one size by their place in the combinatorial number system, shape (n, K).

    >>> unrank(4, 2, np.array([0, 1, 5])).astype(int)
    array([[1, 1, 0, 0],
           [1, 0, 1, 0],
           [0, 0, 1, 1]])
    """
    if 2 * size > n_tasks:  # the smaller side keeps every binomial below C(K, size)
        return ~unrank(n_tasks, n_tasks - size, ranks)
    rows = np.zeros((len(ranks), n_tasks), dtype=bool)
    left = np.asarray(ranks, dtype=np.int64)
    for chosen in range(size, 0, -1):
        below = np.array([comb(task, chosen) for task in range(n_tasks)], dtype=np.int64)
        task = np.searchsorted(below, left, side="right") - 1
        rows[np.arange(len(rows)), task] = True
        left = left - below[task]
    return rows


def _exchange(n_tasks: int, size: int, n: int, rng: np.random.Generator) -> Rows:
    """Best rows of several starts, each improved until it stalls, shape (n, K)."""
    best, best_loss = np.zeros((n, n_tasks), dtype=bool), np.inf
    if n == 0:
        return best
    least = _least_loss(n_tasks, size, n)
    # A pair of subsets costs about 30 microseconds, and more when their difference is wide.
    width = min(size, n_tasks - size)
    effort = min(100 * n * (n - 1), max(2 * n, int(40_000 / (1 + (width / 40) ** 2))))
    while True:
        rows = _deal(n_tasks, size, n, rng)
        pairs = rows.T.astype(np.float64) @ rows
        np.fill_diagonal(pairs, 0)
        stalled, loss = 0, np.inf
        while stalled < 20:  # moves that change nothing wander over plateaus, so one idle pass is not the end
            effort -= _improve(rows, pairs, rng, effort)
            stalled = 0 if (pairs**2).sum() < loss else stalled + 1
            loss = min(loss, (pairs**2).sum())
            if loss < best_loss:
                best, best_loss = rows.copy(), loss
            if best_loss <= least or effort <= 0:
                return best


def _least_loss(n_tasks: int, size: int, n: int) -> int:
    """Lower bound of the loss: each task's meetings with others spread evenly over the others."""
    meetings = (n * size // n_tasks + (np.arange(n_tasks) < n * size % n_tasks)) * (size - 1)
    whole, extra = np.divmod(meetings, max(n_tasks - 1, 1))
    return int((whole**2 * (n_tasks - 1) + extra * (2 * whole + 1)).sum())


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


def _improve(rows: Rows, pairs: NDArray[np.float64], rng: np.random.Generator, effort: int) -> int:
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
