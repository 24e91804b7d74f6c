"""The command line: the verbs of the library on files of runs.

Every verb is a function from a table of runs to an `Answer`, and `verb` is the shell around all of them: it
reads the file and prints the answer as tables or as JSON. Whatever is heavy is imported by the verb that needs
it, so that ``whence --help`` is there at once.
"""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import whence
from whence.cli import arguments as args
from whence.cli import tables
from whence.cli.console import Answer, Page, Terminal, direction, hint_at_directions, politely, remark, title, to_json
from whence.cli.estimate import estimate
from whence.cli.evaluate import evaluate
from whence.cli.icl import icl
from whence.cli.measure import measure
from whence.cli.report import report
from whence.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from whence.outcomes import Outcomes
    from whence.surrogates.choose import Model

FLOW = """
Which tasks help, which hurt, which work together, and which subset to use.

Tasks are what a model is trained or prompted with. A file of runs has a
row per run, a column per task (0/1, or a weight) and one per outcome.

design subsets → measure them → fit · evaluate
→ attribute · interactions · predict → select · suggest · report

Example: whence attribute runs.csv --outcome loss --ignore run_id

Lower outcomes are better, unless named with --maximize.
"""
MAKE, LOOK = "Make the runs", "How much do the runs tell?"
ASK, DECIDE = "What do tasks do?", "What next?"
PROMPTS = "All of it, for prompts"

