"""Long tables: a row for each run and task, as ``run, source, weight, loss``, become a row for each run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from whence.errors import DataWarning
from whence.outcomes.bookkeeping import kind_of_name
from whence.outcomes.sheets import Sheet
from whence.outcomes.values import as_column


def widened(sheet: Sheet, outcomes: Sequence[str]) -> Sheet:
    """The sheet with a row per run and a column per task, if it has a row per run and task; otherwise as it is.

    A column of run identifiers repeats, a column of text names a task at most once in each run, and all other columns
    are the same throughout a run, but for at most one of numbers: the weights.
    """
    for run, cells in zip(sheet.names, sheet.columns, strict=True):
        if kind_of_name(run) == "an identifier" and 1 < len(set(map(_cell, cells))) < len(cells):
            rows: dict[Any, list[int]] = {}
            for at, value in enumerate(map(_cell, cells)):
                rows.setdefault(value, []).append(at)
            if (found := _tasks_and_weights(sheet, list(rows.values()), outcomes)) is not None:
                return _wide(sheet, list(rows.values()), run, *found)
    return sheet


def _tasks_and_weights(
    sheet: Sheet, runs: Sequence[list[int]], outcomes: Sequence[str]
) -> tuple[str, list[str]] | None:
    """The column that names tasks, and those of weights, one at most; None where rows are not runs and tasks."""
    columns = dict(zip(sheet.names, sheet.columns, strict=True))
    varying = [name for name in sheet.names if any(len({_cell(columns[name][at]) for at in run}) > 1 for run in runs)]
    texts = [name for name in varying if as_column(columns[name], decimal_comma=sheet.decimal_comma).is_text]
    numbers = [name for name in varying if name not in texts]
    if len(texts) != 1 or len(numbers) > 1 or set(outcomes) & set(varying):
        return None
    named = [[_cell(columns[texts[0]][at]) for at in run] for run in runs]
    once = all(len(set(names)) == len(names) for names in named)
    often = len(sheet.places) >= 2 * len({name for names in named for name in names})
    return (texts[0], numbers) if once and often else None


def _wide(sheet: Sheet, runs: Sequence[list[int]], run: str, task: str, numbers: Sequence[str]) -> Sheet:
    cells = dict(zip(sheet.names, sheet.columns, strict=True))
    first = [rows[0] for rows in runs]
    kept = {name: [cells[name][at] for at in first] for name in sheet.names if name not in (task, *numbers)}
    tasks = {str(name): [0.0] * len(runs) for name in dict.fromkeys(map(_cell, cells[task])) if name != ""}
    for place, rows in enumerate(runs):
        for at in rows:
            if (name := _cell(cells[task][at])) != "":
                tasks[str(name)][place] = cells[numbers[0]][at] if numbers else 1.0
    weights = f", with weights from '{numbers[0]}'" if numbers else ""
    note = f"Rows with the same '{run}' are read as one run, and '{task}' as its tasks{weights}."
    warnings.warn(DataWarning(note), stacklevel=5)
    places = [sheet.places[at] for at in first]
    return Sheet([*kept, *tasks], [*kept.values(), *tasks.values()], places, sheet.decimal_comma)


def _cell(cell: Any) -> Any:
    return cell.strip() if isinstance(cell, str) else str(cell)
