"""The verb that makes runs: ``whence measure exp.py:train --design fixed:7 -n 50 -o run/``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whence.cli import arguments as args
from whence.cli.shell import Answer, print_line
from whence.display.layout import Page, Row, command, remark, table, title
from whence.display.pages import ceiling_in_words
from whence.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from whence.designs import Design
    from whence.measuring.engine import Workers
    from whence.outcomes.ledger import Ledger

MOST_FAILURES = 5
worker = partial(typer.Option, rich_help_panel="Workers")
ray = partial(typer.Option, rich_help_panel="With --engine ray")

Function = Annotated[
    str, typer.Argument(metavar="FILE.py:NAME", help="Function of (subset, seed) that returns {metric: value}.")
]
DesignText = Annotated[
    str,
    typer.Option(
        "--design", "-d", metavar="DESIGN",
        help="bernoulli:P, fixed:SIZE, balanced:SIZE, loo, lto, all, dirichlet, or a file of subsets.",
    ),
]  # fmt: skip
Subsets = Annotated[int | None, typer.Option("-n", metavar="N", help="Number of subsets (default: all).", min=1)]
Tasks = Annotated[args.Names, typer.Option(metavar="NAMES", help="Tasks, as a,b,c (default: TASKS in the file).")]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Number of runs of each subset (default: 1).", min=1)]
Retry = Annotated[bool, typer.Option("--retry", help="Retry rows that failed.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Go on if rows fail before any has succeeded.")]
Maximize = Annotated[args.Names, typer.Option(metavar="NAME", help="Metric for which higher is better.")]
Jobs = Annotated[int, worker("--jobs", "-j", metavar="N", help="Number of workers (-1: one per core).")]
EngineName = Annotated[str, worker("--engine", metavar="NAME", help="local (processes), ray, or inline (this one).")]
Threads = Annotated[int, worker(metavar="N", help="Threads per worker.", min=1)]
Timeout = Annotated[float | None, worker(metavar="SECONDS", help="Time limit per row.")]
Address = Annotated[str | None, ray(metavar="ADDRESS", help="Address of the cluster (default: a local one).")]
Cpus = Annotated[float, ray(metavar="N", help="CPUs per row.", min=0)]
Gpus = Annotated[float, ray(metavar="N", help="GPUs per row.", min=0)]


def workers_of(
    jobs: Jobs = 1,
    engine: EngineName = "local",
    threads: Threads = 1,
    timeout: Timeout = None,
    address: Address = None,
    cpus_per_task: Cpus = 1,
    gpus_per_task: Gpus = 0,
) -> "Workers":
    """Return who measures."""
    from whence.measuring.engine import Workers

    return Workers(engine, jobs, threads, timeout, address, cpus_per_task, gpus_per_task)


WorkerOptions = Annotated["Workers", workers_of]


def measure(
    function: Function,
    *,
    design: DesignText,
    output: args.Folder,
    n: Subsets = None,
    tasks: Tasks = None,
    seed: args.Seed = 0,
    seeds: Seeds = None,
    maximize: Maximize = None,
    retry: Retry = False,
    keep_going: KeepGoing = False,
    accept_change: args.AcceptChange = False,
    workers: WorkerOptions,
) -> Answer:
    """Run a function on many subsets, and keep every result.

    Every finished row is written to disk at once. The same command resumes a run that was stopped. With a larger -n
    or more --seeds, it extends the run. A row that fails before any has succeeded stops the run; later ones do not.
    Other verbs can read the folder at any time: whence fit run/
    """
    from whence.measuring.functions import load_function
    from whence.measuring.loop import carry_out
    from whence.measuring.outcome_fn import as_outcome_fn
    from whence.measuring.plan import make_plan
    from whence.outcomes.bookkeeping import hint_at_directions

    found, in_file = load_function(function)
    outcome_fn = as_outcome_fn(found)
    known = args.names_of(tasks) or in_file or outcome_fn.task_names
    plan = make_plan(
        outcome_fn,
        design_of(design, n, known),
        n,
        tasks=known,
        seed=seed,
        seeds=seeds,
        maximize=args.names_of(maximize) or (),
    )
    began = time.monotonic()
    try:
        ledger = carry_out(
            plan, outcome_fn, output, workers, retry=retry, keep_going=keep_going, accept_change=accept_change,
            progress=True,
        )  # fmt: skip
    except KeyboardInterrupt:
        _report_stop(output)
        raise
    hint_at_directions(ledger.outcomes())
    document = ledger_document(ledger, output) | {"failures": _failures(ledger), "set_aside": list(ledger.aside)}
    return Answer(document, _page(ledger, output, time.monotonic() - began), failed=ledger.failed > 0)


def design_of(text: str, n: int | None, tasks: Sequence[str] | None) -> "Design | pd.DataFrame":
    """Return the design of a text, or the subsets of a file."""
    from whence.outcomes.cells import read_subsets

    try:
        return drawn_by(text, n)
    except InputError:
        if not Path(text).exists():
            raise
        return read_subsets(text, tasks)


def drawn_by(text: str, n: int | None) -> "Design":
    """Return the design of a text, which must say how many subsets are wanted unless it lists them."""
    from whence.designs import parse_design

    found = parse_design(text)
    if n is None and (":" in text or text.startswith("dirichlet")):
        raise InputError(f"The design {text} can draw any number of subsets: say how many, as in {{n}}.", n=100)
    return found


def _report_stop(folder: Path) -> None:
    from whence.outcomes.runs import is_run, read_ledger

    if is_run(folder):
        ledger = read_ledger(folder)
        kept = f"{ledger.done} of {counted(ledger.status.size, 'row')} measured and kept in {folder}"
        print_line("stopped", f"{kept}. Run the same command to resume.")


def _failures(ledger: "Ledger") -> list[dict[str, Any]]:
    names = ledger.plan.task_names
    return [
        {
            "row": row,
            "replicate": replicate,
            "subset": [name for name, weight in zip(names, ledger.plan.subsets[row], strict=True) if weight],
            "reason": reason,
        }
        for (row, replicate), reason in sorted(ledger.reasons.items())
    ]


def ledger_document(ledger: "Ledger", folder: Path) -> dict[str, object]:
    """Return how much of a run is measured, for JSON."""
    return {
        "folder": str(folder),
        "rows": ledger.status.size,
        "measured": ledger.done,
        "failed": ledger.failed,
        "tasks": ledger.plan.task_names,
        "targets": ledger.targets,
    }


def _page(ledger: "Ledger", folder: Path, seconds: float) -> Page:
    from whence.measuring.display import summary
    from whence.outcomes.runs import FAILURES

    page: Page = [Text(summary(ledger, seconds))]
    if failures := _failures(ledger):
        runs = ledger.outcomes()
        rows: list[Row] = []
        for each in failures[:MOST_FAILURES]:
            tasks = runs.describe(runs.subsets[each["row"]])
            rows.append([str(each["row"]), str(each["replicate"]), tasks, Text(each["reason"], "red")])
        more = f", the first {MOST_FAILURES}" if len(failures) > MOST_FAILURES else ""
        page += [
            title(f"Rows that failed{more}"),
            table(["row", "replicate", "tasks", "reason"], rows, left=["tasks", "reason"]),
            Text(f"Tracebacks and output are in {folder / FAILURES}. Retry these rows with --retry."),
        ]
    if ledger.aside:
        page += [remark(ledger.said_aside())]
    page += _noise(ledger)
    where = shlex.quote(str(folder))
    if ledger.plan.design == "LeaveOneOut()":
        page += [remark("next: compare attribution from other runs with these true changes")]
        page += [command(f"  whence evaluate RUNS --loo {where}")]
    elif ledger.done:
        page += [remark("next: fit a surrogate, and see how many runs it takes to detect an effect of some size")]
        page += [command(f"  whence fit {where}"), command(f"  whence evaluate {where} --effect SIZE")]
    return page


def _noise(ledger: "Ledger") -> Page:
    """What replicates say of the noise of a run."""
    from whence.evaluation import noise_ceiling

    if ledger.plan.seeds < 2 or not ledger.done:
        return []
    ceiling = noise_ceiling(ledger.outcomes())
    return [] if ceiling.reason else [Text(ceiling_in_words(ceiling))]
