"""The command line: the verbs of the library on files of runs. It parses and prints; nothing imports it.

Verbs are functions from options to an `Answer`, which `as_command` turns into commands. Those that take a file of runs
are in verbs.py and evaluate.py; each other one has its own file. arguments.py declares the options, shell.py prints
answers and errors. Slow imports happen inside the verb that needs them, so ``whence --help`` is immediate.
"""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
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

app = typer.Typer(
    help=FLOW,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def as_command(answer: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command from a function that returns an answer: with its options, and ``--json``."""

    def command(as_json: args.Json = False, **given: Any) -> None:
        for output in (given.get("output"), given.get("save")):
            _refuse_overwriting(given.get("files") or (), output)
        with redirect_stdout(sys.stderr):  # what the user's file prints, when it is loaded or run, is not our answer
            found = _called(answer, given)
        found.print(as_json=as_json)
        if found.failed:
            raise typer.Exit(1)

    own = inspect.signature(command).parameters["as_json"]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*_options(answer), own)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = answer.__name__, answer.__doc__
    return command


def _options(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Parameters of a function; in place of one that a function makes, as `args.read` makes the runs, those of that."""
    for parameter in inspect.signature(function).parameters.values():
        maker = _maker(parameter)
        yield from [parameter] if maker is None else _options(maker)


def _called(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with given options, and with what is made from them."""
    makers = {name: _maker(parameter) for name, parameter in inspect.signature(function).parameters.items()}
    return function(**{name: _called(make, given) if make else given[name] for name, make in makers.items()})


def _maker(parameter: inspect.Parameter) -> Callable[..., Any] | None:
    first, *_ = getattr(parameter.annotation, "__metadata__", (None,))
    return first if inspect.isfunction(first) else None


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


VERBS: dict[str, list[Callable[..., Answer]]] = {
    "Make the runs": [search, design, measure, estimate],
    "What do the runs tell you?": [verbs.fit, evaluate, verbs.report, benchmark],
    "What do tasks do?": [verbs.attribute, verbs.interactions, verbs.predict],
    "What next?": [verbs.select, verbs.suggest],
    "All of it, for language models": [finetune, icl],
}
app.command(cls=Verb, rich_help_panel="Start here")(demo)
for panel, answers in VERBS.items():
    for each in answers:
        paragraphs = inspect.cleandoc(each.__doc__ or "").split("\n\n")  # lines of one are wrapped by the terminal
        text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        app.command(cls=Verb, rich_help_panel=panel, help=text)(as_command(each))


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
