"""Watching a search: a line in the terminal, and a page in the run folder that is written again after each run.

The page opens from disk, loads nothing, and reloads itself every few seconds until the search ends.
"""

from __future__ import annotations

import sys
import time
import warnings
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from rich.text import Text

from whence.answers.attribution import Attribution, attribute
from whence.display.layout import Row, table, title
from whence.display.notebook import HOW, page_html
from whence.display.pages import attribution_page
from whence.display.report.page import style
from whence.errors import DataWarning, counted, safe_text
from whence.measuring.display import duration
from whence.outcomes.bookkeeping import hint_at_directions
from whence.outcomes.ledger import DONE, FAILED, OPEN, Ledger
from whence.outcomes.writing import whole_file
from whence.searching.ask import Search
from whence.searching.goals import GOALS
from whence.searching.pictures import best_so_far, intervals
from whence.searching.result import SearchResult, model_of
from whence.searching.standing import Standing

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

PAGE = "search.html"
AGAIN = 5  # seconds after which a browser asks for the page again
HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
{refresh}<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}
#answer ~ section table, #answer table {{ width: auto; margin-bottom: 1rem; }}
#answer ~ section td, #answer ~ section th, #answer td, #answer th {{ padding-right: 1.6rem; }}
div + div[style^="font-weight"] {{ margin-top: 1.6rem; }}
</style>
</head>
<body><main><section id="answer"><p class="over">{over}</p><h1>{title}</h1>{lead}</section>{sections}</main></body>
</html>
"""


class View:
    """Shows a search: lines on stderr, and the page if there is a run folder.

    ``progress`` is None for a live line if stderr is a terminal, True for plain lines elsewhere too, False for nothing.
    """

    def __init__(self, asking: Search, *, progress: bool | None = None) -> None:
        self._asking, self._began = asking, time.monotonic()
        self._before: int | None = None  # runs that were finished before this search was begun or resumed
        self._hinted = False
        self._effects, self._effects_due = "", 0.0
        self._talks = progress is True and not sys.stderr.isatty()
        self._live: Live | None = None
        if sys.stderr.isatty() and progress is not False:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, ledger: Ledger, standing: Standing) -> None:
        """Show the progress of the search."""
        asking = self._asking
        made = ledger.done + ledger.failed
        self._before = made if self._before is None else self._before
        failed = made - ledger.done - int(asking.stopped(ledger).sum())
        parts = [f"{made} of {asking.budget} runs", f"{failed} failed" if failed else "", self._pace(made)]
        count, best = " · ".join(part for part in parts if part), ""
        if standing.best is not None:
            best = f"best so far: {_describe(ledger, standing.best.row)}"
        if (self._live or self._talks) and ledger.targets and not self._hinted:
            self._hinted = True
            hint_at_directions(ledger.outcomes())
        if self._live:
            self._live.update(_lines(made / asking.budget, count, standing.words, best, *_running(asking, ledger)))
        elif self._talks:
            said = " · ".join(part for part in (*parts[:2], standing.words, best) if part)
            print(said, file=sys.stderr, flush=True)
        if asking.folder is not None:
            lines = [Text(line) for line in (count, standing.words, best, *_running(asking, ledger)) if line]
            write_page(asking, ledger, page_html(lines), self._effects_so_far(ledger), going=True)

    def _effects_so_far(self, ledger: Ledger) -> str:
        """Return what tasks do so far; to fit that again takes at most a tenth of the time."""
        began = time.monotonic()
        if began >= self._effects_due:
            self._effects = _effects(self._asking, ledger)
            now = time.monotonic()
            self._effects_due = now + 9 * (now - began)
        return self._effects

    def _pace(self, made: int) -> str:
        """Return the time so far, and how long the rest of the budget would take at this pace."""
        since, new = time.monotonic() - self._began, made - (self._before or 0)
        if not new:
            return ""
        left = duration(since / new * (self._asking.budget - made))
        return f"{duration(since)} so far" + (f", at most {left} to go" if made < self._asking.budget else "")

    def finish(self, found: SearchResult) -> None:
        """Write the page a last time, with the answer, and the report on all runs."""
        asking = self._asking
        if asking.folder is None:
            return
        ledger = asking.ledger()
        lead, effects = page_html(found.page()), ""
        if found.attribution is None:
            effects = _effects(asking, ledger)
        else:  # the answer has them already
            lead = _drawn(asking, found.attribution) + lead
        write_page(asking, ledger, lead, effects, going=False)
        if found.model is not None:
            from whence.display.report import report

            report(found.model, asking.folder / "report.html", seed=asking.seed)


def _lines(share: float, count: str, *lines: str) -> Group:
    """Return what a terminal shows: a bar with the count, and lines, each cut where the terminal ends."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(1.0, min(share, 1.0), width=30), Text(count, no_wrap=True, overflow="ellipsis"))
    return Group(bar, *(Text(safe_text(line), no_wrap=True, overflow="ellipsis") for line in lines if line))


