"""Pages of results: each function turns one result of the library into lines and tables.

For the terminal and for notebooks; :mod:`whence.display.numbers` and :mod:`whence.display.layout` say how numbers
and tables look.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from whence.display.layout import UNCLEAR, Page, Row, both_ends, direction, remark, table, title, word
from whence.display.numbers import MISSING, decimals, number, share, span
from whence.errors import amount, counted

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from whence.answers.attribution import Attribution
    from whence.answers.pareto import Front
    from whence.answers.selection import Selection
    from whence.evaluation import Ceiling, Comparison
    from whence.outcomes import Outcomes
    from whence.surrogates.model import Model

MOST_TARGETS = 5  # with more, tables show the mean over targets
HOW = "--json or --top"  # to see what a table leaves out
NO_PAIRS = "None: this surrogate adds up what each task does alone, and cannot see pairs."
DROWNED = 0.5  # a ceiling below which seeds are said to drown what subsets do
DROWNED_WORDS = (
    "Runs of one subset with other seeds differ more than subsets do: longer trainings, larger evaluations or more "
    "seeds tell more here than more subsets."
)
SCORES = {
    "rank corr.": "Spearman correlation of predicted and measured outcomes (LDS)",
    "residual": "squared error over the variance of the outcome",
    "90% hold": "outcomes that lie in their 90% intervals",
}


def model_page(model: Model) -> Page:
    """Return what was chosen and how good it is."""
    return [Text(sentence) for sentence in str(model).splitlines()]


def trials_page(frame: pd.DataFrame) -> Page:
    """Return a table of what `whence.answers.quality.trials` found."""
    if frame.empty:
        return []
    cells: list[Row] = []
    for row in frame.to_dict("records"):
        weight = share(row["weight"]) if row["weight"] >= 0.005 else ""
        cells.append([row["name"], *scores_of(row), number(row["seconds"], 1), Text(weight, style="green")])
    columns = ["tried", *SCORES, "seconds", "weight"]
    return [title("Held-out runs, in cross-validation"), table(columns, cells), *legend()]


def target_scores_page(frame: pd.DataFrame) -> Page:
    """Return a table of what `whence.answers.quality.target_scores` found, the best predicted target first.

    Empty for a single target.
    """
    if len(frame) < 2:
        return []
    ordered = frame.sort_values("lds", ascending=False, kind="stable", na_position="last").to_dict("records")
    cells: list[Row] = [[row["target"], *scores_of(row), row["surrogate"]] for row in ordered]
    columns = ["target", *SCORES, "surrogate"]
    return [title("Each target"), table(columns, both_ends(cells, how="--json"), left=["surrogate"])]


def scores_of(row: Mapping[Hashable, float]) -> list[str]:
    """Return the cells of the columns of `SCORES`."""
    return [number(row["lds"]), number(row["residual_error"]), share(row["coverage"])]


def legend(columns: Iterable[str] = tuple(SCORES)) -> Page:
    """Return what columns of scores mean."""
    return [remark(f"{name}: {SCORES[name]}") for name in columns]


def attribution_page(found: Attribution, targets: Sequence[str], *, top: int | None, how: str = HOW) -> Page:
    """Return what each task or the strongest pairs do; ``how`` says how to see what a long table leaves out."""
    what, score = "attribution", found.rule.words
    if found.order == 2:
        what, score = "interactions", f"what the two do beyond the sum of each, {found.rule.others}"
    page = effects_page(found, targets, heading=f"{found.rule.heading} {what}", top=top, how=how)
    return [*page, remark(f"score: {score} ({found.how})")]


def effects_page(found: Attribution, targets: Sequence[str], *, heading: str, top: int | None, how: str = HOW) -> Page:
    """Return a table per target of what tasks or pairs do; of many targets, one table of their mean.

    ``how`` says how to see what was left out.
    """
    if len(targets) > MOST_TARGETS:
        return _mean_page(found, targets, heading=heading, top=top, how=how)
    pairs = found.order == 2
    frame = found.to_frame(top=top if pairs else None)
    if frame.empty:
        return [remark("With a single task there are no pairs.")]
    names = frame["task_a"] + " + " + frame["task_b"] if pairs else frame["task"]
    page: Page = []
    unclear = False
    for target in targets:
        rows = frame[frame["target"] == target].assign(name=names)
        places = decimals(rows["std"] if rows["std"].notna().any() else rows["score"])
        shown = (rows[column] for column in ("name", "score", "low", "high", "verdict"))
        cells: list[Row] = [
            [name, number(score, places, signed=True), span(low, high, places, signed=True), word(verdict)]
            for name, score, low, high, verdict in zip(*shown, strict=True)
        ]
        cells = cells if pairs else both_ends(cells, top, how=how)
        up = found.maximize[found.target_names.index(target)]
        columns = ["pair" if pairs else "task", "score", "90% interval", "verdict"]
        page.append(title(f"{heading}: {target} ({direction(up)})"))
        if pairs and not rows["score"].any():
            page.append(remark(NO_PAIRS))
            continue
        unclear |= any(str(cell[-1]) == UNCLEAR for cell in cells)
        page.append(table(columns, cells, left=["verdict"]))
    return [*page, remark("unclear: the 90% interval holds zero")] if unclear else page


def _mean_page(found: Attribution, targets: Sequence[str], *, heading: str, top: int | None, how: str) -> Page:
    """Return the mean over targets, and to how many of them each task or pair does good or harm."""
    import numpy as np

    tasks = found.task_names
    at: NDArray[np.intp] | tuple[NDArray[np.intp], ...] = np.arange(len(tasks))
    names, words = list(tasks), ["task", *found.words]
    if found.order == 2:
        at = np.triu_indices(len(tasks), 1)
        names, words = [f"{tasks[k]} + {tasks[j]}" for k, j in zip(*at, strict=True)], ["pair", "together", "against"]
    places = [found.target_names.index(name) for name in targets]
    up = np.array(found.maximize)[places]
    scores, low, high = (array[at][:, places] for array in (found.scores, *found.interval()))
    good = np.where(up, low > 0, high < 0).sum(1)
    bad = np.where(up, high < 0, low > 0).sum(1)
    if (up == up[0]).all():
        mean, way = scores.mean(1), direction(bool(up[0]))
        gain = mean if up[0] else -mean
    else:  # scores that want opposite directions have no common mean: only the counts speak
        mean, way = np.full(len(names), np.nan), "some to maximise, some to minimise"
        gain = (good - bad).astype(float)
    digits = decimals(mean)

    def row(k: int) -> Row:
        counts = zip((good[k], bad[k], len(places) - good[k] - bad[k]), ("green", "red", "dim"), strict=True)
        return [names[k], number(mean[k], digits, signed=True), *(Text(str(n), style=s) for n, s in counts)]

    if words[0] == "pair":
        cells = [row(k) for k in np.argsort(-np.abs(gain), kind="stable")[:top]]
    else:
        cells = both_ends([row(k) for k in np.argsort(-gain, kind="stable")], top, how=how)
    return [
        title(f"{heading}: mean over {len(targets)} targets ({way})"),
        table([words[0], "mean score", *words[1:], UNCLEAR], cells),
        remark(f"The last three columns count targets; for those of one, use {'--target' if how == HOW else how}."),
    ]


def predictions_page(
    frame: pd.DataFrame, runs: Outcomes, targets: Sequence[str], *, column: str, how: str = "--json"
) -> Page:
    """Return a table per target of what is predicted; of many targets, one table of their mean.

    The frame is that of `whence.predictions`, with or without what was measured.
    """
    if len(targets) > MOST_TARGETS:
        mean = frame[frame["target"].isin(targets)].groupby("name", sort=False)["predicted"].mean()
        places = decimals(mean - mean.mean())
        rows: list[Row] = [[str(name), number(value, places)] for name, value in mean.items()]
        return [
            title(f"Mean prediction over {len(targets)} targets"),
            table([column, "predicted"], both_ends(rows, how=how)),
            remark(f"For those of one target and their intervals, use {'--target' if how == '--json' else how}."),
        ]
    page: Page = []
    for target in targets:
        own = frame[frame["target"] == target]
        places = decimals(own["std"] if own["std"].notna().any() else own["predicted"])
        columns = [column, "predicted", "90% interval"]
        rows = [
            [row["name"], number(row["predicted"], places), span(row["low"], row["high"], places)]
            for row in own.to_dict("records")
        ]
        if "measured" in own and own["measured"].notna().any():
            columns.append("measured")
            rows = [[*row, number(value, places)] for row, value in zip(rows, own["measured"], strict=True)]
        up = runs.maximize[runs.target_names.index(target)]
        cells = both_ends(rows, how=how)
        page += [title(f"Predicted {target} ({direction(up)})"), table(columns, cells)]
    return page


def selection_table(found: Selection, names: Iterable[str], how: str) -> Table:
    """Return what is predicted for a chosen subset and what to expect of it, by these names of the targets."""
    rows: list[Row] = []
    columns = (found.predicted, found.std, found.expected, found.low, found.high)
    for name, mean, std, expected, low, high in zip(names, *columns, strict=True):
        places = decimals(std if math.isfinite(std) else mean)
        rows.append([name, number(mean, places), number(expected, places), span(low, high, places)])
    return table(["outcome", "predicted", "expected", "90% interval"], both_ends(rows, how=how))


def _weight(weight: float, whole: float) -> str:
    """Text of a share of 1, or of an amount of data."""
    if not math.isclose(whole, 1, abs_tol=1e-6):
        return amount(weight)
    return f"{weight:.3f}" if weight >= 0.0005 else "< 0.001"


def selection_page(found: Selection, runs: Outcomes, total: float | None = None) -> Page:
    """Return the chosen subset, what is predicted for it, and what it is compared with; ``total`` is that in tokens."""
    page: Page = [title(f"Use {len(found.tasks)} of {counted(runs.n_tasks, 'task')}")]
    if runs.is_binary:
        page.append(Text(", ".join(found.tasks), style="green"))
    else:
        weights = sorted(zip(found.tasks, found.subset[found.subset > 0], strict=True), key=lambda item: -item[1])
        whole = found.subset.sum()
        cells: list[Row] = [[name, _weight(weight, whole)] for name, weight in weights]
        if total is not None:
            cells = [[*row, amount(weight / whole * total)] for row, (_, weight) in zip(cells, weights, strict=True)]
        page.append(table(["task", "weight"] + ["tokens"] * (total is not None), cells))
    named = [f"{name} ({direction(up)})" for name, up in zip(found.target_names, runs.maximize, strict=True)]
    places = decimals(found.std)
    places = max(places, min(decimals(found.value - found.best_run), places + 2))  # which of the two is better
    page += [Text(""), selection_table(found, named, "--json")]
    known = "corrected by how predictions like it turned out on held-out runs"
    if (found.expected == found.predicted).all():
        known = "as it is, because too few runs were held out to correct it"
    page.append(remark(f"expected: the prediction, {known}"))
    if found.objective != f"predicted {runs.target_names[0]}":
        page.append(Text(f"{found.objective}: {number(found.value, places)}"))
    if math.isfinite(found.best_run):
        page.append(Text(f"best measured run within the constraints: {number(found.best_run, places)}"))
    return [*page, remark(f"how: {found.how}")]


def front_page(found: Front) -> Page:
    """Return the best trade-offs between targets."""
    from whence.outcomes.subset import in_words

    names = [found.target_names.index(name) for name in found.targets]
    places = [decimals(found.predicted[:, t] - found.predicted[:, t].mean()) for t in names]
    binary = bool(((found.subsets == 0) | (found.subsets == 1)).all())
    rows: list[Row] = [
        [
            in_words(subset, found.task_names, binary=binary),
            *(number(predicted[t], n) for t, n in zip(names, places, strict=True)),
        ]
        for subset, predicted in zip(found.subsets, found.predicted, strict=True)
    ]
    columns = [f"{name} ({direction(found.maximize[t])})" for name, t in zip(found.targets, names, strict=True)]
    return [
        title(f"Best trade-offs between {' and '.join(found.targets)}"),
        table(["use", *columns], both_ends(rows, how="--json")),
        remark(f"how: {found.how}; nothing found improves one without worsening another"),
    ]


def ceiling_in_words(ceiling: Ceiling) -> str:
    """Return how well runs can be predicted at all, and what to do where seeds differ more than subsets."""
    what = "Noise ceiling of the rank correlation"
    if ceiling.reason:
        return f"{what}: unknown. {ceiling.reason}"
    text = f"{what}: {number(ceiling.mean)} (95% interval {span(ceiling.mean_low, ceiling.mean_high)})."
    return text if ceiling.mean >= DROWNED else f"{text} {DROWNED_WORDS}"


def comparison_table(found: Comparison) -> Table:
    """Return the scores of every method, and how far the first is ahead of each."""
    first, *_ = found.methods
    cells: list[Row] = []
    for method, row in found.to_frame().iterrows():
        mean, low, high = found.difference(first, str(method))
        verdict = "better" if low > 0 else "worse" if high < 0 else UNCLEAR
        gap = f"{number(mean, signed=True)} ({span(low, high, signed=True)})" if math.isfinite(mean) else MISSING
        cells.append([str(method), *scores_of(row.to_dict()), *(["", ""] if method == first else [gap, word(verdict)])])
    columns = ["method", *SCORES, f"{first} minus it", f"{first} is"]
    return table(columns, cells, left=columns[-1:])


def comparison_page(found: Comparison, ceiling: Ceiling, n_targets: int) -> Page:
    """Return the scores of every method, and how well runs can be predicted at all."""
    over = f" and {n_targets} targets" if n_targets > 1 else ""
    page: Page = [
        title(f"Held-out runs, mean over {found.lds.shape[1]} random splits{over}"),
        comparison_table(found),
        Text(ceiling_in_words(ceiling)),
        Text(f"Each split learns from {found.n_train} subsets and is judged by {found.n_test} others."),
    ]
    if found.n_undefined.any():
        page.append(Text(f"Up to {found.n_undefined.max()} of {n_targets} targets do not vary among held-out runs."))
    for method, split, message in found.failures:
        page.append(Text(f"{method} failed on split {split + 1}: {message}", style="red"))
    return [
        *page,
        *legend(),
        remark(f"{found.methods[0]} minus it: in rank correlation, with its 95% interval over splits"),
    ]
