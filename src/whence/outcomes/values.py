"""Cells as people write them, as numbers: 39.7%, 1,234.5, 1/4, 71.2 ± 0.3, yes and no, 3.2 GB, and marks such as x."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from whence.outcomes.checks import Floats
from whence.outcomes.commas import SPREAD, THOUSANDS, WITH_UNIT, with_points

MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "--", "–", "—", "?", "missing")
_WORDS = dict.fromkeys(("true", "yes", "on"), 1.0) | dict.fromkeys(("false", "no", "off"), 0.0)
_WORDS |= dict.fromkeys(MISSING, math.nan)
_CHECKS = {"✓", "✔", "✔️", "✅", "☑", "☑️", "🗸"}
_CROSSES = {"x", "✗", "✘", "❌", "✕", "✖", "×", "☐", "⛔"}  # beside checks; alone, an x or × is a mark
_MARKS = {*_CHECKS, "x", "×", "•", "●", "*", "+"}  # in a column that holds nothing else, but for empty cells
_PAIRS = (  # of words for in and out
    ("included", "excluded"), ("include", "exclude"), ("in", "out"), ("with", "without"), ("w/", "w/o"),
    ("kept", "removed"), ("present", "absent"), ("used", "unused"), ("enabled", "disabled"), ("y", "n"), ("t", "f"),
    ("ja", "nein"), ("oui", "non"), ("sí", "no"), ("si", "no"), ("wahr", "falsch"), ("vrai", "faux"), ("是", "否"),
)  # fmt: skip
_PASSED = (
    ("pass", "fail"),
    ("passed", "failed"),
    ("success", "failure"),
    ("correct", "incorrect"),
    ("correct", "wrong"),
)
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}([ \u00a0\u202f\u2009'’]\d{3})+([.,]\d*)?")
_FRACTION = re.compile(r"(\d+)\s*/\s*(\d+)")
_SCALES = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9, "t": 1e12}
_SCALES |= {f"{letter}{end}": _SCALES[letter] for letter in "kmgt" for end in ("b", "ib")} | {"bytes": 1.0}
_SCALES |= {f"{scale} tokens": factor for scale, factor in list(_SCALES.items())} | {"tokens": 1.0}


class Column(NamedTuple):
    """Numbers of a column, NaN where a cell is empty; and what is wrong with it."""

    values: Floats  # (m,)
    wrong: list[tuple[int, str]]  # places of cells that are not numbers, and what each of them is
    unit: str  # that all numbers have, "" for none
    spread: bool = False  # whether cells also have a spread, as in 71.2 ± 0.3, which is left out

    @property
    def is_text(self) -> bool:
        """Whether there are cells, and none of them is a number."""
        return bool(self.wrong) and bool(np.isnan(self.values).all())

    @property
    def is_empty(self) -> bool:
        """Whether there is no cell at all."""
        return not self.wrong and bool(np.isnan(self.values).all())


def as_column(cells: Any, *, decimal_comma: bool = False) -> Column:
    """Numbers of cells: texts, or what a format with types has.

    >>> as_column(["39.7%", "0.4", ""]).values.round(3).tolist()
    [0.397, 0.4, nan]
    >>> as_column(["3.2 GB", "450 MB"]).values.tolist()
    [3200000000.0, 450000000.0]
    >>> as_column(["1", "x"]).wrong
    [(1, "'x' is not a number")]
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return Column(cells.astype(np.float64), [], "")
    try:
        plain = not decimal_comma and all(isinstance(cell, str) for cell in cells)
        if plain and "_" not in "".join(cells):  # float() would take 1_000
            return Column(np.fromiter(map(float, cells), dtype=np.float64, count=len(cells)), [], "")
    except ValueError:
        pass
    texts = [_text(cell) for cell in cells]
    means = [SPREAD.sub(r"\g<mean>", text) for text in texts]
    spread, texts = means != texts, means
    if decimal_comma:
        texts = with_points(texts, cells)
    if (marked := _marked(texts)) is not None:
        return Column(marked, [], "")
    found = [_number(text) for text in texts]
    values = np.array([number for number, _ in found])
    wrong = [(at, f"'{str(cells[at])[:40]}' is not a number") for at, (_, unit) in enumerate(found) if unit is None]
    units = {unit or "" for (number, unit) in found if number == number and (unit or number != 0)}
    wrong += _scale(values, [unit or "" for _, unit in found], units)
    unit = units.pop() if len(units) == 1 else "" if units <= {"", "%"} else "several"
    return Column(values, sorted(wrong), unit, spread)


