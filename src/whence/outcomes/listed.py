"""A column listing the tasks of each run: "web,code", "web + code", a JSON list, or weights as "web=0.7,code=0.3".

Or those that were left out: "all but web", "w/o web", or a column that is called ``removed``.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from whence.errors import DataWarning, InputError, some_of
from whence.outcomes.bookkeeping import WEIGHTS, words_of
from whence.outcomes.checks import Floats, folded
from whence.outcomes.values import MISSING, as_column, cell_text, literal

# Signs between names, in this order; then those that names may have too, if they split cells into fewer names.
_SIGNS = (";", "|", ",", "+", "\n")
_WEAK_SIGNS = ("/", " & ", " and ", " with ", None, "_", "-")  # None is white space
_USUAL = re.compile(
    r"(.*[._ ])?(subsets?|tasks|sources|datasets|domains|mix|mixture|included|components|data|recipe)", re.IGNORECASE
)
_REMOVED = re.compile(
    r"(.*[._ ])?(removed|excluded|dropped|ablated|omitted|left[_ ]out|held[_ ]out|without|minus)([_ ].*)?",
    re.IGNORECASE,
)
_EVERY = ("all", "full", "everything", "all data", "all tasks", "all sources", "full mix", "complete")
_BASE = ("baseline", "base")
_ALL = (*_EVERY, *_BASE)  # where cells say what was left out
_BUT = re.compile(
    rf"(?:(?:{'|'.join(_ALL)})\s+)?(?:but|except|minus|without|w/o|excluding|no)\s+|(?:{'|'.join(_ALL)})?\s*[-–−]\s*(?=\w)"
)
_ASSIGNED = re.compile(  # web=0.7, web: 70%, data.web=true
    r"\+{0,2}(?P<name>[^=:]+?)\s*[=:]\s*(?P<weight>[\d.,]+(e-?\d+)?\s*%?|true|false|yes|no|on|off)", re.IGNORECASE
)
_WEIGHTED = (  # and web 70%, 70% web
    _ASSIGNED,
    re.compile(r"(?P<name>.+?)\s+(?P<weight>[\d.,]+\s*%)"),
    re.compile(r"(?P<weight>[\d.,]+\s*%)\s*(?P<name>.+)"),
)
_TIMES = (  # web (2x), web x2, 2x web
    re.compile(r"(?P<name>.+?)\s*[(\[](?P<weight>\d+(\.\d+)?)\s*[x×][)\]]", re.IGNORECASE),
    re.compile(r"(?P<name>.+?)(\s+x|\s*×|\s*[(\[][x×])\s*(?P<weight>\d+(\.\d+)?)[)\]]?", re.IGNORECASE),
    re.compile(r"(?P<weight>\d+(\.\d+)?)(\s*×\s*|x\s+)(?P<name>.+)", re.IGNORECASE),
)
MOST_WORDS = 4  # of a name


class _Lists(NamedTuple):
    """Names and weights in each cell, and whether they are those that the run did without."""

    rows: list[list[tuple[str, float]]]
    removed: bool
    split: bool  # whether a sign was found that separates names
    every: str = ""  # a cell that stands for all names
    multiple: str = ""  # a name that is several times in a run

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name, _ in row))


def is_usual(name: str) -> bool:
    """Whether a column that lists tasks is often called so: data, subset, sources and the like."""
    return bool(_USUAL.fullmatch(name))


def lists_subsets(name: str, cells: Sequence[Any]) -> bool:
    """Whether cells list names of tasks: several in some of them, and most names more than once.

    >>> lists_subsets("data", ["web,code", "web", "code,web"]), lists_subsets("note", ["a, b", "fine", "c, d"])
    (True, False)
    >>> lists_subsets("data", ["web/code", "web", "code"]), lists_subsets("data", ["org/web", "org/code", "lab/law"])
    (True, False)
    """
    found = _read(name, cells)
    counts = Counter(item for row in found.rows for item, _ in row)
    if not counts or any(len(item.split()) > MOST_WORDS for item in counts):
        return False
    if found.removed:
        return len(counts) >= 2
    if max(map(len, found.rows)) < 2:
        return False
    return is_usual(name) or (found.split and sum(counts.values()) >= 2 * len(counts))


def leaves_out(name: str, cells: Sequence[Any]) -> bool:
    """Whether cells list the tasks that a run did without.

    >>> leaves_out("data", ["all", "w/o web"]), leaves_out("removed", ["none", "web"]), leaves_out("data", ["web"])
    (True, True, False)
    """
    return _read(name, cells).removed


def listed_subsets(name: str, cells: Sequence[Any]) -> tuple[list[str], Floats]:
    """Names of the tasks in order of appearance, and the subsets (m, K) that the cells of a column list.

    >>> names, S = listed_subsets("data", ['["web", "code"]', '["web"]'])
    >>> names, S.tolist()
    (['web', 'code'], [[1.0, 1.0], [1.0, 0.0]])
    >>> listed_subsets("data", ["all", "w/o web", "w/o code"])[1].tolist()
    [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    """
    found = _read(name, cells)
    if not found.names:
        raise InputError("no cell of the column of subsets names a task.")
    alike: dict[str, list[str]] = {}
    for one in found.names:
        alike.setdefault(folded(one), []).append(one)
    if several := [" and ".join(map(repr, same)) for same in alike.values() if len(same) > 1]:
        note = f"Names in '{name}' that differ in capitals only are read as one task: {some_of(several, 4)}."
        warnings.warn(DataWarning(note), stacklevel=5)
    _note_readings(name, found)
    names = [same[0] for same in alike.values()]
    place = {one: at for at, one in enumerate(alike)}
    S = np.zeros((len(found.rows), len(names)))
    for at, row in enumerate(found.rows):
        for item, weight in row:
            S[at, place[folded(item)]] += weight
    return names, (S == 0).astype(np.float64) if found.removed else S


def _note_readings(name: str, found: _Lists) -> None:
    """Say what words and multiples in cells that list tasks are taken for."""
    notes = []
    if found.every:
        notes.append(f"'{found.every}' in '{name}' is read as all tasks: {some_of(found.names, 12)}.")
    if not found.removed and (base := next((task for task in found.names if task.lower() in _BASE), None)):
        notes.append(
            f"'{base}' in '{name}' is read as a task. If it means all tasks, list them; if none, leave it empty."
        )
    if found.multiple:
        notes.append(f"Multiples in '{name}', as '{found.multiple}', are read as weights.")
    for note in notes:
        warnings.warn(DataWarning(note), stacklevel=6)


def _read(name: str, cells: Sequence[Any]) -> _Lists:
    bare, removed = _without_but(cells)
    if not removed and _REMOVED.fullmatch(name):
        bare, removed = ["" if _is_all(cell) else cell for cell in cells], True
    sign = _sign(bare, usual=is_usual(name))
    items = [_items(cell, sign) for cell in bare]
    known = {item for row in items for item in row}
    parts = [[part for item in row for part in _and(item, known)] for row in items]
    every = ""
    if removed:
        parts = [[re.sub(r"^[-–−]\s*(?=\w)", "", part) for part in row] for row in parts]
    elif names := _names_of_all(parts):
        every = next(row[0] for row in parts if _means_all(row))
        parts = [names if _means_all(row) else row for row in parts]
    multiple = next((part for row in parts for part in row if any(each.fullmatch(part) for each in _TIMES)), "")
    rows = [list(map(_weighted, row)) for row in parts]
    split = sign not in ("", None) or (any(map(_is_list, bare)) or _assign([row for row in items if row]))
    return _Lists(rows, removed, split, every, multiple)


def _without_but(cells: Sequence[Any]) -> tuple[Sequence[Any], bool]:
    """What follows "all but" in each cell, nothing for "all", and True; or the cells and False."""
    texts = [str(cell).strip().lower() for cell in cells]
    found = [_BUT.match(text) for text in texts]
    if not any(found) or not all(match or _is_all(text) for match, text in zip(found, texts, strict=True)):
        return cells, False
    return [str(cell).strip()[match.end() :] if match else "" for cell, match in zip(cells, found, strict=True)], True


def _means_all(row: Sequence[str]) -> bool:
    return len(row) == 1 and row[0].lower() in _EVERY


def _names_of_all(rows: list[list[str]]) -> list[str]:
    """All names, where some cells say "all" and others list several, without weights; none where they do not."""
    names = {folded(name): name for row in rows if not _means_all(row) for name in row}
    plain = all(_weighted(name) == (name, 1.0) for name in names.values())
    listed = max(map(len, rows), default=0) >= 2 and plain and not set(names) & set(_EVERY)
    return list(names.values()) if listed and any(map(_means_all, rows)) else []


def _is_all(cell: Any) -> bool:
    text = cell_text(cell).lower()
    return text in _ALL or text in MISSING


def _sign(cells: Sequence[Any], *, usual: bool) -> str | None:
    """The sign that separates names: None for white space, "" where each cell is one name."""
    texts = [str(cell).strip() for cell in cells if not _is_list(cell)]
    if _assign([text.split() for text in texts if text.lower() not in MISSING]):
        return None  # also where the names begin with a sign, as in "+data.web=true"
    for sign in _SIGNS:
        if any(sign in text for text in texts):
            return " + " if sign == "+" and any("++" in text for text in texts) else sign  # and not those of C++
    for weak in _WEAK_SIGNS:
        if _splits([text.split(weak) for text in texts if text.lower() not in MISSING], usual=usual):
            return weak
    return ""


def _is_list(cell: Any) -> bool:
    return isinstance(cell, list | tuple | set | frozenset | np.ndarray)


def _assign(rows: list[list[str]]) -> bool:
    """Whether all parts of cells give a name a weight, several in some cells."""
    return max(map(len, rows), default=0) >= 2 and all(_ASSIGNED.fullmatch(part) for row in rows for part in row)


def _splits(rows: list[list[str]], *, usual: bool) -> bool:
    """Whether parts of cells are names of tasks: no more of them than cells, of other numbers or in other places.

    So "web/code", "web" and "code" are lists, and "org/web", "org/code" and "lab/web" are names.
    """
    rows = [[_weighted(part.strip())[0] for part in row] for row in rows]
    parts = Counter(part for row in rows for part in set(row))
    places = {(part, at) for row in rows for at, part in enumerate(row)}
    if not rows or "" in parts or max(map(len, rows)) < 2 or any(len(set(row)) < len(row) for row in rows):
        return False
    if not usual and (max(parts.values()) == len(rows) or any(part.isdigit() for part in parts)):
        return False  # the first part of a path or of the names of runs; numbers of runs
    several = len({len(row) for row in rows}) > 1 or len(places) > len(parts)
    fewer = len(parts) <= len({tuple(row) for row in rows})
    return several and fewer and (usual or sum(parts.values()) >= 2 * len(parts))


def _items(cell: Any, sign: str | None) -> list[str]:
    if _is_list(cell):
        return [_of_record(item) if isinstance(item, dict) else str(item).strip() for item in cell]
    text = cell_text(cell)
    if text.lower() in MISSING:
        return []
    if text[0] in "[({":
        found = literal(text)
        if isinstance(found, list | tuple | set):
            return _items(found, sign)
        text = text.strip("[](){}")
    parts = [text] if sign == "" else text.split(sign)
    return [item for part in parts if (item := part.strip().strip("'\""))]


def _of_record(record: dict[Any, Any]) -> str:
    """Name and weight of a task, as text: of {"name": "web", "weight": 0.7}, or of {"web": 0.7}.

    >>> _of_record({"name": "web", "weight": 0.7, "files": 3}), _of_record({"web": 0.7})
    ('web=0.7', 'web=0.7')
    """
    names = [str(value) for value in record.values() if isinstance(value, str)]
    weights = {key: value for key, value in record.items() if isinstance(value, int | float)}
    named = [value for key, value in weights.items() if set(words_of(str(key))) & WEIGHTS] or [*weights.values()]
    if not names and len(record) == len(weights) == 1:
        names = [str(key) for key in weights]
    if not names or len(named) > 1:
        return str(record)
    return f"{names[0].strip()}={float(named[0])!r}" if named else names[0].strip()


def _and(item: str, known: set[str]) -> list[str]:
    """The names of "web and code" where these are names elsewhere too, and that of "and code"."""
    item = re.sub(r"^(and|&)\s+", "", item)
    parts = re.split(r"\s+(?:and|&)\s+", item)
    return parts if all(part in known for part in parts) else [item]


def _weighted(item: str) -> tuple[str, float]:
    """Name and weight of an item such as web=0.7, web: 70% or 70% web; the weight is 1 where there is none."""
    for pattern in (*_WEIGHTED, *_TIMES):
        if found := pattern.fullmatch(item):
            weight = as_column([found["weight"]]).values[0]
            if weight == weight:
                return found["name"], float(weight)
    return item, 1.0
