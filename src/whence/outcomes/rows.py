"""Which rows of a file are runs: titles above the header, remarks, totals below and repeated headers are not.

A header may take two lines, as pandas writes columns with two levels; or be missing, and the columns are numbered.

Text tables and workbooks both come here, as rows of cells that are not blank. What is left out is named in a note.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from whence.errors import DataWarning, InputError, safe_text, some_of
from whence.outcomes.values import cell_text, is_value

Row = tuple[int, Sequence[Any]]  # with the line it starts on
_SUMMARY = {"average", "averages", "avg", "mean", "median", "total", "totals", "sum", "count", "min", "max", "best"}
_SUMMARY |= {"minimum", "maximum", "std", "std dev", "stdev", "stddev", "standard deviation", "variance"}
_RULE = re.compile(r":?-{3,}:?")  # below the header of a table in Markdown
_LOOKED_AT = 50  # rows, for the header


class Region(NamedTuple):
    """The table within a file: its header, its runs, and the rows that are neither with what they are."""

    header: list[Any]
    runs: list[Row]
    others: list[tuple[int, str]]
    numbered: bool = False  # whether there was no header, and the columns are called "column 1" and so on
    second: int = 0  # the line of a header of other columns, or of the same in another order


def find_region(rows: Sequence[Row]) -> Region:
    """Where the table is among rows that are not blank; at least one.

    >>> rows = [["Sweep of May"], ["a", "b", "loss"], ["1", "0", "2.5"], ["0", "1", "2"], ["Mean", "", "2.25"]]
    >>> find_region(list(enumerate(rows, 1))).others
    [(1, 'Sweep of May'), (5, 'Mean')]
    """
    start = _header(rows)
    header = list(rows[start][1])
    others = [(line, _words(cells)) for line, cells in rows[:start]]
    if numbered := start == 0 and _is_run(header):
        start, header = -1, [f"column {n}" for n in range(1, len(header) + 1)]
    elif (joined := _joined(header, rows[start + 1 : start + 2])) is not None:
        start, header = start + 1, joined
    runs: list[Row] = []
    second = 0
    names = set(header) - {"", None}
    for line, cells in rows[start + 1 :]:
        if cells[0] == header[0] and _same(cells, header):
            others.append((line, "the header again"))
        elif 2 * sum(cell in names for cell in cells) > len(names) and _names_all(cells, len(header)):
            second = second or line
        elif _is_remark(cells, len(header)):
            others.append((line, _words(cells)))
        elif not _RULE.fullmatch(_words(cells)):
            runs.append((line, cells))
    while runs and len(header) >= 3 and _is_summary(_words(runs[-1][1])):
        line, cells = runs.pop()
        others.append((line, _words(cells)))
    return Region(header, runs, sorted(others), numbered, second)


def note_region(place: str, unit: str, region: Region) -> None:
    """Warn of rows that were left out, and of a missing header; ``unit`` is what the file counts, lines or rows.

    Several tables are refused.
    """
    if region.second:
        raise InputError(
            f"{unit} {region.second} names columns again, and not as the header does: there are several tables. Give "
            "each a file of its own; several files are read as one table."
        )
    if region.numbered:
        named = f"its columns are called '{region.header[0]}' to '{region.header[-1]}'"
        warnings.warn(DataWarning(f"{place}: the first {unit} holds numbers, not names, so {named}."), stacklevel=2)
    if region.others:
        named = some_of([f"{unit} {line} ({safe_text(what, 40)})" for line, what in region.others], 6)
        warnings.warn(DataWarning(f"{place}: left out, because these are not runs: {named}."), stacklevel=2)


def fitted(cells: Sequence[Any], width: int, line: int) -> Sequence[Any]:
    """The cells of a row of a text table, without empty ones beyond the header; another number of them is refused."""
    if len(cells) == width:
        return cells
    if len(cells) > width and not _filled(cells[width:]):
        return cells[:width]
    raise InputError(f"line {line} has {len(cells)} cells where the header has {width}.")


def _header(rows: Sequence[Row]) -> int:
    """Place of the first row that fills most columns and holds no number; the first row where there is none."""
    first = rows[:_LOOKED_AT]
    most = max(_filled(cells) for _, cells in first)
    wide = next((at for at, (_, cells) in enumerate(first) if _filled(cells) >= max(2, 0.6 * most)), 0)
    return 0 if any(map(is_value, rows[wide][1])) else wide


def _is_run(header: Sequence[Any]) -> bool:
    """Whether the first row is a run: mostly numbers, some of them the same or not whole, as no names would be."""
    numbers = [str(cell).strip() for cell in header if is_value(cell)]
    whole = all(number.isdigit() for number in numbers)
    return 2 * len(numbers) > len(header) and (len(set(numbers)) < len(numbers) or not whole)


def _names_all(cells: Sequence[Any], width: int) -> bool:
    """Whether a row has a name for every column."""
    return _filled(cells) >= width and not any(map(is_value, cells))


def _joined(header: Sequence[Any], following: Sequence[Row]) -> list[str] | None:
    """The header with the names of the next row, as "data.web", where names repeat and those below tell them apart."""
    above = list(map(cell_text, header))
    if not following or len(set(above)) == len(above):
        return None
    below = list(map(cell_text, following[0][1]))
    joined = [".".join(filter(None, pair)) for pair in zip(above, below, strict=False)]
    named = len(below) == len(above) and 2 * _filled(below) > len(below) and not any(map(is_value, below))
    return joined if named and len(set(joined)) == len(joined) else None


def _is_summary(words: str) -> bool:
    """Whether a row begins as one of totals or averages does, as Total or Mean (n=24)."""
    return re.sub(r"\(.*\)", "", words).casefold().strip(" .:") in _SUMMARY


def _is_remark(cells: Sequence[Any], width: int) -> bool:
    """Whether a row says something in a few cells, none of which could be a weight or an outcome."""
    return 2 * _filled(cells) < width and not any(map(is_value, cells))


def _same(cells: Sequence[Any], header: Sequence[Any]) -> bool:
    return list(map(cell_text, cells[: len(header)])) == list(map(cell_text, header))


def _filled(cells: Sequence[Any]) -> int:
    blank = cells.count("") + cells.count(None)
    return 0 if blank == len(cells) else sum(map(bool, map(cell_text, cells)))


def _words(cells: Sequence[Any]) -> str:
    return next(filter(None, map(cell_text, cells)))
