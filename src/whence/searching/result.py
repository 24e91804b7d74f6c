"""The answer of a search, for the terminal, for notebooks and as a table."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from whence.answers.attribution import Attribution, attribute
from whence.answers.interactions import interactions
from whence.answers.optimism import expected_of_chosen
from whence.display.layout import Page, Row, table, title
from whence.display.notebook import HOW, page_html
from whence.display.numbers import decimals, number, span
from whence.display.pages import attribution_page
from whence.errors import DataWarning, counted
from whence.outcomes import Outcomes
from whence.outcomes.ledger import DONE, FAILED, Ledger
from whence.outcomes.table import distinct_rows
from whence.searching.belief import FEWEST
from whence.searching.pruning import Pruned, curves_in
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model
from whence.surrogates.trust import trust_in_estimates

if TYPE_CHECKING:
    import pandas as pd

    from whence.searching.ask import Search
    from whence.searching.standing import Standing

TOP = 5


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes
    ----------
    goal : str
    runs : Outcomes
        All runs, in the order in which they were chosen; NaN if one failed or is not finished.
    why : tuple of str
        Why each was made.
    model : Model or None
        Fitted to the runs (and estimates, if any); use it for any other question. None with fewer than three runs.
    subset : (K,) or None
        The best subset or mixture (goal "best").
    tasks : tuple of str
        Names of the tasks in it.
    expected, low, high : (T,)
        Expected outcome of a new run of it, and the ends of its 90% interval.
    sure : float
        Goal "best": probability that the subset is within ``within`` of the best allowed one. Goal "effects": share of
        effects that are settled. Goal "prediction": one less the error of predictions, as a share of the spread.
    within : float
    settled : bool
        Whether the search ended because the answer is settled.
    attribution, pairs : Attribution or None
        Goal "effects": what tasks do, and pairs.
    notes : tuple of str
        How far the search got, what failed, and what more runs would add.
    """

    goal: str
    runs: Outcomes
    why: tuple[str, ...]
    goodness: Array
    model: Model | None
    subset: Array | None
    tasks: tuple[str, ...]
    expected: Array
    low: Array
    high: Array
    sure: float
    within: float
    settled: bool
    attribution: Attribution | None
    pairs: Attribution | None
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per run: a column per task and target, and why it was made."""
        import pandas as pd

        frame = pd.DataFrame(self.runs.subsets, columns=list(self.runs.task_names))
        if self.runs.is_binary:
            frame = frame.astype(int)
        for t, name in enumerate(self.runs.target_names):
            frame[name] = self.runs.values[:, t]
        return frame.assign(why=list(self.why))

    def page(self) -> Page:
        """Return the answer as lines and tables."""
        page: Page = []
        runs = self.runs
        if self.subset is not None:
            page += [title("Use"), *self._subset()]
            rows: list[Row] = []
            for name, expected, low, high in zip(runs.target_names, self.expected, self.low, self.high, strict=True):
                places = decimals((high - low) / 4)
                rows.append([name, number(expected, places), span(low, high, places)])
            page += [table(["outcome", "expected", "90% of runs"], rows)]
            page += self._best_runs()
        if self.attribution is not None:
            page += attribution_page(self.attribution, runs.target_names, top=None, how=HOW)
        if self.pairs is not None:
            page += attribution_page(self.pairs, runs.target_names, top=TOP, how=HOW)
        if self.goal == "prediction" and self.model is not None:
            page += [Text(line) for line in str(self.model).splitlines()]
        return [*page, *(Text(note) for note in self.notes)]

    def _subset(self) -> Page:
        """Return the tasks to use, or all weights of a mixture."""
        assert self.subset is not None
        if self.runs.is_binary:
            return [Text(self.runs.describe(self.subset), style="green")]
        order = [k for k in np.argsort(-self.subset, kind="stable") if self.subset[k] > 0]
        return [table(["source", "weight"], [[self.runs.task_names[k], f"{self.subset[k]:.3f}"] for k in order])]

    def _best_runs(self) -> Page:
        """Return the best subsets that were run, by their mean, with how often each was."""
        made = np.isfinite(self.goodness)
        rows, values = self.runs.subsets[made], self.runs.values[made]
        first, group = distinct_rows(rows)
        counts = np.bincount(group)
        means = np.stack([np.bincount(group, column) / counts for column in values.T], axis=1)
        order = np.argsort(-np.bincount(group, self.goodness[made]) / counts, kind="stable")[:TOP]
        places = decimals(np.nanstd(self.runs.values, axis=0))
        found: list[Row] = [
            [self.runs.describe(rows[first[at]]), str(counts[at]), *(number(value, places + 1) for value in means[at])]
            for at in order
        ]
        return [title("Best measured"), table(["tasks", "runs", *self.runs.target_names], found)]

    def __str__(self) -> str:
        from whence.display.layout import Terminal

        terminal = Terminal(quiet=False)
        with terminal.capture() as caught:
            terminal.show(self.page())
        return caught.get().strip("\n")

    def _repr_html_(self) -> str:
        return page_html(self.page())


def result_of(asking: Search, ledger: Ledger) -> SearchResult:
    """Return the answer from the finished runs."""
    runs = ledger.outcomes("whence.search")
    standing = asking.standing(ledger)
    goodness = np.full(len(runs), np.nan)
    best, attribution, pairs = standing.best, None, None
    n_targets = runs.n_targets
    expected, low, high = np.full((3, n_targets), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the search chose this design on purpose
        model = model_of(asking, ledger)
        if ledger.targets:
            values = asking.goodness(ledger)
            goodness = values.mean(1)
        if model is not None and best is not None:
            expected, low, high = expected_of_chosen(model, best.row)
        if model is not None and asking.goal == "effects":
            attribution = attribute(model, seed=asking.seed)
            pairs = interactions(model, seed=asking.seed) if runs.is_binary else None
    return SearchResult(
        goal=asking.goal,
        runs=runs,
        why=tuple(each.why for each in asking.asked),
        goodness=goodness,
        model=model,
        subset=None if best is None else best.row,
        tasks=() if best is None else tuple(runs.names_of(best.row)),
        expected=expected,
        low=low,
        high=high,
        sure=standing.settled,
        within=best.within if best else np.nan,
        settled=standing.stop,
        attribution=attribution,
        pairs=pairs,
        notes=tuple(_notes(asking, ledger, standing)),
    )


def _notes(asking: Search, ledger: Ledger, standing: Standing) -> list[str]:
    """Return sentences on how far the search got."""
    made = int(((ledger.status == DONE) | (ledger.status == FAILED)).sum())
    left = asking.budget - len(asking.asked)
    notes = [f"{counted(made, 'run')} of {asking.budget} made: {standing.words}."]
    if standing.stop:
        notes.append(f"Settled: {counted(left, 'run')} of the budget not needed." if left else "Settled.")
    elif left <= 0 and not ledger.open and asking.stop:
        notes.append(f"Not settled: {standing.more or 'a larger budget continues from here'}.")
    elif left > 0 and not ledger.open:
        notes.append("No other allowed run would tell more.")
    if failures := asking.belief(ledger, alone=True).known.failures_in_words(asking.task_names):
        said = Counter(reason for reason in ledger.reasons.values() if not reason.startswith(Pruned.__name__))
        notes.append(f"{failures} Most often: {said.most_common(1)[0][0].rstrip('.')}.")
    if asking.curves is not None and (n_stopped := int(asking.stopped(ledger).sum())):
        curves = curves_in(asking.curves)
        longest = max(len(curve) for curve in curves.values())
        saved = sum(1 - len(curve) / longest for curve in curves.values())
        notes.append(f"{counted(n_stopped, 'run')} stopped early, which saved about {saved:.1f} runs.")
    if asking.rung_words:
        notes.append(asking.rung_words)
    if asking.estimates is not None and ledger.done >= FEWEST:
        notes.append(trust_in_estimates(asking.model(ledger)))
    return notes


def model_of(asking: Search, ledger: Ledger) -> Model | None:
    """Return the model fitted to the finished runs; None where these are too few, or of one subset only."""
    rows = ledger.plan.subsets[ledger.status[0] == DONE]
    return asking.model(ledger) if len(rows) >= FEWEST and len(np.unique(rows, axis=0)) > 1 else None
