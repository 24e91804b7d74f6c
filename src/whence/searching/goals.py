"""The rules by which the next run is chosen, one for each goal.

best
    Augmented expected improvement (Huang et al. 2006): how much better than the best known row a row is expected to be,
    times 1 − noise std / std of a new run, so a row is repeated only where noise hides what it is worth; the
    mean of it on the scale of the outcomes and on that of their ranks, each as a share of its greatest value. Once a
    repeated run came out the same, runs have no noise: the best outcome is the one to beat, and what the process takes
    for noise is a part of what a new row may give.
effects
    The run that most reduces the variance of those effects of tasks and pairs whose sign is not settled at 90%.
prediction
    The run that most reduces the mean variance of predictions over the allowed rows.

All are multiplied by the chance that the run succeeds. Each is a function of what is known when it is asked, and of a
seed: the same runs lead to the same decision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from whence.answers.attribution import attribute
from whence.answers.interactions import interactions
from whence.errors import DataWarning, counted
from whence.outcomes.table import distinct_rows
from whence.searching.belief import FEWEST, Belief, Known
from whence.searching.space import DRAWN, Space
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

GOALS = {
    "best": "the best subset or mixture",
    "effects": "who helps and who hurts",
    "prediction": "what any allowed subset gives",
}
JOINT = 400  # rows that are looked at together
ROUNDS = 8  # of looking around the most promising rows
STARTS = 3
MOST_PAIRS = 100
DRAWS = 2000
LEVEL = 0.9
HALF_WIDTH = float(ndtri((1 + LEVEL) / 2))
# With few runs a process is too sure of itself, less so where its hyperparameters are drawn. Set on simulated functions
# and on tables, where what is said to be 90% sure then is (benchmarks/results/search.md).
TUNED, DRAWN_ONES = 2.0, 1.0


def stretch(known: Known, runs_per_task: float) -> float:
    """Return what the std of a process is multiplied with before it says how sure it is: 1 + (c K / runs)²."""
    return 1.0 + float(runs_per_task * known.rows.shape[1] / len(known.rows)) ** 2


@dataclass(frozen=True)
class Choice:
    """The row to run next (K,), and why, in words."""

    row: Array
    why: str


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


def next_row(
    goal: str, space: Space, belief: Belief, rng: np.random.Generator, show: Callable[[float], str] = "{:.4g}".format
) -> Choice | None:
    """Return the next row to run; None if no other run would be informative.

    ``show`` writes a goodness as the value that was measured.
    """
    if len(belief.known.rows) < FEWEST:
        return _unseen(space, belief.known, rng, "too few runs to learn from: a row unlike the others")
    if np.ptp(belief.goodness, axis=0).max() == 0:
        return _unseen(space, belief.known, rng, "all runs came out alike: a row unlike the others")
    if goal == "best":
        return _improving(belief, space, rng, show)
    return _teaching(belief, space, rng, effects=goal == "effects")


def _unseen(space: Space, known: Known, rng: np.random.Generator, why: str) -> Choice | None:
    """Return an allowed row that is far from those that were tried."""
    pool = space.draw(DRAWN, rng)
    tried = np.vstack([known.rows, known.failed, known.running])
    distance = abs(pool[:, None] - tried[None]).sum(2).min(1) if len(tried) else np.ones(len(pool))
    worth = np.where(distance > 0, known.weighed(distance, pool), -np.inf)
    return Choice(pool[worth.argmax()], why) if worth.max() > -np.inf else None


def _improving(belief: Belief, space: Space, rng: np.random.Generator, show: Callable[[float], str]) -> Choice | None:
    known = belief.known
    measured = known.rows[distinct_rows(known.rows)[0]]
    exact = known.deterministic
    incumbents = [float((scale.goodness if exact else scale.moments(measured)[0]).max()) for scale in belief.scales]
    closed = np.vstack([known.running, known.failed, measured if exact else measured[:0]])

    def improvements(rows: Array) -> Array:
        found = []
        for scale, incumbent in zip(belief.scales, incumbents, strict=True):
            mean, std = (part.reshape(-1) for part in scale.moments(rows))
            of_run = np.sqrt(scale.noise + std**2)
            gain = _expected_improvement(mean - incumbent, of_run if exact else std)
            found.append(gain if exact else gain * (1 - np.sqrt(scale.noise) / of_run))
        return np.array(found)  # (scales, n)

    pool = np.vstack([space.draw(DRAWN, rng), measured])
    greatest = np.maximum(improvements(pool).max(1, keepdims=True), 1e-300)

    def worth(rows: Array) -> Array:
        shares = known.weighed((improvements(rows) / greatest).mean(0), rows)
        return np.where(among(rows, closed), -np.inf, shares)

    row, best = climb(worth, pool, space, rng)
    if not best > -np.inf:
        return None
    mean, std = (part.reshape(-1)[0] for part in belief.moments(row[None]))
    again = int((known.rows == row).all(1).sum())
    predicted = f"predicted {show(float(mean))} ± {std:.2g}"
    if again:
        runs = counted(again, "run")
        return Choice(row, f"repeat: {runs} of it cannot tell it from the best yet, {predicted}")
    chance = float(known.chance(row[None])[0])
    doubt = f"; {1 - chance:.0%} chance to fail" if chance < 0.9 else ""
    incumbent = show(incumbents[0])
    return Choice(row, f"may beat the best, {incumbent}: {predicted}{doubt}")


def _expected_improvement(ahead: Array, std: Array) -> Array:
    z = ahead / np.maximum(std, 1e-300)
    relative = z * ndtr(z) + np.exp(-np.minimum(z**2, 1400) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(std * np.maximum(relative, 0))


def climb(worth: Callable[[Array], Array], pool: Array, space: Space, rng: np.random.Generator) -> tuple[Array, float]:
    """Return the row of greatest worth among a pool and what lies near its best rows, and its worth."""
    pool = pool[distinct_rows(pool)[0]]
    seen, values = {row.tobytes() for row in pool}, worth(pool)
    row, best = pool[values.argmax()], float(values.max())
    for _ in range(ROUNDS):
        tops = pool[np.argsort(-values, kind="stable")[:STARTS]]
        near = np.vstack([space.near(top, rng) for top in tops]) + 0.0
        fresh = np.array([each.tobytes() not in seen for each in near], dtype=bool)
        if not fresh.any():
            break
        pool = near[fresh][distinct_rows(near[fresh])[0]]
        seen |= {each.tobytes() for each in pool}
        values = worth(pool)
        if not values.max() > best:
            break
        row, best = pool[values.argmax()], float(values.max())
    return row, best


def among(rows: Array, others: Array) -> Array:
    """Return which rows are among others, (n,) bool."""
    known = {row.tobytes() for row in np.add(others, 0.0, order="C")}
    return np.array([row.tobytes() in known for row in np.add(rows, 0.0, order="C")], dtype=bool)


def some_rows(space: Space, rng: np.random.Generator) -> Array:
    """Return rows that stand for the space."""
    pool = space.draw(DRAWN, rng)
    return np.asarray(pool[rng.permutation(len(pool))[:JOINT]])


def _teaching(belief: Belief, space: Space, rng: np.random.Generator, *, effects: bool) -> Choice | None:
    known, pool = belief.known, some_rows(space, rng)
    mean, covariance, noise = belief.joint(pool)
    unit = belief.unit(pool, covariance, noise)
    if effects:
        contrasts, _ = contrasts_of(pool)
        settled = _settled(contrasts, mean, covariance, stretch(known, TUNED) * unit)
        if settled.all():
            settled[:] = False
        about = contrasts[~settled] @ covariance
        n_tasks = pool.shape[1]
        open_tasks, open_pairs = int((~settled[:n_tasks]).sum()), int((~settled[n_tasks:]).sum())
        counts = ((open_tasks, "task"), (open_pairs, "pair"))
        open_ones = " and ".join(counted(count, what) for count, what in counts if count)
        why = f"tells most about {open_ones} whose effect is open"
    else:
        about = covariance
        typical = float(np.sqrt(np.maximum(np.diag(covariance), 0)).mean() * unit.mean())
        why = f"most reduces the error of predictions, now ± {typical:.2g}"
    gain = known.weighed((about**2).sum(0) / (np.maximum(np.diag(covariance), 0) + noise), pool)
    closed = np.vstack([known.running, known.failed, known.rows if known.deterministic else known.rows[:0]])
    gain[among(pool, closed)] = -np.inf
    return Choice(pool[gain.argmax()], why) if gain.max() > -np.inf else None


def contrasts_of(pool: Array) -> tuple[Array, list[tuple[int, int]]]:
    """Return which combinations of the outcomes of a pool are the effects of tasks and of pairs, (E, n), and the pairs.

    They are the coefficients of a least-squares fit to the outcomes of the pool: the average change by a task, and by
    two together beyond what each does. Pairs are left out where there are many.
    """
    n_tasks = pool.shape[1]
    pairs = list(combinations(range(n_tasks), 2))
    if len(pairs) > MOST_PAIRS or len(pool) < 2 * (len(pairs) + n_tasks) or not np.isin(pool, (0.0, 1.0)).all():
        pairs = []
    centred = pool - pool.mean(0)
    products = [centred[:, a] * centred[:, b] for a, b in pairs]
    features = np.column_stack([np.ones(len(pool)), centred, *products])
    return np.linalg.pinv(features)[1:], pairs


def _settled(contrasts: Array, mean: Array, covariance: Array, unit: Array) -> NDArray[np.bool_]:
    """Return which effects have a sign at 90%, or are known to be small, for every target, (E,) bool."""
    effect = contrasts @ mean
    std = np.sqrt(np.maximum(np.einsum("ei,ij,ej->e", contrasts, covariance, contrasts), 0))[:, None] * unit
    half_width = HALF_WIDTH * std
    small = 0.1 * mean.std(0)
    return np.asarray(((abs(effect) > half_width) | (abs(effect) + half_width < small)).all(1))


# ---- how sure -------------------------------------------------------------------------------------------------


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

    The process has drawn hyperparameters (:mod:`.drawn`), unless there are estimates.
    """
    known, row = belief.known, named_row(space, belief, rng)
    wider = stretch(known, TUNED)
    if not belief.rungs:
        belief, wider = replace(belief, drawn=True), stretch(known, DRAWN_ONES)
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


