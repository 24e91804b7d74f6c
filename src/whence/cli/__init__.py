"""The command line: the verbs of the library on files of runs. It parses and prints; nothing imports it.

Verbs that take a file of runs are functions from the table to an `Answer` (verbs.py, evaluate.py), which
`on_runs` turns into commands; each other command has its own file. arguments.py declares the options, shell.py prints
answers and errors. Slow imports happen inside the verb that needs them, so ``whence --help`` is immediate.
"""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli import arguments as args
from whence.cli import verbs
from whence.cli.benchmark import benchmark
from whence.cli.design import design
from whence.cli.estimate import estimate
from whence.cli.evaluate import evaluate
from whence.cli.finetune import finetune
from whence.cli.icl import icl
from whence.cli.measure import measure
from whence.cli.search import search
from whence.cli.shell import Answer, Verb
from whence.display.layout import Terminal
from whence.display.numbers import to_json
from whence.errors import InputError

FLOW = """
Which tasks help, which hurt, which work together, and which subset to use.

Tasks are what a model is trained or prompted with. A file of runs has a
row per run, a column per task (0/1, or a weight) and one per outcome.

design subsets → measure them → fit · evaluate
→ attribute · interactions · predict → select · suggest · report

Example: whence attribute runs.csv --outcome loss --ignore run_id

Lower outcomes are better, unless named with --maximize.
"""
START, MAKE, LOOK = "Start here", "Make the runs", "How much do the runs tell?"
ASK, DECIDE = "What do tasks do?", "What next?"
LANGUAGE = "All of it, for language models"

app = typer.Typer(
    help=FLOW,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def read(
    files: args.Files = None,
    model: args.ModelFile = None,
    outcome: args.Outcome = None,
    maximize: args.Maximize = None,
    ignore: args.Ignore = None,
    task: args.Task = None,
    subset_column: args.SubsetColumn = None,
    missing: args.Missing = None,
    sheet: args.SheetName = None,
) -> args.Asked:
    """Return the table of runs that the options describe, and the model where one was saved."""
    from whence.outcomes.bookkeeping import hint_at_directions

    if model is not None:
        if any((files, outcome, maximize, ignore, task, subset_column, missing, sheet)):
            raise InputError("A saved model has its runs and their columns: give --model alone, or a file of runs.")
        fitted = whence.load(model)
        return args.Asked(fitted.outcomes, fitted)
    if not files:
        raise InputError("There is nothing to read. Give a file of runs, or --model FILE.")
    runs = whence.read_outcomes(
        files,
        args.names_of(outcome) or None,
        tasks=args.names_of(task) or None,
        ignore=args.names_of(ignore),
        maximize=args.names_of(maximize),
        subset_column=subset_column,
        missing=None if missing is None else missing.value,
        sheet=sheet,
    )
    hint_at_directions(runs)
    return args.Asked(runs)


def on_runs(answer: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command from a function that returns an answer: its own options, those of `read`, and ``--json``."""

    def command(as_json: args.Json = False, **given: Any) -> None:
        for output in (given.get("output"), given.get("save")):
            _refuse_overwriting(given["files"] or (), output)
        asked = read(**{name: given.pop(name) for name in reading})
        answer(asked, **given).print(as_json=as_json)

    reading = inspect.signature(read).parameters
    own = list(inspect.signature(answer).parameters.values())[1:]
    ending = inspect.signature(command).parameters["as_json"]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*reading.values(), *own, ending)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = answer.__name__, answer.__doc__
    return command


def _refuse_overwriting(files: Sequence[Path], output: Path | None) -> None:
    for file in files:
        if output is not None and output.exists() and file.exists() and output.samefile(file):
            raise InputError(f"{output}: this is the file of runs itself. Write to another file.")


def demo(output: args.Output = None, seed: args.Seed = 0, as_json: args.Json = False) -> None:
    """See it work: 1023 real trainings, explained from 150."""
    from whence.demo import run

    findings = run(Terminal(quiet=as_json), seed=seed, output=output)
    if as_json:
        print(to_json(findings.document()), flush=True)
    if not findings.passed:
        raise typer.Exit(1)


COMMANDS: dict[str, list[Callable[..., None]]] = {
    START: [demo],
    MAKE: [search, design, measure, estimate],
    LOOK: [on_runs(verbs.fit), on_runs(evaluate), on_runs(verbs.report), benchmark],
    ASK: [on_runs(verbs.attribute), on_runs(verbs.interactions), on_runs(verbs.predict)],
    DECIDE: [on_runs(verbs.select), on_runs(verbs.suggest)],
    LANGUAGE: [finetune, icl],
}
for panel, commands in COMMANDS.items():
    for each in commands:
        paragraphs = inspect.cleandoc(each.__doc__ or "").split("\n\n")  # lines of one are wrapped by the terminal
        text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        app.command(cls=Verb, rich_help_panel=panel, help=text)(each)


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
    """Options before a verb."""


def main() -> None:
    """Run the command line; a terminal that lacks a character shows a question mark instead."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="whence")
