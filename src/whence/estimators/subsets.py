"""Subsets and seeds as outcome functions are given them, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from whence.arrays import Floats, Integers
from whence.errors import InputError, counted, some_of
from whence.outcomes.checks import as_numbers, check_weights, places

SubsetLike = Iterable[str] | Iterable[float]  # the names of its tasks, or weights (K,)


def as_subsets(given: ArrayLike, task_names: Sequence[str]) -> Floats:
    """Rows (m, K) of weights, one column per task.

    >>> as_subsets([[1, 0], [1, 1]], ["code", "law"])
    array([[1., 0.],
           [1., 1.]])
    """
    rows = as_numbers(given, "subsets")[0]
    if rows.ndim != 2 or rows.shape[1] != len(task_names):
        raise InputError(
            f"Subsets must have a column for each of the {counted(len(task_names), 'task')} ({some_of(task_names)}). "
            f"Got an array of shape {rows.shape}."
        )
    check_weights(rows, task_names)
    return rows


def as_subset(given: SubsetLike, task_names: Sequence[str]) -> Floats:
    """One row, as (1, K), from weights (K,) or the names of the tasks that are in.

    >>> as_subset(["law"], ["code", "law"])
    array([[0., 1.]])
    """
    listed: list[str | float] = [given] if isinstance(given, str) else list(given)
    if all(isinstance(name, str) for name in listed):  # of none too
        row = np.zeros((1, len(task_names)))
        if listed:
            row[0, places(listed, task_names, "task")] = 1
        return row
    return as_subsets([listed], task_names)


def as_seeds(given: ArrayLike, m: int) -> Integers:
    """One seed per subset, (m,).

    >>> as_seeds([3, 4], 2)
    array([3, 4])
    """
    seeds = np.asarray(given)
    if seeds.shape != (m,) or (m and (seeds.dtype.kind not in "iu" or seeds.min() < 0)):
        raise InputError(f"There must be one seed per subset, {m} in all, whole numbers from 0. Got {given!r}.")
    return seeds.astype(np.int64)
