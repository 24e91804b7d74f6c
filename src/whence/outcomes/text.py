"""Tables as text: csv and tsv, plain or gzipped, cell by cell, with the line where something does not fit."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from whence.errors import InputError
from whence.outcomes.table import Outcomes

KINDS = ("csv", "tsv", "jsonl", "json", "xlsx", "parquet", "npz")
ZIPPED = ("csv", "tsv", "jsonl")  # which may also end in .gz
WRITTEN = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "npz")


def kind_of(path: Path) -> str:
    """Format of a file, by its ending."""
    for kind in (*KINDS, *(f"{kind}.gz" for kind in ZIPPED), "ndjson", "xlsm"):
        if path.name.lower().endswith(f".{kind}"):
            return {"ndjson": "jsonl", "xlsm": "xlsx"}.get(kind, kind)
    raise InputError(f"A file of runs must end in .{', .'.join(KINDS)}. Got '{path.name}' instead.")


# The csv module and float() rather than pandas: lines are numbered right, numbers are exact, short rows are
# seen rather than filled up, and a table of 10^5 columns takes a fraction of the time.


# A spreadsheet would run what begins like this: such a name is written with an apostrophe before it.
_FORMULA = re.compile(r"'*[=+@-]")


def _delimiter(kind: str) -> str:
    return "\t" if kind.startswith("tsv") else ","


def text_table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """Names of the columns, the cells of each row with the line it starts on, and the sign between cells.

    Cells are separated as the ending says, unless the header has no such sign but another usual one.
    """
    line, rows = 1, []
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        # The byte-order mark that spreadsheets write is not a part of the first name.
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            first = next((text for text in file if text.strip()), "")
            usual = _delimiter(kind_of(path))
            bare = re.sub(r'"[^"]*"', "", first)
            delimiter = next((sign for sign in (usual, ";", "\t", ",") if sign in bare), usual)
            file.seek(0)
            numbered = _numbered(csv.reader(file, delimiter=delimiter, strict=True))
            header = next((cells for _, cells in numbered if any(map(str.strip, cells))), [])
            if not header:
                raise InputError("the file is empty; its first line must name the columns.")
            for line, cells in numbered:
                if len(cells) != len(header):
                    raise InputError(f"line {line} has {len(cells)} cells where the header has {len(header)}.")
                rows.append((line, cells))
    except (csv.Error, UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"this is not a text table in UTF-8; reading stopped near line {line} ({error}).") from error
    return [_name(cell) or f"Unnamed: {at}" for at, cell in enumerate(header)], rows, delimiter


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line it starts on."""
    line = 1
    for cells in reader:
        if len(cells) > 1 or "".join(cells).strip():
            yield line, cells
        line = reader.line_num + 1


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
