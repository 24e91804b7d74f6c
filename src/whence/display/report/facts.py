"""What is known of one target: the numbers that every sentence of the page about it is made from.

Each number is what the library returns for the same question (`whence.select`, `Model.predict`, `Trial.lds`, the noise
ceiling, the learning curve); nothing is computed in another way here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import comb

import numpy as np

from whence.answers.selection import Selection
from whence.display.numbers import decimals
from whence.errors import InputError
from whence.evaluation import LearningCurve
from whence.evaluation.ceiling import Ceiling
from whence.surrogates.model import Model


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
        predicted=float(found.predicted[target]),
        expected=float(found.expected[target]),
        low=float(found.low[target]),
        high=float(found.high[target]),
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
