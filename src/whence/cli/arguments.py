"""Arguments of the command line: every option, declared once, and what its text means.

:mod:`whence.cli` builds its verbs from these. Names may be given by repeating an option or separated by commas,
and quotes keep a comma within a name.
"""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import csv
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.console import note
from whence.errors import InputError, some_of

if TYPE_CHECKING:
    import pandas as pd

    from whence.outcomes import Outcomes
    from whence.surrogates.kernels import Array

COLUMNS = "Columns of the file (repeat the option, or separate names by commas)"

RuleName = Enum(
    "RuleName",
    {
        "shapley": "shapley",
        "banzhaf": "banzhaf",
        "loo": "loo",
        "inclusion": "inclusion",
        "shift": "shift",
    },
)
PairRuleName = Enum("PairRuleName", {"shapley": "shapley", "banzhaf": "banzhaf", "loo": "loo"})
SelectBy = Enum("SelectBy", {"prediction": "prediction", "attribution": "attribution"})
SuggestBy = Enum("SuggestBy", {"variance": "variance", "improvement": "improvement"})
Names = list[str] | None


def _name(*flags: str, **more: Any) -> Any:
    return typer.Option(*flags, metavar="NAME", **more)


# The table of runs.
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Runs, a row each: .csv, .tsv, .parquet, .npz, or a run folder.")
]
Outcome = Annotated[Names, _name("--outcome", "-O", help="An outcome.", rich_help_panel=COLUMNS)]
Maximize = Annotated[Names, _name("--maximize", help="An outcome to maximise.", rich_help_panel=COLUMNS)]
Ignore = Annotated[Names, _name("--ignore", help="Neither task nor outcome.", rich_help_panel=COLUMNS)]
Task = Annotated[Names, _name("--task", help="A task (else: all other columns).", rich_help_panel=COLUMNS)]
Estimates = Annotated[
    list[Path] | None,
    typer.Option(
        "--estimates", "-e", metavar="FILE", help="Estimates of the same outcomes for many subsets. Repeatable."
    ),
]

# The question.
ScoresFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--scores", metavar="FILE", help="Scores of any method: a column 'task', one per outcome. Repeatable."
    ),
]
Methods = Annotated[
    Names,
    _name(
        "--methods",
        help="A row beside whence: tuned linear, least squares, lasso, tuned kernel, paper kernel, size only.",
    ),
]
Splits = Annotated[int, typer.Option(metavar="N", help="Random splits of the runs.", min=2)]
LeaveOneOutRuns = Annotated[
    Path | None, typer.Option("--loo", metavar="FILE", help="True leave-one-out runs, to compare with.")
]
Effect = Annotated[float | None, typer.Option(metavar="SIZE", help="Say how many runs it takes to see it.")]
TrainFraction = Annotated[float, typer.Option(metavar="SHARE", help="Of the subsets, to learn from.")]
Rule = Annotated[RuleName, typer.Option(help="What a score is; shift is for mixtures.")]
ReportRule = Annotated[RuleName | None, typer.Option(help="What a score is (else: by what the runs allow).")]
KeepProb = Annotated[float | None, typer.Option(metavar="P", help="Inclusion: how often a task is in.")]
PairRule = Annotated[PairRuleName, typer.Option(help="What a score is.")]
Target = Annotated[Names, _name("--target", help="Show only this outcome.")]
Top = Annotated[int | None, typer.Option(metavar="N", help="Show N tasks at either end.", min=1)]
TopPairs = Annotated[int, typer.Option("--top", metavar="N", help="Show the N strongest pairs.", min=1)]
Subset = Annotated[Names, typer.Option(metavar="TASKS", help="As a,c (mixtures: a=0.7,c=0.3). Repeatable.")]
Subsets = Annotated[Path | None, typer.Option(metavar="FILE", help="Subsets, with a column per task.")]
Size = Annotated[int | None, typer.Option(metavar="N", help="Exactly N tasks.")]
MaxSize = Annotated[int | None, typer.Option(metavar="N", help="At most N tasks.")]
Include = Annotated[Names, _name("--include", help="A task that must be in.")]
Exclude = Annotated[Names, _name("--exclude", help="A task that must not be in.")]
Cost = Annotated[Names, typer.Option(metavar="TASK=COST", help="What a task costs. Repeatable.")]
Budget = Annotated[float | None, typer.Option(metavar="COST", help="What all may cost together.")]
Risk = Annotated[float, typer.Option(metavar="STDS", help="Standard deviations of caution.")]
By = Annotated[SelectBy, typer.Option(help="Predicted outcome, or scores of tasks.")]
Extrapolate = Annotated[bool, typer.Option("--extrapolate", help="Look outside the range of the runs too.")]
Goal = Annotated[str | None, _name("--target", help="Outcome to optimise (else: their mean).")]
Count = Annotated[int, typer.Option("-n", metavar="N", help="How many runs.", min=1)]
Aim = Annotated[SuggestBy, typer.Option("--by", help="To learn most, or to beat the best run.")]

