"""Tables in which a row is not a run, and runs in several files: they become one table with a row for each run.

A row may be a run and a task, as ``run, source, weight, loss``, or a run and an outcome, as ``run, web, benchmark,
score``; a column may be a run. Several files hold more runs, or other columns of the same runs. A note says which.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from whence.errors import DataWarning, InputError, counted, some_of
from whence.outcomes.bookkeeping import WEIGHTS, is_outcome, kind_of_name, words_of
from whence.outcomes.checks import find_names
from whence.outcomes.sheets import Sheet
from whence.outcomes.simplex import near_totals
from whence.outcomes.values import MISSING, is_value

_MEASURES = re.compile(
    r"(metrics?|measures?|bench(mark)?s?|evals?|evaluation|eval_(task|set|dataset)|test_?set|outcome|variable|tag)(_name)?"
)
_VALUES = re.compile(r"(metric_)?(values?|scores?|results?)")
_MOST_OUTCOMES = 200
_PRECISE = re.compile(r"[+-]?\d*[.,]\d{3,}(e[+-]?\d+)?")  # as runs made again would hardly measure it twice
_NUMBERED = re.compile(r"(.*?[a-zA-Z])[ _.-]*\d+")


def turned(sheet: Sheet, outcomes: Sequence[str] | None) -> Sheet:
    """The sheet with its rows as columns, if outcomes are among the names in its first column and not in its header."""
    labels = [str(cell).strip() for cell in sheet.columns[0]] if sheet.columns else []
    if len(sheet.names) < 4 or len(set(labels)) < len(labels) or not all(labels):
        return sheet
    if outcomes is None:
        turn = any(map(is_outcome, labels)) and not any(map(is_outcome, sheet.names))
    else:
        turn = not any(find_names(one, sheet.names) for one in outcomes)
        turn = turn and any(find_names(one, labels) for one in outcomes)
    if not turn:
        return sheet
    rows = [list(cells) for cells in zip(*sheet.columns[1:], strict=True)]
    first = "the first column" if sheet.names[0].startswith("Unnamed") else f"'{sheet.names[0]}'"
    note = f"A column is read as a run, and a row as a task or an outcome, because {first} names these."
    warnings.warn(DataWarning(note), stacklevel=4)
    places = [f"column '{name}'" for name in sheet.names[1:]]
    return Sheet(["run", *labels], [sheet.names[1:], *rows], places, sheet.decimal_comma)


def one_list(sheet: Sheet) -> Sheet:
    """The sheet with one column that lists the tasks of a run, if it has several, as source1, source2 and so on."""
    cells = sheet.by_name
    stems: dict[str, list[str]] = {}
    for name in sheet.names:
        if not is_value(next(iter(cells[name]), "")) and (found := _NUMBERED.fullmatch(name)):
            stems.setdefault(found[1], []).append(name)
    for stem, names in stems.items():
        columns = [[_cell(cell) for cell in cells[name]] for name in names]
        named = [{cell for cell in column if cell.lower() not in MISSING} for column in columns]
        again = sum(map(len, named)) > len(set().union(*named))  # a task stands in several columns
        if len(names) < 2 or not again or stem in cells or any(is_value(cell) for cell in set().union(*named)):
            continue
        rows = [[cell for cell in row if cell.lower() not in MISSING] for row in zip(*columns, strict=True)]
        if any(len(set(row)) < len(row) for row in rows):
            continue
        note = f"Columns {some_of(map(repr, names), 3)} name the tasks of each run, and are read as one list."
        warnings.warn(DataWarning(note), stacklevel=4)
        kept = {name: column for name, column in cells.items() if name not in names}
        return sheet._replace(names=[*kept, stem], columns=[*kept.values(), rows])
    return sheet


def one_row_per_run(sheet: Sheet, outcomes: Sequence[str] | None) -> Sheet:
    """The sheet with a column for each outcome, as score[mmlu], if it has a row for each run and outcome."""
    named = [name for name in sheet.names if _MEASURES.fullmatch("_".join(words_of(name)))]
    asked = [name for one in outcomes or () for name in find_names(one, sheet.names)]
    values = asked or [name for name in sheet.names if _VALUES.fullmatch("_".join(words_of(name)))]
    for measure in named if values else ():
        ids = [[name] for name in sheet.names if kind_of_name(name) == "an identifier"]
        others = [name for name in sheet.names if name not in (measure, *values)]
        for key in (*ids, others):
            if (runs := _outcomes_of(sheet, key, measure, replicates=key is others)) is not None:
                return _with_outcomes(sheet, runs, measure, values)
    return sheet


def _outcomes_of(sheet: Sheet, key: Sequence[str], measure: str, *, replicates: bool) -> list[dict[str, int]] | None:
    """The row of each outcome, for each run; None where the outcomes of runs are not told apart by the column.

    An outcome that comes again is that of a replicate, if runs may have them.
    """
    cells = sheet.by_name
    labels, *keys = (list(map(_cell, cells[name])) for name in (measure, *key))
    runs: dict[tuple[int | str, ...], dict[str, int]] = {}
    times: Counter[tuple[str, ...]] = Counter()
    for at, row in enumerate(zip(labels, *keys, strict=True)):
        if times[row] and not replicates:
            return None
        runs.setdefault((times[row], *row[1:]), {})[row[0]] = at
        times[row] += 1
    several = 2 <= len(set(labels)) <= _MOST_OUTCOMES and len(labels) >= 1.5 * len(runs)
    return list(runs.values()) if several and key else None


def _with_outcomes(sheet: Sheet, runs: Sequence[dict[str, int]], measure: str, values: Sequence[str]) -> Sheet:
    cells = sheet.by_name
    first = [next(iter(rows.values())) for rows in runs]
    rest = [name for name in sheet.names if name not in (measure, *values)]
    same = [name for name in rest if all(len({_cell(cells[name][at]) for at in run.values()}) == 1 for run in runs)]
    kept = {name: [cells[name][at] for at in first] for name in same}
    labels = list(dict.fromkeys(label for run in runs for label in run))
    wide = {
        f"{value}[{label}]": [cells[value][run[label]] if label in run else None for run in runs]
        for value in values
        for label in labels
    }
    note = f"Rows that differ in '{measure}' are read as one run with several outcomes: {some_of(wide, 6)}."
    if left := [name for name in rest if name not in same]:
        note += f" Left out, because they differ within a run: {some_of(left)}."
    warnings.warn(DataWarning(note), stacklevel=4)
    places = [sheet.places[at] for at in first]
    return Sheet([*kept, *wide], [*kept.values(), *wide.values()], places, sheet.decimal_comma)


def widened(sheet: Sheet, outcomes: Sequence[str], ignored: Sequence[str] = ()) -> Sheet:
    """The sheet with a row per run and a column per task, if it has a row per run and task; otherwise as it is.

    A column of run identifiers repeats, a column of text names a task at most once in each run, and at most one column
    of numbers holds their weights. Outcomes are the same throughout a run, or each of one task.
    """
    columns = sheet.by_name
    outcomes = outcomes or [name for name in sheet.names if is_outcome(name)]
    known = [name for name in sheet.names if kind_of_name(name) == "an identifier" and name not in outcomes]
    apart = {*known, *outcomes, *ignored}
    others = [name for name in sheet.names if name not in apart and not is_value(next(iter(columns[name]), ""))]
    for run in (*known, *others):
        rows: dict[str, list[int]] = {}
        for at, value in enumerate(map(_cell, columns[run])):
            rows.setdefault(value, []).append(at)
        if not 1 < len(rows) < len(sheet.places):
            continue
        found = _long(sheet, run, list(rows.values()), outcomes, ignored)
        # A column of another name is one of runs if it says which weights go with an outcome.
        if found is not None and (run in known or (found.weight and not found.measured and not found.left)):
            return _wide(sheet, found)
    return sheet


class _Long(NamedTuple):
    """What the columns of a row per run and task are."""

    run: str
    rows: list[list[int]]  # of each run
    task: str
    weight: str | None
    measured: list[str]  # outcomes of single tasks
    left: list[str]  # other columns that differ within a run


def _long(
    sheet: Sheet, run: str, rows: list[list[int]], outcomes: Sequence[str], ignored: Sequence[str]
) -> _Long | None:
    """What the columns are; None where rows are not runs and tasks."""
    cells = {name: [_cell(cell) for cell in column] for name, column in sheet.by_name.items() if name not in ignored}
    varying = [name for name in cells if any(len({cells[name][at] for at in one}) > 1 for one in rows)]
    texts = [name for name in varying if not is_value(next(iter(cells[name]))) and sheet.numbers(name).is_text]
    tasks = [
        name
        for name in texts
        if all(len({cells[name][at] for at in one}) == len(one) for one in rows)
        and len(sheet.places) >= 2 * len(set(cells[name]))
    ]
    measured = [name for name in varying if name in outcomes]
    kinds = {name: kind_of_name(name) for name in varying if name not in (*texts, *measured)}
    numbers = [name for name, kind in kinds.items() if kind in ("", "a setting", "a count of steps")]  # tokens, epochs
    if len(tasks) != 1:
        return None
    labels = cells[tasks[0]]
    for likely in (
        # What is the same for a task in every run is its place or its size, and no weight.
        lambda name: len(set(zip(labels, cells[name], strict=True))) > len(set(labels)),
        lambda name: set(words_of(name)) & WEIGHTS,
        lambda name: not kinds[name],
    ):
        numbers = list(filter(likely, numbers)) or numbers
    if measured and not _are_shares(sheet, numbers, rows):  # these may be replicates of a run
        return None
    if len(numbers) > 1 and kind_of_name(run) != "an identifier":
        return None
    if len(numbers) > 1:
        said = f"rows with the same '{run}' name a task each, in '{tasks[0]}', whose weight may be in several columns: "
        fix = {"ignore": numbers[1:]}
        raise InputError(
            f"{said}{some_of(numbers)}. Leave all but one out with {{ignore}}.", fix=fix, ignore=numbers[1:]
        )
    left = [name for name in varying if name not in (tasks[0], *numbers, *measured)]
    return _Long(run, rows, tasks[0], next(iter(numbers), None), measured, left)


def _are_shares(sheet: Sheet, names: Sequence[str], rows: Sequence[list[int]]) -> bool:
    """Whether there is one column of weights, which is called so or has the same total in every run."""
    if len(names) != 1:
        return False
    values = sheet.numbers(names[0]).values
    totals = np.array([values[one].sum() for one in rows])
    return bool(set(words_of(names[0])) & WEIGHTS or near_totals(totals).all())


def _wide(sheet: Sheet, long: _Long) -> Sheet:
    cells = sheet.by_name
    apart = (long.task, long.weight, *long.measured, *long.left)
    first = [rows[0] for rows in long.rows]
    kept = {name: [cells[name][at] for at in first] for name in sheet.names if name not in apart}
    labels = [label for label in dict.fromkeys(map(_cell, cells[long.task])) if label]
    places = [{_cell(cells[long.task][at]): at for at in rows} for rows in long.rows]

    def column(name: str | None, label: str, absent: Any) -> list[Any]:
        return [(1.0 if name is None else cells[name][at[label]]) if label in at else absent for at in places]

    tasks = {label: column(long.weight, label, 0.0) for label in labels}
    measured = {f"{name}[{label}]": column(name, label, None) for name in long.measured for label in labels}
    weights = f", with weights from '{long.weight}'" if long.weight else ""
    note = f"Rows with the same '{long.run}' are read as one run, and '{long.task}' as its tasks{weights}."
    if measured:
        note += f" Outcomes are of single tasks: {some_of(measured, 6)}."
    if long.left:
        note += f" Left out, because they differ within a run: {some_of(long.left)}."
    warnings.warn(DataWarning(note), stacklevel=5)
    wide = kept | tasks | measured
    return Sheet(list(wide), list(wide.values()), [sheet.places[at] for at in first], sheet.decimal_comma)


def _cell(cell: object) -> str:
    return str(cell).strip()


def without_copies(sheet: Sheet) -> Sheet:
    """The sheet with rows that come again with the same identifier and the same cells read once.

    Without an identifier they may be runs made again, of which a note speaks.
    """
    rows = list(zip(*(map(_cell, column) for column in sheet.columns), strict=True))
    first: dict[tuple[str, ...], int] = {}
    for at, row in enumerate(rows):
        first.setdefault(row, at)
    copies = [at for at, row in enumerate(rows) if first[row] != at]
    if not copies:
        return sheet
    one = len(copies) == 1
    where = sheet.places[copies[0]]
    said = f"{counted(len(copies), 'row')} {'repeats' if one else 'repeat'} another in every cell (the first: {where})"
    ids = [at for at, name in enumerate(sheet.names) if kind_of_name(name) == "an identifier"]
    if any(len({row[at] for row in rows}) == len(first) for at in ids):
        warnings.warn(
            DataWarning(f"{said}, also in the identifier, and {'is' if one else 'are'} left out."), stacklevel=4
        )
        kept = list(first.values())
        columns = [[column[at] for at in kept] for column in sheet.columns]
        return sheet._replace(columns=columns, places=[sheet.places[at] for at in kept])
    if len(copies) > max(1, len(rows) / 10) and all(any(map(_PRECISE.fullmatch, rows[at])) for at in copies):
        note = f"{said}. They count as runs made again, with the same outcome. If they are copies, leave them out."
        warnings.warn(DataWarning(note), stacklevel=4)
    return sheet


def together(sheets: Mapping[str, Sheet]) -> Sheet:
    """Sheets as one: joined where they tell other things of the same runs, otherwise one below the other."""
    if len(sheets) == 1:
        return next(iter(sheets.values()))
    return _joined(sheets) or _stacked(sheets)


def _stacked(sheets: Mapping[str, Sheet]) -> Sheet:
    """Rows of all sheets; a cell is None where its sheet lacks the column."""
    names = list(dict.fromkeys(name for sheet in sheets.values() for name in sheet.names))
    columns: list[list[Any]] = [[] for _ in names]
    for sheet in sheets.values():
        held = sheet.by_name
        for name, column in zip(names, columns, strict=True):
            column += list(held.get(name, [None] * len(sheet.places)))
    places = [f"{path}, {place}" for path, sheet in sheets.items() for place in sheet.places]
    return Sheet(names, columns, places, any(sheet.decimal_comma for sheet in sheets.values()))


def _joined(sheets: Mapping[str, Sheet]) -> Sheet | None:
    """A row for each run, found by the columns that all sheets have; None where these are not the same runs."""
    first, *others = sheets.values()
    shared = [name for name in first.names if all(name in sheet.names for sheet in others)]
    if not shared or any(len(sheet.names) == len(shared) for sheet in sheets.values()):
        return None
    rows = {path: _rows(sheet, shared) for path, sheet in sheets.items()}
    fewest = min(map(len, rows.values()))
    same = set.intersection(*(set(held) for held in rows.values()))
    if 2 * len(same) < fewest or any(len(rows[path]) < len(sheet.places) for path, sheet in sheets.items()):
        return None  # other runs, or runs that cannot be told apart
    where = {key: path for path in reversed(rows) for key in reversed(rows[path])}
    keys = [key for path in rows for key in rows[path] if where[key] == path]
    names, columns = list(shared), [list(cells) for cells in zip(*keys, strict=True)]
    for path, sheet in sheets.items():
        for name, column in sheet.by_name.items():
            if name not in names:
                names.append(name)
                columns.append([column[rows[path][key]] if key in rows[path] else None for key in keys])
    said = f"The files hold other columns of the same runs, and are joined by {some_of(map(repr, shared), 4)}."
    warnings.warn(DataWarning(said), stacklevel=4)
    places = [f"{where[key]}, {sheets[where[key]].places[rows[where[key]][key]]}" for key in keys]
    return Sheet(names, columns, places, any(sheet.decimal_comma for sheet in sheets.values()))


def _rows(sheet: Sheet, shared: list[str]) -> dict[tuple[str, ...], int]:
    """Where each run is in a sheet, by its cells of the shared columns."""
    columns = [sheet.by_name[name] for name in shared]
    return {tuple(str(cell).strip() for cell in key): at for at, key in enumerate(zip(*columns, strict=True))}
