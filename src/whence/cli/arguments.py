"""Arguments of the verbs on files of runs: every option, declared once, and how its text is parsed.

Names may be given by repeating an option or separated by commas, and quotes keep a comma within a name.
"""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import csv
import shlex
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from whence.cli.shell import warn
from whence.errors import InputError, some_of

if TYPE_CHECKING:
    from whence.outcomes import Outcomes
    from whence.surrogates.kernels import Array
    from whence.surrogates.model import Model

COLUMNS = "Columns of the file (repeat the option, or separate names by commas)"

SelectBy = Enum("SelectBy", {"prediction": "prediction", "attribution": "attribution"})
SuggestBy = Enum("SuggestBy", {"variance": "variance", "improvement": "improvement"})
MissingWeights = Enum("MissingWeights", {"drop": "drop", "zero": "zero"})
Names = list[str] | None


_name = partial(typer.Option, metavar="NAME")
_column = partial(_name, rich_help_panel=COLUMNS)
_allowed = partial(typer.Option, rich_help_panel="Which subsets are allowed")

# The table of runs.
Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="Runs, one per row: .csv, .tsv, .jsonl, .xlsx, .parquet, .npz, or a run folder. Several make one table.",
    ),
]
ModelFile = Annotated[Path | None, typer.Option("--model", metavar="FILE", help="Use a model saved by fit --save.")]
Save = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Save the model, to use with --model.")]
Outcome = Annotated[Names, _column("--outcome", "--outcomes", "-O", help="Column that holds an outcome (* is any).")]
Maximize = Annotated[Names, _column("--maximize", help="Outcome for which higher is better.")]
Ignore = Annotated[Names, _column("--ignore", help="Column to leave out.")]
Task = Annotated[Names, _column("--task", "--tasks", help="Column that holds a task (default: all others).")]
SubsetColumn = Annotated[str | None, _column("--subset-column", help="Column that lists the tasks, as web,code.")]
SheetName = Annotated[str | None, _column("--sheet", help="Sheet of an Excel file.")]
Missing = Annotated[
    MissingWeights | None,
    typer.Option(help="What an empty weight means: drop the run, or zero.", rich_help_panel=COLUMNS),
]
Estimates = Annotated[
    list[Path] | None,
    typer.Option("--estimates", "-e", metavar="FILE", help="Fuse the runs with estimates of many subsets. Repeatable."),
]
Features = Annotated[
    Path | None,
    typer.Option("--features", metavar="FILE", help="Table about the tasks: a column 'task', then labels or numbers."),
]

# The question.
ScoresFiles = Annotated[
    list[Path] | None,
    typer.Option("--scores", metavar="FILE", help="Compare with scores: a column 'task', one per outcome. Repeatable."),
]
Methods = Annotated[
    Names,
    _name("--methods", help="Compare with: tuned linear, least squares, lasso, tuned kernel, paper kernel, size only."),
]
Splits = Annotated[int, typer.Option(metavar="N", help="Number of random splits.", min=2)]
LeaveOneOutRuns = Annotated[
    Path | None, typer.Option("--loo", metavar="FILE", help="Compare attribution with true leave-one-out runs.")
]
Effect = Annotated[
    float | None, typer.Option(metavar="SIZE", help="Show how many runs it takes to detect an effect of this size.")
]
TrainFraction = Annotated[float, typer.Option(metavar="FRACTION", help="Fraction of subsets used for training.")]
Rule = Annotated[
    str | None,
    _name("--rule", help="shapley, banzhaf, loo, inclusion or shift (default: what fits the runs)."),
]
KeepProb = Annotated[float | None, typer.Option(metavar="P", help="For inclusion: probability that a task is in.")]
PairRule = Annotated[str | None, _name("--rule", help="shapley, banzhaf, loo or shift (default: what fits the runs).")]
Target = Annotated[Names, _name("--target", help="Show this outcome only. Repeatable.")]
Top = Annotated[int | None, typer.Option(metavar="N", help="Show the N best and the N worst tasks.", min=1)]
TopPairs = Annotated[int, typer.Option("--top", metavar="N", help="Show the N strongest pairs.", min=1)]
Subset = Annotated[Names, typer.Option(metavar="TASKS", help="Tasks, as a,c (mixtures: a=0.7,c=0.3). Repeatable.")]
Subsets = Annotated[Path | None, typer.Option(metavar="FILE", help="Read subsets from a file with a column per task.")]
Size = Annotated[int | None, _allowed(metavar="N", help="Choose exactly N tasks.")]
MaxSize = Annotated[int | None, _allowed(metavar="N", help="Choose at most N tasks.")]
Include = Annotated[Names, _allowed(metavar="NAME", help="Require this task. Repeatable.")]
Exclude = Annotated[Names, _allowed(metavar="NAME", help="Forbid this task. Repeatable.")]
Cost = Annotated[Names, _allowed(metavar="TASK=COST", help="Cost of a task. Repeatable.")]
Budget = Annotated[float | None, _allowed(metavar="COST", help="Limit the total cost.")]
Risk = Annotated[float, typer.Option(metavar="N", help="Optimise the prediction minus N standard deviations.", max=1e6)]
By = Annotated[SelectBy, typer.Option(help="Choose by predicted outcome, or by scores of tasks.")]
Bounds = Annotated[
    Names, typer.Option(metavar="SOURCE=LEAST:MOST", help="Bounds on the weight of a source. Repeatable.")
]
Total = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Total tokens, such as 100B: weights are shown as tokens too.")
]
Available = Annotated[Names, typer.Option(metavar="SOURCE=TOKENS", help="Tokens available in a source. Repeatable.")]
Weights = Annotated[Names, typer.Option(metavar="OUTCOME=WEIGHT", help="Optimise several outcomes by weights.")]
Worst = Annotated[bool, typer.Option("--worst", help="Optimise the outcome that does worst.")]
Pareto = Annotated[bool, typer.Option("--pareto", help="Show the best trade-offs between outcomes.")]
Extrapolate = Annotated[bool, typer.Option("--extrapolate", help="Search outside the range of the runs too.")]
Goal = Annotated[str | None, _name("--target", help="Outcome to optimise, or mean (the default).")]
Count = Annotated[int, typer.Option("-n", metavar="N", help="Number of runs to suggest.", min=1, max=5000)]
Aim = Annotated[SuggestBy, typer.Option("--by", help="Learn most (variance), or beat the best run (improvement).")]

