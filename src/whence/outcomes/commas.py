"""Which sign stands before decimals, and which between thousands: 0,25 and 1.234, or 0.25 and 1,234.

Decided for a table as a whole, because a single 1,234 does not tell. Where nothing in it does, a note says how such
numbers are read.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from whence.errors import DataWarning, some_of

THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?(e[+-]?\d+)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?")
_DOTTED_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?")  # where commas stand before decimals
_DECIMAL_POINT = re.compile(r"[+-]?[\d,]*\.\d+(e[+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?[1-9]\d{0,2}")
SPREAD = re.compile(  # 71.2 ± 0.3, 71.2 (0.3), or 0.71 [0.68, 0.73]
    r"(?P<mean>[+-]?[\d.,]+(e[+-]?\d+)?\s*%?)\s*((±|\+/-|\+-|\\pm)\s*[\d.,]+(e[+-]?\d+)?\s*%?|\([±\d.,]+\s*%?\)|[\[(][\d.,]+\s*[,;–-]\s*[\d.,]+[\])])"
)
WITH_UNIT = re.compile(r"([+-]?[\d.,]+(?:e[+-]?\d+)?)\s*([a-zµ%€$][a-z/ %]*)")


class _Signs(NamedTuple):
    """Numbers of a column that tell which sign is which."""

    commas: list[str]  # with commas, if these stand before decimals or between thousands in all of them
    points: list[str]  # with points and no comma, if these could stand between thousands in all of them
    fractions: bool  # whether a point can only stand before decimals
    whole: str  # a number below 1000 without either, "" for none

    @property
    def decimals(self) -> bool:
        """Whether a comma can only stand before decimals."""
        return not all(map(THOUSANDS.fullmatch, self.commas))

    @property
    def doubtful(self) -> bool:
        """Whether commas could be either; beside a 270, the comma of 1,234 stands between thousands."""
        return bool(self.commas) and all(map(DECIMAL_COMMA.fullmatch, self.commas)) and not self.whole


def has_decimal_commas(names: Sequence[str], columns: Sequence[Sequence[Any]], separator: str) -> bool:
    """Whether a comma stands before decimals, as in "0,25", and not between thousands; a note says so if in doubt.

    One column with commas may list numbered tasks, as "1,2", if commas also separate the cells, or if other columns
    have points before decimals; two such columns do not.

    >>> has_decimal_commas(["a", "b"], [["0,25", "0,5"], ["12,5%", "10%"]], ",")
    True
    >>> has_decimal_commas(["a", "b"], [["1,2", "3,4"], ["0.5", "0.25"]], ";")
    False
    """
    texts = ([] if isinstance(cells, np.ndarray) else cells for cells in columns)
    found = [(name, _signs_of(cells)) for name, cells in zip(names, texts, strict=True)]
    fractions = any(signs.fractions for _, signs in found)
    decimals = [signs.commas for _, signs in found if signs.decimals]
    long = any(len(text.partition(",")[2]) > 2 for texts in decimals for text in texts)
    if decimals and (len(decimals) > 1 or long or not (separator == "," or fractions)):
        return True
    if fractions or not all(signs.doubtful for _, signs in found if signs.commas):
        return False
    if unsure := [(name, signs.commas[0]) for name, signs in found if signs.commas]:
        if separator != ";":  # which separates cells where a comma stands before decimals
            _note(unsure, ",", decimal=False)
        return separator == ";"
    if any(text.count(".") > 1 for _, signs in found for text in signs.points):
        return True
    if unsure := [(name, signs.points[0]) for name, signs in found if signs.points and len(signs.whole) > 1]:
        _note(unsure, ".", decimal=separator != ";")
        return separator == ";"
    return False


def _note(unsure: Sequence[tuple[str, str]], sign: str, *, decimal: bool) -> None:
    """Say how doubtful numbers are read, and how to write them."""
    text = unsure[0][1]
    ways = text.replace(sign, "."), text.replace(sign, "")
    read, other = ways if decimal else reversed(ways)
    what = "comma" if sign == "," else "point"
    places = ("before decimals", "between thousands") if decimal else ("between thousands", "before decimals")
    named = some_of([name for name, _ in unsure], 4)
    said = f"Numbers such as {text} ({named}) are read as {read}, with the {what} {places[0]}."
    warnings.warn(DataWarning(f"{said} If it stands {places[1]}, write {other}."), stacklevel=4)


def _signs_of(cells: Sequence[Any]) -> _Signs:
    commas, points, whole, mixed, fractions = [], [], "", False, False
    for cell in cells:
        if not isinstance(cell, str):
            continue
        if "," in cell:
            commas.append(text := bare(cell))
            mixed = mixed or not (DECIMAL_COMMA.fullmatch(text) or THOUSANDS.fullmatch(text) or _dotted(text))
            fractions = fractions or ("." in text and bool(THOUSANDS.fullmatch(text)))
        elif "." in cell:
            points.append(text := bare(cell))
            fractions = fractions or (not _dotted(text) and bool(_DECIMAL_POINT.fullmatch(text)))
        elif not whole and _WHOLE.fullmatch(text := bare(cell)):
            whole = text
    return _Signs([] if mixed else commas, points if all(map(_dotted, points)) else [], fractions, whole)


def _dotted(text: str) -> bool:
    return bool(_DOTTED_THOUSANDS.fullmatch(text))


def with_points(texts: Sequence[str], cells: Sequence[Any]) -> list[str]:
    """Texts of numbers with decimal commas as they are written with a point: 1.234,5 as 1234.5."""
    thousands = all(_dotted(bare(cell)) for cell in cells if isinstance(cell, str) and "." in cell)
    found = []
    for text, cell in zip(texts, cells, strict=True):
        whole = text.replace(".", "") if thousands and isinstance(cell, str) else text
        found.append(whole.replace(",", ".") if DECIMAL_COMMA.fullmatch(bare(whole)) else whole)
    return found


def bare(cell: str) -> str:
    """Number of a cell without its spread and unit, as text.

    >>> bare("1,5 GB"), bare("71,2 ± 0,3")
    ('1,5', '71,2')
    """
    text = SPREAD.sub(r"\g<mean>", cell.strip().lower()).strip()
    return found[1] if (found := WITH_UNIT.fullmatch(text)) else text
