"""Outcomes: the table of runs, and the files it comes from.

The second step of the flow, and the one plain thing all others share: which tasks were in each run and what
came out. `whence.measure` fills a table from an outcome function, `read_outcomes` reads one from a file, and
`Outcomes` builds one from arrays; surrogates, evaluation and selection only ever see the table. It is checked
once, here, so that what follows can trust it; what is allowed but odd is said by `Outcomes.concerns`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import re
import sys
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from whence.errors import InputError, did_you_mean, some_of

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
_MOST_FOR_RANK = 2000  # columns; beyond this the search for linear relations would take minutes

_Rules = tuple[tuple[Callable[[Floats], NDArray[np.bool_]], str], ...]
Directions = bool | str | Iterable[str] | Iterable[bool]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Outcomes:
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
        S, Y, columns, targets = _arrays(subsets, values)
        tasks = _names(columns if task_names is None else task_names, "task", S.shape[1])
        outs = _names(targets if target_names is None else target_names, "outcome", Y.shape[1])
        if shared := sorted(set(tasks) & set(outs)):
            raise InputError(f"A task and a target cannot share a name. Both have: {some_of(shared)}.")
        _check_cells(S, tasks, _WEIGHT_RULES)
        _check_cells(Y, outs, _OUTCOME_RULES)
        S += 0.0  # makes -0.0 into 0.0: equal subsets then have equal bytes
        for array in (S, Y):
            array.setflags(write=False)
        origin = {str(key): str(value) for key, value in (provenance or {}).items()}
        for field, value in {
            "subsets": S,
            "values": Y,
            "task_names": tasks,
            "target_names": outs,
            "maximize": _directions(maximize, outs),
            "provenance": origin,
        }.items():
            object.__setattr__(self, field, value)

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

    def __len__(self) -> int:
        return self.n_runs

    def __repr__(self) -> str:
        shown = [
            f"{name} ({'higher' if up else 'lower'} is better)"
            for name, up in zip(self.target_names, self.maximize, strict=True)
        ]
        return (
            f"Outcomes: {_counted(self.n_runs, 'run')} × {_counted(self.n_tasks, 'task')} → "
            f"{some_of(shown, limit=3)}; {_counted(len(self._groups()[0]), 'distinct subset')}"
        )

    def rows(self, index: ArrayLike) -> Outcomes:
        """Table with some of the runs.

        Parameters
        ----------
        index : array-like of int or bool
            Positions (repeats are fine) or a mask over the runs.

        Returns
        -------
        Outcomes

        Examples
        --------
        >>> Outcomes([[1, 0], [0, 1]], [0.9, 0.8]).rows([1]).values
        array([[0.8]])
        """
        at = np.atleast_1d(np.asarray(index))
        at = at.astype(np.intp) if at.size == 0 and at.dtype != bool else at
        return self._with(subsets=self.subsets[at], values=self.values[at])

    def targets(self, names: str | Iterable[str]) -> Outcomes:
        """Table with some of the targets, in the order asked for.

        Parameters
        ----------
        names : str or sequence of str
            Target names.

        Returns
        -------
        Outcomes

        Examples
        --------
        >>> names = {"target_names": ["loss", "acc"], "maximize": ["acc"]}
        >>> runs = Outcomes([[1, 0], [0, 1]], [[0.9, 0.1], [0.8, 0.3]], **names)
        >>> runs.targets("acc")
        Outcomes: 2 runs × 2 tasks → acc (higher is better); 2 distinct subsets
        """
        places = {name: place for place, name in enumerate(self.target_names)}
        at = [_place(name, places, "target") for name in _listed(names)]
        return self._with(
            values=self.values[:, at],
            target_names=[self.target_names[place] for place in at],
            maximize=[self.maximize[place] for place in at],
        )

    def _with(self, **changes: Any) -> Outcomes:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Outcomes(**(fields | changes))

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
        given = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping) else given
        if isinstance(given, list) and all(isinstance(item, str) for item in given):
            given = dict.fromkeys(given, 1.0)
        if isinstance(given, Mapping):
            places = {name: place for place, name in enumerate(self.task_names)}
            at = [_place(name, places, "task") for name in given]
            row = np.zeros(self.n_tasks)
            row[at], _ = _numbers(list(given.values()), "subset")
        else:
            row, _ = _numbers(given, "subset")
        if row.shape != (self.n_tasks,):
            raise InputError(
                f"A subset must be task names or a row of {self.n_tasks} numbers, one per task. "
                f"Got shape {row.shape} instead."
            )
        _check_cells(row[None], self.task_names, _WEIGHT_RULES)
        return row

    def names_of(self, subset: ArrayLike) -> list[str]:
        """Names of the tasks in a subset, in the order of the table.

        Parameters
        ----------
        subset : array-like of shape (K,)
            Row of 0 and 1, or of weights.

        Returns
        -------
        list of str

        Examples
        --------
        >>> Outcomes([[1, 0, 1]], [0.9], task_names=["code", "math", "law"]).names_of([0, 1, 1])
        ['math', 'law']
        """
        row = self.subset(subset)
        return [self.task_names[place] for place in np.flatnonzero(row)]

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
        first, group = self._groups()
        shape = (len(first), self.n_runs)
        gather = scipy.sparse.csr_array((np.ones(self.n_runs), (group, np.arange(self.n_runs))), shape=shape)
        measured = ~np.isnan(self.values)
        counts = gather @ measured.astype(np.float64)
        sums = gather @ np.where(measured, self.values, 0.0)
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return self.subsets[first], means, counts.astype(np.int64)

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
        _, group = self._groups()
        _, means, counts = self.distinct()
        freedom = np.maximum(counts - 1, 0).sum(axis=0)
        squares = np.nansum((self.values - means[group]) ** 2, axis=0)
        return np.asarray(squares / np.where(freedom > 0, freedom, np.nan), dtype=np.float64)

    def _groups(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """First row of each distinct subset, shape (d,), and the distinct subset of each row, shape (m,)."""
        seen: dict[bytes, int] = {}
        group = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in self.subsets], dtype=np.intp)
        return np.unique(group, return_index=True)[1], group

    def concerns(self) -> list[str]:
        """Sentences on what deserves a look before an answer is trusted; empty when there is nothing to say.

        Rows that all have the same sum, as in fixed-size and mixture designs, are no concern.

        Returns
        -------
        list of str

        Examples
        --------
        >>> runs = Outcomes([[1, 0, 1], [1, 1, 0], [1, 1, 1]], [1.0, 5.0, 3.0], task_names=["a", "b", "c"])
        >>> runs.concerns()
        ['Tasks in every run alike, so that their effect cannot be seen: a.']
        """
        if self.n_runs < 3:
            few = f"The table has only {_counted(self.n_runs, 'run')}; a surrogate needs at least 3."
            return [few, *_target_concerns(self)]
        return [*_task_concerns(self), *_target_concerns(self)]

    def to_frame(self) -> pd.DataFrame:
        """Table as a pandas DataFrame, task columns then target columns.

        Returns
        -------
        DataFrame of shape (m, K + T)

        Examples
        --------
        >>> list(Outcomes([[1, 0]], [0.9], target_names=["loss"]).to_frame().columns)
        ['task_0', 'task_1', 'loss']
        """
        import pandas as pd

        return pd.DataFrame(
            np.hstack([self.subsets, self.values]), columns=[*self.task_names, *self.target_names]
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file that `read_outcomes` reads; the file appears whole or not at all.

        Parameters
        ----------
        path : path ending in .csv, .tsv (or either with .gz), .parquet or .npz
            CSV carries columns only; Parquet and npz also which are targets, their direction, and provenance.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Outcomes([[1, 0]], [0.9]).write(f"{folder}/runs.npz")
        ...     read_outcomes(f"{folder}/runs.npz")
        Outcomes: 1 run × 2 tasks → outcome_0 (lower is better); 1 distinct subset
        """
        path = Path(path)
        kind = _kind(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            if kind == "npz":
                _write_npz(self, partial)
            elif kind == "parquet":
                _write_parquet(self, partial)
            else:
                _write_text(self, partial, kind)
            os.replace(partial, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error}).") from error
        finally:
            partial.unlink(missing_ok=True)


