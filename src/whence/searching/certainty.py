"""How sure an answer is: the best row and its probability, effects that are settled, and the error of predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from whence.answers.attribution import attribute
from whence.answers.interactions import interactions
from whence.errors import DataWarning
from whence.outcomes.table import distinct_rows
from whence.searching.belief import DRAWN_ONES, Belief
from whence.searching.goals import JOINT, climb, some_rows
from whence.searching.space import DRAWN, Space
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

DRAWS = 2000


@dataclass(frozen=True)
class Best:
    """The best allowed row (K,) by current belief, and its probability.

    ``sure`` is the probability that it is within ``within`` of the best allowed row, and ``gain`` how much better that
    one is expected to be, by the process as it is.
    """

    row: Array
    sure: float
    gain: float
    within: float


def named_row(space: Space, belief: Belief, rng: np.random.Generator) -> Array:
    """Return the best measured row, (K,): by the mean of both scales, or by its outcome if runs have no noise.

    A row that was never run is named only where no measured one is allowed: what looks better is run next, and rows
    that only look better are often worse (benchmarks/results/search.md).
    """
    known = belief.known
    allowed = space.allow(known.rows)
    if allowed.any() and known.deterministic:
        return np.asarray(known.rows[allowed][belief.goodness[allowed, 0].argmax()])
    measured = known.rows[distinct_rows(known.rows)[0]]
    measured = measured[space.allow(measured)]

    def mean_of(rows: Array) -> Array:
        mean = np.mean([scale.standardized(scale.moments(rows)[0])[:, 0] for scale in belief.scales], axis=0)
        return np.where(known.chance(rows) < 0.5, -np.inf, mean) if len(known.failed) else mean

    if len(measured):
        return np.asarray(measured[int(mean_of(measured).argmax())])
    return climb(mean_of, space.draw(DRAWN, rng), space, rng)[0]


def best_row(space: Space, belief: Belief, within: float | None, rng: np.random.Generator) -> Best:
    """Return the row to name, and how sure it is to be as good as the best, from draws over promising rows.

    The process has drawn hyperparameters (:mod:`.drawn`). With estimates it is the fused one as it is.
    """
    known, row, wider = belief.known, named_row(space, belief, rng), 1.0
    if not belief.rungs:
        belief, wider = replace(belief, drawn=True), known.stretch(DRAWN_ONES)
    measured = known.rows[distinct_rows(known.rows)[0]]
    pool = np.vstack([measured[space.allow(measured)], space.draw(DRAWN, rng)])
    mean, std = (part[:, 0] for part in belief.moments(pool))
    if within is None:
        within = 0.1 * float(mean.std())
    tops = pool[np.argsort(-(mean + 2 * std), kind="stable")[:JOINT]]
    rows = np.vstack([row, tops])
    mean, covariance, noise = belief.joint(rows)
    unit = float(belief.unit(rows, covariance, noise)[0])
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    off = unit * (rng.standard_normal((DRAWS, len(rows))) @ root.T)
    plain, stretched = ((drawn.max(1) - drawn[:, 0]) for drawn in (mean[:, 0] + by * off for by in (1, wider)))
    return Best(row, float((stretched <= within).mean()), float(plain.mean()), within)


def share_settled(model: Model, space: Space, rng: np.random.Generator) -> tuple[float, float, int]:
    """Return the share of effects of tasks and pairs that are settled, that with twice the runs, and their number.

    Tasks that are in every allowed row, or in none, have no effect to settle. An effect is settled where its 90%
    interval, which holds on simulated tables (benchmarks/results/calibration.md), excludes zero, or lies within a tenth
    of the std of the outcome. Of twice the runs it is expected that they make intervals narrower by the square root
    of 2.
    """
    binary, varies = model.outcomes.is_binary, np.ptp(space.draw(DRAWN, rng), axis=0) > 0
    small = 0.1 * np.nanstd(model.outcomes.values, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        found = [attribute(model), *([interactions(model)] if binary else [])]
    settled = []
    for each in found:
        ends = np.stack(each.interval())
        low, high = np.stack([ends, each.scores + (ends - each.scores) / np.sqrt(2)], axis=1)
        sure = ((low > 0) | (high < 0) | ((low > -small) & (high < small))).all(-1)
        pairs = np.argwhere(np.triu(np.outer(varies, varies), 1)).T
        settled.append(sure[:, varies] if each.order == 1 else sure[:, pairs[0], pairs[1]])
    every = np.concatenate(settled, axis=1)
    now, doubled = every.mean(1).tolist() if every.size else (1.0, 1.0)
    return now, doubled, every.shape[1]


def prediction_error(space: Space, belief: Belief, rng: np.random.Generator) -> float:
    """Return the std of predictions over the allowed rows as a share of that of outcomes, the mean over targets."""
    pool = some_rows(space, rng)
    mean, std = belief.moments(pool)
    return float((np.sqrt((std**2).mean(0)) / np.maximum(np.hypot(mean.std(0), std.mean(0)), 1e-300)).mean())
