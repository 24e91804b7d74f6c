"""The verb that goes from a budget to an answer: ``whence search exp.py:train --budget 40 -o run/``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import shlex
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli import arguments as args
from whence.cli.measure import Maximize, Retry, Tasks, WorkerOptions
from whence.cli.shell import Answer, print_line
from whence.display.layout import Page, command, remark

if TYPE_CHECKING:
    from whence.searching.result import SearchResult

GoalName = Enum("GoalName", {"best": "best", "effects": "effects", "prediction": "prediction"})
MIXED = "Mixtures"

Function = Annotated[
    str, typer.Argument(metavar="FILE.py:NAME", help="Function of (subset, seed), or one that returns a problem.")
]
Runs = Annotated[int, typer.Option("--budget", "-b", metavar="N", help="Largest number of runs.", min=1)]
GoalOption = Annotated[GoalName, typer.Option(help="What the runs are for.")]
Weight = Annotated[args.Names, typer.Option(metavar="NAME=WEIGHT", help="Weight of an outcome. Repeatable.")]
Within = Annotated[float | None, typer.Option(metavar="VALUE", help="Difference from the best that does not matter.")]
Stop = Annotated[bool, typer.Option("--stop/--no-stop", help="Stop before the budget is spent once settled.")]
Candidates = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Run only the subsets in this file.", rich_help_panel="Which subsets are allowed"
    ),
]
Mixture = Annotated[
    bool, typer.Option("--mixture", help="Give the tasks weights that add up to 1.", rich_help_panel=MIXED)
]
Bound = Annotated[
    args.Names, typer.Option(metavar="TASK=LOW:HIGH", help="Bounds on a weight. Repeatable.", rich_help_panel=MIXED)
]


def search(
    function: Function,
    *,
    output: args.Folder,
    budget: Runs = 40,
    goal: GoalOption = GoalName.best,
    tasks: Tasks = None,
    target: args.Goal = None,
    weight: Weight = None,
    maximize: Maximize = None,
    within: Within = None,
    stop: Stop = True,
    size: args.Size = None,
    max_size: args.MaxSize = None,
    include: args.Include = None,
    exclude: args.Exclude = None,
    cost: args.Cost = None,
    max_cost: args.Budget = None,
    candidates: Candidates = None,
    mixture: Mixture = False,
    bound: Bound = None,
    seed: args.Seed = 0,
    retry: Retry = False,
    accept_change: args.AcceptChange = False,
    workers: WorkerOptions,
) -> Answer:
    """Spend a budget of runs: choose each run from the results so far.

    Goals: the best subset or mixture (best), who helps and who hurts (effects), or predictions of any subset
    (prediction). The same command resumes a search that was stopped; with a larger --budget, it extends it. While it
    runs, look at search.html in the folder. Other verbs can read the folder at any time: whence fit run/
    """
    import whence
    from whence.measuring.functions import load_function

    question: dict[str, Any] = {
        "target": target,
        "weights": args.numbers_of(weight) or None,
        "within": within,
        "stop": stop,
        "size": size,
        "max_size": max_size,
        "include": args.names_of(include),
        "exclude": args.names_of(exclude),
        "costs": args.numbers_of(cost) or None,
        "max_cost": max_cost,
        "mixture": mixture,
        "bounds": args.bounds_of(bound) or None,
        "seed": seed,
    }
    found, in_file = load_function(function)
    given = _problem_of(found)
    names = args.names_of(tasks) or in_file or getattr(given, "task_names", None)
    if candidates is not None:
        from whence.outcomes.cells import read_subsets

        rows = read_subsets(candidates, names)
        question["candidates"], names = rows, names or list(rows.columns)
    try:
        answer = whence.search(
            given,
            tasks=names,
            budget=budget,
            goal=goal.value,
            path=output,
            retry=retry,
            accept_change=accept_change,
            maximize=args.names_of(maximize) or (),
            progress=True,
            **vars(workers),
            **question,
        )
    except KeyboardInterrupt:
        print_line("stopped", f"what is finished is kept in {output}. Run the same command to resume.")
        raise
    where = shlex.quote(str(output))
    more: Page = [
        remark("next: see the whole report, or ask another question"),
        command(f"  {where}/report.html"),
        command(f"  whence attribute {where}"),
    ]
    return Answer(_document(answer), answer.page() + more)


def _problem_of(found: object) -> Any:
    """Return the problem of a function without arguments that returns one; anything else unchanged."""
    import inspect

    function = getattr(found, "function", found)
    if not callable(function) or hasattr(function, "batch"):
        return found
    try:
        wants = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return found
    return found if wants else function()


def _document(found: "SearchResult") -> dict[str, object]:
    frame = found.to_frame()
    return {
        "goal": found.goal,
        "tasks": found.tasks,
        "subset": found.subset,
        "targets": found.runs.target_names,
        "expected": found.expected,
        "low": found.low,
        "high": found.high,
        "sure": found.sure,
        "within": found.within,
        "settled": found.settled,
        "notes": found.notes,
        "runs": frame.to_dict("records"),
        "effects": None if found.attribution is None else found.attribution.to_frame().to_dict("records"),
    }
