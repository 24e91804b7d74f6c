"""Tables as text: csv, tsv (also gzipped) or aligned, cell by cell, with the line where something does not fit."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from whence.errors import DataWarning, InputError
from whence.outcomes.rows import Row, find_region, fitted, note_region
from whence.outcomes.table import Outcomes

KINDS = ("csv", "tsv", "jsonl", "json", "xlsx", "parquet", "npz")
_ALSO = {"ndjson": "jsonl", "xlsm": "xlsx", "txt": "csv", "dat": "csv", "md": "csv"}  # endings, read as these are
ZIPPED = ("csv", "tsv", "jsonl")  # which may also end in .gz
WRITTEN = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "npz")


def kind_of(path: Path) -> str:
    """Format of a file, by its ending."""
    for kind in (*KINDS, *(f"{kind}.gz" for kind in ZIPPED), *_ALSO):
        if path.name.lower().endswith(f".{kind}"):
            return _ALSO.get(kind, kind)
    raise InputError(f"A file of runs must end in .{', .'.join(KINDS)}. Got '{path.name}' instead.")


# The csv module and float() rather than pandas: lines are numbered right, numbers are exact, short rows are
# seen rather than filled up, and a table of 10^5 columns takes a fraction of the time.


_PUNCTUATION = "’‘“”–—…€£°µ±²³§·×"  # of texts in western languages
# A spreadsheet would run what begins like this: such a name is written with an apostrophe before it.
_FORMULA = re.compile(r"'*[=+@-]")


def _delimiter(kind: str) -> str:
    return "\t" if kind.startswith("tsv") else ","


def text_table(path: Path) -> tuple[list[str], list[Row], str]:
    """Names of the columns, the cells of each row with the line it starts on, and the sign between cells."""
    text = decoded(path)
    delimiter = separator(text, _delimiter(kind_of(path)))
    line, rows = 1, []
    if delimiter == " ":  # numpy writes "# " before the header
        text = "\n".join(" ".join(part.lstrip("# \t").split()) for part in text.splitlines())
    try:
        for line, cells in _numbered(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)):
            rows.append((line, cells))
    except csv.Error as error:
        raise InputError(f"this is not a text table; reading stopped near line {line} ({error}).") from error
    if not rows:
        raise InputError("the file is empty; its first line must name the columns.")
    if delimiter == "|" and all(not (cells[0].strip() or cells[-1].strip()) for _, cells in rows):
        rows = [(line, cells[1:-1]) for line, cells in rows]  # bars around a row, as in Markdown
    region = find_region(rows)
    note_region(path.name, "line", region)
    header = region.header
    fitting = [(line, fitted(cells, len(header), line)) for line, cells in region.runs]
    return [_name(cell) for cell in header], fitting, delimiter


def decoded(path: Path) -> str:
    """Text of a file: in UTF-8, in UTF-16 if it begins with its mark, or as Windows writes western languages."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            held: bytes = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"this is not a gzipped file, or it is cut short ({error}).") from error
    wide = "utf-16" if held[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""
    if not wide and 0 in held[:2]:  # without its mark
        wide = "utf-16-le" if held[0] else "utf-16-be"
    try:
        # The byte-order mark that spreadsheets write is not a part of the first name.
        return held.decode(wide or "utf-8-sig")
    except UnicodeDecodeError as error:
        text = held.decode("cp1252", errors="replace")
        if wide or not all(char.isascii() or char.isalpha() or char in _PUNCTUATION for char in set(text)):
            raise InputError(f"this is not text in UTF-8 ({error}).") from error
    warnings.warn(DataWarning(f"{path.name}: read as Windows-1252, because it is not UTF-8."), stacklevel=2)
    return text


def separator(text: str, usual: str) -> str:
    """The sign that comes equally often in most of the first lines: the usual one, unless another does better.

    Where there is none of them, and the lines have equally many words, white space.
    """
    signs = (usual, ";", "\t", ",", "|")
    lines = [re.sub(r'"[^"]*"', "", line) for line in islice(filter(str.strip, text.splitlines()), 50)]
    bare = [line for line in lines if not line.startswith("#")]

    def regular(sign: str) -> int:
        counts = Counter(line.count(sign) for line in lines if sign in line)
        return max(counts.values(), default=0)

    if not any(map(regular, signs)) and len({len(line.split()) for line in bare}) == 1 < len(bare):
        return " "
    return max(signs, key=regular)


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line it starts on."""
    line = 1
    for cells in reader:
        if "".join(cells).strip():
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
        stack.callback(file.detach)  # the caller closes it
        writer = csv.writer(file, delimiter=_delimiter(kind), lineterminator="\n")
        names = [*runs.task_names, *runs.target_names]
        writer.writerow([f"'{name}" if _FORMULA.match(name) else name for name in names])
        for subset, values in zip(runs.subsets.tolist(), runs.values.tolist(), strict=True):
            weights = [int(weight) if weight in (0, 1) else weight for weight in subset]
            writer.writerow([*weights, *("" if value != value else value for value in values)])
        file.flush()