def read_outcomes(
    path: str | os.PathLike[str],
    outcomes: str | Iterable[str] | None = None,
    *,
    tasks: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] = (),
    maximize: Directions = (),
) -> Outcomes:
    r"""Table of runs from a file, with a row per run.

    A cell of a task column is 0 or 1 (or False, True), or a weight of at least 0. An empty, ``nan`` or ``NA``
    cell of an outcome column means not measured yet. What does not fit is an `InputError` that says where.

    Parameters
    ----------
    path : path ending in .csv, .tsv (or either with .gz), .parquet or .npz
        An npz holds ``subsets`` and ``values``, or ``S`` and ``Y``, and may hold their names.
    outcomes : str or sequence of str, optional
        Columns that hold outcomes. Needed unless the file knows (npz; Parquet written by `Outcomes.write`).
    tasks : str or sequence of str, optional
        Columns that hold tasks; every other column where not given.
    ignore : str or sequence of str
        Columns that are neither.
    maximize : bool, sequence of target names, or sequence of bool
        For which targets higher is better; empty means as the file says, or none.

    Returns
    -------
    Outcomes

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "runs.csv")
    ...     _ = file.write_text("run,code,math,acc\nx,1,0,0.4\ny,1,1,0.7\n")
    ...     read_outcomes(file, ["acc"], ignore=["run"], maximize=["acc"])
    Outcomes: 2 runs × 2 tasks → acc (higher is better); 2 distinct subsets
    """
    path = Path(path)
    up: Any = maximize if isinstance(maximize, bool | str) else list(maximize)
    wanted = _Wanted(
        outcomes=None if outcomes is None else _listed(outcomes),
        tasks=None if tasks is None else _listed(tasks),
        ignore=_listed(ignore),
    )
    try:
        if path.is_dir():
            raise InputError("this is a folder, and a file of runs is needed (.csv, .tsv, .parquet or .npz).")
        kind = _kind(path)
        if not path.exists():
            raise InputError("there is no such file.")
        if kind == "npz":
            found = _read_npz(path, wanted)
        elif kind == "parquet":
            found = _read_parquet(path, wanted)
        else:
            found = _read_text(path, kind, wanted)
        if up != []:
            found["maximize"] = up
        return Outcomes(**({"provenance": {"source": str(path)}} | found))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


