"""A search to look at while it runs: a line in the terminal, and one page in the run folder, written after each run.

The page opens from disk, loads nothing, and asks the browser for itself again every few seconds until the search ends.
"""

from __future__ import annotations

import sys
import time
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.text import Text

from whence.display.layout import Page, Row, table, title
from whence.display.notebook import page_html
from whence.display.numbers import decimals, number
from whence.display.report.page import style
from whence.errors import counted, safe_text
from whence.measuring.display import duration
from whence.outcomes.ledger import DONE, FAILED, OPEN, Ledger
from whence.outcomes.writing import whole_file
from whence.searching.ask import Search, Standing
from whence.searching.goals import GOALS
from whence.searching.result import SearchResult, settling

PAGE = "search.html"
AGAIN = 5  # seconds after which a browser asks for the page again
WIDE, HIGH = 640, 200
HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
{refresh}<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body><main><section id="answer"><p class="over">{over}</p><h1>{title}</h1>{lead}</section>{sections}</main></body>
</html>
"""


class View:
    """What a search shows of itself: lines on stderr, and the page where there is a run folder.

    Parameters
    ----------
    asking : Search
    progress : bool or None
        None for a live line where stderr is a terminal; True for plain lines elsewhere too; False for nothing.
    """

    def __init__(self, asking: Search, *, progress: bool | None = None) -> None:
        self._asking, self._began = asking, time.monotonic()
        self._talks = progress is True and not sys.stderr.isatty()
        self._live: Any = None
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
        """Show where the search is."""
        asking = self._asking
        made = ledger.done + ledger.failed
        best = "" if standing.best is None else f" · best so far: {_describe(ledger, standing.best.row)}"
        line = f"{made} of {asking.budget} runs · {standing.words}{best}"
        if self._live:
            from rich.console import Group
            from rich.progress_bar import ProgressBar

            running = [f"  {each}" for each in _running(asking, ledger)]
            self._live.update(Group(ProgressBar(asking.budget, made, width=40), Text(line), Text("\n".join(running))))
        elif self._talks:
            print(line, file=sys.stderr, flush=True)
        if asking.folder is not None:
            since = duration(time.monotonic() - self._began)
            lead = page_html([Text(line), Text(f"{since} since the search was begun or resumed")])
            write_page(asking, ledger, lead, going=True)

    def finish(self, found: SearchResult) -> None:
        """Write the page a last time, with the answer, and the report on all runs."""
        asking = self._asking
        if asking.folder is None:
            return
        write_page(asking, asking.ledger(), page_html(found.page()), going=False)
        if found.model is not None:
            from whence.display.report import report

            report(found.model, asking.folder / "report.html", seed=asking.seed)


def write_page(asking: Search, ledger: Ledger, lead: str, *, going: bool) -> None:
    """Write the page of a search, whole or not at all."""
    assert asking.folder is not None
    sections = [f"<section>{page_html(part)}</section>" for part in (_settling(asking, ledger), _made(asking, ledger))]
    text = HTML.format(
        refresh=f'<meta http-equiv="refresh" content="{AGAIN}">\n' if going else "",
        title=escape(f"Search for {GOALS[asking.goal]}"),
        style=style(),
        over=escape(safe_text(f"{ledger.plan.outcome_fn} · {counted(len(asking.task_names), 'task')}")),
        lead=lead + _curve(asking, ledger),
        sections="".join(sections),
    )
    with whole_file(Path(asking.folder) / PAGE) as file:
        file.write(text.encode())


def _describe(ledger: Ledger, row: Any) -> str:
    return ledger.outcomes().describe(row)


def _running(asking: Search, ledger: Ledger) -> list[str]:
    """Return the runs that are not finished, and why they are made."""
    open_rows = np.flatnonzero(ledger.status[0] == OPEN)
    return [f"running {at}: {_describe(ledger, asking.asked[at].row)} ({asking.asked[at].why})" for at in open_rows]


def _settling(asking: Search, ledger: Ledger) -> Page:
    """Return what tasks seem to do so far."""
    found = settling(asking, ledger)
    if not found:
        return []
    places = decimals([half for _, _, half in found])
    rows: list[Row] = []
    for name, effect, half in sorted(found, key=lambda each: -each[1]):
        verdict = "unclear" if abs(effect) < half else "helps" if effect > 0 else "hurts"
        if asking.goal != "best" and verdict != "unclear":  # of several targets, in whatever direction
            verdict = "settled"
        rows.append([safe_text(name), number(effect, places, signed=True), f"± {number(half, places)}", Text(verdict)])
    what = "average change of what is optimised" if asking.goal == "best" else "average change, in std of the outcome"
    return [title("What tasks do, so far"), table(["task", "effect", "90%", ""], rows, left=[""]), Text(what)]


def _made(asking: Search, ledger: Ledger) -> Page:
    """Return all runs, the latest first, with why each was made."""
    states, stopped = {DONE: "", FAILED: "failed"}, asking.stopped(ledger)
    rows: list[Row] = []
    for at in range(len(asking.asked) - 1, -1, -1):
        status = int(ledger.status[0, at]) if at < ledger.status.shape[1] else 0
        values = [f"{value:.4g}" for value in ledger.values[0, at]] if status == DONE else [""] * len(ledger.targets)
        state = "stopped early" if status and stopped[at] else states.get(status, "running")
        rows.append([str(at), _describe(ledger, asking.asked[at].row), *values, state, asking.asked[at].why])
    columns = ["run", "tasks", *ledger.targets, "state", "why"]
    return [title("Runs"), table(columns, rows, left=["tasks", "state", "why"])]


def _curve(asking: Search, ledger: Ledger) -> str:
    """Return a picture of what came out of every run, and of the best so far; empty for other goals."""
    if asking.goal != "best" or not ledger.targets:
        return ""
    goodness = asking.goodness(ledger)[:, 0]
    at = np.flatnonzero(np.isfinite(goodness))
    if len(at) < 2:
        return ""
    values = goodness[at]
    low, high = float(values.min()), float(values.max())
    x = 10 + (WIDE - 20) * at / max(asking.budget - 1, 1)
    y = HIGH - 10 - (HIGH - 20) * (values - low) / (high - low or 1)
    tops = np.minimum.accumulate(y)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="var(--dim)"/>' for a, b in zip(x, y, strict=True))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, tops, strict=True))
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="Outcome of each run, and the best so far" '
        f'style="max-width:{WIDE}px;width:100%">{dots}<polyline points="{path}" fill="none" stroke="var(--good)" '
        'stroke-width="2"/></svg>'
    )
