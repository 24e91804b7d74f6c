"""Tables that are not runs: subsets to measure or to predict, and scores of tasks, read as runs are.

The cells of a file come from the readers of :mod:`whence.outcomes.files`, so that the same formats are known and the
same mistakes found.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import InputError, some_of
from whence.outcomes.checks import Floats, check_weights
from whence.outcomes.files import parquet_table, read_outcomes
from whence.outcomes.text import kind_of, parse, text_rows

if TYPE_CHECKING:
    import pandas as pd

Rows = list[tuple[int, list[str]]]  # cells as text, with the line of each row


def has_roles(path: Path) -> bool:
    """Whether a file or folder itself says which of its columns are tasks and which are outcomes."""
    return path.is_dir() or path.suffix == ".npz"


def column_names(path: Path) -> list[str]:
    """Names of the columns of a text or Parquet file."""
    with _errors_name(path):
        return _read(path)[0]


def read_subsets(path: str | os.PathLike[str], tasks: Sequence[str] | None = None) -> pd.DataFrame:
    r"""Subsets from a file with a column per task, or from a run folder; other columns do not matter.

    Parameters
    ----------
    path : path
        As for `whence.read_outcomes`.
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
    with _errors_name(path):
        names, rows = _read(path)
        if tasks is None:
            tasks = [name for at, name in enumerate(names) if any(cells[at].strip() for _, cells in rows)]
        if missing := [name for name in tasks if name not in names]:
            raise InputError(f"there is no column for {some_of(missing)}.")
        subsets = _numbers(names, rows, tasks)
        check_weights(subsets, tasks, [line for line, _ in rows])
        return pd.DataFrame(subsets, columns=list(tasks))


def read_scores(path: str | os.PathLike[str], tasks: Sequence[str], targets: Sequence[str]) -> Floats:
    r"""Scores (K, T) of tasks, from a file with a column ``task`` and one per target, in any order.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "scores.csv")
    ...     _ = file.write_text("task,loss\nb,2\na,1\n")
    ...     read_scores(file, ["a", "b"], ["loss"])
    array([[1.],
           [2.]])
    """
    path = Path(path)
    with _errors_name(path):
        names, rows = _read(path)
        wanted = ["task", *targets]
        if missing := [name for name in wanted if name not in names]:
            raise InputError(f"there is no column {some_of(missing)}. Scores need the columns {some_of(wanted)}.")
        have = [cells[names.index("task")].strip() for _, cells in rows]
        if twice := [task for task, times in Counter(have).items() if times > 1]:
            raise InputError(f"there is more than one row for {some_of(twice)}.")
        if missing := [task for task in tasks if task not in have]:
            raise InputError(f"there is no row for {some_of(missing)}.")
        scores = _numbers(names, rows, targets)[[have.index(task) for task in tasks]]
        if not np.isfinite(scores).all():
            raise InputError("every score must be a finite number.")
        return scores


def read_features(path: str | os.PathLike[str]) -> pd.DataFrame:
    r"""What is known of tasks, from a file with a column ``task``: a column that is all numbers, or empty, is numbers.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "tasks.csv")
    ...     _ = file.write_text("task,domain,size\na,law,3\nb,code,\n")
    ...     read_features(file).to_dict("list")
    {'task': ['a', 'b'], 'domain': ['law', 'code'], 'size': [3.0, nan]}
    """
    import pandas as pd

    path = Path(path)
    with _errors_name(path):
        names, rows = _read(path)
        if "task" not in names:
            raise InputError("there is no column task. Features need it, to name the task of each row.")
        frame = pd.DataFrame([cells for _, cells in rows], columns=names).map(str.strip)
    for name in names:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if name != "task" and (numbers.notna() | (frame[name] == "")).all():
            frame[name] = numbers
    return frame


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Let errors begin with the file that they are about."""
    try:
        yield
    except InputError as error:
        raise error.at(path) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _read(path: Path) -> tuple[list[str], Rows]:
    kind = kind_of(path)
    if not path.exists():
        raise InputError("there is no such file.")
    if kind == "npz":
        raise InputError("an npz file holds runs only. Give a table with named columns, such as a .csv file.")
    if kind != "parquet":
        with text_rows(path) as (names, numbered):
            return names, list(numbered)
    table, names = parquet_table(path)
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    return names, [(line, list(cells)) for line, cells in enumerate(zip(*columns, strict=True), 1)]


def _numbers(names: Sequence[str], rows: Rows, wanted: Sequence[str]) -> Floats:
    places = [names.index(name) for name in wanted]
    found = [parse([cells[at] for at in places], wanted, line) for line, cells in rows]
    return np.array(found, dtype=np.float64).reshape(len(rows), len(wanted))
