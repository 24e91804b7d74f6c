"""Columns of a table of runs: which are tasks, which are outcomes, which to leave out.

Between a file and its table. Names are found as people write them: in other capitals, with spaces around them, by
patterns such as ``config.mix.*``, or without the prefix of a tracker. All that is wrong is said at once, with what
would fix it. A file that knows its own columns (npz, run folders, Parquet that whence wrote) only needs `choose`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from whence.errors import DataWarning, InputError, check_choice, closest, did_you_mean, some_of
from whence.outcomes.bookkeeping import higher_is_better, is_outcome, kind_of_name, set_aside
from whence.outcomes.checks import Directions, Floats, Problems, as_directions, find_names, repeated
from whence.outcomes.layouts import one_list, one_row_per_run, turned, widened, without_copies
from whence.outcomes.listed import is_usual, leaves_out, listed_subsets, lists_subsets
from whence.outcomes.sheets import Sheet
from whence.outcomes.simplex import is_mixture
from whence.outcomes.unlike import note_pooled, without_unfinished
from whence.outcomes.values import Column, passed


class Wanted(NamedTuple):
    """Columns the caller named, by role; None where those the file declares, or all others, are meant."""

    outcomes: list[str] | None
    tasks: list[str] | None
    ignore: list[str]
    subset_column: str | None = None
    missing: str | None = None
    sheet: str | None = None


class Found(TypedDict):
    """Arguments of `Outcomes` that a reader found in a file."""

    subsets: Floats
    values: Floats
    task_names: Sequence[str]
    target_names: Sequence[str]
    maximize: Directions
    provenance: Mapping[str, str] | None


def choose(found: Found, wanted: Wanted) -> Found:
    """The columns to use of a file that itself says which are tasks and which are outcomes."""
    names, declared = [*found["task_names"], *found["target_names"]], found["target_names"]
    check_header(names)
    problems = Problems()
    inputs = [name for name in names if name not in set(declared)]
    role = _roles(wanted, Wanted(list(declared), inputs, list(names)), problems)
    problems.check()
    picked = {kind: [name for name, other in role.items() if other == kind] for kind in ("outcomes", "tasks")}
    outcomes = picked["outcomes"] if wanted.outcomes is not None else [name for name in declared if name not in role]
    tasks = picked["tasks"] if wanted.tasks is not None else [name for name in inputs if name not in role]
    _refuse_none(tasks, outcomes, names)
    cells = dict(zip(names, np.hstack([found["subsets"], found["values"]]).T, strict=True))
    up = dict(zip(declared, as_directions(found["maximize"], declared), strict=True))
    return Found(
        subsets=np.column_stack([cells[name] for name in tasks]),
        values=np.column_stack([cells[name] for name in outcomes]),
        task_names=tasks,
        target_names=outcomes,
        maximize=[up.get(name, False) for name in outcomes],
        provenance=found["provenance"],
    )


def read_columns(sheet: Sheet, wanted: Wanted) -> Found:
    """Arguments of `Outcomes` from the cells of a sheet."""
    sheet = turned(sheet, wanted.outcomes)
    check_header(sheet.names)
    if wanted.missing is not None:
        check_choice(wanted.missing, ("drop", "zero"), "missing")
    sheet = one_row_per_run(sheet, wanted.outcomes)
    if wanted.tasks is None and wanted.subset_column not in sheet.names:
        sheet = one_list(sheet)
    if wanted.tasks is None and wanted.subset_column is None:
        asked = [name for one in wanted.outcomes or () for name in find_names(one, sheet.names)]
        ignored = [name for one in wanted.ignore for name in find_names(one, sheet.names)]
        sheet = widened(sheet, asked, ignored)
    sheet = without_copies(sheet)
    problems = Problems()
    role = _roles(wanted, Wanted(sheet.names, sheet.names, sheet.names, wanted.subset_column), problems)
    columns = sheet.all_numbers({name for name, kind in role.items() if kind == "ignore"})
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
    if not tasks and listing is None:
        _suggest_listing(sheet, aside, problems)
    if not problems.sentences:
        _refuse_none(tasks or [listing] if listing else tasks, outcomes, sheet.names, aside)
    columns |= {name: verdicts for name in outcomes if (verdicts := passed(sheet.by_name[name])) is not None}
    columns |= _coded(tasks, columns)
    found, keep = _table(sheet, columns, tasks, outcomes, listing, wanted, problems)
    told = {
        name: [cell for cell, kept in zip(cells, keep, strict=True) if kept]
        for name, cells in sheet.by_name.items()
        if name not in role
    }
    found["values"] = without_unfinished(told, found["values"])
    note_pooled(told, aside, found["subsets"], found["values"])
    if listing is not None and wanted.subset_column is None:
        left_out = leaves_out(listing, sheet.by_name[listing])
        what = "the tasks that each run left out" if left_out else "the tasks of each run"
        note = f"Column '{listing}' is taken to list {what}; to confirm, add {{subset_column}}."
        warnings.warn(DataWarning(note, subset_column=listing), stacklevel=4)
    if spread := [name for name in (*tasks, *outcomes) if columns[name].spread]:
        warnings.warn(DataWarning(f"Spreads, as in 71.2 ± 0.3, are left out: {some_of(spread)}."), stacklevel=4)
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


def _roles(wanted: Wanted, could_be: Wanted, problems: Problems) -> dict[str, str]:
    """For each column that was named, the parameter that did."""
    role: dict[str, str] = {}
    for parameter in ("outcomes", "tasks", "ignore"):
        known = getattr(could_be, parameter) or []
        for asked in getattr(wanted, parameter) or ():
            found = find_names(asked, known)
            if not found:
                meant = closest(asked, known)
                said = f"column '{asked}' of {{{parameter}}} does not exist. {did_you_mean(asked, known)}"
                problems.add(said, {"instead": {asked: meant} if meant else {}}, **{parameter: None})
                if meant:  # it is not a column of another kind
                    role.setdefault(meant, parameter)
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


def _suggest_listing(sheet: Sheet, aside: Mapping[str, str], problems: Problems) -> None:
    """Say so if columns of words are all that could be the tasks, or one of names: of each run one, or several."""
    texts = {name: sheet.by_name[name] for name, what in aside.items() if what == "text"}
    held = {name: {str(cell).strip() for cell in cells} for name, cells in texts.items()}
    alike: dict[frozenset[str], list[str]] = {}
    for name, cells in held.items():
        alone = len(cells) == 2 and cells & {"", "None"}  # its name where it is in, and nothing where it is not
        alike.setdefault(frozenset(() if alone else cells), []).append(name)
    for words, names in alike.items():
        if len(names) > 1 and len(words) <= 2:
            shown = " or ".join(map(repr, sorted(words))) or "one word or nothing"
            problems.add(f"columns {some_of(names)} hold {shown}: write 1 where a task is in a run, and 0 where not.")
            return
    for name, cells in held.items():
        if 2 <= len(cells) <= len(sheet.places) / 2:
            said = f"no task column is left, unless '{name}' names the task of each run: then add {{subset_column}}."
            problems.add(said, {"subset_column": name}, subset_column=name)
            return


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
    unlike = [name for name, column in numeric.items() if not set(np.unique(column.values)) <= {0.0, 1.0}]
    guess = [name for name in numeric if is_outcome(name)]
    guess = [name for name in guess if name in unlike] or guess
    if not guess:
        aside = set_aside(rest)
        odd = ("not a part of the mixture", "another measurement", "not 0/1, as the others are")
        guess = [name for name in numeric if aside.get(name) in odd] or unlike[-1:]
    fix: dict[str, Any] = {"outcomes": guess} if guess else {}
    if any(map(higher_is_better, guess)):  # names that say nothing are then other benchmarks
        fix["maximize"] = [name for name in guess if higher_is_better(name) or not is_outcome(name)]
    problems.add(
        f"the outcome columns must be named, with {{outcomes}}. The columns are: {some_of(names, limit=20)}. "
        "Lower is better, unless they are also named with {maximize}.",
        fix,
        outcomes=["NAME"],
        maximize=["NAME"],
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
    texts = [name for name, column in rest.items() if column.is_text or (column.wrong and is_usual(name))]
    listing = next((name for name in texts if lists_subsets(name, sheet.by_name[name])), None)
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
) -> tuple[Found, NDArray[np.bool_]]:
    """Arguments of `Outcomes`, and which rows of the sheet they are."""
    m = len(sheet.places)
    if listing is not None:
        names, S = _without_settings(listing, *listed_subsets(listing, sheet.by_name[listing]))
    else:
        names = [name for name in tasks if not columns[name].wrong]  # what is not a number is no gap
        S = _without_gaps(_stacked(columns, names, m), names, sheet, wanted, problems)
    Y = _stacked(columns, outcomes, m)
    if wanted.missing is not None:
        Y = np.where(np.isinf(Y), np.nan, Y)
    keep = np.logical_not(np.isnan(S).any(axis=1))
    spare = sum(bool((columns[name].values < 0).any()) for name in tasks) <= len(tasks) / 2
    for name in (*tasks, *outcomes):
        if name in outcomes and wanted.missing is not None and not columns[name].is_text:
            continue  # what is not a finite number is NaN already
        _check_cells(columns[name], name, name in outcomes, sheet.places, problems, spare=spare)
    problems.check()
    if not set(names) <= set(wanted.tasks or ()):  # tasks that were named keep their names
        names = _short(names, outcomes)
    found = Found(
        subsets=S[keep], values=Y[keep], task_names=names, target_names=outcomes, maximize=(), provenance=None
    )
    return found, keep


def _coded(tasks: Sequence[str], columns: Mapping[str, Column]) -> dict[str, Column]:
    """Columns of tasks that are out at -1 and in at 1, as 0 and 1; none where these are not the only values."""
    values = {value for name in tasks for value in np.unique(columns[name].values)}
    if values == {1.0, 2.0} and all(len(set(columns[name].values)) == 2 for name in tasks):
        note = (
            "Tasks are 1 or 2 in every run, read as weights. If these are codes for in and out, write 1 and 0 instead."
        )
        warnings.warn(DataWarning(note), stacklevel=4)
    if values != {-1.0, 1.0} or any(columns[name].wrong for name in tasks):
        return {}
    warnings.warn(DataWarning("Tasks are -1 or 1 in every run, which is read as out and in."), stacklevel=4)
    return {name: columns[name]._replace(values=(columns[name].values + 1) / 2) for name in tasks}


def _without_settings(listing: str, names: list[str], S: Floats) -> tuple[list[str], Floats]:
    """Tasks of a list without settings among them, as in "web=1,code=0,lr=0.001,seed=2"."""
    kinds = {name: kind_of_name(name) for name in names}
    other = [name for name, column in zip(names, S.T, strict=True) if kinds[name] and not set(column) <= {0.0, 1.0}]
    other += [name for name in names if kinds[name] == "a seed" and name not in other]
    kept = [name for name in names if name not in other]
    if not other or not kept:
        return names, S
    said = some_of([f"{name} ({kinds[name]})" for name in other], 12)
    warnings.warn(DataWarning(f"Items of '{listing}' that are not tasks are left out: {said}."), stacklevel=5)
    return kept, S[:, [names.index(name) for name in kept]]


def _stacked(columns: Mapping[str, Column], names: Sequence[str], m: int) -> Floats:
    return np.column_stack([columns[name].values for name in names]) if names else np.empty((m, 0))


def _without_gaps(S: Floats, names: Sequence[str], sheet: Sheet, wanted: Wanted, problems: Problems) -> Floats:
    """Weights with empty cells as zero, or as they are, for their rows to be dropped; as was asked for."""
    gaps = np.isnan(S)
    if not gaps.any() or wanted.missing == "drop":
        return S
    filled, short = np.where(gaps, 0.0, S), gaps.any(axis=1)
    if wanted.missing == "zero":
        return filled
    row, column = np.argwhere(gaps)[0]
    whole, count = S[~short], int(short.sum())
    # Where a 0 is never written, or weights only sum up without those that lack, an empty cell is one.
    means_zero = is_mixture(filled) or not len(whole) or (filled[~gaps].all() and not is_mixture(whole))
    if count > 1 and len(whole) and not filled[~gaps].all() and gaps[short].all():
        problems.add(
            f"{sheet.places[row]} says nothing of its tasks, as {count - 1} other rows. Write them in every row, also "
            "where several runs have the same. If these runs had no task, read empty cells as 0 with {missing}.",
            missing="zero",
        )
        return filled
    where = f"{sheet.places[row]}, column '{names[column]}': a task column cannot be empty"
    problems.add(
        f"{where}; write 0 or 1, or a weight{f' ({count} rows lack one)' if count > 1 else ''}. Read it as 0 with "
        "{missing}, or leave such rows out.",
        {"missing": "zero" if means_zero else "drop"},
        missing="zero",
    )
    return filled


def _check_cells(
    column: Column, name: str, is_outcome: bool, places: Sequence[str], problems: Problems, *, spare: bool
) -> None:
    """Add what is wrong with the cells of a column; where it is ``spare``, leaving it out may put it right."""
    values = column.values

    def add(at: int, what: str, fix: Mapping[str, Any] | None = None, **named: Any) -> None:
        problems.add(f"{places[at]}, column '{name}': {what}", fix, **named)

    if column.wrong:
        at, what = column.wrong[0]
        what += f" ({len(column.wrong)} such cells)." if len(column.wrong) > 1 else "."
        if is_outcome and not column.is_text:
            add(
                at, f"{what} Count such outcomes as not measured with {{missing}}.", {"missing": "drop"}, missing="drop"
            )
        elif is_outcome:
            add(at, f"{what} An outcome must be a number.")
        else:
            leave = "If the column is neither a task nor an outcome, leave it out with {ignore}."
            add(at, f"{what} {leave}", {"ignore": [name]}, ignore=[name])
    elif np.isinf(values).any():
        at = int(np.isinf(values).argmax())
        rule = f"must be finite. Got {values[at]} instead."
        if is_outcome:
            fix = {"missing": "drop"}
            add(at, f"an outcome {rule} Count it as not measured with {{missing}}.", fix, missing="drop")
        else:
            add(at, f"a weight {rule}")
    elif not is_outcome and (values < 0).any():
        at = int((values < 0).argmax())
        add(at, f"a weight must be at least 0. Got {values[at]} instead.", {"ignore": [name]} if spare else None)


def _short(names: Sequence[str], outcomes: Sequence[str]) -> list[str]:
    """Names of tasks without what all of them begin with, up to a dot or a slash, as in ``config.mix.``."""
    alike = takewhile(
        lambda pair: pair[0] == pair[1], zip(min(names, default=""), max(names, default=""), strict=False)
    )
    length = max((at for at, (sign, _) in enumerate(alike, 1) if sign in "./"), default=0)
    short = [name[length:] for name in names]
    return short if len(names) > 1 and all(short) and not set(short) & set(outcomes) else list(names)
