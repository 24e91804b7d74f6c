"""Columns of a file of runs: which are tasks, which are outcomes, which to leave out.

Between a file and its table. Every reader of `whence.outcomes.files` finds the names of its columns and asks `choose`
which of them to use; so the same questions get the same answers, and the same sentences, in every format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from whence.errors import InputError, did_you_mean, some_of
from whence.outcomes.checks import Floats, repeated

_ROW_INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")


class Wanted(NamedTuple):
    """Columns the caller named, by role; None where those the file declares, or all others, are meant."""

    outcomes: list[str] | None
    tasks: list[str] | None
    ignore: list[str]


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


def choose(names: Sequence[str], wanted: Wanted, declared: Sequence[str] = ()) -> Chosen:
    """Columns to use; ``declared`` are the outcome columns that the file itself names.

    Examples
    --------
    >>> choose(["run", "a", "b", "loss"], Wanted(outcomes=["loss"], tasks=None, ignore=["run"]))
    Chosen(places=[1, 2, 3], names=['a', 'b', 'loss'], n_tasks=2)
    """
    _check_header(names)
    known = set(declared)
    inputs = [name for name in names if name not in known]
    role = _roles(wanted, Wanted(outcomes=list(declared or names), tasks=inputs, ignore=list(names)))
    if wanted.outcomes is None and not declared:
        raise InputError(
            f"the outcome columns must be named, with {{outcomes}}. The columns are: {some_of(names, limit=20)}.",
            outcomes=["NAME"],
        )
    outcomes, tasks = wanted.outcomes, wanted.tasks
    if outcomes is None:
        outcomes = [name for name in declared if name not in role]
    if tasks is None:
        tasks = [name for name in inputs if name not in role]
    for kind, chosen in (("task", tasks), ("outcome", outcomes)):
        if not chosen:
            raise InputError(f"no {kind} column is left. The columns are: {some_of(names, limit=20)}.")
    place = {name: at for at, name in enumerate(names)}
    for name in filter(_ROW_INDEX.fullmatch, tasks):
        if name not in role and not declared:
            raise InputError(
                f"column {place[name] + 1} has no name or is called '{name}': it looks like a row index "
                "saved by pandas. Leave it out with {ignore}.",
                ignore=[name],
            )
    used = [*tasks, *outcomes]
    return Chosen([place[name] for name in used], used, len(tasks))


def _check_header(names: Sequence[str]) -> None:
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


def _roles(wanted: Wanted, could_be: Wanted) -> dict[str, str]:
    """For each column that was named, the parameter that did."""
    role: dict[str, str] = {}
    for parameter, asked, columns in zip(wanted._fields, wanted, could_be, strict=True):
        known = dict.fromkeys(columns or ())
        for name in asked or ():
            spelled: dict[str, Any] = {role.get(name, parameter): None, parameter: None}
            if name not in known:
                hint = did_you_mean(name, known)
                raise InputError(f"column '{name}' of {{{parameter}}} does not exist. {hint}", **spelled)
            if name in role:
                again = f"column '{name}' is in {{{role[name]}}} and again in {{{parameter}}}; name it once."
                raise InputError(again, **spelled)
            role[name] = parameter
    return role
