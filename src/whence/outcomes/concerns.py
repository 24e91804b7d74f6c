"""What deserves a look in a table before an answer is trusted.

A table that `Outcomes` accepts can still be one from which some effect cannot be told. Each such case is a sentence
that names the columns. `Outcomes.concerns` is how others ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from whence.errors import counted, some_of
from whence.outcomes.checks import Floats
from whence.outcomes.simplex import TOTALS, near_totals
from whence.outcomes.table import Outcomes, distinct_rows

FEW = 0.1  # of the runs that are unlike all others
FAR = 1.0  # times the range of the others
_MOST_FOR_RANK = 2000  # columns; beyond this the search for linear relations would take minutes


def concerns(runs: Outcomes) -> list[str]:
    """Sentences on what deserves a look; empty when there is nothing to say.

    Rows that all have the same sum, as in fixed-size and mixture designs, are no concern.

    >>> concerns(Outcomes([[1, 0], [0, 1]], [1.0, 5.0]))
    ['The table has only 2 runs; a surrogate needs at least 3.']
    """
    if runs.n_runs < 3:
        few = f"The table has only {counted(runs.n_runs, 'run')}; a surrogate needs at least 3."
        return [few, *_targets(runs)]
    return [*_single_columns(runs), *_columns_together(runs), *_totals(runs), *_targets(runs), *_far(runs)]


def _named(what: str, names: Iterable[str], limit: int = 8) -> list[str]:
    """Sentence that names them, in a list; an empty list where there are none."""
    listed = list(names)
    return [f"{what}: {some_of(listed, limit)}."] if listed else []


def _single_columns(runs: Outcomes) -> list[str]:
    S = runs.subsets
    binary = ((S == 0) | (S == 1)).all(axis=0)
    constant = (S[0] == S).all(axis=0)
    counter = ~binary & (np.diff(S, axis=0) == 1).all(axis=0)
    odd = ~binary & ~counter & (binary.mean() > 0.5)

    def named(what: str, which: NDArray[np.bool_]) -> list[str]:
        return _named(what, (runs.task_names[task] for task in np.flatnonzero(which)))

    return [
        *named("Tasks with the same weight in every run, so that their effect cannot be seen", constant & (S[0] > 0)),
        *named("Tasks in no run, so that their effect cannot be seen", constant & (S[0] == 0)),
        *named("Columns that count the rows; ignore them if they are not tasks", counter),
        *named("Columns that are not 0/1 while most are; ignore them if they are not tasks", odd),
    ]


def _columns_together(runs: Outcomes) -> list[str]:
    S, names = runs.subsets, runs.task_names
    varying = np.flatnonzero((S[0] != S).any(axis=0))
    leaders, group = distinct_rows(S[:, varying].T)
    alike = np.split(varying[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group)))[:-1]
    shown = (f"({some_of((names[task] for task in same), 4)})" for same in alike if len(same) > 1)
    found = _named("Identical task columns, whose effects cannot be separated", shown, 4)
    first, _ = distinct_rows(S)
    if len(first) < runs.n_tasks:
        found.append(
            f"There are {counted(len(first), 'distinct subset')} for {runs.n_tasks} tasks: with fewer "
            "subsets than tasks, the effects of single tasks cannot all be separated."
        )
    single = varying[leaders]
    if not 1 < len(single) <= _MOST_FOR_RANK or len(single) >= len(first):
        return found
    sums = S.sum(axis=1)
    expected = int(np.ptp(sums) <= 1e-8 * sums.max())  # fixed-size and mixture designs are so by intent
    rows = S[np.ix_(first, single)]
    for part in (rows[: 4 * len(single)], rows):  # the first rows mostly show that there is no relation
        count, shortest = _relations(part)
        if count <= expected:
            return found
    return [
        *found,
        f"Task columns follow from each other ({counted(count - expected, 'relation')}), so that their "
        f"effects cannot be separated; the shortest: {some_of(names[single[task]] for task in shortest)}.",
    ]


def _relations(S: Floats) -> tuple[int, list[int]]:
    """How many linear relations the centred columns have, and the columns of the shortest one found."""
    X = S - S.mean(axis=0)
    X = X / np.maximum(np.linalg.norm(X, axis=0), np.finfo(np.float64).tiny)
    R, order = scipy.linalg.qr(np.linalg.qr(X, mode="r"), mode="r", pivoting=True)
    rank = int((np.abs(np.diag(R)) > 1e-9).sum())
    weights = scipy.linalg.solve_triangular(R[:rank, :rank], R[:rank, rank:])
    relations = [[*order[:rank][np.abs(w) > 1e-6], order[rank + place]] for place, w in enumerate(weights.T)]
    return len(relations), sorted(int(column) for column in min(relations, key=len, default=[]))


def _totals(runs: Outcomes) -> list[str]:
    """Runs whose weights do not sum up to what those of nearly all others do."""
    totals = runs.subsets.sum(axis=1)
    for total in TOTALS if not runs.is_binary else ():
        off = np.flatnonzero(~near_totals(totals, (total,)))
        if 0 < len(off) <= runs.n_runs * FEW:
            named = some_of([f"run {row + 1} to {totals[row]:.4g}" for row in off], 4)
            return [f"Weights sum to {total:g} in nearly all runs, but not in all (counted from 1): {named}."]
    return []


def _far(runs: Outcomes) -> list[str]:
    """Whole numbers far from all others, which are not whole, as -1 and 9999 stand for a run that failed."""
    found = []
    for name, column in zip(runs.target_names, runs.values.T, strict=True):
        values = np.sort(column[~np.isnan(column)])
        above, below = _apart(values), _apart(-values[::-1])
        rest = values[below : len(values) - above]
        for odd in (values[:below], values[len(values) - above :]):
            if len(odd) and (odd == odd[0]).all() and odd[0] == odd[0].round() and (rest != rest.round()).any():
                found.append(
                    f"{name} ({odd[0]:.6g} in {counted(len(odd), 'run')}, else {rest[0]:.4g} to {rest[-1]:.4g})"
                )
    return _named("Outcomes far from all others, to leave empty if they stand for runs that failed", found, 4)


def _apart(values: Floats) -> int:
    """How many of sorted values, at most a few, are further above the others than these are from each other."""
    few = range(1, int(FEW * len(values)) + 1)
    return max((n for n in few if values[-n] - values[-n - 1] > FAR * (values[-n - 1] - values[0]) > 0), default=0)


def _targets(runs: Outcomes) -> list[str]:
    missing, same = [], []
    for name, column in zip(runs.target_names, runs.values.T, strict=True):
        measured = column[~np.isnan(column)]
        if len(measured) < runs.n_runs:
            missing.append(f"{name} ({runs.n_runs - len(measured)} of {runs.n_runs} missing)")
        if len(measured) > 1 and (measured == measured[0]).all():
            same.append(name)
    return [
        *_named("Targets not measured in every run", missing),
        *_named("Targets with the same value in every run, so that no effect can be seen", same),
    ]
