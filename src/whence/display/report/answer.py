"""Sentences of the page, all made from the same `Facts` of a target, so no two of them can disagree.

Each fact is what the library returns for the same question (`whence.select`, `Model.predict`, `Trial.lds`, the noise
ceiling, the learning curve); nothing is computed in another way here.

Sentences about tasks and subsets are lists of *phrases*, a text with the role it plays, so that the page can colour a
name without looking for it in the text. The words for good and bad are the same as for attribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from whence.answers.attribution import Attribution
from whence.answers.rules import HELPS, HURTS
from whence.answers.selection import Selection
from whence.answers.suggestion import ALL_MEASURED
from whence.display.layout import direction
from whence.display.numbers import decimals, number, span
from whence.display.report.packing import Document
from whence.errors import InputError, counted
from whence.evaluation import LearningCurve
from whence.evaluation.ceiling import Ceiling
from whence.evaluation.curve import NEGLIGIBLE
from whence.outcomes import Outcomes
from whence.outcomes.subset import in_words
from whence.surrogates.model import Model
from whence.surrogates.posterior import LEVEL
from whence.surrogates.trust import TRUST, UNCHECKED, trust


@dataclass(frozen=True)
class Facts:
    """One target, the subset to use for it, and how well predictions hold."""

    target: str
    up: bool  # higher is better
    selection: Selection
    predicted: float  # of the selected subset, as of any other
    expected: float  # of it, as the best of many
    low: float
    high: float  # of the 90% interval of the expected outcome; NaN without one
    best_run: float
    everything: float  # what all tasks give: measured where it was, else predicted; NaN for mixtures
    everything_measured: bool
    n_runs: int
    n_subsets: int
    places: int  # decimals that outcomes are shown with
    correlation: float  # of ranks on held-out runs; NaN without any
    error: float  # of values there, a share of their variance; NaN without any
    ceiling: float  # the best correlation that noise leaves room for; NaN if unknown
    complete: bool  # no subset like the measured ones is left to measure
    curve: LearningCurve | None  # over all targets


def facts_of(
    model: Model, target: int, found: Selection, *, ceiling: Ceiling, curve: LearningCurve | None = None
) -> Facts:
    """Return what is known of one target (its column), and of the subset that was selected for it."""
    values = model.outcomes.values[:, target]
    std = float(found.std[target])
    everything, measured = _everything(model, target)
    return Facts(
        target=model.target_names[target],
        up=model.maximize[target],
        selection=found,
        **{name: float(getattr(found, name)[target]) for name in ("predicted", "expected", "low", "high")},
        best_run=found.best_run,
        everything=everything,
        everything_measured=measured,
        n_runs=int(np.isfinite(values).sum()),
        n_subsets=len(np.unique(model.outcomes.subsets[np.isfinite(values)], axis=0)),
        places=decimals(std if math.isfinite(std) and std > 0 else values),
        correlation=_on_held_out(model, target, "lds"),
        error=_on_held_out(model, target, "residual_error"),
        ceiling=float(ceiling.per_target[target]),
        complete=_complete(model, target),
        curve=curve,
    )


def _on_held_out(model: Model, target: int, score: str) -> float:
    part = next(part for part in model.parts if target in part.targets)
    return math.nan if part.chosen is None else float(getattr(part.chosen, score)[part.targets == target][0])


def _everything(model: Model, target: int) -> tuple[float, bool]:
    runs = model.outcomes
    if not runs.is_binary:
        return math.nan, False
    measured = runs.values[(runs.subsets == 1).all(1), target]
    measured = measured[~np.isnan(measured)]
    if len(measured):
        return float(measured.mean()), True
    try:
        return float(model.predict_quietly(np.ones((1, runs.n_tasks)))[0, target]), False
    except InputError:
        return math.nan, False


def _complete(model: Model, target: int) -> bool:
    runs = model.outcomes
    if not runs.is_binary:
        return False
    measured = np.unique(runs.subsets[np.isfinite(runs.values[:, target])], axis=0)
    sizes = np.unique(measured.sum(1).astype(int))
    return len(measured) == sum(comb(runs.n_tasks, int(size)) for size in sizes)


CURVE_RUNS = 10_000  # beyond which a learning curve would take an hour

Phrase = tuple[str, str]  # text and role: "good", "bad", "key" or ""
NAMED = 5  # tasks of a kind spelled out in a sentence
IN_A_WORD = ("good", "fair", "weak", "too weak")  # one for each level of TRUST


def answer(facts: Facts, runs: Outcomes, scores: Attribution) -> Document:
    """Return the sentences and the key figures for one target."""
    return {
        "tasks": tasks_in_words(scores, scores.target_names.index(facts.target)),
        "subset": subset_in_words(facts, runs),
        "use": _in_short(facts, runs, scores),
        "trust": trust_in_words(facts),
        "level": level_of(facts),
        "weak": level_of(facts) in ("too weak", "unchecked"),  # then the doubt comes before the answer
        "more": more_runs_in_words(facts),
        "correlation": facts.correlation,
        "places": facts.places,
        "predicted": facts.predicted,
        "expected": {"mean": facts.expected, "low": facts.low, "high": facts.high},
        "best_run": facts.best_run,
        "runs": facts.n_runs,
        "selected": facts.selection.subset,
        "how": facts.selection.how,
        "everything": {"value": facts.everything, "measured": facts.everything_measured},
    }


# ---- how far to trust it, and whether to measure more ----------------------------------------------------


def level_of(facts: Facts) -> str:
    """Return in a word or two how far predictions of a target can be trusted."""
    if facts.complete:
        return "all measured"
    words = (word for (bound, _), word in zip(TRUST, IN_A_WORD, strict=True) if facts.correlation >= bound)
    return next(words, "unchecked")


def trust_in_words(facts: Facts) -> str:
    """Return how far predictions of a target can be trusted.

    Where every subset was measured, nothing has to be predicted.
    """
    if facts.complete:
        noise = "Without repeated runs, noise cannot be told from effects."
        if math.isfinite(facts.ceiling):
            noise = f"Repeated runs allow a rank correlation of at most {facts.ceiling:.2f}."
        return f"Every subset like these was measured, so no answer is extrapolated. {noise}"
    if math.isnan(facts.correlation):
        return UNCHECKED
    return trust(facts.correlation, facts.n_subsets, error=facts.error)


def more_runs_in_words(facts: Facts) -> str:
    """Return whether more runs would help."""
    if facts.complete:
        return ALL_MEASURED
    if facts.curve is None:
        why = "Too few runs to tell" if facts.n_runs <= CURVE_RUNS else "Not checked with this many runs"
        return f"{why} whether more would help."
    return facts.curve.in_words()


def next_in_words(facts: Facts, n: int) -> str:
    """Return what the n suggested runs are for."""
    runs = f"These {n} runs" if n > 1 else "This run"
    teach = "would teach most about all subsets like the measured ones."
    if facts.curve is not None and facts.curve.per_doubling <= NEGLIGIBLE:
        return f"More runs of this kind would add little. If you make some anyway, {runs.lower()} {teach}"
    return f"{runs} {teach}"


# ---- what tasks do ---------------------------------------------------------------------------------------


def tasks_in_words(scores: Attribution, target: int) -> list[Phrase]:
    """Return who helps, who hurts, and how many are unclear."""
    words = scores.verdicts()[:, target]
    goodness = scores.scores[:, target] * (1 if scores.maximize[target] else -1)
    order = np.argsort(-goodness, kind="stable")
    good = [scores.task_names[k] for k in order if words[k] == scores.words[0]]
    bad = [scores.task_names[k] for k in order[::-1] if words[k] == scores.words[1]]
    unclear = len(words) - len(good) - len(bad)
    phrases: list[Phrase] = [(f"For {scores.target_names[target]} ({direction(scores.maximize[target])}), ", "")]
    if not good and not bad:
        said = "help or hurt" if scores.words[0] == HELPS else "be better or worse than others"
        return [*phrases, ("no task", "key"), (f" can be said to {said} from these runs.", "")]
    if good:
        phrases += [*_listed(good, "good"), (f" {_verb(scores.words[0], good)}", "")]
    if bad:
        phrases += [("; ", "")] if good else []
        phrases += [*_listed(bad, "bad"), (f" {_verb(scores.words[1], bad)}", "")]
    if unclear:
        phrases.append((f"; the other {'is' if unclear == 1 else f'{unclear} are'} unclear", ""))
    return [*phrases, (".", "")]


def _verb(word: str, names: Sequence[str]) -> str:
    """A verdict about these tasks: "helps" or "help", "is better than others" or "are"."""
    if word in (HELPS, HURTS):
        return word if len(names) == 1 else word.removesuffix("s")
    return f"{'is' if len(names) == 1 else 'are'} {word}"


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


# ---- which subset to use ---------------------------------------------------------------------------------


def subset_in_words(facts: Facts, runs: Outcomes) -> list[Phrase]:
    """Return which subset to use, what to expect of it, and how that compares with the best run."""
    places, chosen = facts.places, facts.selection.tasks
    named = in_words(facts.selection.subset, runs.task_names, binary=runs.is_binary, limit=8)
    phrases: list[Phrase] = [("Use ", ""), (named, "key")]
    if runs.is_binary and 0 < len(chosen) < runs.n_tasks:
        phrases.append((f" ({len(chosen)} of {counted(runs.n_tasks, 'task')})", ""))
    known = math.isfinite(facts.low)
    interval = f" ({LEVEL:.0%} interval {span(facts.low, facts.high, places)})" if known else ""
    phrases += [(f": expected {facts.target} ", ""), (number(facts.expected, places), "key"), (interval, "")]
    return [*phrases, (_compared(facts), "")]


def _compared(facts: Facts) -> str:
    places = facts.places
    if not math.isfinite(facts.best_run):
        return "."
    measured = f"the best of {counted(facts.n_runs, 'run')} ({number(facts.best_run, places)})"
    # Of the numbers as they are shown, so that the sentence adds up.
    gain = (round(facts.expected, places) - round(facts.best_run, places)) * (1 if facts.up else -1)
    if gain == 0 or facts.low <= facts.best_run <= facts.high:
        return f", about as good as {measured}."
    if gain > 0:
        return f", better by {number(gain, places)} than {measured}."
    return f", worse than {measured}, which was partly chance."


def _in_short(facts: Facts, runs: Outcomes, scores: Attribution) -> str:
    """The subset in a few words: of many tasks, those that help most come first."""
    goodness = scores.scores[:, scores.target_names.index(facts.target)] * (1 if facts.up else -1)
    order = np.argsort(-goodness, kind="stable")
    names = [runs.task_names[k] for k in order]
    return in_words(facts.selection.subset[order], names, binary=runs.is_binary, limit=3)
