"""Reading: a table of runs, or subsets to measure, from a file or from a run folder of `whence.measure`.

Where most users enter the flow. Formats of files are those of :mod:`whence.outcomes.files`; a run folder is one more,
which can be read while it is being measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import InputError, some_of
from whence.measuring.journal import is_run, read_ledger
from whence.outcomes import Outcomes
from whence.outcomes.checks import Directions, check_weights, listed
from whence.outcomes.columns import Wanted, choose
from whence.outcomes.files import errors_name, has_roles, numbers_of, read_cells, read_table

if TYPE_CHECKING:
    import pandas as pd


def read_outcomes(
    path: str | os.PathLike[str],
    outcomes: str | Iterable[str] | None = None,
    *,
    tasks: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] = (),
    maximize: Directions = (),
) -> Outcomes:
    r"""Table of runs from a file, with a row per run, or from a run folder.

    A cell of a task column is 0 or 1 (or False, True), or a weight of at least 0. An empty, ``nan`` or ``NA``
    cell of an outcome column means not measured yet. What does not fit is an `InputError` that says where.

    Parameters
    ----------
    path : path ending in .csv, .tsv (or either with .gz), .parquet or .npz; or a folder of `whence.measure`
        An npz holds ``subsets`` and ``values``, or ``S`` and ``Y``, and may hold their names. A run folder can be
        read while it is being measured: rows that failed or are still to come are NaN.
    outcomes : str or sequence of str, optional
        Columns that hold outcomes. Needed unless the file knows (npz; Parquet written by `Outcomes.write`; a run).
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
    wanted = Wanted(
        outcomes=None if outcomes is None else listed(outcomes),
        tasks=None if tasks is None else listed(tasks),
        ignore=listed(ignore),
    )
    with errors_name(path):
        found = _read_run(path, wanted) if path.is_dir() else read_table(path, wanted)
        if found["provenance"] is None:
            found["provenance"] = {"source": str(path)}
        if up != []:
            found["maximize"] = up
        return Outcomes(**found)


def _read_run(path: Path, wanted: Wanted) -> dict[str, Any]:
    if not is_run(path):
        raise InputError(
            "this is a folder, and a file of runs is needed (.csv, .tsv, .parquet or .npz), or a folder that "
            "whence.measure made."
        )
    runs = read_ledger(path).outcomes(source=str(path))
    chosen = choose([*runs.task_names, *runs.target_names], wanted, runs.target_names)
    up = dict(zip(runs.target_names, runs.maximize, strict=True))
    return chosen.arguments(np.hstack([runs.subsets, runs.values])[:, chosen.places], up, dict(runs.provenance))


def read_subsets(path: str | os.PathLike[str], tasks: Sequence[str] | None = None) -> pd.DataFrame:
    r"""Subsets from a file with a column per task, or from a run folder; other columns do not matter.

    Parameters
    ----------
    path : path
        As for `read_outcomes`.
    tasks : sequence of str, optional
        Columns to read. Where not given, all columns that are not empty: outcomes are yet to be measured.

    Returns
    -------
    DataFrame
        A row per subset and a column per task.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "next.csv")
    ...     _ = file.write_text("code,math,loss\n1,0,\n1,1,\n")
    ...     read_subsets(file).to_dict("list")
    {'code': [1.0, 1.0], 'math': [0.0, 1.0]}
    """
    import pandas as pd

    path = Path(path)
    if has_roles(path):
        runs = read_outcomes(path)
        return pd.DataFrame(runs.subsets, columns=list(runs.task_names))
    with errors_name(path):
        names, rows = read_cells(path)
        if tasks is None:
            tasks = [name for at, name in enumerate(names) if any(cells[at].strip() for _, cells in rows)]
        if missing := [name for name in tasks if name not in names]:
            raise InputError(f"there is no column for {some_of(missing)}.")
        subsets = numbers_of(names, rows, tasks)
        check_weights(subsets, tasks, [line for line, _ in rows])
        return pd.DataFrame(subsets, columns=list(tasks))