# ---- what goes into a table ------------------------------------------------------------------------------


def _arrays(subsets: Any, values: Any) -> tuple[Floats, Floats, list[str] | None, list[str] | None]:
    """Arrays of shape (m, K) and (m, T), copied, and their column names where the data have them."""
    S, columns = _numbers(subsets, "subsets")
    Y, targets = _numbers(values, "values")
    Y = Y[:, None] if Y.ndim == 1 else Y
    for array, what in ((S, "subsets"), (Y, "values")):
        if array.ndim != 2 or array.shape[1] < 1:
            raise InputError(
                f"The '{what}' of Outcomes must be a 2-D array with a row per run and at least one column. "
                f"Got shape {array.shape} instead."
            )
    if len(S) != len(Y):
        raise InputError(
            "The 'subsets' and 'values' of Outcomes must have the same number of rows, one per run. "
            f"Got {len(S)} and {len(Y)} instead."
        )
    return S, Y, columns, targets


def _numbers(data: Any, what: str) -> tuple[Floats, list[str] | None]:
    """Copy as float64, and the column names where the data are a DataFrame."""
    names = None
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame | pandas.Series):
        frame = data.to_frame() if isinstance(data, pandas.Series) else data
        names = [str(name) for name in frame.columns] if getattr(data, "name", "") is not None else None
        for place, dtype in enumerate(frame.dtypes):
            if not pandas.api.types.is_numeric_dtype(dtype) or dtype.kind == "c":
                raise InputError(
                    f"Column '{frame.columns[place]}' of '{what}' must hold numbers. Got {dtype} instead."
                )
        return frame.to_numpy(dtype=np.float64, na_value=np.nan, copy=True), names
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise InputError(
            f"The '{what}' must be a regular array of numbers, with rows of one length."
        ) from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"The '{what}' must be an array of numbers. Got dtype {array.dtype} instead.")
    return array.astype(np.float64), names


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else [str(name) for name in names]


def _names(given: Iterable[str] | None, kind: str, count: int) -> tuple[str, ...]:
    if given is None:
        return tuple(f"{kind}_{place}" for place in range(count))
    names = tuple(name.strip() for name in _listed(given))
    if len(names) != count:
        raise InputError(
            f"There must be one name per {kind} column, {count} in all. Got {len(names)} names instead."
        )
    for name in names:
        if name and name.isprintable():
            continue
        # Control characters, half surrogates and byte-order marks do not survive a text file.
        if not name or any(unicodedata.category(sign) in ("Cc", "Cs") or sign == "\ufeff" for sign in name):
            raise InputError(
                f"The name of each {kind} must be non-empty text without control characters. Got {name!r}."
            )
    if len(set(names)) < count:
        repeated = [repr(name) for name, times in Counter(names).items() if times > 1]
        raise InputError(
            f"The name of each {kind} must be unique. These come more than once: {some_of(repeated)}."
        )
    return names


