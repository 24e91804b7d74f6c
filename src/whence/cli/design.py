"""The verb that plans runs: ``whence design --tasks a,b,c --design fixed:2 -n 20 -o subsets.csv``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import csv
import io
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whence.cli import arguments as args
from whence.cli.measure import drawn_by
from whence.cli.shell import Answer
from whence.display.layout import Page, command, remark, table
from whence.errors import InputError, counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN = 10
DESIGNS = "bernoulli:P, fixed:SIZE, balanced:SIZE, loo, lto, all, or dirichlet[:CONCENTRATION] for mixtures."

Tasks = Annotated[args.Names, typer.Option("--tasks", metavar="NAMES", help="Tasks, as a,b,c.", show_default=False)]
DesignText = Annotated[str, typer.Option("--design", "-d", metavar="DESIGN", help=DESIGNS)]
Count = Annotated[int | None, typer.Option("-n", metavar="N", help="Number of subsets (default: all).", min=1)]
Extend = Annotated[
    Path | None, typer.Option("--extend", metavar="FILE", help="Subsets that exist already: only new ones are written.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the subsets to this file.")]
Outcome = Annotated[args.Names, typer.Option("--outcome", "-O", metavar="NAME", help="Add an empty column to fill in.")]


def design(
    tasks: Tasks = None,
    design: DesignText = "bernoulli:0.5",
    n: Count = None,
    bounds: args.Bounds = None,
    extend: Extend = None,
    sheet: args.SheetName = None,
    outcome: Outcome = None,
    output: Output = None,
    seed: args.Seed = 0,
) -> Answer:
    """Plan the runs: write the subsets to measure, for any scheduler.

    A row is a run and a column a task. Fill in a column of outcomes, and hand the file to whence fit.
    """
    from whence.designs import extended, with_bounds
    from whence.outcomes.cells import read_subsets

    names = args.names_of(tasks)
    ignore = args.names_of(outcome)
    earlier = None if extend is None else read_subsets(extend, names or None, ignore=ignore, sheet=sheet)
    if earlier is not None:
        names = names or list(earlier.columns)
    if not names:
        raise InputError("There are no tasks. Name them, as in --tasks a,b,c, or --extend a file that has them.")
    if output is not None and extend is not None and output.exists() and output.samefile(extend):
        raise InputError(f"{output}: this is the file to extend itself. Write the new rows to another file.")
    drawn = with_bounds(drawn_by(design, n), args.bounds_of(bounds), names)
    known = None if earlier is None else earlier.to_numpy()
    subsets = extended(drawn, len(names), n, known=known, seed=seed)
    header, rows = [*names, *args.names_of(outcome)], _rows(subsets, len(args.names_of(outcome)))
    new = f"{counted(len(rows), 'new subset' if extend else 'subset')} of {counted(len(names), 'task')}"
    page: Page = [Text(f"{new} ({design}, seed {seed})")]
    if output is None:
        page.append(table(header, [[str(cell) for cell in row] for row in rows[:SHOWN]]))
        if len(rows) > SHOWN:
            page.append(remark(f"and {len(rows) - SHOWN} more: write them to a file with -o"))
    else:
        _write(output, header, rows)
        page += [Text(f"Written to {output}."), remark("next: measure each row, fill in a column of outcomes, and")]
        wanted = shlex.quote(",".join(args.names_of(outcome)) or "NAME")
        page.append(command(f"  whence fit {shlex.quote(str(output))} --outcome {wanted}"))
    return Answer({"tasks": names, "design": design, "seed": seed, "subsets": subsets}, page)


def _rows(subsets: "NDArray[np.float64]", n_empty: int) -> list[list[Any]]:
    """Cells of the subsets, whole numbers as such, and empty ones."""
    return [[int(w) if w == int(w) else round(w, 6) for w in row] + [""] * n_empty for row in subsets.tolist()]


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    from whence.outcomes.writing import whole_file

    if path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"Subsets are written as .csv or .tsv. Got '{path.name}' instead.")
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    with whole_file(path) as file:
        file.write(text.getvalue().encode())
