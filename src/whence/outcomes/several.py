"""Several files as one table: more runs, one below the other, or other columns of the same runs, side by side."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from whence.errors import DataWarning, some_of
from whence.outcomes.sheets import Sheet


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