app = typer.Typer(
    help=FLOW,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# ---- the shell around every verb -------------------------------------------------------------------------


def verb(panel: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Make a command of a function from runs to an answer, with its options and those of `_read`."""

    def register(answer: Callable[..., Answer]) -> Callable[..., Answer]:
        def command(**given: Any) -> None:
            with politely():
                _spare(given["file"], given.get("output"))
                runs = _read(**{name: given.pop(name) for name in reading})
                as_json = given.pop("as_json")
                _print(answer(runs, **given), as_json)

        reading = inspect.signature(_read).parameters
        own = list(inspect.signature(answer).parameters.values())[1:]
        ending = inspect.signature(_print).parameters["as_json"]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*reading.values(), *own, ending)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(answer.__name__, help=answer.__doc__, rich_help_panel=panel)(command)
        return answer

    return register


def _read(
    file: args.File,
    outcome: args.Outcome = None,
    maximize: args.Maximize = None,
    ignore: args.Ignore = None,
    task: args.Task = None,
) -> "Outcomes":
    runs = whence.read_outcomes(
        file,
        args.names_of(outcome) or None,
        tasks=args.names_of(task) or None,
        ignore=args.names_of(ignore),
        maximize=args.names_of(maximize),
    )
    hint_at_directions(runs)
    return runs


def _spare(file: Path, output: Path | None) -> None:
    if output is not None and output.exists() and file.exists() and output.samefile(file):
        raise InputError(f"{output}: this is the file of runs itself. Write to another file.")


def _print(answer: Answer, as_json: args.Json = False) -> None:
    if as_json:
        print(to_json(answer.document), flush=True)
    else:
        Terminal().show(answer.page)


# ---- what several verbs say ------------------------------------------------------------------------------


def _about(model: "Model") -> dict[str, Any]:
    """What every document says of the runs and of the model."""
    from whence.surrogates.fused import typical_slopes

    chosen = {model.target_names[t]: part.name for part in model.parts for t in part.targets}
    trust = {"slopes": typical_slopes(model)} if model.rungs else {}
    return {
        "runs": model.outcomes.n_runs,
        "tasks": model.task_names,
        "targets": {name: direction(up) for name, up in zip(model.target_names, model.maximize, strict=True)},
        "surrogates": {name: chosen[name] for name in model.target_names},
        "quality": model.quality(),
        **trust,
    }


def _fit(runs: "Outcomes", estimates: args.Estimates, seed: int) -> "Model":
    return whence.fit(runs, estimates=args.read_estimates(estimates, runs), seed=seed)


def _targets(runs: "Outcomes", given: args.Names) -> tuple[str, ...]:
    """Targets asked for, or all."""
    wanted = args.names_of(given)
    return runs.targets(wanted).target_names if wanted else runs.target_names


def _refuse_mixtures(runs: "Outcomes", rule: str) -> None:
    """Refuse what mixtures have no answer to, before the fit has cost its time."""
    from whence.answers.attribution import refuse_mixtures
    from whence.surrogates.choose import Model

    refuse_mixtures(Model(runs, ()), rule)


def _records(frame: "pd.DataFrame", targets: tuple[str, ...]) -> list[dict[Any, Any]]:
    """Rows of some targets, for a document."""
    return frame[frame["target"].isin(targets)].drop(columns="name", errors="ignore").to_dict("records")


# ---- verbs -----------------------------------------------------------------------------------------------


@app.command(rich_help_panel="Start here")
def demo(output: args.Output = None, seed: args.Seed = 0, as_json: args.Json = False) -> None:
    """See it work: 1023 real trainings, explained from 150."""
    with politely():
        from whence.demo import run

        findings = run(Terminal(quiet=as_json), seed=seed, output=output)
        if as_json:
            print(to_json(findings.document()), flush=True)
        if not findings.passed:
            raise typer.Exit(1)


app.command(rich_help_panel=MAKE)(measure)
app.command(rich_help_panel=MAKE)(estimate)


@verb(LOOK)
def fit(runs: "Outcomes", *, estimates: args.Estimates = None, seed: args.Seed = 0) -> Answer:
    """Choose a surrogate; say which, and how good it is."""
    model = _fit(runs, estimates, seed)
    trials, per_target = tables.trials(model), tables.target_scores(model)
    page = tables.trials_page(trials, runs.n_targets) + tables.target_scores_page(per_target)
    document = {**_about(model), "trials": trials, "per_target": per_target}
    return Answer(document, tables.model_page(model) + page)


verb(LOOK)(evaluate)
verb(LOOK)(report)


@verb(ASK)
def attribute(
    runs: "Outcomes",
    *,
    estimates: args.Estimates = None,
    rule: args.Rule = args.RuleName.shapley,
    keep_prob: args.KeepProb = None,
    target: args.Target = None,
    top: args.Top = None,
    seed: args.Seed = 0,
) -> Answer:
    """Say what each task does: helps, hurts, or unclear."""
    targets = _targets(runs, target)
    if rule is not args.RuleName.shift:
        _refuse_mixtures(runs, rule.value)
    model = _fit(runs, estimates, seed)
    found = whence.attribute(model, rule.value, keep_prob=keep_prob, seed=seed)
    document = {"rule": found.rule.name, "how": found.how, "scores": _records(found.to_frame(), targets)}
    heading = f"{found.rule.heading} attribution"
    page = tables.effects_page(found, targets, heading=heading, top=top)
    what = remark(f"score: {found.rule.words} ({found.how})")
    return Answer(_about(model) | document, [*tables.model_page(model), *page, what])


@verb(ASK)
def interactions(
    runs: "Outcomes",
    *,
    estimates: args.Estimates = None,
    rule: args.PairRule = args.PairRuleName.shapley,
    target: args.Target = None,
    top: args.TopPairs = 10,
    seed: args.Seed = 0,
) -> Answer:
    """List pairs that work together, or against each other."""
    targets = _targets(runs, target)
    _refuse_mixtures(runs, f"{rule.value} interactions")
    model = _fit(runs, estimates, seed)
    found = whence.interactions(model, rule.value, seed=seed)
    document = {"rule": found.rule.name, "how": found.how, "pairs": _records(found.to_frame(top=top), targets)}
    heading = f"{found.rule.heading} interactions"
    page = tables.effects_page(found, targets, heading=heading, top=top)
    what = remark(f"score: what the two do beyond the sum of each, {found.rule.others} ({found.how})")
    return Answer(_about(model) | document, [*tables.model_page(model), *page, what])


@verb(ASK)
def predict(
    runs: "Outcomes",
    *,
    estimates: args.Estimates = None,
    subset: args.Subset = None,
    subsets: args.Subsets = None,
    target: args.Target = None,
    seed: args.Seed = 0,
) -> Answer:
    """Predict the outcome of any subset, with 90% intervals."""
    import numpy as np

    rows = [args.subset_of(text, runs) for text in subset or ()]
    rows += [] if subsets is None else list(args.read_subsets(subsets, runs.task_names).subsets)
    if not rows:
        raise InputError("There is nothing to predict. Give --subset a,c (as often as you like) or --subsets FILE.")
    targets = _targets(runs, target)
    model = _fit(runs, estimates, seed)
    frame = tables.predictions(model, np.array(rows), *model.predict(np.array(rows), return_std=True))
    page = tables.predictions_page(frame, runs, targets, column="subset")
    document = {"predictions": _records(frame, targets)}
    return Answer(_about(model) | document, tables.model_page(model) + page)


@verb(DECIDE)
def select(
    runs: "Outcomes",
    *,
    estimates: args.Estimates = None,
    size: args.Size = None,
    max_size: args.MaxSize = None,
    include: args.Include = None,
    exclude: args.Exclude = None,
    cost: args.Cost = None,
    budget: args.Budget = None,
    risk: args.Risk = 0.0,
    by: args.By = args.SelectBy.prediction,
    extrapolate: args.Extrapolate = False,
    target: args.Goal = None,
    seed: args.Seed = 0,
) -> Answer:
    """Find the best subset of tasks under constraints."""
    costs = args.numbers_of(cost)
    runs.subset([*args.names_of(include), *args.names_of(exclude), *costs])  # unknown names, before the fit
    _targets(runs, [target] if target else None)
    model = _fit(runs, estimates, seed)
    found = whence.select(
        model,
        size=size,
        max_size=max_size,
        costs=costs or None,
        budget=budget,
        include=args.names_of(include),
        exclude=args.names_of(exclude),
        target=target,
        risk=risk,
        by=by.value,
        extrapolate=extrapolate,
        seed=seed,
    )
    frame = tables.predictions(model, found.subset[None], found.predicted[None], found.std[None])
    frame = frame.assign(expected=found.expected, low=found.low, high=found.high)
    document = {
        "selected": frame["subset"].iloc[0],
        "objective": found.objective,
        "value": found.value,
        "best_run": found.best_run,
        "how": found.how,
        "predictions": _records(frame.drop(columns="subset"), runs.target_names),
    }
    page = tables.selection_page(found, frame, runs)
    return Answer(_about(model) | document, tables.model_page(model) + page)


@verb(DECIDE)
def suggest(
    runs: "Outcomes",
    *,
    estimates: args.Estimates = None,
    n: args.Count = 10,
    by: args.Aim = args.SuggestBy.variance,
    target: args.Goal = None,
    output: args.Output = None,
    seed: args.Seed = 0,
) -> Answer:
    """List the next subsets worth measuring."""
    import numpy as np

    targets = _targets(runs, [target] if target else None)
    model = _fit(runs, estimates, seed)
    found = whence.suggest(model, n, by=by.value, target=target, seed=seed)
    frame = tables.predictions(model, found.subsets, found.predicted, found.std).drop(columns="measured")
    why = {"variance": "to learn most about all subsets", "improvement": "to beat the best run so far"}
    page: Page = [title(f"{counted(n, 'run')} to make next, {why[by.value]}")]
    page += tables.predictions_page(frame, runs, targets, column="run")
    if output is not None:
        empty = np.full((n, runs.n_targets), np.nan)
        whence.Outcomes(found.subsets, empty, runs.task_names, runs.target_names, runs.maximize).write(output)
        page.append(Text(f"Written to {output}; its outcome columns are empty, for you to fill in."))
    document = {"by": found.by, "suggestions": _records(frame, targets)}
    return Answer(_about(model) | document, tables.model_page(model) + page)


app.command(rich_help_panel=PROMPTS)(icl)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"whence {whence.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What may come before a verb."""


def main() -> None:
    """Run the command line; a terminal that lacks a character shows a question mark instead."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="whence")
