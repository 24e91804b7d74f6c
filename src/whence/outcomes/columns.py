"""Columns of a table of runs: which are tasks, which are outcomes, which to leave out.

Between a file and its table. Names are found as people write them: in other capitals, with spaces around them, by
patterns such as ``config.mix.*``, or without the prefix of a tracker. All that is wrong is said at once, with what
would fix it. A file that knows its own columns (npz, run folders, Parquet that whence wrote) only needs `choose`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from whence.errors import DataWarning, InputError, did_you_mean, some_of
from whence.outcomes.bookkeeping import HIGHER, LOWER, higher_is_better, kind_of_name, set_aside, words_of
from whence.outcomes.checks import Floats, columns_of, folded, repeated
from whence.outcomes.listed import listed_subsets, lists_subsets
from whence.outcomes.long import widened
from whence.outcomes.sheets import Sheet
from whence.outcomes.simplex import is_mixture
from whence.outcomes.values import Column, as_column

MISSING = ("drop", "zero")
MOST_PROBLEMS = 8


class Wanted(NamedTuple):
    """Columns the caller named, by role; None where those the file declares, or all others, are meant."""

    outcomes: list[str] | None
    tasks: list[str] | None
    ignore: list[str]
    subset_column: str | None = None
    missing: str | None = None


class Chosen(NamedTuple):
    """Columns that go into the table, tasks before outcomes: their places in the file and their names."""

    places: list[int]
    names: list[str]
    n_tasks: int

    def arguments(self, cells: Floats, up: Mapping[str, bool], provenance: Mapping[str, str] | None) -> dict[str, Any]:
        """Arguments of `Outcomes` for the cells of these columns; ``up`` is what the file says of targets."""
        targets = self.names[self.n_tasks :]
        return {
            "subsets": cells[:, : self.n_tasks],
            "values": cells[:, self.n_tasks :],
            "task_names": self.names[: self.n_tasks],
            "target_names": targets,
            "maximize": [up.get(name, False) for name in targets],
            "provenance": provenance,
        }


class Problems:
    """All that is wrong with a table, and the parameters that would fix it."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.named: dict[str, Any] = {}
        self.fix: dict[str, Any] = {}
        self.mendable = True  # whether parameters can put all of it right

    def add(self, sentence: str, fix: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Add a sentence that refers to the parameters ``named``, and what would fix it."""
        self.sentences.append(sentence)
        self.named |= named
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


def choose(names: Sequence[str], wanted: Wanted, declared: Sequence[str]) -> Chosen:
    """Columns to use of a file that itself names its outcomes, ``declared``.

    Examples
    --------
    >>> choose(["run", "a", "b", "loss"], Wanted(outcomes=None, tasks=None, ignore=["run"]), ["loss"])
    Chosen(places=[1, 2, 3], names=['a', 'b', 'loss'], n_tasks=2)
    """
    check_header(names)
    problems = Problems()
    inputs = [name for name in names if name not in set(declared)]
    role = _roles(wanted, Wanted(list(declared), inputs, list(names)), problems)
    problems.check()
    picked = {kind: [name for name, other in role.items() if other == kind] for kind in ("outcomes", "tasks")}
    outcomes = picked["outcomes"] if wanted.outcomes is not None else [name for name in declared if name not in role]
    tasks = picked["tasks"] if wanted.tasks is not None else [name for name in inputs if name not in role]
    _refuse_none(tasks, outcomes, names)
    place = {name: at for at, name in enumerate(names)}
    return Chosen([place[name] for name in (*tasks, *outcomes)], [*tasks, *outcomes], len(tasks))


def read_columns(sheet: Sheet, wanted: Wanted) -> dict[str, Any]:
    """Arguments of `Outcomes` from the cells of a sheet."""
    check_header(sheet.names)
    if wanted.missing not in (None, *MISSING):
        raise InputError(f"must be 'drop' or 'zero'. Got {wanted.missing!r} instead.", parameter="missing")
    if wanted.tasks is None and wanted.subset_column is None:
        asked = [name for one in wanted.outcomes or () for name in find_names(one, sheet.names)]
        sheet = widened(sheet, asked)
    problems = Problems()
    role = _roles(wanted, Wanted(sheet.names, sheet.names, sheet.names, wanted.subset_column), problems)
    place = {name: at for at, name in enumerate(sheet.names)}
    needed = [name for name in sheet.names if role.get(name) != "ignore"]
    columns = {name: as_column(sheet.columns[place[name]], decimal_comma=sheet.decimal_comma) for name in needed}
    listing = _listing(sheet, wanted, role, columns, problems)
    outcomes = [name for name, kind in role.items() if kind == "outcomes"]
    if wanted.outcomes is None:
        outcomes = _ask_for_outcomes(sheet.names, columns, [*role, listing], problems)
    named = {*role, *outcomes, listing}
    rest = {name: column for name, column in columns.items() if name not in named}
    tasks = [name for name, kind in role.items() if kind == "tasks"]
    aside: dict[str, str] = {}
    if listing is not None:
        aside = {name: kind_of_name(name) or "not in the list" for name in rest}
    elif wanted.tasks is None:
        aside = set_aside(rest)
        tasks = [name for name in rest if name not in aside]
    if not problems.sentences:
        _refuse_none(tasks or [listing] if listing else tasks, outcomes, sheet.names, aside)
    found = _table(sheet, columns, tasks, outcomes, listing, wanted, problems)
    if listing is not None and wanted.subset_column is None:
        note = f"Column '{listing}' is taken to list the tasks of each run; to confirm, add {{subset_column}}."
        warnings.warn(DataWarning(note, subset_column=listing), stacklevel=4)
    note_aside(aside)
    return found


# ---- which column is what --------------------------------------------------------------------------------


def check_header(names: Sequence[str]) -> None:
    """Raise where names of columns come twice, or there is one column only."""
    if again := repeated(names):
        raise InputError(
            f"column names must be unique, and these come more than once: {again}. "
            "The first line must name the columns."
        )
    if len(names) == 1:
        raise InputError(
            f"there is one column, '{names[0]}', and a table needs a task and an outcome. "
            "Cells are separated by commas in .csv and by tabs in .tsv."
        )


def find_names(asked: str, names: Sequence[str]) -> list[str]:
    """Columns that a name or a pattern stands for: itself, in other capitals, those of an array, or by its last part.

    >>> find_names("LOSS", ["a", "Loss"]), find_names("mix.*", ["mix.a", "mix.b", "c"]), find_names("a", ["mix.a", "b"])
    (['Loss'], ['mix.a', 'mix.b'], ['mix.a'])
    """
    if asked in names:
        return [asked]
    plain = folded(asked)
    numbered = columns_of(plain, [folded(name) for name in names])
    if same := [name for name in names if folded(name) in numbered]:
        return same
    if set(asked) & set("*?["):
        return [name for name in names if fnmatchcase(folded(name), plain)]
    last = [name for name in names if re.split(r"[./]", folded(name))[-1] == plain]
    return last if len(last) == 1 else []


def _roles(wanted: Wanted, could_be: Wanted, problems: Problems) -> dict[str, str]:
    """For each column that was named, the parameter that did."""
    role: dict[str, str] = {}
    for parameter in ("outcomes", "tasks", "ignore"):
        known = getattr(could_be, parameter) or []
        for asked in getattr(wanted, parameter) or ():
            found = find_names(asked, known)
            if not found:
                hint = did_you_mean(asked, known)
                instead = {asked: hint.split("'")[1]} if hint.startswith("Did") else {}
                problems.add(
                    f"column '{asked}' of {{{parameter}}} does not exist. {hint}",
                    {"instead": instead},
                    **{parameter: None},
                )
                for name in instead.values():  # what was meant is not a column of another kind
                    role.setdefault(name, parameter)
            for name in found:
                if name not in role:
                    role[name] = parameter
                elif name == asked or role[name] == parameter:
                    again = f"column '{name}' is in {{{role[name]}}} and again in {{{parameter}}}; name it once."
                    problems.add(again, **{role[name]: None, parameter: None})
    return role


def _refuse_none(
    tasks: Sequence[str], outcomes: Sequence[str], names: Sequence[str], aside: Mapping[str, str] | None = None
) -> None:
    for kind, chosen in (("task", tasks), ("outcome", outcomes)):
        if not chosen:
            why = [f"{name} ({what})" for name, what in (aside or {}).items()]
            listed = f" Set aside: {some_of(why, 20)}; name tasks with {{tasks}}." if why and kind == "task" else ""
            raise InputError(
                f"no {kind} column is left. The columns are: {some_of(names, limit=20)}.{listed}", tasks=["NAME"]
            )


def note_aside(aside: Mapping[str, str]) -> None:
    """Warn of columns that were set aside, and what they are."""
    if aside:
        listed = some_of([f"{name} ({what})" for name, what in aside.items()], 12)
        note = f"Columns set aside, which are not tasks: {listed}. Should one be a task, name all tasks with {{tasks}}."
        warnings.warn(DataWarning(note, tasks=["NAME"]), stacklevel=5)


def _ask_for_outcomes(
    names: Sequence[str], columns: Mapping[str, Column], named: Sequence[str | None], problems: Problems
) -> list[str]:
    """Say that outcomes must be named, and guess which; what else is wrong is then told with it."""
    rest = {name: column for name, column in columns.items() if name not in named and not column.is_empty}
    numeric = {name: column for name, column in rest.items() if not column.is_text}
    guess = [name for name in numeric if set(words_of(name)) & (LOWER | HIGHER)]
    if not guess:
        aside = set_aside(rest)
        odd = ("not a part of the mixture", "another measurement", "not 0/1, as the others are")
        guess = [name for name in numeric if aside.get(name) in odd]
        guess = guess or [name for name in numeric if not set(np.unique(numeric[name].values)) <= {0.0, 1.0}][-1:]
    fix: dict[str, Any] = {"outcomes": guess} if guess else {}
    if up := [name for name in guess if higher_is_better(name)]:
        fix["maximize"] = up
    problems.add(
        f"the outcome columns must be named, with {{outcomes}}. The columns are: {some_of(names, limit=20)}.",
        fix,
        outcomes=["NAME"],
    )
    return guess


def _listing(
    sheet: Sheet, wanted: Wanted, role: Mapping[str, str], columns: Mapping[str, Column], problems: Problems
) -> str | None:
    """The column whose cells list the tasks of a run: as asked for, or where no others could be tasks."""
    if wanted.subset_column is not None:
        found = find_names(wanted.subset_column, sheet.names)
        if len(found) != 1:
            hint = did_you_mean(wanted.subset_column, sheet.names)
            problems.add(
                f"column '{wanted.subset_column}' of {{subset_column}} does not exist. {hint}", subset_column=None
            )
        return found[0] if found else None
    if wanted.tasks is not None:
        return None
    rest = {name: column for name, column in columns.items() if name not in role}
    texts = [name for name, column in rest.items() if column.is_text]
    listing = next((name for name in texts if lists_subsets(name, sheet.columns[sheet.names.index(name)])), None)
    if listing is None:
        return None
    left = [name for name in rest if name not in set_aside(rest)]
    values = [rest[name].values for name in left]
    binary = sum(set(np.unique(column)) <= {0.0, 1.0} for column in values)
    if binary >= 2 or (len(left) >= 2 and is_mixture(np.nan_to_num(np.column_stack(values)))):
        return None
    return listing


# ---- cells -----------------------------------------------------------------------------------------------


def _table(
    sheet: Sheet,
    columns: Mapping[str, Column],
    tasks: Sequence[str],
    outcomes: Sequence[str],
    listing: str | None,
    wanted: Wanted,
    problems: Problems,
) -> dict[str, Any]:
    m = len(sheet.places)
    if listing is not None:
        names, S = listed_subsets(sheet.columns[sheet.names.index(listing)])
    else:
        names = [name for name in tasks if not columns[name].wrong]  # what is not a number is no gap
        S = _without_gaps(_stacked(columns, names, m), names, sheet, wanted, problems)
    Y = _stacked(columns, outcomes, m)
    keep = ~np.isnan(S).any(axis=1)
    for name in (*tasks, *outcomes):
        if name in outcomes and wanted.missing is not None and not columns[name].is_text:
            continue  # what is not a number is NaN already
        _check_cells(columns[name], name, name in outcomes, sheet.places, problems)
    problems.check()
    if not set(names) <= set(wanted.tasks or ()):  # tasks that were named keep their names
        names = _short(names, outcomes)
    chosen = Chosen([], [*names, *outcomes], len(names))
    return chosen.arguments(np.hstack([S, Y])[keep], {}, None)


def _stacked(columns: Mapping[str, Column], names: Sequence[str], m: int) -> Floats:
    return np.column_stack([columns[name].values for name in names]) if names else np.empty((m, 0))


def _without_gaps(S: Floats, names: Sequence[str], sheet: Sheet, wanted: Wanted, problems: Problems) -> Floats:
    """Weights with empty cells as zero, or as they are, for their rows to be dropped; as was asked for."""
    gaps = np.isnan(S)
    if not gaps.any() or wanted.missing == "drop":
        return S
    filled = np.where(gaps, 0.0, S)
    if wanted.missing == "zero":
        return filled
    row, column = np.argwhere(gaps)[0]
    whole = S[~gaps.any(axis=1)]
    alike = is_mixture(filled) or not len(whole)
    count = int(gaps.any(axis=1).sum())
    where = f"{sheet.places[row]}, column '{names[column]}': a task column cannot be empty"
    problems.add(
        f"{where}; write 0 or 1, or a weight{f' ({count} rows lack one)' if count > 1 else ''}. Read it as 0 with "
        "{missing}, or leave such rows out.",
        {"missing": "zero" if alike else "drop"},
        missing="zero",
    )
    return filled


def _check_cells(column: Column, name: str, is_outcome: bool, places: Sequence[str], problems: Problems) -> None:
    values = column.values
    if column.wrong:
        at, what = column.wrong[0]
        what += f" ({len(column.wrong)} such cells)" if len(column.wrong) > 1 else ""
        where = f"{places[at]}, column '{name}': {what}."
        if is_outcome and not column.is_text:
            count = "Count such outcomes as not measured with {missing}."
            problems.add(f"{where} {count}", {"missing": "drop"}, missing="drop")
        else:
            leave = "If the column is neither a task nor an outcome, leave it out with {ignore}."
            problems.add(f"{where} {leave}", {} if is_outcome else {"ignore": [name]}, ignore=[name])
    elif np.isinf(values).any():
        at = int(np.flatnonzero(np.isinf(values))[0])
        rule = "an outcome must be finite; leave it empty (NaN) if it was not measured"
        rule = rule if is_outcome else "a weight must be finite"
        problems.add(f"{places[at]}, column '{name}': {rule}. Got {values[at]} instead.")
    elif not is_outcome and (values < 0).any():
        at = int(np.flatnonzero(values < 0)[0])
        problems.add(
            f"{places[at]}, column '{name}': a weight must be at least 0. Got {values[at]} instead.", {"ignore": [name]}
        )


def _short(names: Sequence[str], outcomes: Sequence[str]) -> list[str]:
    """Names of tasks without what all of them begin with, up to a dot or a slash, as in ``config.mix.``."""
    alike = takewhile(
        lambda pair: pair[0] == pair[1], zip(min(names, default=""), max(names, default=""), strict=False)
    )
    length = max((at for at, (sign, _) in enumerate(alike, 1) if sign in "./"), default=0)
    short = [name[length:] for name in names]
    return short if len(names) > 1 and all(short) and not set(short) & set(outcomes) else list(names)