def share_settled(model: Model) -> tuple[float, float, int]:
    """Return the share of effects of tasks and pairs that are settled, that with twice the runs, and their number.

    An effect is settled where its 90% interval, which holds on simulated tables (benchmarks/results/calibration.md),
    excludes zero, or lies within a tenth of the std of the outcome. Of twice the runs it is expected that they make
    intervals narrower by the square root of 2.
    """
    binary = model.outcomes.is_binary
    small = 0.1 * np.nanstd(model.outcomes.values, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        found = [attribute(model, "shapley" if binary else "shift"), *([interactions(model)] if binary else [])]
    settled = []
    for each in found:
        ends = np.stack(each.interval())
        low, high = np.stack([ends, each.scores + (ends - each.scores) / np.sqrt(2)], axis=1)
        sure = ((low > 0) | (high < 0) | ((low > -small) & (high < small))).all(-1)
        settled.append(sure if each.order == 1 else sure[(slice(None), *np.triu_indices(sure.shape[1], 1))])
    every = np.concatenate(settled, axis=1)
    now, doubled = every.mean(1).tolist()
    return now, doubled, every.shape[1]


def prediction_error(space: Space, belief: Belief, rng: np.random.Generator) -> float:
    """Return the std of predictions over the allowed rows as a share of that of outcomes, the mean over targets."""
    pool = some_rows(space, rng)
    mean, std = belief.moments(pool)
    return float((np.sqrt((std**2).mean(0)) / np.maximum(np.hypot(mean.std(0), std.mean(0)), 1e-300)).mean())
