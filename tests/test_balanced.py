"""Balanced subsets against enumeration of all designs, and what is guaranteed for every number of them."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from whence.designs import Balanced, FixedSize
from whence.designs.balanced import unrank


def as_sets(rows):
    return [frozenset(np.flatnonzero(row).tolist()) for row in rows]


def pair_counts(rows):
    return (rows.T @ rows)[np.triu_indices(rows.shape[1], 1)]


@pytest.mark.parametrize(("n_tasks", "size"), [(1, 1), (5, 1), (6, 3), (7, 5), (8, 8)])
def test_unrank_gives_every_subset_once(n_tasks, size):
    rows = as_sets(unrank(n_tasks, size, np.arange(comb(n_tasks, size))))
    assert len(rows) == comb(n_tasks, size)
    assert set(rows) == {frozenset(s) for s in combinations(range(n_tasks), size)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n_tasks", "size", "n"), [(7, 3, 7), (9, 3, 12), (13, 4, 13), (6, 3, 10)])
def test_small_perfect_designs_are_found(n_tasks, size, n, seed):
    rows = Balanced(size).draw(n_tasks, n, seed=seed)
    np.testing.assert_array_equal(pair_counts(rows), n * size * (size - 1) // (n_tasks * (n_tasks - 1)))


@pytest.mark.parametrize(("n_tasks", "size"), [(tasks, size) for tasks in range(1, 7) for size in range(1, tasks + 1)])
def test_rows_are_distinct_and_task_counts_differ_by_at_most_one(n_tasks, size):
    for n in range(1, comb(n_tasks, size) + 1):
        rows = Balanced(size).draw(n_tasks, n, seed=n)
        assert rows.shape == (n, n_tasks)
        assert len(set(as_sets(rows))) == n
        np.testing.assert_array_equal(rows.sum(axis=1), size)
        assert np.ptp(rows.sum(axis=0)) <= 1


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_nearly_all_subsets(left_out):
    rows = Balanced(5).draw(10, comb(10, 5) - left_out, seed=0)
    assert len(set(as_sets(rows))) == comb(10, 5) - left_out
    assert np.ptp(rows.sum(axis=0)) == left_out % 2  # one set and its complement leave the counts even


def test_pairs_are_far_more_even_than_at_random():
    rows = Balanced(10).draw(25, 60, seed=0)
    assert np.ptp(rows.sum(axis=0)) <= 1
    assert pair_counts(rows).std() < pair_counts(FixedSize(10).draw(25, 60, seed=0)).std() / 4


@pytest.mark.parametrize(("n_tasks", "size", "n"), [(5, 2, 4), (5, 3, 6), (6, 2, 7), (6, 3, 4)])
def test_pairs_are_as_even_as_the_best_of_all_designs(n_tasks, size, n):
    subsets = np.array(
        [[task in s for task in range(n_tasks)] for s in combinations(range(n_tasks), size)], dtype=float
    )
    best = min(
        (pair_counts(rows) ** 2).sum()
        for rows in (subsets[list(chosen)] for chosen in combinations(range(len(subsets)), n))
        if np.ptp(rows.sum(axis=0)) <= 1
    )
    assert (pair_counts(Balanced(size).draw(n_tasks, n, seed=0)) ** 2).sum() == best
