"""Pages of the command line: each function turns one result of the library into lines and tables.

Between the answers and the terminal: :mod:`whence.cli` asks the library and hands what came back to one of
these; :mod:`whence.cli.console` says how numbers and words look.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from whence.cli.console import (
    MISSING,
    UNCLEAR,
    Page,
    Row,
    both_ends,
    decimals,
    direction,
    number,
    remark,
    share,
    span,
    table,
    title,
    word,
)
from whence.errors import counted, some_of

if TYPE_CHECKING:
    import pandas as pd

    from whence.answers.attribution import Attribution
    from whence.answers.selection import Selection
    from whence.evaluation import Ceiling, Comparison
    from whence.outcomes import Outcomes
    from whence.surrogates.choose import Model
    from whence.surrogates.kernels import Array

MOST_TARGETS = 5  # with more, tables show the mean over targets
HOW = "--json or --top"  # to see what a table leaves out
NO_PAIRS = "None: the surrogate that predicts these runs best adds up what each task does alone."
SCORES = {
    "rank corr.": "Spearman correlation of predicted and measured outcomes (LDS)",
    "residual": "squared error over the variance of the outcome",
    "90% hold": "outcomes that lie in their 90% intervals",
}


def model_page(model: Model) -> Page:
    """Return what was chosen and how good it is."""
    return [Text(sentence) for sentence in str(model).splitlines()]


def trials(model: Model) -> list[dict[str, Any]]:
    """Return the surrogates that were tried: mean scores over targets, and for how many of them it was chosen."""
    import numpy as np

    found = []
    for name in dict.fromkeys(trial.name for part in model.parts for trial in part.trials):
        own = [trial for part in model.parts for trial in part.trials if trial.name == name]
        row: dict[str, Any] = {"name": name}
        for score in ("lds", "residual_error", "coverage"):
            values = np.concatenate([getattr(trial, score) for trial in own])
            values = values[np.isfinite(values)]
            row[score] = float(values.mean()) if len(values) else math.nan
        row["seconds"] = sum(trial.seconds for trial in own)
        row["chosen_for"] = sum(len(part.targets) for part in model.parts if part.name == name)
        found.append(row)
    return found


def trials_page(rows: Sequence[Mapping[str, Any]], n_targets: int) -> Page:
    """Return what came of `trials`."""
    if not rows:
        return []
    cells: list[Row] = []
    for row in rows:
        chosen = "chosen" if row["chosen_for"] else ""
        if 0 < row["chosen_for"] < n_targets:
            chosen = f"chosen for {row['chosen_for']} of {n_targets}"
        cells.append([row["name"], *_scores(row), number(row["seconds"], 1), Text(chosen, style="green")])
    columns = ["tried", *SCORES, "seconds", ""]
    return [title("Held-out runs, in cross-validation"), table(columns, cells, left=[""]), *legend()]


def target_scores(model: Model) -> list[dict[str, Any]]:
    """Return how well each target is predicted in cross-validation, by the surrogate chosen for it."""
    found = {}
    for part in model.parts:
        for place, t in enumerate(part.targets):
            row: dict[str, Any] = {"target": model.target_names[t], "surrogate": part.name}
            for score in ("lds", "residual_error", "coverage"):
                row[score] = float(getattr(part.chosen, score)[place]) if part.chosen else math.nan
            found[t] = row
    return [found[t] for t in sorted(found)]


def target_scores_page(rows: Sequence[Mapping[str, Any]]) -> Page:
    """Return what came of `target_scores`, where there is more than one target, the best predicted first."""
    if len(rows) < 2:
        return []
    ordered = sorted(rows, key=lambda row: -row["lds"] if math.isfinite(row["lds"]) else math.inf)
    cells: list[Row] = [[row["target"], *_scores(row), row["surrogate"]] for row in ordered]
    columns = ["target", *SCORES, "surrogate"]
    return [title("Each target"), table(columns, both_ends(cells, how="--json"), left=["surrogate"])]


def _scores(row: Mapping[Any, Any]) -> list[str]:
    return [number(row["lds"]), number(row["residual_error"]), share(row["coverage"])]


def legend(columns: Iterable[str] = tuple(SCORES)) -> Page:
    """Return what columns of scores mean."""
    return [remark(f"{name}: {SCORES[name]}") for name in columns]


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
    at: Any = np.arange(len(tasks))
    names, words = list(tasks), ["task", "helps", "hurts"]
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


def predictions(model: Model, subsets: Array, mean: Array, std: Array) -> pd.DataFrame:
    """Return what is predicted for each subset and target, a row each, and what was measured where it was."""
    import pandas as pd
    from scipy.special import ndtri

    runs = model.outcomes
    width = ndtri(0.95) * std
    seen, means, _ = runs.distinct()
    measured = {row.tobytes(): values for row, values in zip(seen, means, strict=True)}
    rows = []
    for at, subset in enumerate(subsets):
        inside = {name: weight for name, weight in zip(runs.task_names, subset, strict=True) if weight}
        known = measured.get(subset.tobytes())
        for t, target in enumerate(runs.target_names):
            row = {
                "name": subset_name(runs, subset),
                "subset": list(inside) if runs.is_binary else inside,
                "target": target,
                "predicted": mean[at, t],
                "std": std[at, t],
                "low": mean[at, t] - width[at, t],
                "high": mean[at, t] + width[at, t],
                "measured": math.nan if known is None else known[t],
            }
            rows.append(row)
    return pd.DataFrame(rows)


def predictions_page(frame: pd.DataFrame, runs: Outcomes, targets: Sequence[str], *, column: str) -> Page:
    """Return a table per target of what is predicted; of many targets, one table of their mean.

    The frame is that of `predictions`, with or without what was measured.
    """
    if len(targets) > MOST_TARGETS:
        mean = frame[frame["target"].isin(targets)].groupby("name", sort=False)["predicted"].mean()
        places = decimals(mean - mean.mean())
        rows: list[Row] = [[str(name), number(value, places)] for name, value in mean.items()]
        return [
            title(f"Mean prediction over {len(targets)} targets"),
            table([column, "predicted"], both_ends(rows, how="--json")),
            remark("Name a target with --target to see its predictions and intervals."),
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
        cells = both_ends(rows, how="--json")
        page += [title(f"Predicted {target} ({direction(up)})"), table(columns, cells)]
    return page


def subset_name(runs: Outcomes, subset: Array) -> str:
    """Return a subset in words: its tasks, those it lacks if these are few, or the main weights of a mixture."""
    inside = runs.names_of(subset)
    if not runs.is_binary:
        weights = sorted(zip(inside, subset[subset > 0], strict=True), key=lambda item: -item[1])
        return some_of((f"{name} {weight:.3g}" for name, weight in weights), 4)
    outside = [name for name in runs.task_names if name not in inside]
    if not outside:
        return "all tasks"
    short = len(outside) * 3 <= len(inside)
    return f"all but {', '.join(outside)}" if short else ", ".join(inside) or "(no task)"


def selection_page(found: Selection, frame: pd.DataFrame, runs: Outcomes) -> Page:
    """Return the chosen subset, what is predicted for it, and what it is compared with."""
    page: Page = [title(f"Use {len(found.tasks)} of {counted(runs.n_tasks, 'task')}")]
    if runs.is_binary:
        page.append(Text(", ".join(found.tasks), style="green"))
    else:
        weights = sorted(zip(found.tasks, found.subset[found.subset > 0], strict=True), key=lambda item: -item[1])
        cells: list[Row] = [[name, f"{weight:.3f}" if weight >= 0.0005 else "< 0.001"] for name, weight in weights]
        page.append(table(["task", "weight"], cells))
    rows: list[Row] = []
    columns = (frame[name] for name in ("target", "predicted", "std", "expected", "low", "high"))
    for up, target, mean, std, expected, low, high in zip(runs.maximize, *columns, strict=True):
        places = decimals(std if math.isfinite(std) else mean)
        ends = span(low, high, places)
        rows.append([f"{target} ({direction(up)})", number(mean, places), number(expected, places), ends])
    places = decimals(frame["std"])
    places = max(places, min(decimals(found.value - found.best_run), places + 2))  # which of the two is better
    page += [Text(""), table(["outcome", "predicted", "expected", "90% interval"], both_ends(rows, how="--json"))]
    page.append(remark("expected: predictions as high as this one, corrected by how they turned out on held-out runs"))
    if found.objective != f"predicted {runs.target_names[0]}":
        page.append(Text(f"{found.objective}: {number(found.value, places)}"))
    if math.isfinite(found.best_run):
        page.append(Text(f"best measured run within the constraints: {number(found.best_run, places)}"))
    return [*page, remark(f"how: {found.how}")]


def comparison_document(found: Comparison, ceiling: Ceiling) -> dict[str, Any]:
    """Return scores, paired differences of the first method from the others, and the noise ceiling."""
    first, *others = found.methods
    scores = found.to_frame().reset_index().to_dict("records")
    gaps = {
        metric: {other: dict(zip(("mean", "low", "high"), found.difference(first, other, metric=metric), strict=True))
                 for other in others}
        for metric in ("lds", "residual_error")
    }  # fmt: skip
    return {
        "scores": scores,
        "differences": {"of": first, "level": 0.95, **gaps},
        "noise_ceiling": {
            "mean": ceiling.mean,
            "low": ceiling.mean_low,
            "high": ceiling.mean_high,
            "reason": ceiling.reason,
        },
        "splits": found.lds.shape[1],
        "subsets_to_learn_from": found.n_train,
        "subsets_to_judge_by": found.n_test,
        "targets_undefined_per_split": found.n_undefined,
    }


def comparison_page(found: Comparison, ceiling: Ceiling, n_targets: int) -> Page:
    """Return what came of `comparison_document` as a table."""
    first, *_ = found.methods
    cells: list[Row] = []
    for method, row in found.to_frame().iterrows():
        mean, low, high = found.difference(first, str(method))
        verdict = "better" if low > 0 else "worse" if high < 0 else UNCLEAR
        gap = f"{number(mean, signed=True)} ({span(low, high, signed=True)})" if math.isfinite(mean) else MISSING
        cells.append([str(method), *_scores(row.to_dict()), *(["", ""] if method == first else [gap, word(verdict)])])
    columns = ["method", *SCORES, f"{first} minus it", f"{first} is"]
    over = f" and {n_targets} targets" if n_targets > 1 else ""
    known = f"{number(ceiling.mean)} (95% interval {span(ceiling.mean_low, ceiling.mean_high)})."
    page: Page = [
        title(f"Held-out runs, mean over {found.lds.shape[1]} random splits{over}"),
        table(columns, cells, left=columns[-1:]),
        Text(f"Noise ceiling of the rank correlation: {f'unknown. {ceiling.reason}' if ceiling.reason else known}"),
        Text(f"Each split learns from {found.n_train} subsets and is judged by {found.n_test} others."),
    ]
    if found.n_undefined.any():
        page.append(Text(f"Up to {found.n_undefined.max()} of {n_targets} targets do not vary among held-out runs."))
    for method, split, message in found.failures:
        page.append(Text(f"{method} failed on split {split + 1}: {message}", style="red"))
    return [*page, *legend(), remark(f"{first} minus it: in rank correlation, with its 95% interval over splits")]
