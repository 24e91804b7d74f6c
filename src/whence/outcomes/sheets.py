"""Sheets: the raw cells of any export, before they are interpreted.

Text tables (:mod:`.text`), JSON Lines, Excel, Parquet and DataFrames all become names and columns of cells here, so
that all of them get the same treatment and the same sentences. Records within records, as trackers of experiments
export them, become columns with dots: ``config.mix.web``.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from whence.errors import DataWarning, InputError, brief, some_of
from whence.outcomes.rows import Region, find_region, note_others
from whence.outcomes.text import decoded, kind_of, text_table
from whence.outcomes.values import has_decimal_commas, literal

NO_PYARROW = 'Parquet files need pyarrow: pip install "whence[parquet]".'


class Sheet(NamedTuple):
    """Cells of a table, by column, with where each row is in its file: as "line 3" or "row 0 (counted from 0)"."""

    names: list[str]
    columns: list[Any]  # of each a sequence of m cells: texts, numbers, None, lists
    places: list[str]
    decimal_comma: bool = False


def is_frame(source: Any) -> bool:
    """Whether something is a pandas DataFrame; pandas is not imported for the question."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def read_sheet(path: Path) -> Sheet:
    """Cells of a file that does not itself say which of its columns are tasks."""
    kind = kind_of(path)
    if not path.exists():
        raise InputError("there is no such file.")
    read = {"parquet": _parquet, "xlsx": _excel, "json": _json, "jsonl": _json}.get(kind.split(".")[0], _text)
    return _unfolded(read(path))


