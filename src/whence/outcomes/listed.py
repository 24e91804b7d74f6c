"""A column listing the tasks of each run: "web,code", "web + code", a JSON list, or weights as "web=0.7,code=0.3"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from whence.errors import InputError
from whence.outcomes.checks import Floats
from whence.outcomes.values import MISSING, as_column, literal

_SIGNS = (";", "|", ",", "+")
_USUAL = re.compile(
    r"(.*[._ ])?(subsets?|tasks|sources|datasets|domains|mix|mixture|included|components|data|recipe)", re.IGNORECASE
)
_WEIGHTED = (  # web=0.7, web: 70%, web 70%, 70% web
    re.compile(r"(?P<name>.+?)\s*[=:]\s*(?P<weight>[\d.,]+(e-?\d+)?\s*%?)"),
    re.compile(r"(?P<name>.+?)\s+(?P<weight>[\d.,]+\s*%)"),
    re.compile(r"(?P<weight>[\d.,]+\s*%)\s*(?P<name>.+)"),
)
MOST_WORDS = 4  # of a name


def lists_subsets(name: str, cells: Sequence[Any]) -> bool:
    """Whether cells list names of tasks: several in some of them, and most names more than once.

    Examples
    --------
    >>> lists_subsets("data", ["web,code", "web", "code,web"]), lists_subsets("note", ["a, b", "fine", "c, d"])
    (True, False)
    """
    sign = _sign(cells)
    listed = [[_weighted(item)[0] for item in _items(cell, sign)] for cell in cells]
    counts = Counter(item for items in listed for item in items)
    if not counts or max(map(len, listed)) < 2 or any(len(item.split()) > MOST_WORDS for item in counts):
        return False
    return bool(_USUAL.fullmatch(name)) or (sign is not None and sum(counts.values()) >= 2 * len(counts))


def listed_subsets(cells: Sequence[Any]) -> tuple[list[str], Floats]:
    """Names of the tasks in order of appearance, and the subsets (m, K) that the cells list.

    Examples
    --------
    >>> names, S = listed_subsets(['["web", "code"]', '["web"]'])
    >>> names, S.tolist()
    (['web', 'code'], [[1.0, 1.0], [1.0, 0.0]])
    """
    sign = _sign(cells)
    rows = [[_weighted(item) for item in _items(cell, sign)] for cell in cells]
    names = list(dict.fromkeys(name for row in rows for name, _ in row))
    if not names:
        raise InputError("no cell of the column of subsets names a task.")
    S = np.zeros((len(rows), len(names)))
    for at, row in enumerate(rows):
        for name, weight in row:
            S[at, names.index(name)] += weight
    return names, S


def _sign(cells: Sequence[Any]) -> str | None:
    """The sign that separates names; None where it is white space."""
    return next((sign for sign in _SIGNS if any(sign in str(cell) for cell in cells)), None)


def _items(cell: Any, sign: str | None) -> list[str]:
    if isinstance(cell, list | tuple | set | frozenset | np.ndarray):
        return [str(item).strip() for item in cell]
    text = "" if cell is None else str(cell).strip()
    if text.lower() in MISSING:
        return []
    if text[0] in "[({":
        found = literal(text)
        if isinstance(found, list | tuple | set):
            return _items(found, sign)
        text = text.strip("[](){}")
    return [item for part in text.split(sign) if (item := part.strip().strip("'\""))]


def _weighted(item: str) -> tuple[str, float]:
    """Name and weight of an item such as web=0.7, web: 70% or 70% web; the weight is 1 where there is none."""
    for pattern in _WEIGHTED:
        if found := pattern.fullmatch(item):
            weight = as_column([found["weight"]]).values[0]
            if weight == weight:
                return found["name"], float(weight)
    return item, 1.0
