"""How results look in a notebook: the tables of the terminal, as compact HTML.

Every result of the library is a :class:`whence.shown.Shown`, whose ``_repr_html_`` calls `html_of`: one function, with
a method for each kind of result. Every name is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from html import escape

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from whence.answers.attribution import Attribution
from whence.answers.pareto import Front
from whence.answers.prediction import Predictions
from whence.answers.quality import trials
from whence.answers.selection import Selection
from whence.answers.suggestion import Suggestions
from whence.display import pages
from whence.display.layout import Page, Row, both_ends, remark, table, title
from whence.display.numbers import decimals, number
from whence.errors import counted
from whence.evaluation import Ceiling, Comparison, LearningCurve, Score
from whence.outcomes import Outcomes
from whence.outcomes.subset import in_words
from whence.surrogates.model import Model

HOW = ".to_frame()"  # to see what a table leaves out
TOP_PAIRS = 10
MOST_COLUMNS = 12
# Of the styles of the terminal; readable on light and on dark backgrounds.
STYLES = {"green": "color:#0a8a80", "red": "color:#c8502a", "dim": "opacity:0.65", "bold": "font-weight:600"}


def page_html(page: Iterable[RenderableType]) -> str:
    """Return lines and tables of the terminal as HTML.

    >>> page_html([Text("a < b", style="bold")])
    '<div><div style="font-weight:600">a &lt; b</div></div>'
    """
    parts = (_table(part) if isinstance(part, Table) else _line(part) for part in page)
    return f"<div>{''.join(parts)}</div>"


def _line(part: RenderableType) -> str:
    if not str(part).strip():
        return ""
    style = _style(part)
    return f"<div{style}>{escape(str(part).strip())}</div>"


def _table(part: Table) -> str:
    def cell(tag: str, content: RenderableType, justify: str) -> str:
        style = f"text-align:{'left' if justify == 'left' else 'right'}"
        return f'<{tag} style="{style}"><span{_style(content)}>{escape(str(content))}</span></{tag}>'

    columns = part.columns
    head = "".join(cell("th", column.header, column.justify) for column in columns)
    rows = zip(*(column.cells for column in columns), strict=True)
    body = "".join(
        f"<tr>{''.join(cell('td', one, column.justify) for one, column in zip(row, columns, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _style(content: RenderableType) -> str:
    style = STYLES.get(str(content.style), "") if isinstance(content, Text) else ""
    return f' style="{style}"' if style else ""


# ---- one method for each kind of result ------------------------------------------------------------------


@singledispatch
def html_of(result: object) -> str:
    """Return a result as HTML."""
    return page_html([Text(str(result))])


@html_of.register
def _(runs: Outcomes) -> str:
    """Return the description of a table of runs, and its first and last rows."""
    names = [*runs.task_names, *runs.target_names]
    shown = list(range(len(names)))
    if len(names) > MOST_COLUMNS:  # the first tasks, and the targets as far as there is room
        n_targets = min(runs.n_targets, MOST_COLUMNS // 2)
        shown = [*range(MOST_COLUMNS - n_targets), *range(runs.n_tasks, runs.n_tasks + n_targets)]
    rows: list[Row] = [
        [str(place), *(f"{value:.6g}" for value in [*subset, *values])]
        for place, (subset, values) in enumerate(zip(runs.subsets, runs.values, strict=True))
        if place < 5 or place >= runs.n_runs - 5
    ]
    if runs.n_runs > len(rows):
        rows.insert(5, [remark("…"), *[""] * len(names)])
    picked = [[row[0], *(row[1 + at] for at in shown)] for row in rows]
    page: Page = [Text(repr(runs)), table(["run", *(names[at] for at in shown)], picked)]
    if len(shown) < len(names):
        page.append(remark(f"{len(names) - len(shown)} more columns, use {HOW}"))
    return page_html(page)


@html_of.register
def _(model: Model) -> str:
    """Return what was chosen, how good it is, and what else was tried."""
    return page_html([*pages.model_page(model), *pages.trials_page(trials(model))])


@html_of.register
def _(found: Attribution) -> str:
    """Return what each task does, a table per target or one of their mean."""
    top = None if found.order == 1 else TOP_PAIRS
    return page_html(pages.attribution_page(found, found.target_names, top=top, how=HOW))


@html_of.register
def _(found: Predictions) -> str:
    """Return what is predicted for each subset, a table per target or one of their mean."""
    page = pages.predictions_page(found.to_frame(), found.runs, found.runs.target_names, column="subset", how=HOW)
    return page_html(page)


@html_of.register
def _(found: Selection) -> str:
    """Return the chosen subset, what is predicted for it and what to expect."""
    page: Page = [
        title(f"Use {counted(len(found.tasks), 'task')}"),
        Text(found.in_words, style="green"),
        pages.selection_table(found, found.target_names, ".expected, .low and .high"),
        Text(f"{found.objective}: {found.value:.6g}"),
    ]
    if found.best_run == found.best_run:
        page.append(Text(f"best measured run within the constraints: {found.best_run:.6g}"))
    return page_html([*page, remark(f"how: {found.how}")])


@html_of.register
def _(found: Front) -> str:
    """Return the best trade-offs between targets."""
    return page_html(pages.front_page(found))


@html_of.register
def _(found: Suggestions) -> str:
    """Return the runs to make next, with what is predicted for the first targets."""
    shown = range(min(len(found.target_names), pages.MOST_TARGETS))
    columns = ["run", "tasks", *(f"predicted {found.target_names[t]}" for t in shown)]
    rows: list[Row] = []
    for place, (subset, mean, std) in enumerate(zip(found.subsets, found.predicted, found.std, strict=True)):
        what = in_words(subset, found.task_names, binary=set(subset.tolist()) <= {0.0, 1.0})
        digits = [decimals(std[t] if std[t] == std[t] else mean[t]) for t in shown]
        predicted = [f"{number(mean[t], n)} ± {number(std[t], n)}" for t, n in zip(shown, digits, strict=True)]
        rows.append([str(place + 1), what, *predicted])
    heading = title(f"{counted(len(rows), 'run')} to make next, by {found.by}")
    return page_html([heading, table(columns, both_ends(rows, how=HOW), left=["tasks"])])


@html_of.register(Score)
@html_of.register(Ceiling)
@html_of.register(LearningCurve)
def _(found: Score | Ceiling | LearningCurve) -> str:
    """Return what it says, and its frame."""
    said = found.in_words() if isinstance(found, LearningCurve) else repr(found)
    if isinstance(found, Ceiling) and found.reason:
        return page_html([Text(said)])
    frame = found.to_frame()
    rows: list[Row] = [
        [number(cell, 3) if isinstance(cell, float) else str(cell) for cell in row]
        for row in frame.itertuples(index=False)
    ]
    return page_html([Text(said), table(list(frame.columns), both_ends(rows, how=HOW))])


@html_of.register
def _(found: Comparison) -> str:
    """Return the scores of every method, and by how much the first differs."""
    return page_html([pages.comparison_table(found), *pages.legend()])
