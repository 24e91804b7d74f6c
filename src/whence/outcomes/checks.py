"""What a table of runs may hold: numbers, names, directions and cells.

`Outcomes` sends everything it is given through here, and so do the readers of files, which know on which line
a bad cell is. Each function gives back the clean form, or raises an `InputError` that says what to change.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from whence.arrays import Floats as Floats
from whence.errors import InputError, did_you_mean, some_of

Directions = bool | str | Iterable[str] | Iterable[bool]

# Control characters, half surrogates and byte-order marks do not survive a text file.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff]")
_UNIT = re.compile(r"\s*(\([^()]*\)|\[[^\[\]]*\]|[↓↑])$")  # after a name


def as_table(subsets: Any, values: Any) -> tuple[Floats, Floats, list[str] | None, list[str] | None]:
    """Arrays of shape (m, K) and (m, T), copied, and the column names of each where it is a DataFrame."""
    S, tasks = as_numbers(subsets, "subsets")
    Y, targets = as_numbers(values, "values")
    Y = Y[:, None] if Y.ndim == 1 else Y
    for array, what in ((S, "subsets"), (Y, "values")):
        if array.ndim != 2 or array.shape[1] < 1:
            raise InputError(
                f"The '{what}' of Outcomes must be a 2-D array with a row per run and at least one column. "
                f"Got shape {array.shape} instead."
            )
    if len(S) != len(Y):
        raise InputError(
            "The 'subsets' and 'values' of Outcomes must have the same number of rows, one per run. "
            f"Got {len(S)} and {len(Y)} instead."
        )
    return S, Y, tasks, targets


def as_numbers(data: Any, what: str) -> tuple[Floats, list[str] | None]:
    """Copy as float64, and the column names where the data come from pandas."""
    pandas = sys.modules.get("pandas")  # a frame exists only where it is imported
    if pandas is not None and isinstance(data, pandas.DataFrame | pandas.Series):
        frame = pandas.DataFrame(data)
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
            if not pandas.api.types.is_numeric_dtype(dtype) or dtype.kind == "c":
                raise InputError(f"Column '{name}' of '{what}' must hold numbers. Got {dtype} instead.")
        named = isinstance(data, pandas.DataFrame) or data.name is not None
        numbers = frame.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        return numbers, listed(frame.columns) if named else None
    try:
        array = np.asarray(unmasked(data))
    except ValueError as error:
        raise InputError(f"The '{what}' must be a regular array of numbers, with rows of one length.") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"The '{what}' must be an array of numbers. Got dtype {array.dtype} instead.")
    return array.astype(np.float64), None


def unmasked(data: Any) -> Any:
    """Masked entries of an array as NaN: numpy would use whatever lies beneath them."""
    return np.ma.filled(data.astype(np.float64), np.nan) if isinstance(data, np.ma.MaskedArray) else data


def listed(names: str | Iterable[str]) -> list[str]:
    """Names as a list, a single one too."""
    return [names] if isinstance(names, str) else [str(name) for name in names]


def as_names(given: Iterable[str] | None, kind: str, count: int) -> tuple[str, ...]:
    """Names without surrounding white space, distinct and writable; numbered where none are given."""
    if given is None:
        return tuple(f"{kind}_{place}" for place in range(count))
    names = tuple(name.strip() for name in listed(given))
    if len(names) != count:
        raise InputError(f"There must be one name per {kind} column, {count} in all. Got {len(names)} names instead.")
    for name in names:
        if not name or _UNWRITABLE.search(name):
            raise InputError(
                f"The name of each {kind} must be non-empty text without control characters. Got {name!r}."
            )
    if again := repeated(names):
        raise InputError(f"The name of each {kind} must be unique. These come more than once: {again}.")
    return names


def repeated(names: Iterable[str]) -> str:
    """Names that come more than once, as text; empty where all are distinct."""
    again = [repr(name) for name, times in Counter(names).items() if times > 1]
    return some_of(again) if again else ""


def places(wanted: Collection[Any], names: Sequence[str], kind: str) -> list[int]:
    """Where each of the wanted names is among the names; capitals and spaces do not matter where one is meant.

    >>> places(["web text"], ["Web  Text", "code"], "task")
    [0]
    """
    place = {name: at for at, name in enumerate(names)}
    found = []
    for name in wanted:
        same = (
            [place[name]] if name in place else [at for at, other in enumerate(names) if folded(other) == folded(name)]
        )
        if len(same) != 1:
            raise InputError(f"There is no {kind} '{name}'. {did_you_mean(str(name), names)}")
        found += same
    return found


def folded(name: Any) -> str:
    """A name in lower case, with single spaces, and letters with accents in one way of the two."""
    return " ".join(normalize("NFC", str(name)).casefold().split())


def as_directions(maximize: Directions | None, targets: Sequence[str]) -> tuple[bool, ...]:
    """Whether higher is better, for each target."""
    if maximize is None or isinstance(maximize, bool):
        return (bool(maximize),) * len(targets)
    given = [maximize] if isinstance(maximize, str) else list(maximize)
    if not given or not all(isinstance(up, bool | np.bool_) for up in given):
        up = places([column for name in given for column in columns_of(str(name), targets)], targets, "target")
        return tuple(place in up for place in range(len(targets)))
    if len(given) != len(targets):
        raise InputError(
            f"The 'maximize' parameter must have one bool per target, {len(targets)} in all. Got {len(given)} instead."
        )
    return tuple(map(bool, given))


def columns_of(name: str, targets: Sequence[str]) -> list[str]:
    """The target of a name, or those of an array of that name, such as ``name[0]`` and ``name[1]``."""
    if name in targets:
        return [name]
    return [target for target in targets if target.startswith(f"{name}[") and target.endswith("]")] or [name]


def find_names(asked: str, names: Sequence[str]) -> list[str]:
    """Names that a name or a pattern stands for: itself, in other capitals, those of an array, by its last part.

    Or without its unit.

    >>> find_names("LOSS", ["a", "Loss"]), find_names("mix.*", ["mix.a", "mix.b", "c"]), find_names("a", ["mix.a", "b"])
    (['Loss'], ['mix.a', 'mix.b'], ['mix.a'])
    >>> find_names("loss", ["a", "Loss (nats)"]), find_names("loss", ["loss (train)", "loss (val)"])
    (['Loss (nats)'], [])
    """
    if asked in names:
        return [asked]
    plain = folded(asked)
    numbered = columns_of(plain, [folded(name) for name in names])
    if same := [name for name in names if folded(name) in numbered]:
        return same
    if set(asked) & set("*?["):
        return [name for name in names if fnmatchcase(folded(name), plain)]
    last = [name for name in names if re.split(r"[./\[]", folded(name).removesuffix("]"))[-1] == plain]
    last = last or [name for name in names if _UNIT.sub("", folded(name)) == plain]
    return last if len(last) == 1 else []


def check_weights(S: Floats, names: Sequence[str], rows: Sequence[str] | None = None) -> None:
    """Refuse weights that are missing, infinite or negative; ``rows`` says where each row is in a file."""
    _refuse(np.isnan(S), "a task column cannot be empty; write 0 or 1, or a weight", S, names, rows)
    _refuse(np.isinf(S), "a weight must be finite", S, names, rows)
    _refuse(S < 0, "a weight must be at least 0", S, names, rows)


def check_values(Y: Floats, names: Sequence[str]) -> None:
    """Refuse outcomes that are infinite."""
    rule = "an outcome must be finite; leave it empty (NaN) if it was not measured"
    _refuse(np.isinf(Y), rule, Y, names, None)


def _refuse(bad: NDArray[np.bool_], rule: str, cells: Floats, names: Sequence[str], rows: Sequence[str] | None) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0]
        where = f"row {row} (counted from 0)" if rows is None else rows[row]
        raise InputError(f"{where}, column '{names[column]}': {rule}. Got {cells[row, column]} instead.")


MOST_PROBLEMS = 8


class Problems:
    """All that is wrong with a table, and the parameters that would fix it."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.named: dict[str, Any] = {}
        self.fix: dict[str, Any] = {}
        self.mendable = True  # whether parameters can put all of it right

    def add(self, sentence: str, fix: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Add a sentence that refers to the parameters ``named``, and what would fix it."""
        for name, value in named.items():
            own = f"{name}:{len(self.sentences)}"
            sentence = sentence.replace(f"{{{name}}}", f"{{{own}}}")
            self.named[own] = value
        self.sentences.append(sentence)
        self.mendable &= any((fix or {}).values())
        for name, value in (fix or {}).items():
            if isinstance(value, list):
                known = self.fix.setdefault(name, [])
                known += [one for one in value if one not in known]
            elif isinstance(value, dict):
                self.fix.setdefault(name, {}).update(value)
            else:
                self.fix.setdefault(name, value)

    def check(self) -> None:
        """Raise if there are any."""
        if not self.sentences:
            return
        text = self.sentences[0]
        if len(self.sentences) > 1:
            shown = self.sentences[:MOST_PROBLEMS]
            more = len(self.sentences) - len(shown)
            text = "\n  ".join(
                [f"there are {len(self.sentences)} problems.", *(f"({n}) {s}" for n, s in enumerate(shown, 1))]
            )
            text += f" And {more} more." if more else ""
        raise InputError(text, fix=self.fix if self.mendable else None, **self.named)