# The answer.
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the runs here.")]
PageFile = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the page here.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of whatever is random.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]


def names_of(given: Iterable[str] | None) -> list[str]:
    """Return the names of an option.

    >>> names_of(["a,b", '"c,d"'])
    ['a', 'b', 'c,d']
    """
    cells = (cell for text in given or () for cell in next(csv.reader([text], skipinitialspace=True), []))
    return [cell.strip() for cell in cells if cell.strip()]


def numbers_of(given: Iterable[str] | None) -> dict[str, float]:
    """Return the numbers of names.

    >>> numbers_of(["a=2,b=0.5"])
    {'a': 2.0, 'b': 0.5}
    """
    found = {}
    for item in names_of(given):
        name, _, text = item.rpartition("=")
        try:
            found[name.strip()] = float(text)
        except ValueError as error:
            raise InputError(f"'{item}' must be a task and a number, such as a=2.") from error
    return found


def subset_of(text: str, runs: "Outcomes") -> "Array":
    """Return the row of a subset given as ``a,c``, or of a mixture given as ``a=0.7,c=0.3``."""
    names = names_of([text])
    if all(name in runs.task_names or "=" not in name for name in names):
        row = runs.subset(names)
        if not runs.is_binary:
            raise InputError(f"This table has mixture weights: give them, as in --subset {names[0]}=0.7,…")
        return row
    return runs.subset(numbers_of([text]))


def read_estimates(paths: Iterable[Path] | None, runs: "Outcomes") -> "dict[str, Outcomes] | None":
    """Return the tables of estimates by name, with the tasks and outcomes of the runs; None where there are none.

    They are called by the file or folder, without its ending; by the whole path where two are called alike.
    """
    import whence

    given = list(paths or ())
    tables = {}
    for name, path in zip(_called(given), given, strict=True):
        knows = path.is_dir() or path.suffix == ".npz"  # which of its columns are tasks
        tables[name] = whence.read_outcomes(path, runs.target_names, tasks=None if knows else runs.task_names)
        if not knows and (others := columns_of(path) - {*runs.task_names, *runs.target_names}):
            note(f"{path}: columns that the runs do not have are left out: {some_of(sorted(others))}.")
    return tables or None


def columns_of(path: Path) -> set[str]:
    """Return the names of the columns of a file."""
    import pandas as pd

    if path.suffix == ".parquet":
        return set(pd.read_parquet(path).columns)
    return {str(name).strip() for name in pd.read_csv(path, sep=None, engine="python", nrows=0).columns}


def read_scores(paths: Iterable[Path] | None, runs: "Outcomes") -> "dict[str, Array]":
    """Return the scores (K, T) of each file by name, in the order of the tasks and outcomes of the runs."""
    import numpy as np

    given = list(paths or ())
    found = {}
    for name, path in zip(_called(given), given, strict=True):
        try:
            frame = _frame(path)
            wanted = ["task", *runs.target_names]
            if missing := [column for column in wanted if column not in frame]:
                raise InputError(f"there is no column {some_of(missing)}. Scores need the columns {some_of(wanted)}.")
            frame = frame.set_index(frame["task"].astype(str).str.strip())
            if twice := sorted(set(frame.index[frame.index.duplicated()])):
                raise InputError(f"there is more than one row for {some_of(twice)}.")
            if missing := [task for task in runs.task_names if task not in frame.index]:
                raise InputError(f"there is no row for {some_of(missing)}.")
            scores = frame.loc[list(runs.task_names), list(runs.target_names)].to_numpy(dtype=np.float64)
            if not np.isfinite(scores).all():
                raise InputError("every score must be a finite number.")
        except (OSError, ValueError, ImportError) as error:  # what pandas cannot read, and what scores may not be
            raise InputError(f"{path}: {error}") from error
        found[name] = scores
    return found


def _called(paths: Sequence[Path]) -> list[str]:
    """Names of files or folders: without endings, or the whole paths where two would be called alike."""
    names = [path.name.split(".")[0] or str(path) for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _frame(path: Path) -> "pd.DataFrame":
    """Table of a file, with the names of its columns stripped."""
    import pandas as pd

    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
    else:
        frame = pd.read_csv(path, sep="\t" if ".tsv" in path.suffixes else ",")
    frame.columns = frame.columns.str.strip()
    return frame


def read_subsets(path: Path, tasks: Sequence[str] | None) -> "Outcomes":
    """Return the subsets of a file with a column per task; its other columns do not matter.

    Where the tasks are not known, they are all columns but those without any number, which are yet to be measured.
    """
    import numpy as np

    from whence.outcomes import Outcomes

    try:
        frame = _frame(path)
        if tasks is None:
            tasks = list(frame.columns[frame.notna().any()])
        if missing := [name for name in tasks if name not in frame]:
            raise InputError(f"there is no column for {some_of(missing)}.")
        return Outcomes(frame[list(tasks)], np.zeros(len(frame)))
    except (ValueError, ImportError) as error:  # what pandas cannot read, and what a table may not hold
        raise InputError(f"{path}: {error}") from error
