"""Sheets: the raw cells of any export, before they are interpreted.

Text tables (:mod:`.text`), JSON Lines, Excel, Parquet and DataFrames all become names and columns of cells here, so
that all of them get the same treatment and the same sentences. Records within records, as trackers of experiments
export them, become columns with dots: ``config.mix.web``.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from whence.errors import DataWarning, InputError, brief, closest, did_you_mean, needed, some_of
from whence.outcomes.checks import find_names, repeated
from whence.outcomes.commas import has_decimal_commas
from whence.outcomes.rows import Region, find_region, note_region
from whence.outcomes.text import decoded, kind_of, text_table
from whence.outcomes.values import Column, as_column, literal

_RUNS = ("runs", "data", "results", "records", "rows", "experiments", "trials", "items", "table")  # in a JSON record
_BITS = re.compile("[01]{3,}")
NO_PYARROW = "Parquet files need pyarrow"


class Sheet(NamedTuple):
    """Cells of a table, by column, with where each row is in its file: as "line 3" or "row 0 (counted from 0)"."""

    names: list[str]
    columns: list[Any]  # of each a sequence of m cells: texts, numbers, None, lists
    places: list[str]
    decimal_comma: bool = False

    @property
    def by_name(self) -> dict[str, Any]:
        """Cells of each column."""
        return dict(zip(self.names, self.columns, strict=True))

    def numbers(self, name: str) -> Column:
        """Numbers of a column."""
        return as_column(self.by_name[name], decimal_comma=self.decimal_comma)

    def all_numbers(self, apart_from: Collection[str]) -> dict[str, Column]:
        """Numbers of all columns but some."""
        cells = self.by_name.items()
        return {
            name: as_column(column, decimal_comma=self.decimal_comma)
            for name, column in cells
            if name not in apart_from
        }


def is_frame(source: Any) -> bool:
    """Whether something is a pandas DataFrame; pandas is not imported for the question."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def read_sheet(path: Path, sheet: str | None = None, having: Sequence[str] = ()) -> Sheet:
    """Cells of a file that does not itself say which of its columns are tasks.

    Of a workbook the wanted sheet; or the largest of those that have some columns.
    """
    kind = kind_of(path)
    if not path.exists():
        raise InputError("there is no such file.")
    if kind == "xlsx":
        return _distinct(_unfolded(_excel(path, sheet, having)))
    if sheet is not None:
        raise InputError("is for Excel files: this file has no sheets.", parameter="sheet")
    read = {"parquet": _parquet, "json": _json, "jsonl": _json}.get(kind.split(".")[0], _text)
    return _distinct(_unfolded(read(path)))


