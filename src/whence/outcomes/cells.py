"""Tables that are not runs: subsets to measure or to predict, and scores of tasks, read as runs are.

The cells of a file come from the readers of :mod:`whence.outcomes.sheets`, so that the same formats are known and the
same mistakes found.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from whence.errors import InputError, some_of
from whence.outcomes.bookkeeping import set_aside
from whence.outcomes.checks import Floats, check_weights, find_names
from whence.outcomes.columns import note_aside
from whence.outcomes.files import errors_name, read_outcomes
from whence.outcomes.sheets import Sheet, read_sheet
from whence.outcomes.text import kind_of
from whence.outcomes.values import cell_text


def has_roles(path: Path) -> bool:
    """Whether a file or folder itself says which of its columns are tasks and which are outcomes."""
    return path.is_dir() or path.suffix == ".npz"


def column_names(path: Path) -> list[str]:
    """Names of the columns of a text or Parquet file."""
    with errors_name(path):
        return _read(path).names


def read_subsets(
    path: str | os.PathLike[str],
    tasks: Sequence[str] | None = None,
    *,
    ignore: Sequence[str] = (),
    sheet: str | None = None,
) -> pd.DataFrame:
    """Subsets from a file with a column per task, or from a run folder; other columns do not matter.

    Where ``tasks`` are not named, they are all columns that are not empty and do not look like a seed, an outcome or
    the like; a warning names those.
    """
    path = Path(path)
    if has_roles(path):
        runs = read_outcomes(path)
        return pd.DataFrame(runs.subsets, columns=list(runs.task_names))
    with errors_name(path):
        cells = _read(path, sheet)
        if tasks is None:
            tasks = _tasks(cells, ignore)
        subsets = _numbers(cells, tasks)
        check_weights(subsets, tasks, cells.places)
        return pd.DataFrame(subsets, columns=list(tasks))


def read_scores(path: str | os.PathLike[str], tasks: Sequence[str], targets: Sequence[str]) -> Floats:
    """Scores (K, T) of tasks, from a file with a column ``task`` and one per target, in any order."""
    path = Path(path)
    with errors_name(path):
        sheet = _read(path)
        wanted = ["task", *targets]
        if missing := [name for name in wanted if not find_names(name, sheet.names)]:
            raise InputError(f"there is no column {some_of(missing)}. Scores need the columns {some_of(wanted)}.")
        have = [str(cell).strip() for cell in sheet.by_name[find_names("task", sheet.names)[0]]]
        if twice := [task for task, times in Counter(have).items() if times > 1]:
            raise InputError(f"there is more than one row for {some_of(twice)}.")
        if missing := [task for task in tasks if task not in have]:
            raise InputError(f"there is no row for {some_of(missing)}.")
        scores = _numbers(sheet, targets)[[have.index(task) for task in tasks]]
        if not np.isfinite(scores).all():
            raise InputError("every score must be a finite number.")
        return scores


def read_features(path: str | os.PathLike[str]) -> pd.DataFrame:
    """What is known of tasks, from a file with a column ``task``; columns of numbers and empty cells are numbers."""
    path = Path(path)
    with errors_name(path):
        sheet = _read(path)
        if "task" not in sheet.names:
            raise InputError("there is no column task. Features need it, to name the task of each row.")
        cells = sheet.by_name.items()
        frame = pd.DataFrame({name: [cell_text(cell) for cell in column] for name, column in cells})
    for name in sheet.names:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if name != "task" and (numbers.notna() | (frame[name] == "")).all():
            frame[name] = numbers
    return frame


def _read(path: Path, sheet: str | None = None) -> Sheet:
    if kind_of(path) == "npz":
        raise InputError("an npz file holds runs only. Give a table with named columns, such as a .csv file.")
    return read_sheet(path, sheet)


def _tasks(sheet: Sheet, ignore: Sequence[str]) -> list[str]:
    """The columns of a plan that are tasks; its outcomes may be filled in already, or only some of them."""
    known = [name for given in ignore for name in find_names(given, sheet.names)]
    columns = {name: column for name, column in sheet.all_numbers(known).items() if not column.is_empty}
    aside = set_aside({name: column for name, column in columns.items() if not column.wrong})
    left = {name: column.values for name, column in columns.items() if name not in aside}
    binary = [name for name, values in left.items() if np.isin(values, (0, 1)).all()]
    if len(binary) >= 2 and len(binary) >= len(left) / 2:
        aside |= {name: "not 0/1, as the others are" for name in left if name not in binary and not columns[name].wrong}
    if aside and len(aside) < len(columns):
        note_aside(aside)
        return [name for name in columns if name not in aside]
    return list(columns)


def _numbers(sheet: Sheet, wanted: Sequence[str]) -> Floats:
    """Numbers (m, n) of the wanted columns."""
    found = [find_names(name, sheet.names) for name in wanted]
    if missing := [name for name, places in zip(wanted, found, strict=True) if len(places) != 1]:
        raise InputError(f"there is no column for {some_of(missing)}.")
    columns = [sheet.numbers(name) for (name,) in found]
    for name, column in zip(wanted, columns, strict=True):
        for at, what in column.wrong:
            raise InputError(f"{sheet.places[at]}, column '{name}': {what}.")
    return np.column_stack([column.values for column in columns])