def _place(name: Any, places: Mapping[str, int], kind: str) -> int:
    if name not in places:
        raise InputError(f"There is no {kind} '{name}'. {did_you_mean(str(name), places)}")
    return places[name]


def _directions(maximize: Directions | None, targets: Sequence[str]) -> tuple[bool, ...]:
    if maximize is None or isinstance(maximize, bool):
        return (bool(maximize),) * len(targets)
    given = [maximize] if isinstance(maximize, str) else list(maximize)
    if given and all(isinstance(up, bool | np.bool_) for up in given):
        if len(given) != len(targets):
            raise InputError(
                f"The 'maximize' parameter must have one bool per target, {len(targets)} in all. "
                f"Got {len(given)} instead."
            )
        return tuple(bool(up) for up in given)
    places = {name: place for place, name in enumerate(targets)}
    up = {_place(name, places, "target") for name in given}
    return tuple(place in up for place in range(len(targets)))


_WEIGHT_RULES: _Rules = (
    (np.isnan, "a task column cannot be empty; write 0 or 1, or a weight"),
    (np.isinf, "a weight must be finite"),
    (lambda weights: weights < 0, "a weight must be at least 0"),
)
_OUTCOME_RULES: _Rules = (
    (np.isinf, "an outcome must be finite; leave it empty (NaN) if it was not measured"),
)


def _check_cells(
    cells: Floats, names: Sequence[str], rules: _Rules, lines: Sequence[int] | None = None
) -> None:
    """Refuse the first cell that breaks a rule, by its line in the file or its row in the array."""
    for breaks, rule in rules:
        if (bad := breaks(cells)).any():
            row, column = (int(place) for place in np.argwhere(bad)[0])
            where = f"row {row} (counted from 0)" if lines is None else f"line {lines[row]}"
            raise InputError(f"{where}, column '{names[column]}': {rule}. Got {cells[row, column]} instead.")


# ---- what deserves a look --------------------------------------------------------------------------------


def _task_concerns(runs: Outcomes) -> list[str]:
    S, names = runs.subsets, runs.task_names
    binary = ((S == 0) | (S == 1)).all(axis=0)
    constant = (S[0] == S).all(axis=0)
    counter = ~binary & (np.diff(S, axis=0) == 1).all(axis=0)
    odd = ~binary & ~counter & (binary.mean() > 0.5)
    found = [
        f"{what}: {some_of(names[task] for task in np.flatnonzero(which))}."
        for what, which in (
            ("Tasks in every run alike, so that their effect cannot be seen", constant & (S[0] > 0)),
            ("Tasks in no run, so that their effect cannot be seen", constant & (S[0] == 0)),
            ("Columns that count the rows; ignore them if they are not tasks", counter),
            ("Columns that are not 0/1 while most are; ignore them if they are not tasks", odd),
        )
        if which.any()
    ]
    groups: dict[bytes, list[int]] = {}
    for start in range(0, runs.n_tasks, 1024):
        for task, column in enumerate(np.ascontiguousarray(S[:, start : start + 1024].T), start):
            if not constant[task]:
                groups.setdefault(hashlib.blake2b(column, digest_size=16).digest(), []).append(task)
    if same := [group for group in groups.values() if len(group) > 1]:
        shown = (f"({some_of((names[task] for task in group), limit=4)})" for group in same)
        found.append(
            f"Identical task columns, whose effects cannot be told apart: {some_of(shown, limit=4)}."
        )
    first, _ = runs._groups()
    single = [group[0] for group in groups.values()]
    if len(first) < runs.n_tasks:
        found.append(
            f"There are {_counted(len(first), 'distinct subset')} for {runs.n_tasks} tasks: with fewer "
            "subsets than tasks, the effects of single tasks cannot all be told apart."
        )
    if 1 < len(single) <= _MOST_FOR_RANK and len(single) < len(first):
        sums = S.sum(axis=1)
        expected = int(np.ptp(sums) <= 1e-8 * sums.max())  # fixed-size and mixture designs are so by intent
        rows = S[first][:, single]
        for part in (rows[: 4 * len(single)], rows):  # the first rows mostly show that there is no relation
            count, tasks = _relations(part)
            if count <= expected:
                return found
        found.append(
            f"Task columns follow from each other ({_counted(count - expected, 'relation')}), so that their "
            f"effects cannot be told apart; the shortest: {some_of(names[single[task]] for task in tasks)}."
        )
    return found