def frame_sheet(frame: Any, asked: Sequence[str] = ()) -> Sheet:
    """Cells of a DataFrame, and those of its index that were asked for."""
    if held := [name for name in frame.index.names if any(find_names(one, [str(name)]) for one in asked)]:
        frame = frame.reset_index(level=held)
    names = [".".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    columns = [_typed(frame.iloc[:, at]) for at in range(len(names))]
    commas = has_decimal_commas(names, columns, "\t")
    return _distinct(_unfolded(Sheet(_named(names), columns, _counted_rows(len(frame)), commas)))


def _typed(series: Any) -> Any:
    """Numbers of a column as an array, anything else as a list, None where a cell is missing."""
    if series.dtype.kind in "biuf" and isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    return [None if missing else cell for cell, missing in zip(series.tolist(), series.isna(), strict=True)]


# ---- formats ---------------------------------------------------------------------------------------------


def _text(path: Path) -> Sheet:
    header, rows, delimiter = text_table(path)
    names = _named(header)
    columns = list(zip(*(cells for _, cells in rows), strict=True)) if rows else [()] * len(names)
    return Sheet(names, columns, [f"line {line}" for line, _ in rows], has_decimal_commas(names, columns, delimiter))


def _json(path: Path) -> Sheet:
    """Records, one in each line; or one document with all of them."""
    text = decoded(path)
    try:
        records = _runs_of(json.loads(text))
        places = _counted_rows(len(records))
    except (ValueError, RecursionError):
        records, places = _json_lines(text)
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError("a JSON file of runs must hold a record for each run, with names and values.")
    flat = [dict(flat_record(record)) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    columns = [[record.get(name) for record in flat] for name in names]
    return Sheet(_named(names), columns, places, has_decimal_commas(names, columns, "\t"))


def _json_lines(text: str) -> tuple[list[Any], list[str]]:
    records: list[Any] = []
    places: list[str] = []
    try:
        for line, part in enumerate(text.split("\n"), 1):
            if part.strip():
                places.append(f"line {line}")
                records.append(json.loads(part))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{places[-1]} is not JSON ({error}). A file of runs has one record per line.") from error
    return records, places


def _runs_of(document: Any) -> list[Any]:
    """Records of runs: a list of them, alone or the only one within a record; by name; or columns, as pandas writes.

    >>> _runs_of({"a": {"0": 1, "1": 0}, "loss": {"0": 2.5, "1": 2.0}})
    [{'a': 1, 'loss': 2.5}, {'a': 0, 'loss': 2.0}]
    """
    if not isinstance(document, dict) or not document:
        return document if isinstance(document, list) else [document]
    if isinstance(document.get("columns"), list) and isinstance(document.get("data"), list):
        return [dict(zip(document["columns"], row, strict=False)) for row in document["data"]]
    values = list(document.values())
    if all(isinstance(value, list) and len(value) == len(values[0]) for value in values) and len(values) > 1:
        return [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)]
    lists = [name for name, held in document.items() if isinstance(held, list) and held and isinstance(held[0], dict)]
    if len(lists) == 1 and (len(document) == 1 or lists[0].lower() in _RUNS):
        return list(document[lists[0]])
    if len(values) > 1 and all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        if all(str(key).isdigit() for key in values[0]):
            return [{name: column[row] for name, column in document.items()} for row in values[0]]
        return [{"run": name, **record} for name, record in document.items()]
    return [document]


def _excel(path: Path, wanted: str | None, having: Sequence[str]) -> Sheet:
    """Cells of the wanted sheet of a workbook; or of the largest with some columns, and of those with the same."""
    openpyxl = needed("openpyxl", "Excel files need openpyxl", "excel")
    try:
        with open(path, "rb") as file:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            pages = {sheet.title: list(map(list, sheet.iter_rows(values_only=True))) for sheet in book.worksheets}
            gaps = any(None in row for rows in pages.values() for row in rows)
            book = openpyxl.load_workbook(file) if gaps else None  # which knows merged cells and formulas
    except OSError:
        raise
    except Exception as error:  # a damaged workbook makes openpyxl raise almost anything
        raise InputError(f"this Excel file cannot be read ({type(error).__name__}: {str(error)[:160]}).") from error
    if wanted is not None:
        pages = {title: pages[title] for title in _found(wanted, list(pages))}
    if book is not None:
        for title, table in pages.items():
            _fill_merged(table, book[title])
    found = {title: region for title, table in pages.items() if (region := _region(table)) is not None}
    if not found:
        raise InputError("the file is empty; its first row must name the columns.")
    able = [one for one in found.values() if all(find_names(name, _named(one.header)) for name in having)]
    largest = max(able or found.values(), key=lambda region: len(region.header) * len(region.runs))
    read = {title: region for title, region in found.items() if _named(region.header) == _named(largest.header)}
    if others := [title for title, region in found.items() if title not in read and region.runs]:
        note = f"{path.name}: sheets read: {some_of(map(repr, read), 4)}; not read: {some_of(map(repr, others), 4)}."
        warnings.warn(DataWarning(f"{note} To read another, add {{sheet}}.", sheet=others[0]), stacklevel=2)
    width = len(largest.header)
    for title, region in read.items():
        note_region(path.name, "row", region)
        if book is not None:
            _refuse_formulas(region, width, book[title])
    body = [(line, row[:width]) for region in read.values() for line, row in region.runs]
    columns = [[row[at] if at < len(row) else None for _, row in body] for at in range(width)]
    places = [f"row {line}" for line, _ in body]
    if len(read) > 1:
        places = [f"sheet '{title}', row {line}" for title, region in read.items() for line, _ in region.runs]
    names = _named(largest.header)
    return Sheet(names, columns, places, has_decimal_commas(names, columns, "\t"))


def _fill_merged(table: list[list[Any]], sheet: Any) -> None:
    """Give all rows of merged cells the value that the first of them holds."""
    for cells in sheet.merged_cells.ranges:
        first, *others = table[cells.min_row - 1 : cells.max_row] or [[]]
        for row in others:
            row += [None] * (cells.min_col - len(row))
            row[cells.min_col - 1] = first[cells.min_col - 1] if len(first) >= cells.min_col else None


def _refuse_formulas(region: Region, width: int, sheet: Any) -> None:
    """Raise where a column holds formulas and none of their values, as programs write them that cannot compute."""
    for at in range(width):
        cells = [(sheet.cell(line, at + 1), row[at] if at < len(row) else None) for line, row in region.runs]
        formulas = [(cell, value) for cell, value in cells if cell.data_type == "f"]
        if formulas and all(value is None for _, value in formulas):
            where = f"sheet '{sheet.title}', cell {formulas[0][0].coordinate}"
            raise InputError(
                f"{where} holds a formula, and the file does not hold its value. Open the file in a spreadsheet "
                "program, and save it there."
            )


def _found(wanted: str, titles: Sequence[str]) -> list[str]:
    """Sheets that a name or a pattern stands for."""
    if found := find_names(wanted, titles):
        return found
    meant = closest(wanted, titles)
    fix = None if meant is None else {"instead": {wanted: meant}}
    text = f"there is no sheet '{wanted}', as {{sheet}} says. {did_you_mean(wanted, titles)}"
    raise InputError(text, fix=fix, sheet=None)


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
    parquet = needed("pyarrow.parquet", NO_PYARROW, "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            return file.read(use_threads=False)
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        raise InputError(f"this Parquet file cannot be read ({brief(error)}).") from error


def _parquet(path: Path) -> Sheet:
    table = parquet_table(path)
    columns = [column.to_pylist() for column in table.columns]
    return Sheet(_named(table.column_names), columns, _counted_rows(table.num_rows))


# ---- names and records -----------------------------------------------------------------------------------


def _named(names: Iterable[Any]) -> list[str]:
    """Names of columns, each on one line; those without one are numbered."""
    found = ("" if name is None else re.sub(r"\s*[\r\n]\s*", " ", str(name).strip()) for name in names)
    return [name or f"Unnamed: {at}" for at, name in enumerate(found)]


def _counted_rows(count: int) -> list[str]:
    return [f"row {row} (counted from 0)" for row in range(count)]


def _distinct(sheet: Sheet) -> Sheet:
    """The sheet with columns of the same name numbered, as loss[0] and loss[1]; those with the same cells as one."""
    if not repeated(sheet.names):
        return sheet
    kept: dict[str, list[tuple[list[str], Any]]] = {}
    for name, column in zip(sheet.names, sheet.columns, strict=True):
        cells = [str(cell).strip() for cell in column]
        if cells not in [other for other, _ in kept.setdefault(name, [])]:
            kept[name].append((cells, column))
    names: list[str] = []
    said: list[str] = []
    for name, held in kept.items():
        numbered = [name] if len(held) == 1 else [f"{name}[{at}]" for at in range(len(held))]
        names += numbered
        if sheet.names.count(name) > len(held):
            said.append(f"'{name}' with the same cells, which is read once")
        if len(held) > 1:
            said.append(f"'{name}', called {' and '.join(numbered)} here ('{name}' means all of them)")
    warnings.warn(DataWarning(f"Columns that come more than once: {some_of(said)}."), stacklevel=3)
    return sheet._replace(names=names, columns=[column for held in kept.values() for _, column in held])


def _unfolded(sheet: Sheet) -> Sheet:
    """The sheet with columns of records or vectors, also as text, as a column for each of their fields or numbers."""
    names: list[str] = []
    columns: list[Any] = []
    for name, column in zip(sheet.names, sheet.columns, strict=True):
        listed = None if isinstance(column, np.ndarray) else _vectors(column)
        if listed is not None:
            names += [f"{name}[{at}]" for at in range(len(listed[0]))]
            columns += [list(part) for part in zip(*listed, strict=True)]
            continue
        records = None if isinstance(column, np.ndarray) else _records(column)
        if records is None:
            names.append(name)
            columns.append(column)
            continue
        fields = dict.fromkeys(field for record in records for field in record)
        names += [f"{name}.{field}" for field in fields]
        columns += [[record.get(field) for record in records] for field in fields]
    return sheet._replace(names=names, columns=columns)


def _vectors(column: Sequence[Any]) -> list[list[float]] | None:
    """Numbers of every cell: weights, as in "[0.2, 0.8]", or 0 and 1, also as "0110"; None where cells hold no such.

    Whole numbers are those of tasks, unless some come twice in a cell.
    """
    texts = [str(cell).strip() for cell in column]
    if any(text[:1] == "0" and len(text) > 2 for text in texts) and all(_BITS.fullmatch(text) for text in texts):
        found: list[Any] = [list(map(int, text)) for text in texts]
    elif all(text[:1] in ("[", "(") for text in texts):
        found = [cell if isinstance(cell, list | tuple) else literal(str(cell)) for cell in column]
    else:
        return None
    if not found or not all(isinstance(cell, list | tuple) and len(cell) == len(found[0]) for cell in found):
        return None
    numbers = [number for cell in found for number in cell]
    if len(found[0]) < 2 or not all(isinstance(number, int | float) for number in numbers):
        return None
    again = any(len(set(cell)) < len(cell) for cell in found)
    return found if (again and set(numbers) <= {0, 1}) or any(number != round(number) for number in numbers) else None


def _records(column: Sequence[Any]) -> list[dict[str, Any]] | None:
    """A record for every cell of a column, empty for an empty cell; None where some cell is something else."""
    filled = [cell for cell in column if cell is not None and cell != ""]
    if not filled or not all(isinstance(cell, dict) or str(cell).lstrip().startswith("{") for cell in filled):
        return None
    found = [cell if isinstance(cell, dict) else literal(cell or "{}") for cell in column]
    return [dict(flat_record(one)) for one in found] if all(isinstance(one, dict) for one in found) else None


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
