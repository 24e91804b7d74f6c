"""Answers as a person reads them in a terminal, and as a program reads them from JSON.

The last step of the command line (:mod:`whence.cli`). Each function turns one result of the library into lines
and tables of rich: words come with every colour, numbers show the digits that their uncertainty leaves, and
where nobody watches (a pipe, a file) tables are plain text as wide as they need to be, so that no name is cut.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from whence.attribution import Attribution
    from whence.surrogates.choose import Model

Page = list[RenderableType]

MOST_TARGETS = 5  # with more, tables show the mean over targets
MOST_ROWS = 30
PIPE_WIDTH = 100_000
MISSING = "–"
UNCLEAR = "unclear"
COLOURS = {
    "helps": "green",
    "work together": "green",
    "better": "green",
    "hurts": "red",
    "work against each other": "red",
    "worse": "red",
    "PASS": "bold green",
    "FAIL": "bold red",
    UNCLEAR: "dim",
}
RULES = {
    "shapley": "the change when the task joins, averaged over subsets of every size",
    "banzhaf": "the change when the task joins, averaged over random halves of the others",
    "loo": "the change when the task joins all the others",
    "inclusion": "the mean over subsets that include the task, less the mean over all",
    "shift": "the change when the task takes over a tenth of the average mixture",
}
OTHERS = {
    "shapley": "averaged over subsets of the others of every size",
    "banzhaf": "averaged over random halves of the others",
    "full": "all the others being in",
}


class Terminal(Console):
    """Console that takes names as they are, cuts nothing in a pipe, and lets its caller see a closed pipe."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        watched = (sys.stderr if stderr else sys.stdout).isatty()
        width = None if watched else PIPE_WIDTH
        super().__init__(stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Let the closed pipe be seen, where rich would end the program."""
        raise BrokenPipeError


def to_json(document: Mapping[str, Any]) -> str:
    """Return one JSON document, with null for what is NaN or infinite."""
    return json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- numbers, words, lines -------------------------------------------------------------------------------


def decimals(step: Any) -> int:
    """Return how many decimals show two digits of a typical step, such as the std of what is shown.

    >>> decimals([0.012, 0.034]), decimals(250.0)
    (3, 0)
    """
    import numpy as np

    sizes = np.abs(np.asarray(step, dtype=np.float64)).ravel()
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return int(np.clip(1 - np.floor(np.log10(np.median(sizes))), 0, 9)) if len(sizes) else 3


def number(value: float, places: int = 2, *, signed: bool = False) -> str:
    """Return a number with so many decimals; a dash for NaN, a power of ten where digits would run on.

    >>> number(0.12345, 3, signed=True), number(float("nan")), number(2.5e9)
    ('+0.123', '–', '2.50e+09')
    """
    if not math.isfinite(value):
        return MISSING
    sign = "+" if signed else ""
    long = abs(value) >= 1e7 or 0 < abs(value) < 1e-6
    return f"{value:{sign}.2e}" if long else f"{value:{sign}.{places}f}"


def span(low: float, high: float, places: int = 2, *, signed: bool = False) -> str:
    """Return an interval.

    >>> span(0.1, 0.25)
    '0.10 to 0.25'
    """
    ends = [number(end, places, signed=signed) for end in (low, high)]
    return MISSING if MISSING in ends else " to ".join(ends)


def share(value: float) -> str:
    """Return a share in percent; a dash for NaN.

    >>> share(0.913)
    '91%'
    """
    return f"{value:.0%}" if math.isfinite(value) else MISSING


def word(verdict: str) -> Text:
    """Return a verdict in its colour; what cannot be told from zero is "unclear"."""
    shown = verdict if verdict in COLOURS else UNCLEAR
    return Text(shown, style=COLOURS[shown])


def direction(up: bool) -> str:
    """Return in words which way is good."""
    return "higher is better" if up else "lower is better"


def title(text: str) -> Text:
    """Return the line above a table."""
    return Text(text, style="bold")


def remark(text: str) -> Text:
    """Return a line that explains."""
    return Text(text, style="dim")


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: Sequence[str] = ()) -> Table:
    """Return a table: numbers to the right; the first column and those in ``left`` to the left."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="")
    for place, name in enumerate(columns):
        is_text = place == 0 or name in left
        # Numbers stay on one line; names and sentences may go on in the next one, and are never cut.
        found.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        found.add_row(*row)
    return found


def both_ends(rows: list[list[str | Text]], top: int | None) -> list[list[str | Text]]:
    """Return all rows, or the first and last of many and a row that says how many are left out."""
    end = MOST_ROWS // 2 if top is None else max(top, 1)
    if (top is None and len(rows) <= MOST_ROWS) or len(rows) <= 2 * end:
        return rows
    more = f"… {len(rows) - 2 * end} more, use --json or --top"
    return [*rows[:end], [Text(more, style="dim"), *[""] * (len(rows[0]) - 1)], *rows[-end:]]


# ---- one page per answer ---------------------------------------------------------------------------------


def model_page(model: Model) -> Page:
    """Return what was chosen and how good it is."""
    return [*(Text(sentence) for sentence in str(model).splitlines()), Text("")]


def trials_page(trials: Sequence[Mapping[str, Any]], n_targets: int) -> Page:
    """Return the surrogates that were tried, means over targets."""
    if not trials:
        return []
    rows = []
    for trial in trials:
        chosen_for = trial["chosen_for"]
        chosen = "" if not chosen_for else "chosen"
        if 0 < chosen_for < n_targets:
            chosen = f"chosen for {chosen_for} of {n_targets} targets"
        scores = [number(trial["lds"]), number(trial["residual_error"]), share(trial["coverage_90"])]
        rows.append([trial["name"], *scores, number(trial["seconds"], 1), Text(chosen, style="green")])
    columns = ["tried", "rank corr.", "residual", "90% hold", "seconds", ""]
    return [
        title("Surrogates tried, on held-out runs"),
        table(columns, rows, left=[""]),
        remark("rank corr.: Spearman correlation of predicted and measured outcomes (LDS)"),
        remark("residual: squared error over the variance; 90% hold: outcomes inside their 90% intervals"),
    ]


def attribution_page(found: Attribution, targets: Sequence[str], top: int | None) -> Page:
    """Return a table of scores per target; of many targets, the mean and how many each task helps."""
    what = f"score: {RULES[found.rule]} ({found.how})"
    unclear = "unclear: the 90% interval holds zero"
    places = [found.target_names.index(name) for name in targets]
    if len(places) > MOST_TARGETS:
        names = list(found.task_names)
        verdicts = found.verdicts()[:, places]
        page = _many_targets("task", names, found.scores[:, places], verdicts, found.maximize, places, top)
        return [title(f"{found.rule.capitalize()} attribution, {len(places)} targets"), *page, remark(what)]
    frame = found.to_frame()
    page = []
    for t in places:
        rows = frame[frame["target"] == found.target_names[t]]
        digits = decimals(found.std[:, t] if math.isfinite(found.std[:, t].sum()) else found.scores[:, t])
        cells = [
            [row.task, number(row.score, digits, signed=True), span(row.low, row.high, digits, signed=True),
             word(row.verdict)]
            for row in rows.itertuples()
        ]  # fmt: skip
        heading = f"{found.rule.capitalize()} attribution of {found.target_names[t]}"
        page += [
            title(f"{heading} ({direction(found.maximize[t])})"),
            table(["task", "score", "90% interval", "verdict"], both_ends(cells, top), left=["verdict"]),
        ]
    return [*page, remark(what), remark(unclear)]