def _relations(S: Floats) -> tuple[int, list[int]]:
    """How many linear relations the centred columns have, and the columns of the shortest one found."""
    X = S - S.mean(axis=0)
    X = X / np.maximum(np.linalg.norm(X, axis=0), np.finfo(np.float64).tiny)
    R, order = scipy.linalg.qr(np.linalg.qr(X, mode="r"), mode="r", pivoting=True)
    rank = int((np.abs(np.diag(R)) > 1e-9).sum())
    weights = scipy.linalg.solve_triangular(R[:rank, :rank], R[:rank, rank:])
    relations = [[*order[:rank][np.abs(w) > 1e-6], order[rank + place]] for place, w in enumerate(weights.T)]
    return len(relations), sorted(int(column) for column in min(relations, key=len, default=[]))


def _target_concerns(runs: Outcomes) -> list[str]:
    found = []
    missing = np.isnan(runs.values).sum(axis=0)
    if missing.any():
        shown = (
            f"{runs.target_names[t]} ({missing[t]} of {runs.n_runs} missing)" for t in np.flatnonzero(missing)
        )
        found.append(f"Targets not measured in every run: {some_of(shown)}.")
    low = np.where(np.isnan(runs.values), np.inf, runs.values).min(axis=0, initial=np.inf)
    high = np.where(np.isnan(runs.values), -np.inf, runs.values).max(axis=0, initial=-np.inf)
    same = (low == high) & (runs.n_runs - missing > 1)
    if same.any():
        shown = (runs.target_names[t] for t in np.flatnonzero(same))
        found.append(
            f"Targets with the same value in every run, so that no effect can be seen: {some_of(shown)}."
        )
    return found


# ---- files -----------------------------------------------------------------------------------------------

_MISSING = {"", "nan", "na", "n/a", "#n/a", "<na>", "null", "none"}
_TRUTH = {"true": 1.0, "false": 0.0}
_ROW_INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")
_FIELDS = ("subsets", "values", "task_names", "target_names", "maximize", "provenance")


class _Wanted(NamedTuple):
    """What the caller asked for, by column name; None where anything goes."""

    outcomes: list[str] | None
    tasks: list[str] | None
    ignore: list[str]

    def columns(self, names: Sequence[str], targets: Sequence[str] = ()) -> tuple[list[int], list[int]]:
        """Places of the task and of the outcome columns; ``targets`` are those that the file declares."""
        places = {name: place for place, name in enumerate(names)}
        declared = set(targets)
        could_be = {
            "outcomes": targets or names,
            "tasks": [name for name in names if name not in declared],
            "ignore": names,
        }
        role: dict[str, str] = {}
        for parameter, asked in self._asdict().items():
            allowed = set(could_be[parameter])
            for name in asked or ():
                if name not in allowed:
                    hint = did_you_mean(name, could_be[parameter])
                    raise InputError(f"column '{name}' of '{parameter}' does not exist. {hint}")
                if name in role:
                    raise InputError(
                        f"column '{name}' is in '{role[name]}' and again in '{parameter}'; name it once."
                    )
                role[name] = parameter
        if self.outcomes is None and not targets:
            raise InputError(
                "the outcome columns must be named, with outcomes=[...] (or --outcome NAME "
                f"on the command line). The columns are: {some_of(names, limit=20)}."
            )
        outcomes = [name for name in targets if name not in role] if self.outcomes is None else self.outcomes
        tasks = [name for name in could_be["tasks"] if name not in role] if self.tasks is None else self.tasks
        for kind, chosen in (("task", tasks), ("outcome", outcomes)):
            if not chosen:
                raise InputError(f"no {kind} column is left. The columns are: {some_of(names, limit=20)}.")
        for name in () if targets or self.tasks is not None else tasks:
            if _ROW_INDEX.fullmatch(name):
                raise InputError(
                    f"column {places[name] + 1} has no name or is called '{name}': it looks like a row index "
                    f"saved by pandas. Leave it out with ignore=['{name}'] (or --ignore '{name}')."
                )
        return [places[name] for name in tasks], [places[name] for name in outcomes]