def _marked(texts: Sequence[str]) -> Floats | None:
    """0 and 1 of cells that are marks, or one of two words for in and out; None where they are not."""
    filled = {text for text in texts if text not in MISSING}
    if filled & _CHECKS and filled <= _CHECKS | _CROSSES:
        return np.array([float(text in _CHECKS) for text in texts])
    if filled and filled <= _MARKS and any(text in MISSING for text in texts):
        return np.array([float(text in _MARKS) for text in texts])
    for inside, outside in _PAIRS:
        if filled == {inside, outside}:
            return np.array([np.nan if text in MISSING else float(text == inside) for text in texts])
    return None


def passed(cells: Sequence[Any]) -> Column | None:
    """1 and 0 of an outcome that is pass or fail, or two other such words; None where cells hold something else.

    >>> passed(["Pass", "fail", ""]).values.tolist()
    [1.0, 0.0, nan]
    """
    texts = [_text(cell) for cell in cells]
    for good, bad in _PASSED:
        if {good, bad} == {text for text in texts if text not in MISSING}:
            return Column(np.array([np.nan if text in MISSING else float(text == good) for text in texts]), [], "")
    return None


def is_value(cell: Any) -> bool:
    """Whether a cell could be a weight or an outcome: a number, yes or no, or a mark.

    >>> is_value("39.7%"), is_value("x"), is_value("see below"), is_value("")
    (True, True, False, False)
    """
    text = _text(cell)
    return text not in MISSING and (text in _MARKS | _CROSSES or _number(text.replace(",", "."))[1] is not None)


def literal(text: str) -> Any:
    """The list or record that a text writes, as JSON or as Python; None where it is neither.

    >>> literal("['a', 'b']"), literal("[a")
    (['a', 'b'], None)
    """
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return None


def _scale(values: Floats, units: Sequence[str], distinct: set[str]) -> Iterator[tuple[int, str]]:
    """Bring numbers to one unit, in place; yield the places of those that cannot be."""
    scales = np.array([0.01 if unit == "%" else _SCALES.get(unit, 1.0) for unit in units])
    if distinct <= {"", "%"}:
        bare = [at for at, unit in enumerate(units) if "%" in distinct and unit == "" and abs(values[at]) > 1]
        yield from ((at, f"{values[at]:g} has no % and other cells of the column do") for at in bare)
    elif len(distinct) > 1 and not distinct <= set(_SCALES):
        at = next(place for place, unit in enumerate(units) if unit != units[0])
        named = ", ".join(sorted(unit or "no unit" for unit in distinct))
        yield at, f"cells are in different units ({named}); write them in one"
    values *= scales


def cell_text(cell: object) -> str:
    """A cell as text, without white space around it."""
    return "" if cell is None else str(cell).strip()


def _text(cell: object) -> str:
    if isinstance(cell, float | int | np.number) and not isinstance(cell, bool):
        return repr(float(cell))
    return cell_text(cell).lower()


def _number(text: str) -> tuple[float, str | None]:
    """Number of a cell, without stars and daggers beside it, and its unit; the unit is None where it is no number."""
    if text in _WORDS:
        return _WORDS[text], ""
    text = text.strip("*†‡§ ") or text
    if (number := _plain(text)) is not None:
        return number, ""
    if found := WITH_UNIT.fullmatch(text):
        number = _plain(found[1])
        if number is not None:
            return number, found[2].strip()
    return math.nan, None


def _plain(text: str) -> float | None:
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif _SPACED_THOUSANDS.fullmatch(text):
        text = re.sub(r"[ \u00a0\u202f\u2009'’]", "", text)
    elif (parts := _FRACTION.fullmatch(text)) and int(parts[1]) <= int(parts[2]) and 0 < int(parts[2]) <= 1000:
        return int(parts[1]) / int(parts[2])  # not 11/2025, nor 12/5
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
