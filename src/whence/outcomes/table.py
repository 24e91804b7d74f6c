"""Outcomes: the table of runs.

The second step of the flow, and the one plain thing all others share: which tasks were in each run and what
came out. `whence.measure` fills a table from an outcome function, `read_outcomes` reads one from a file, and
`Outcomes` builds one from arrays; surrogates, evaluation and selection only ever see the table. It is checked
once, when it is built, so that what follows can trust it; what is allowed but odd, `Outcomes.concerns` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.errors import InputError, counted, some_of
from whence.outcomes.bookkeeping import is_loss, is_rate
from whence.outcomes.checks import (
    Directions,
    Floats,
    as_directions,
    as_names,
    as_numbers,
    as_table,
    check_values,
    check_weights,
    columns_of,
    listed,
    places,
)
from whence.outcomes.simplex import is_mixture, near_totals, on_simplex
from whence.outcomes.subset import in_words
from whence.shown import Shown

if TYPE_CHECKING:
    import pandas as pd


def distinct_rows(rows: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Group identical rows: the first row of each group, in order, shape (d,), and the group of each, (m,).

    >>> distinct_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    (array([0, 1]), array([0, 1, 0]))
    """
    seen: dict[bytes, int] = {}
    unsigned = np.add(rows, 0.0, order="C")  # -0.0 becomes 0.0: equal rows then have equal bytes
    group = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in unsigned], dtype=np.intp)
    return np.unique(group, return_index=True)[1], group


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Outcomes(Shown):
    """Table of runs: which tasks each one had, and what was measured.

    Arrays are copied and read-only. Repeated subsets are replicates and stay; NaN in ``values`` means not
    measured yet. Names lose surrounding white space. A table without a run is a measurement that just began.

    Parameters
    ----------
    subsets : array-like or DataFrame of shape (m, K)
        1 where the task was in the run and 0 where it was not, or weights. A DataFrame names the tasks.
    values : array-like or DataFrame of shape (m, T) or (m,)
        What was measured. A DataFrame names the targets.
    task_names, target_names : sequence of str, optional
        ``task_0, …`` and ``outcome_0, …`` where not given.
    maximize : bool, sequence of target names, or sequence of bool
        For which targets higher is better; none where not given.
    provenance : mapping of str to str, optional
        Where the values come from, as ``{"source": "runs.csv"}``.

    Examples
    --------
    >>> runs = Outcomes(subsets=[[1, 0], [0, 1], [1, 1]], values=[0.9, 0.8, 0.5], target_names=["loss"])
    >>> runs
    Outcomes: 3 runs × 2 tasks → loss (lower is better); 3 distinct subsets
    >>> runs.n_runs, runs.task_names, runs.is_binary
    (3, ('task_0', 'task_1'), True)
    """

    subsets: Floats
    values: Floats
    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    maximize: tuple[bool, ...]
    provenance: Mapping[str, str]

    def __init__(
        self,
        subsets: ArrayLike | pd.DataFrame,
        values: ArrayLike | pd.DataFrame,
        task_names: Iterable[str] | None = None,
        target_names: Iterable[str] | None = None,
        maximize: Directions | None = None,
        provenance: Mapping[str, str] | None = None,
    ) -> None:
        S, Y, columns, targets = as_table(subsets, values)
        tasks = as_names(columns if task_names is None else task_names, "task", S.shape[1])
        outs = as_names(targets if target_names is None else target_names, "outcome", Y.shape[1])
        if shared := sorted(set(tasks) & set(outs)):
            raise InputError(f"A task and a target cannot share a name. Both have: {some_of(shared)}.")
        check_weights(S, tasks)
        check_values(Y, outs)
        S += 0.0  # -0.0 becomes 0.0
        S.setflags(write=False)
        Y.setflags(write=False)
        self.__dict__.update(
            subsets=S,
            values=Y,
            task_names=tasks,
            target_names=outs,
            maximize=as_directions(maximize, outs),
            provenance={str(key): str(value) for key, value in (provenance or {}).items()},
        )

    @property
    def n_runs(self) -> int:
        """Number of rows m."""
        return len(self.subsets)

    @property
    def n_tasks(self) -> int:
        """Number of tasks K."""
        return len(self.task_names)

    @property
    def n_targets(self) -> int:
        """Number of targets T."""
        return len(self.target_names)

    @property
    def is_binary(self) -> bool:
        """Whether every weight is 0 or 1."""
        return bool(((self.subsets == 0) | (self.subsets == 1)).all())

    @property
    def is_mixture(self) -> bool:
        """Whether rows are weights of one total: shares or percent up to rounding, or amounts."""
        return is_mixture(self.subsets)

    @property
    def bounds(self) -> Floats:
        """The least and the greatest possible value of every target, (T, 2); infinite where it has none.

        Accuracies and other rates, by their names, lie between 0 and 1, or between 0 and 100, if all their values do.
        Losses and errors are 0 or more, if all their values are.

        Examples
        --------
        >>> Outcomes([[1, 0], [0, 1]], [[0.9, 0.2], [0.8, 0.3]], target_names=["acc", "loss"]).bounds.tolist()
        [[0.0, 1.0], [0.0, inf]]
        """
        bounds = np.tile([-np.inf, np.inf], (self.n_targets, 1))
        for t, name in enumerate(self.target_names):
            known = self.values[~np.isnan(self.values[:, t]), t]
            if len(known) and is_rate(name) and known.min() >= 0 and known.max() <= 100:
                bounds[t] = 0.0, 1.0 if known.max() <= 1 else 100.0
            elif len(known) and is_loss(name) and known.min() >= 0:
                bounds[t, 0] = 0.0
        return bounds

    def within_bounds(self, values: Floats) -> Floats:
        """Return values (…, T) of the targets, such as the ends of intervals, with none beyond its bounds."""
        return np.clip(values, *self.bounds.T)

    def on_simplex(self) -> Outcomes:
        """Table with shares that sum to 1 in every run, if it has mixtures in shares or percent; else the table itself.

        Examples
        --------
        >>> Outcomes([[25, 75.0], [50, 49.9]], [1.0, 2.0]).on_simplex().subsets.round(3).tolist()
        [[0.25, 0.75], [0.501, 0.499]]
        """
        if not self.is_mixture or not near_totals(self.subsets.sum(axis=1)).all():
            return self
        S = on_simplex(self.subsets)
        return self if S is self.subsets else replace(self, subsets=S)

    def __len__(self) -> int:
        return self.n_runs

    def __repr__(self) -> str:
        targets = (
            f"{name} ({'higher' if up else 'lower'} is better)"
            for name, up in zip(self.target_names, self.maximize, strict=True)
        )
        distinct = len(distinct_rows(self.subsets)[0])
        return (
            f"Outcomes: {counted(self.n_runs, 'run')} × {counted(self.n_tasks, 'task')} → "
            f"{some_of(targets, limit=3)}; {counted(distinct, 'distinct subset')}"
        )

    def rows(self, index: ArrayLike) -> Outcomes:
        """Table with some of the runs, by position (repeats are fine) or by a mask.

        Examples
        --------
        >>> Outcomes([[1, 0], [0, 1]], [0.9, 0.8]).rows([1]).values
        array([[0.8]])
        """
        at = np.atleast_1d(np.asarray(index))
        at = at.astype(np.intp) if at.size == 0 and at.dtype != bool else at
        return replace(self, subsets=self.subsets[at], values=self.values[at])

    def targets(self, names: str | Iterable[str]) -> Outcomes:
        """Table with some of the targets, in the order asked for; those of an array may be named by its name.

        Examples
        --------
        >>> names = {"target_names": ["loss", "acc"], "maximize": ["acc"]}
        >>> runs = Outcomes([[1, 0], [0, 1]], [[0.9, 0.1], [0.8, 0.3]], **names)
        >>> runs.targets("acc")
        Outcomes: 2 runs × 2 tasks → acc (higher is better); 2 distinct subsets
        """
        wanted = [column for name in listed(names) for column in columns_of(name, self.target_names)]
        at = places(wanted, self.target_names, "target")
        return replace(
            self,
            values=self.values[:, at],
            target_names=tuple(self.target_names[place] for place in at),
            maximize=tuple(self.maximize[place] for place in at),
        )

    def subset(self, tasks: str | Iterable[str] | Mapping[str, float] | ArrayLike) -> Floats:
        """Row of the subset with these tasks.

        Parameters
        ----------
        tasks : sequence of str, mapping of str to float, or array-like of shape (K,)
            Task names, task names with weights, or the row itself.

        Returns
        -------
        ndarray of shape (K,), float64

        Examples
        --------
        >>> runs = Outcomes([[1, 0, 1]], [0.9], task_names=["code", "math", "law"])
        >>> runs.subset(["math", "law"])
        array([0., 1., 1.])
        >>> runs.subset({"law": 0.5})
        array([0. , 0. , 0.5])
        """
        given: Any = [tasks] if isinstance(tasks, str) else tasks
        if np.iterable(given) and not isinstance(given, Mapping):
            given = list(given)
            if all(isinstance(name, str) for name in given):
                given = dict.fromkeys(given, 1.0)
        if isinstance(given, Mapping):
            row = np.zeros(self.n_tasks)
            row[places(given, self.task_names, "task")] = as_numbers(list(given.values()), "subset")[0]
        else:
            row = as_numbers(given, "subset")[0]
        if row.shape != (self.n_tasks,):
            raise InputError(
                f"A subset must be task names or a row of {self.n_tasks} numbers, one per task. "
                f"Got shape {row.shape} instead."
            )
        check_weights(row[None], self.task_names)
        return row

    def names_of(self, subset: ArrayLike) -> list[str]:
        """Names of the tasks in a subset, given as a row of shape (K,), in the order of the table.

        Examples
        --------
        >>> Outcomes([[1, 0, 1]], [0.9], task_names=["code", "math", "law"]).names_of([0, 1, 1])
        ['math', 'law']
        """
        return [self.task_names[place] for place in np.flatnonzero(self.subset(subset))]

    def describe(self, subset: ArrayLike) -> str:
        """Subset in words: its tasks, those it lacks where these are few, or the main weights of a mixture.

        Examples
        --------
        >>> runs = Outcomes([[1, 0, 1, 1]], [0.9], task_names=["code", "math", "law", "news"])
        >>> runs.describe([1, 0, 1, 0]), runs.describe([1, 0, 1, 1])
        ('code, law', 'all but math')
        """
        binary = self.is_binary
        return in_words(self.subset(subset), self.task_names, binary=binary, limit=None if binary else 4)

    def distinct(self) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Distinct subsets in order of first appearance, with the mean and number of their replicates.

        Returns
        -------
        subsets : ndarray of shape (d, K)
        means : ndarray of shape (d, T)
            NaN where no replicate was measured.
        counts : ndarray of shape (d, T), int64

        Examples
        --------
        >>> runs = Outcomes([[1, 0], [0, 1], [1, 0]], [1.0, 5.0, 3.0])
        >>> subsets, means, counts = runs.distinct()
        >>> means.ravel(), counts.ravel()
        (array([2., 5.]), array([2, 1]))
        """
        first, group = distinct_rows(self.subsets)
        measured = ~np.isnan(self.values)
        counts = np.zeros((len(first), self.n_targets), dtype=np.int64)
        sums = np.zeros(counts.shape)
        np.add.at(counts, group, measured)
        np.add.at(sums, group, np.where(measured, self.values, 0.0))
        means = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
        return self.subsets[first], means, counts

    def noise_variance(self) -> Floats:
        """Variance between replicates of the same subset, pooled over subsets.

        The sum of squared deviations from each subset's mean, divided by its degrees of freedom: an unbiased
        estimate of the variance of training noise, from which the noise ceiling follows.

        Returns
        -------
        ndarray of shape (T,), float64
            NaN where no subset was measured twice.

        Examples
        --------
        >>> Outcomes([[1, 0], [0, 1], [1, 0]], [1.0, 5.0, 3.0]).noise_variance()
        array([2.])
        """
        _, group = distinct_rows(self.subsets)
        _, means, counts = self.distinct()
        freedom = np.maximum(counts - 1, 0).sum(axis=0)
        squares = np.nansum((self.values - means[group]) ** 2, axis=0)
        return np.asarray(squares / np.where(freedom > 0, freedom, np.nan), dtype=np.float64)

    def concerns(self) -> list[str]:
        """Sentences on what deserves a look before an answer is trusted; see `whence.outcomes.concerns`.

        Examples
        --------
        >>> runs = Outcomes([[1, 0, 1], [1, 1, 0], [1, 1, 1]], [1.0, 5.0, 3.0], task_names=["a", "b", "c"])
        >>> runs.concerns()
        ['Tasks with the same weight in every run, so that their effect cannot be seen: a.']
        """
        from whence.outcomes.concerns import concerns

        return concerns(self)

    def to_frame(self) -> pd.DataFrame:
        """Table as a DataFrame of shape (m, K + T), task columns then target columns.

        Examples
        --------
        >>> list(Outcomes([[1, 0]], [0.9], target_names=["loss"]).to_frame().columns)
        ['task_0', 'task_1', 'loss']
        """
        import pandas as pd

        columns = [*self.task_names, *self.target_names]
        return pd.DataFrame(np.hstack([self.subsets, self.values]), columns=columns)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a .csv, .tsv, .parquet or .npz file; see `whence.outcomes.files.write_outcomes`."""
        from whence.outcomes.files import write_outcomes

        write_outcomes(self, path)