def _kind(path: Path) -> str:
    kinds = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "npz")
    for kind in kinds:
        if path.name.lower().endswith(f".{kind}"):
            return kind
    raise InputError(f"A file of runs must end in .{', .'.join(kinds)}. Got '{path.name}' instead.")


def _check_header(names: Sequence[str]) -> None:
    repeated = [repr(name) for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(
            f"column names must be unique, and these come more than once: {some_of(repeated)}. "
            "The first line must name the columns."
        )
    if len(names) == 1:
        raise InputError(
            f"there is one column, '{names[0]}', and a table needs a task and an outcome. "
            "Cells are separated by commas in .csv and by tabs in .tsv."
        )


def _open_text(path: Path, kind: str, mode: str) -> Any:
    opener: Any = gzip.open if kind.endswith(".gz") else open
    # The byte-order mark that spreadsheets write is not a part of the first name.
    return opener(path, mode, encoding="utf-8-sig" if mode == "rt" else "utf-8", newline="")


def _delimiter(kind: str) -> str:
    return "\t" if kind.startswith("tsv") else ","


def _read_text(path: Path, kind: str, wanted: _Wanted) -> dict[str, Any]:
    # The csv module and float() rather than pandas: lines are numbered right, numbers are exact, short rows
    # are seen rather than filled up, and a table of 10^5 columns takes a fraction of the time.
    line = 1
    try:
        with _open_text(path, kind, "rt") as file:
            reader = csv.reader(file, delimiter=_delimiter(kind), strict=True)
            header = next((cells for cells in reader if any(map(str.strip, cells))), [])
            if not header:
                raise InputError("the file is empty; its first line must name the columns.")
            names = [cell.strip() or f"Unnamed: {place}" for place, cell in enumerate(header)]
            _check_header(names)
            tasks, outcomes = wanted.columns(names)
            used = [*tasks, *outcomes]
            pick = itemgetter(*used)
            rows, lines, end = [], [], reader.line_num
            for cells in reader:
                line, end = end + 1, reader.line_num
                if len(cells) < 2 and not "".join(cells).strip():
                    continue
                if len(cells) != len(names):
                    raise InputError(f"line {line} has {len(cells)} cells where the header has {len(names)}.")
                rows.append(_parse(pick(cells), used, names, line))
                lines.append(line)
    except (csv.Error, UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"this is not a text table in UTF-8; reading stopped near line {line} ({error})."
        ) from error
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(used))
    found = _found(table, [names[place] for place in used], len(tasks))
    _check_cells(found["subsets"], found["task_names"], _WEIGHT_RULES, lines)
    _check_cells(found["values"], found["target_names"], _OUTCOME_RULES, lines)
    return found


