"""Lines and tables: what a page is made of, and the terminal that prints it.

:mod:`whence.display.pages` builds pages of results from these. A colour always comes with its word, and where output
goes to a pipe or a file, tables are plain text as wide as they need to be, so no name is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from whence.errors import safe_text

Page = list[RenderableType]
Row = list[str | Text]

MOST_ROWS = 30
PIPE_WIDTH = 100_000
UNCLEAR = "unclear"
COLOURS = {
    "helps": "green",
    "better than others": "green",
    "work together": "green",
    "better": "green",
    "hurts": "red",
    "worse than others": "red",
    "work against each other": "red",
    "worse": "red",
    "inside": "green",
    "outside": "red",
    "PASS": "bold green",
    "FAIL": "bold red",
    UNCLEAR: "dim",
}


class Terminal(Console):
    """Console that prints names literally, never cuts lines in a pipe, and raises when the pipe is closed."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        interactive = (sys.stderr if stderr else sys.stdout).isatty()
        width = None if interactive else PIPE_WIDTH
        super().__init__(stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False, highlight=False)

    def show(self, page: Iterable[RenderableType]) -> None:
        """Print a page, line by line and table by table."""
        for part in page:
            self.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap is True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments to print, with control characters escaped."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else safe_text(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)

    def on_broken_pipe(self) -> None:
        """Raise; rich would end the program."""
        raise BrokenPipeError


def word(verdict: str) -> Text:
    """Return a verdict in its colour; any that is not known, such as "not distinguishable from zero", is "unclear"."""
    shown = verdict if verdict in COLOURS else UNCLEAR
    return Text(shown, style=COLOURS[shown])


def direction(maximize: bool) -> str:
    """Return in words which way is good."""
    return "higher is better" if maximize else "lower is better"


def title(text: str) -> Text:
    """Return the line above a table, and a blank one before it."""
    return Text(f"\n{text}", style="bold")


def remark(text: str) -> Text:
    """Return a line that explains."""
    return Text(text, style="dim")


def command(text: str) -> Text:
    """Return a line to copy, which is not wrapped at the edge of the terminal."""
    return Text(text, no_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Row], *, left: Sequence[str] = ()) -> Table:
    """Return a table: numbers to the right; the first column and those in ``left`` to the left."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for place, name in enumerate(columns):
        is_text = place == 0 or name in left
        # Numbers stay on one line; names and sentences may wrap, and are never cut.
        found.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        found.add_row(*map(_safe, row))
    return found


def _safe(cell: str | Text) -> str | Text:
    """Cell with control characters escaped, before its width is measured."""
    if isinstance(cell, str):
        return safe_text(cell)
    shown = safe_text(cell.plain)
    return cell if shown == cell.plain else Text(shown, cell.style)


def both_ends(rows: list[Row], top: int | None = None, *, how: str) -> list[Row]:
    """Return all rows; of many, the first and the last, with a row between that counts the others.

    ``how`` says how to see the rest.
    """
    end = MOST_ROWS // 2 if top is None else top
    if len(rows) <= (MOST_ROWS if top is None else 2 * top):
        return rows
    more = remark(f"… {len(rows) - 2 * end} more, use {how}")
    return [*rows[:end], [more, *[""] * (len(rows[0]) - 1)], *rows[-end:]]