def write_page(asking: Search, ledger: Ledger, lead: str, effects: str, *, going: bool) -> None:
    """Write the page of a search, whole or not at all."""
    assert asking.folder is not None
    sections = [f"<section>{part}</section>" for part in (effects, _made(asking, ledger)) if part]
    goal = GOALS[asking.goal] if asking.goal != "best" else f"the best {'mixture' if asking.mixture else 'subset'}"
    text = HTML.format(
        refresh=f'<meta http-equiv="refresh" content="{AGAIN}">\n' if going else "",
        title=escape(f"Search for {goal}"),
        style=style(),
        over=escape(safe_text(f"{ledger.plan.outcome_fn} · {counted(len(asking.task_names), 'task')}")),
        lead=lead + _curve(asking, ledger),
        sections="".join(sections),
    )
    with whole_file(Path(asking.folder) / PAGE) as file:
        file.write(text.encode())


def _describe(ledger: Ledger, row: ArrayLike) -> str:
    return ledger.outcomes().describe(row)


def _running(asking: Search, ledger: Ledger) -> list[str]:
    """Return the unfinished runs, and why they are made."""
    open_rows = np.flatnonzero(ledger.status[0] == OPEN)
    return [f"running {at}: {_describe(ledger, asking.asked[at].row)} ({asking.asked[at].why})" for at in open_rows]


def _effects(asking: Search, ledger: Ledger) -> str:
    """Return what tasks do so far, as `whence.attribute` tells it; empty with too few runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the search chose this design on purpose
        model = model_of(asking, ledger)
        if model is None:
            return ""
        found = attribute(model, seed=asking.seed)
    targets = [asking.target] if asking.target in found.target_names else list(found.target_names)
    page = page_html(attribution_page(found, targets, top=None, how=HOW))
    return page_html([title(f"What tasks do, after {counted(ledger.done, 'run')}")]) + _drawn(asking, found) + page


def _drawn(asking: Search, found: Attribution) -> str:
    """Return a picture of the effects on the target; empty where there are several."""
    targets = found.target_names
    if asking.target in targets or len(targets) == 1:
        return intervals(found, targets.index(asking.target or targets[0]))
    return ""


def _made(asking: Search, ledger: Ledger) -> str:
    """Return all runs, the latest first, with why each was made."""
    states, stopped = {DONE: "", FAILED: "failed"}, asking.stopped(ledger)
    costs = [] if asking.costs is None else [asking.costs.get(name, 0.0) for name in asking.task_names]
    rows: list[Row] = []
    for at in range(len(asking.asked) - 1, -1, -1):
        row = asking.asked[at].row
        status = int(ledger.status[0, at]) if at < ledger.status.shape[1] else 0
        values = [f"{value:.4g}" for value in ledger.values[0, at]] if status == DONE else [""] * len(ledger.targets)
        state = "stopped early" if status and stopped[at] else states.get(status, "running")
        price = [f"{np.dot(row, costs):.4g}"] if costs else []
        rows.append([str(at), _describe(ledger, row), *values, *price, state, asking.asked[at].why])
    columns = ["run", "tasks", *ledger.targets, *(["cost"] if costs else []), "state", "why"]
    return page_html([title("Runs"), table(columns, rows, left=["tasks", "state", "why"])])


def _curve(asking: Search, ledger: Ledger) -> str:
    """Return a picture of the outcome of every run and the best so far; empty for other goals."""
    if asking.goal != "best" or not ledger.targets:
        return ""
    show, targets, up = asking.objective.shown, ledger.targets, ledger.plan.maximize
    what = asking.target or (targets[0] if len(targets) == 1 else "what is optimised")
    label = f"{what} of each run (dots) and the best so far, by number of runs"
    return best_so_far(asking.goodness(ledger)[:, 0], asking.budget, lambda value: show(value, targets, up), label)