def _found(
    table: Floats,
    names: Sequence[str],
    n_tasks: int,
    up: Mapping[str, bool] | None = None,
    origin: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Arguments of `Outcomes` for a table whose first columns are the tasks."""
    said = {} if origin is None else {"provenance": origin}
    return said | {
        "subsets": table[:, :n_tasks],
        "values": table[:, n_tasks:],
        "task_names": names[:n_tasks],
        "target_names": names[n_tasks:],
        "maximize": [(up or {}).get(name, False) for name in names[n_tasks:]],
    }


def _parse(cells: Sequence[str], used: Sequence[int], names: Sequence[str], line: int) -> Floats:
    try:
        if "_" not in "".join(cells):  # float() would take 1_000
            return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        pass
    numbers = np.empty(len(cells))
    for place, cell in enumerate(cells):
        word = cell.strip().lower()
        try:
            numbers[place] = np.nan if word in _MISSING else _TRUTH[word] if word in _TRUTH else float(word)
            if "_" in word:
                raise ValueError
        except ValueError:
            name = names[used[place]]
            raise InputError(
                f"line {line}, column '{name}': '{cell[:40]}' is not a number. "
                f"If the column is neither a task nor an outcome, leave it out with ignore=['{name}']."
            ) from None
    return numbers


def _write_text(runs: Outcomes, path: Path, kind: str) -> None:
    with _open_text(path, kind, "wt") as file:
        writer = csv.writer(file, delimiter=_delimiter(kind), lineterminator="\n")
        writer.writerow([*runs.task_names, *runs.target_names])
        for subset, values in zip(runs.subsets.tolist(), runs.values.tolist(), strict=True):
            weights = [int(weight) if weight in (0, 1) else weight for weight in subset]
            writer.writerow([*weights, *("" if value != value else value for value in values)])


def _read_npz(path: Path, wanted: _Wanted) -> dict[str, Any]:
    shorts = {"subsets": "S", "values": "Y", "task_names": "S_names", "target_names": "Y_names"}
    if not zipfile.is_zipfile(path):
        raise InputError("this is not an npz file (a zip archive of arrays), or it is cut short.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            held = archive.files
            keys = {name: name if name in held else shorts.get(name) for name in _FIELDS}
            arrays = {name: archive[key] for name, key in keys.items() if key in held}
        for name in ("task_names", "target_names", "maximize"):
            kind = bool if name == "maximize" else str
            arrays[name] = arrays[name].astype(kind).ravel().tolist() if name in arrays else None
        origin = dict(json.loads(str(arrays["provenance"]))) if "provenance" in arrays else None
    except Exception as error:  # a damaged archive makes numpy raise almost anything
        hint = " Save plain numbers and text: whence never unpickles." if "allow_pickle" in str(error) else ""
        raise InputError(f"this npz file cannot be read ({_brief(error)}).{hint}") from error
    if not {"subsets", "values"} <= set(arrays):
        raise InputError(
            f"an npz file must hold 'subsets' and 'values' (or S and Y). It holds: {some_of(held)}."
        )
    S, Y, *_ = _arrays(arrays["subsets"], arrays["values"])
    targets = _names(arrays["target_names"], "outcome", Y.shape[1])
    names = [*_names(arrays["task_names"], "task", S.shape[1]), *targets]
    _check_header(names)
    up = dict(zip(targets, _directions(arrays["maximize"], targets), strict=True))
    tasks, outcomes = wanted.columns(names, targets)
    used = [*tasks, *outcomes]
    return _found(np.hstack([S, Y])[:, used], [names[place] for place in used], len(tasks), up, origin)


def _write_npz(runs: Outcomes, path: Path) -> None:
    with open(path, "wb") as file:  # a name would have .npz added to it
        np.savez_compressed(
            file,
            subsets=runs.subsets.astype(np.uint8) if runs.is_binary else runs.subsets,
            values=runs.values,
            task_names=np.array(runs.task_names),
            target_names=np.array(runs.target_names),
            maximize=np.array(runs.maximize),
            provenance=np.array(json.dumps(dict(runs.provenance))),
        )


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError('Parquet files need pyarrow: pip install "whence[parquet]".') from error
    return pyarrow


def _read_parquet(path: Path, wanted: _Wanted) -> dict[str, Any]:
    pa = _pyarrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        note = json.loads((table.schema.metadata or {}).get(b"whence", b"{}"))
        targets = [str(name) for name in note.get("target_names", ())]
        up = dict(zip(targets, map(bool, note.get("maximize", ())), strict=True))
        origin = dict(note["provenance"]) if note else None
        names = [name.strip() for name in table.column_names]
        if note and names != [*note["task_names"], *targets]:
            raise ValueError("its columns are not those that whence wrote")
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        raise InputError(f"this Parquet file cannot be read ({_brief(error)}).") from error
    _check_header(names)
    tasks, outcomes = wanted.columns(names, targets)
    used = [*tasks, *outcomes]
    columns = [_floats(table.column(place), names[place]) for place in used]
    return _found(np.column_stack(columns), [names[place] for place in used], len(tasks), up, origin)


def _floats(column: Any, name: str) -> Floats:
    kinds = _pyarrow().types
    if not any(
        test(column.type)
        for test in (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_null)
    ):
        raise InputError(
            f"column '{name}' holds {column.type} and not numbers. "
            f"If it is neither a task nor an outcome, leave it out with ignore=['{name}']."
        )
    numbers = column if column.type == "double" else column.cast("double", safe=False)
    return np.asarray(numbers.to_numpy(), dtype=np.float64)


def _write_parquet(runs: Outcomes, path: Path) -> None:
    pa = _pyarrow()
    note = {name: getattr(runs, name) for name in _FIELDS[2:]}
    columns = np.ascontiguousarray(np.hstack([runs.subsets, runs.values]).T)
    table = pa.Table.from_arrays(
        [pa.array(column) for column in columns], [*runs.task_names, *runs.target_names]
    )
    pa.parquet.write_table(table.replace_schema_metadata({"whence": json.dumps(note)}), path)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