def frame_sheet(frame: Any) -> Sheet:
    """Cells of a DataFrame."""
    names = [".".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    columns = [_typed(frame.iloc[:, at]) for at in range(len(names))]
    return _unfolded(Sheet(_named(names), columns, _counted_rows(len(frame))))


def _typed(series: Any) -> Any:
    """Numbers of a column as an array, anything else as a list, None where a cell is missing."""
    if series.dtype.kind in "biuf" and isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    return [None if missing else cell for cell, missing in zip(series.tolist(), series.isna(), strict=True)]


def together(sheets: Mapping[str, Sheet]) -> Sheet:
    """Rows of several sheets one below the other; a cell is None where its sheet lacks the column."""
    if len(sheets) == 1:
        return next(iter(sheets.values()))
    names = list(dict.fromkeys(name for sheet in sheets.values() for name in sheet.names))
    columns: list[list[Any]] = [[] for _ in names]
    for sheet in sheets.values():
        held = dict(zip(sheet.names, sheet.columns, strict=True))
        for name, column in zip(names, columns, strict=True):
            column += list(held.get(name, [None] * len(sheet.places)))
    places = [f"{path}, {place}" for path, sheet in sheets.items() for place in sheet.places]
    return Sheet(names, columns, places, any(sheet.decimal_comma for sheet in sheets.values()))


# ---- formats ---------------------------------------------------------------------------------------------


def _text(path: Path) -> Sheet:
    names, rows, delimiter = text_table(path)
    columns = list(zip(*(cells for _, cells in rows), strict=True)) if rows else [()] * len(names)
    return Sheet(names, columns, [f"line {line}" for line, _ in rows], has_decimal_commas(columns, delimiter))


def _json(path: Path) -> Sheet:
    """Records, one in each line; or one list of them."""
    text = decoded(path)
    records: list[Any] = []
    places: list[str] = []
    try:
        if text.lstrip().startswith("["):
            records = json.loads(text)
            places = _counted_rows(len(records))
        else:
            for line, part in enumerate(text.split("\n"), 1):
                if part.strip():
                    places.append(f"line {line}")
                    records.append(json.loads(part))
    except (ValueError, RecursionError) as error:
        where = f"{places[-1]} " if places else ""
        raise InputError(f"{where}is not JSON ({error}). A file of runs has one record per line.") from error
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError("a JSON file of runs must hold a record for each run, with names and values.")
    flat = [dict(flat_record(record)) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    return Sheet(_named(names), [[record.get(name) for record in flat] for name in names], places)


def _excel(path: Path) -> Sheet:
    """Cells of the largest sheet of a workbook, and of those with the same columns."""
    try:
        import openpyxl
    except ImportError as error:
        raise InputError('Excel files need openpyxl: pip install "whence[excel]".') from error
    try:
        with open(path, "rb") as file:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            pages = {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in book.worksheets}
    except OSError:
        raise
    except Exception as error:  # a damaged workbook makes openpyxl raise almost anything
        raise InputError(f"this Excel file cannot be read ({type(error).__name__}: {str(error)[:160]}).") from error
    found = {title: region for title, table in pages.items() if (region := _region(table)) is not None}
    if not found:
        raise InputError("the file is empty; its first row must name the columns.")
    largest = max(found.values(), key=lambda region: len(region.header) * len(region.runs))
    read = {title: region for title, region in found.items() if _named(region.header) == _named(largest.header)}
    if others := [repr(title) for title, region in found.items() if title not in read and region.runs]:
        note = f"{path.name}: sheets read: {some_of(map(repr, read), 4)}; not read: {some_of(others, 4)}."
        warnings.warn(DataWarning(note), stacklevel=2)
    for region in read.values():
        note_others(path.name, "row", region.others)
    width = len(largest.header)
    body = [(line, row[:width]) for region in read.values() for line, row in region.runs]
    columns = [[row[at] if at < len(row) else None for _, row in body] for at in range(width)]
    places = [f"row {line}" for line, _ in body]
    if len(read) > 1:
        places = [f"sheet '{title}', row {line}" for title, region in read.items() for line, _ in region.runs]
    return Sheet(_named(largest.header), columns, places, has_decimal_commas(columns, "\t"))


def _region(table: Sequence[Sequence[Any]]) -> Region | None:
    """The table within a worksheet; None where all cells are empty."""
    rows = [(line, row) for line, row in enumerate(table, 1) if any(cell not in (None, "") for cell in row)]
    if not rows:
        return None
    found = find_region(rows)
    width = max(at for at, cell in enumerate(found.header, 1) if cell not in (None, ""))
    return found._replace(header=found.header[:width])


def parquet_table(path: Path) -> Any:
    """Table of a Parquet file."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(NO_PYARROW) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return file.read(use_threads=False)
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        raise InputError(f"this Parquet file cannot be read ({brief(error)}).") from error


def _parquet(path: Path) -> Sheet:
    table = parquet_table(path)
    columns = [column.to_pylist() for column in table.columns]
    return Sheet(_named(table.column_names), columns, _counted_rows(table.num_rows))


# ---- names and records -----------------------------------------------------------------------------------


def _named(names: Iterable[Any]) -> list[str]:
    return [("" if name is None else str(name)).strip() or f"Unnamed: {at}" for at, name in enumerate(names)]


def _counted_rows(count: int) -> list[str]:
    return [f"row {row} (counted from 0)" for row in range(count)]


def _unfolded(sheet: Sheet) -> Sheet:
    """The sheet with columns of records, also where they are written as text, as a column for each of their fields."""
    names: list[str] = []
    columns: list[Any] = []
    for name, column in zip(sheet.names, sheet.columns, strict=True):
        records = None if isinstance(column, np.ndarray) else _records(column)
        if records is None:
            names.append(name)
            columns.append(column)
            continue
        fields = dict.fromkeys(field for record in records for field in record)
        names += [f"{name}.{field}" for field in fields]
        columns += [[record.get(field) for record in records] for field in fields]
    return sheet._replace(names=names, columns=columns)


def _records(column: Sequence[Any]) -> list[dict[str, Any]] | None:
    """A record for every cell of a column, empty for an empty cell; None where some cell is something else."""
    filled = [cell for cell in column if cell is not None and cell != ""]
    if not filled or not all(isinstance(cell, dict) or str(cell).lstrip().startswith("{") for cell in filled):
        return None
    found = [{} if cell is None or cell == "" else _record(cell) for cell in column]
    flat = [dict(flat_record(record)) for record in found if record is not None]
    return flat if len(flat) == len(column) else None


def _record(cell: Any) -> dict[str, Any] | None:
    found = cell if isinstance(cell, dict) else literal(cell)
    return found if isinstance(found, dict) else None


def flat_record(record: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Fields of a record, and those of records within it with a dot between the names.

    >>> dict(flat_record({"eval": {"loss": 1.0}, "seed": 3}))
    {'eval.loss': 1.0, 'seed': 3}
    """
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from flat_record(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