# The answer.
_folder = typer.Option("--output", "-o", metavar="FOLDER", help="Run folder; created, or resumed if it exists.")
Folder = Annotated[Path, _folder]
FolderIfAny = Annotated[Path | None, _folder]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the runs to this file.")]
PageFile = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the page to this file.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed.", min=0)]
AcceptChange = Annotated[
    bool, typer.Option("--accept-change", help="Resume although the function or its data have changed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


# ---- runs ------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """The runs that a verb works on, what else their model is fitted to, and that model if it was saved before."""

    runs: "Outcomes"
    fitted: "Model | None" = None
    estimates: list[Path] | None = None
    features: Path | None = None

    def model(self, seed: int) -> "Model":
        """Return the saved model, or one fitted now."""
        import whence
        from whence.outcomes.cells import read_features

        if self.fitted is None:
            known = None if self.features is None else read_features(self.features)
            cheap = read_estimates(self.estimates, self.runs)
            return whence.fit(self.runs, estimates=cheap, features=known, seed=seed)
        if self.estimates or self.features is not None:
            raise InputError("A saved model is fitted already: leave --estimates and --features out, or give the runs.")
        return self.fitted


def read(
    files: Files = None,
    model: ModelFile = None,
    outcome: Outcome = None,
    maximize: Maximize = None,
    ignore: Ignore = None,
    task: Task = None,
    subset_column: SubsetColumn = None,
    missing: Missing = None,
    sheet: SheetName = None,
) -> Asked:
    """Return the table of runs that the options describe, and the model where one was saved."""
    import whence
    from whence.outcomes.bookkeeping import hint_at_directions

    if model is not None:
        if any((files, outcome, maximize, ignore, task, subset_column, missing, sheet)):
            raise InputError("A saved model has its runs and their columns: give --model alone, or a file of runs.")
        fitted = whence.load(model)
        return Asked(fitted.outcomes, fitted)
    if not files:
        raise InputError("There is nothing to read. Give a file of runs, or --model FILE.")
    runs = whence.read_outcomes(
        files,
        names_of(outcome) or None,
        tasks=names_of(task) or None,
        ignore=names_of(ignore),
        maximize=names_of(maximize),
        subset_column=subset_column,
        missing=None if missing is None else missing.value,
        sheet=sheet,
    )
    hint_at_directions(runs)
    return Asked(runs)


Runs = Annotated[Asked, read]


def read_to_fit(asked: Runs, estimates: Estimates = None, features: Features = None) -> Asked:
    """Return the runs, and what else their model is to be fitted to."""
    return asked._replace(estimates=estimates, features=features)


ToFit = Annotated[Asked, read_to_fit]


# ---- text ------------------------------------------------------------------------------------------------


def names_of(given: Iterable[str] | None) -> list[str]:
    """Return the names of an option.

    >>> names_of(["a,b", '"c,d"'])
    ['a', 'b', 'c,d']
    """
    try:
        cells = [cell for text in given or () for cell in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error as error:
        raise InputError(f"Names must be separated by commas, on one line. Got {given!r}.") from error
    return [cell.strip() for cell in cells if cell.strip()]


def numbers_of(given: Iterable[str] | None) -> dict[str, float]:
    """Return the numbers of names.

    >>> numbers_of(["a=2,b=0.5"])
    {'a': 2.0, 'b': 0.5}
    """
    return {name: _number(text) for name, text in pairs_of(given, "a task and a number, such as a=2").items()}


def bounds_of(given: Iterable[str] | None) -> dict[str, tuple[float, float]]:
    """Return the least and the most weight of sources.

    >>> bounds_of(["web=0.1:0.5,code=:20%", "law=0.05:"])
    {'web': (0.1, 0.5), 'code': (0.0, 0.2), 'law': (0.05, 1.0)}
    """
    what, found = "a source with its least and most weight, such as web=0.1:0.5", {}
    for name, text in pairs_of(given, what).items():
        low, colon, high = text.partition(":")
        if not colon:
            raise InputError(f"'{name}={text}' must be {what}.")
        found[name] = (_number(low) if low.strip() else 0.0, _number(high) if high.strip() else 1.0)
    return found


def pairs_of(given: Iterable[str] | None, what: str) -> dict[str, str]:
    """Return what stands behind the equals signs of an option, by name; ``what`` it must be is said in errors."""
    found = {}
    for item in names_of(given):
        name, _, text = item.rpartition("=")
        if not (name and text):
            raise InputError(f"'{item}' must be {what}.")
        found[name.strip()] = text.strip()
    return found


def _number(text: str) -> float:
    """Number of a text, also one such as 20% or 40B."""
    from whence.outcomes.values import as_column

    column = as_column([text])
    if column.wrong or column.is_empty:
        raise InputError(f"'{text}' must be a number, such as 0.5, 20% or 40B.")
    return float(column.values[0])


def subset_of(text: str, runs: "Outcomes") -> "Array":
    """Return the row of a subset given as ``a,c``, or of a mixture given as ``a=0.7,c=0.3``."""
    names = names_of([text])
    if all(name in runs.task_names or "=" not in name for name in names):
        row = runs.subset(names)
        if not runs.is_binary:
            some = names[0] if names else runs.task_names[0]
            raise InputError(
                f"This table has mixture weights: give them, as in --subset {shlex.quote(f'{some}=0.7')},…"
            )
        return row
    return runs.subset(numbers_of([text]))


def check_rule(rule: str | None, runs: "Outcomes", *, pairs: bool = False) -> None:
    """Raise for a rule that is unknown, or that mixtures have no answer to, before time is spent on the fit."""
    from whence.answers.attribution import refuse_mixtures
    from whence.answers.rules import find_rule
    from whence.surrogates.model import Model

    found = find_rule(rule, runs.subsets, pairs=pairs)
    if not found.mixtures:
        refuse_mixtures(Model(runs, ()), f"{found.name} interactions" if pairs else found.name)


def read_estimates(paths: Iterable[Path] | None, runs: "Outcomes") -> "dict[str, Outcomes] | None":
    """Return the tables of estimates by name, with the tasks and outcomes of the runs; None where there are none.

    A table is named after its file or folder.
    """
    import whence
    from whence.outcomes.cells import column_names, has_roles

    given = list(paths or ())
    tables = {}
    for name, path in zip(_names(given), given, strict=True):
        declared = has_roles(path)
        tables[name] = (
            whence.read_outcomes(path)
            if declared
            else whence.read_outcomes(path, runs.target_names, tasks=runs.task_names)
        )
        if not declared and (others := set(column_names(path)) - {*runs.task_names, *runs.target_names}):
            warn(f"{path}: columns that the runs do not have are left out: {some_of(sorted(others))}.")
    return tables or None


def read_scores(paths: Iterable[Path] | None, runs: "Outcomes") -> "dict[str, Array]":
    """Return the scores (K, T) of each file by name, in the order of the tasks and outcomes of the runs."""
    from whence.outcomes import cells

    given = list(paths or ())
    return {
        name: cells.read_scores(path, runs.task_names, runs.target_names)
        for name, path in zip(_names(given), given, strict=True)
    }


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of files or folders: without their endings, or the whole paths where two names would be the same."""
    names = [path.name.split(".")[0] or str(path) for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
