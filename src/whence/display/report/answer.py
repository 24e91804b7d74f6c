"""The answer first: in two sentences what the tasks of a target do, which subset to use, and how sure that is.

Sentences are lists of *phrases*, a text with the role it plays, so that the page can colour a name without looking for
it in the text. The words for good and bad are those of attribution, the numbers those of the command line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import whence
from whence.answers.attribution import HELPS, HURTS, Attribution
from whence.answers.selection import Selection
from whence.display.layout import direction
from whence.display.numbers import decimals, number, span
from whence.errors import InputError, counted, some_of
from whence.surrogates.choose import TRUST, Model, trust
from whence.surrogates.kernels import Array
from whence.surrogates.posterior import HALF_WIDTH, LEVEL

Phrase = tuple[str, str]  # text and role: "good", "bad", "key" or ""
# Searching for the best subset takes seconds with so many tasks or targets, and minutes with more.
SEARCHED_TASKS, SEARCHED_TARGETS = 60, 8
NAMED = 5  # tasks of a kind spelled out in a sentence


class Recommendation(NamedTuple):
    """The subset to use for one target, and why."""

    selection: Selection
    sizes: str  # what was searched, in words


def recommended(model: Model, target: int, scores: Attribution, *, seed: int = 0) -> Recommendation:
    """Return the subset of best prediction among those like the measured ones.

    Other sizes, leaving out a task that was in every run, or using one that was in none would be extrapolation. With
    very many tasks or targets, the tasks of best inclusion score stand in for a search, as many of them as make the
    best prediction when tasks are added by their ``scores``.
    """
    runs, name = model.outcomes, model.target_names[target]
    exclude = [task for task, column in zip(runs.task_names, runs.subsets.T, strict=True) if not column.any()]
    if not runs.is_binary:
        found = whence.select(model, target=name, exclude=exclude, seed=seed)
        return Recommendation(found, "mixtures like the measured ones")
    include = [task for task, column in zip(runs.task_names, runs.subsets.T, strict=True) if column.all()]
    sizes = runs.subsets.sum(1)
    low, high = max(1, int(sizes.min())), max(1, int(sizes.max()))
    words = f"subsets of {low} tasks" if low == high else f"subsets of {low} to {high} tasks"
    select = partial(whence.select, model, target=name, include=include, exclude=exclude, seed=seed)
    if runs.n_tasks > SEARCHED_TASKS or target >= SEARCHED_TARGETS:
        size = _best_size(model, target, scores, np.unique(np.linspace(low, high, 12).round().astype(int)))
        return Recommendation(select(size=size, by="attribution"), words)
    found = select(max_size=high)
    return Recommendation(found if len(found.tasks) >= low else select(size=low), words)


def _best_size(model: Model, target: int, scores: Attribution, sizes: Array) -> int:
    sign = 1 if model.maximize[target] else -1
    places = np.argsort(np.argsort(-sign * scores.scores[:, target], kind="stable"))
    predicted = model.predict((places < sizes[:, None]).astype(np.float64))[:, target]
    return int(sizes[np.argmax(sign * predicted)])


def answer(model: Model, target: int, scores: Attribution, found: Recommendation) -> dict[str, Any]:
    """Return the sentences and the key figures for one target."""
    values, selection = model.outcomes.values[:, target], found.selection
    mean, std = float(selection.predicted[target]), float(selection.std[target])
    places = decimals(std if math.isfinite(std) else values)
    correlation = _correlation(model, target)
    return {
        "tasks": _tasks(scores, target),
        "subset": _subset(model, selection, target, places),
        "trust": trust(correlation, model.n_subsets),
        "weak": not correlation >= TRUST[-2][0],  # the doubt comes before the answer
        "correlation": correlation,
        "places": places,
        "predicted": {"mean": mean, "low": mean - HALF_WIDTH * std, "high": mean + HALF_WIDTH * std},
        "best_run": selection.best_run,
        "runs": int(np.isfinite(values).sum()),
        "selected": selection.subset,
        "how": f"{selection.how}, among {found.sizes}",
        "everything": _everything(model, target),
    }


def _correlation(model: Model, target: int) -> float:
    """Rank correlation of one target on held-out runs; NaN without any."""
    part = next(part for part in model.parts if target in part.targets)
    return math.nan if part.chosen is None else float(part.chosen.lds[part.targets == target][0])


def _tasks(scores: Attribution, target: int) -> list[Phrase]:
    """Who helps, who hurts, and how many are unclear."""
    words = scores.verdicts()[:, target]
    goodness = scores.scores[:, target] * (1 if scores.maximize[target] else -1)
    order = np.argsort(-goodness, kind="stable")
    good = [scores.task_names[k] for k in order if words[k] == HELPS]
    bad = [scores.task_names[k] for k in order[::-1] if words[k] == HURTS]
    unclear = len(words) - len(good) - len(bad)
    phrases: list[Phrase] = [(f"For {scores.target_names[target]} ({direction(scores.maximize[target])}), ", "")]
    if not good and not bad:
        return [*phrases, ("no task", "key"), (" can be told to help or hurt from these runs.", "")]
    if good:
        phrases += [*_listed(good, "good"), (f" help{_s(good)}", "")]
    if bad:
        phrases += [("; ", "")] if good else []
        phrases += [*_listed(bad, "bad"), (f" hurt{_s(bad)}", "")]
    if unclear:
        phrases.append((f"; the other {'is' if unclear == 1 else f'{unclear} are'} unclear", ""))
    return [*phrases, (".", "")]


def _s(names: Sequence[str]) -> str:
    return "s" if len(names) == 1 else ""


def _listed(names: Sequence[str], role: str) -> list[Phrase]:
    """Names with commas and a final "and"; the first few of many."""
    shown = list(names) if len(names) <= NAMED + 1 else list(names[:NAMED])
    more = len(names) - len(shown)
    parts: list[Phrase] = [(name, role) for name in shown]
    if more:
        parts.append((f"{more} more", role))
    phrases: list[Phrase] = []
    for place, part in enumerate(parts):
        joint = "" if place == 0 else " and " if place == len(parts) - 1 else ", "
        phrases += [(joint, ""), part] if joint else [part]
    return phrases


def _subset(model: Model, found: Selection, target: int, places: int) -> list[Phrase]:
    """Which subset to use, what it is predicted to give, and how that compares with the best run."""
    runs, name = model.outcomes, model.target_names[target]
    mean, std = float(found.predicted[target]), float(found.std[target])
    phrases: list[Phrase] = [("Use ", ""), (_named(model, found), "key")]
    if runs.is_binary and 0 < len(found.tasks) < runs.n_tasks:
        phrases.append((f" ({len(found.tasks)} of {counted(runs.n_tasks, 'task')})", ""))
    interval = ""
    if math.isfinite(std):
        ends = span(mean - HALF_WIDTH * std, mean + HALF_WIDTH * std, places)
        interval = f" ({LEVEL:.0%} interval {ends})"
    phrases += [(f": predicted {name} ", ""), (number(mean, places), "key"), (interval, "")]
    if not math.isfinite(found.best_run):
        return [*phrases, (".", "")]
    # Of the numbers as they are shown, so that the sentence adds up.
    gain = (round(mean, places) - round(found.best_run, places)) * (1 if model.maximize[target] else -1)
    n_runs = int(np.isfinite(runs.values[:, target]).sum())
    measured = f"the best of {counted(n_runs, 'run')} ({number(found.best_run, places)})"
    if abs(gain) <= (HALF_WIDTH * std if math.isfinite(std) else 0.0):
        compared = f", about as good as {measured}."
    elif gain > 0:
        compared = f", better by {number(gain, places)} than {measured}."
    else:
        compared = f", worse than {measured}, which owes something to luck."
    return [*phrases, (compared, ""), (_beyond(model, found), "")]


def _beyond(model: Model, found: Selection) -> str:
    """A warning where a mixture goes beyond the runs; empty where it does not."""
    most = model.outcomes.subsets.max(0)
    names = [name for name, over in zip(model.task_names, found.subset > 1.02 * most, strict=True) if over]
    return f" No run had as much {_with_and(names, 4)}: measure it before you rely on it." if names else ""


def _named(model: Model, found: Selection) -> str:
    runs = model.outcomes
    if not runs.is_binary:
        weights = sorted(zip(found.tasks, found.subset[found.subset > 0], strict=True), key=lambda item: -item[1])
        return _with_and([f"{name} {weight:.2g}" for name, weight in weights if weight >= 0.005], 6)
    outside = [name for name in runs.task_names if name not in set(found.tasks)]
    if not outside:
        return "all tasks"
    if len(outside) * 3 <= len(found.tasks):
        return f"all but {_with_and(outside, 8)}"
    return _with_and(found.tasks, 8) if found.tasks else "no task"


def _with_and(names: Iterable[str], limit: int) -> str:
    listed = list(names)
    if len(listed) > limit or len(listed) < 2:
        return some_of(listed, limit)
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def _everything(model: Model, target: int) -> dict[str, float] | None:
    """What using all tasks gives: measured where it was, else predicted; None for mixtures."""
    if not model.outcomes.is_binary:
        return None
    full = np.ones((1, model.outcomes.n_tasks))
    same = (model.outcomes.subsets == 1).all(1)
    measured = model.outcomes.values[same, target]
    measured = measured[~np.isnan(measured)]
    try:
        predicted = float(model.predict(full)[0, target])
    except InputError:
        predicted = math.nan
    return {"predicted": predicted, "measured": float(measured.mean()) if len(measured) else math.nan}
