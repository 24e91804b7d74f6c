"""Tables as text: csv and tsv, plain or gzipped, cell by cell, with the line where something does not fit."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from whence.errors import InputError
from whence.outcomes.checks import Floats, check_values, check_weights
from whence.outcomes.columns import Wanted, choose
from whence.outcomes.table import Outcomes

_WORDS = {"true": 1.0, "false": 0.0} | dict.fromkeys(("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none"), np.nan)


def kind_of(path: Path) -> str:
    """Format of a file, by its ending."""
    kinds = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "npz")
    for kind in kinds:
        if path.name.lower().endswith(f".{kind}"):
            return kind
    raise InputError(f"A file of runs must end in .{', .'.join(kinds)}. Got '{path.name}' instead.")


# The csv module and float() rather than pandas: lines are numbered right, numbers are exact, short rows are
# seen rather than filled up, and a table of 10^5 columns takes a fraction of the time.


# A spreadsheet would run what begins like this: such a name is written with an apostrophe before it.
_FORMULA = re.compile(r"'*[=+@-]")


def _delimiter(kind: str) -> str:
    return "\t" if kind.startswith("tsv") else ","


@contextmanager
def text_rows(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """Names of the columns, and the cells of the rows below them, each row with the line it starts on."""
    line, kind = 1, kind_of(path)
    opener: Any = gzip.open if kind.endswith(".gz") else open

    def checked() -> Iterator[tuple[int, list[str]]]:
        nonlocal line
        for line, cells in numbered:
            if len(cells) != len(header):
                raise InputError(f"line {line} has {len(cells)} cells where the header has {len(header)}.")
            yield line, cells

    try:
        # The byte-order mark that spreadsheets write is not a part of the first name.
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            numbered = _numbered(csv.reader(file, delimiter=_delimiter(kind), strict=True))
            header = next((cells for _, cells in numbered if any(map(str.strip, cells))), [])
            if not header:
                raise InputError("the file is empty; its first line must name the columns.")
            yield [_name(cell) or f"Unnamed: {at}" for at, cell in enumerate(header)], checked()
    except (csv.Error, UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"this is not a text table in UTF-8; reading stopped near line {line} ({error}).") from error


def read_text(path: Path, wanted: Wanted) -> dict[str, Any]:
    """Arguments of `Outcomes` from a text file."""
    rows: list[Floats] = []
    lines: list[int] = []
    with text_rows(path) as (names, numbered):
        chosen = choose(names, wanted)
        pick = itemgetter(*chosen.places)
        for line, cells in numbered:
            rows.append(parse(pick(cells), chosen.names, line))
            lines.append(line)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(chosen.names))
    found = chosen.arguments(table, {}, None)
    check_weights(found["subsets"], found["task_names"], lines)
    check_values(found["values"], found["target_names"], lines)
    return found


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line it starts on."""
    line = 1
    for cells in reader:
        if len(cells) > 1 or "".join(cells).strip():
            yield line, cells
        line = reader.line_num + 1


def parse(cells: Sequence[str], names: Sequence[str], line: int) -> Floats:
    """Numbers in cells of a row, or an error that says where there is none."""
    try:
        if "_" not in "".join(cells):  # float() would take 1_000
            return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        pass
    return np.array([_number(cell, name, line) for cell, name in zip(cells, names, strict=True)])


def _number(cell: str, name: str, line: int) -> float:
    word = cell.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if "_" not in word:
        with suppress(ValueError):
            return float(word)
    raise InputError(
        f"line {line}, column '{name}': '{cell[:40]}' is not a number. "
        "If the column is neither a task nor an outcome, leave it out with {ignore}.",
        ignore=[name],
    )


def _name(cell: str) -> str:
    """Name of a column, without the apostrophe that keeps a spreadsheet from running it."""
    name = cell.strip()
    return name[1:] if name.startswith("'") and _FORMULA.match(name) else name


def write_text(runs: Outcomes, binary: BinaryIO, kind: str) -> None:
    """Write a table as text."""
    with ExitStack() as stack:
        packed: Any = binary
        if kind.endswith(".gz"):
            packed = stack.enter_context(gzip.GzipFile(fileobj=binary, mode="wb"))
        file = io.TextIOWrapper(packed, encoding="utf-8", newline="")
        stack.callback(file.detach)  # whoever opened the file closes it
        writer = csv.writer(file, delimiter=_delimiter(kind), lineterminator="\n")
        names = [*runs.task_names, *runs.target_names]
        writer.writerow([f"'{name}" if _FORMULA.match(name) else name for name in names])
        for subset, values in zip(runs.subsets.tolist(), runs.values.tolist(), strict=True):
            weights = [int(weight) if weight in (0, 1) else weight for weight in subset]
            writer.writerow([*weights, *("" if value != value else value for value in values)])
        file.flush()
